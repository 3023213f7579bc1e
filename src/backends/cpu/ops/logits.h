#pragma once

#include "ops/arguments.h"

namespace tessera::cpu {

// For valid arguments; a sequence is one task.

void adjust_logits(const AdjustLogitsArguments& arguments);
void logprobs(const LogprobsArguments& arguments);

}  // namespace tessera::cpu
