#pragma once

#include "ops/arguments.h"

namespace tessera::cpu {

/// Draws the tokens of valid arguments. Throws Error{kInvalidArgument} if a logit is NaN or +inf, or all of a
/// sequence's are -inf.
void sample(const SampleArguments& arguments);

}  // namespace tessera::cpu
