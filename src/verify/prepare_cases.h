#pragma once

#include <span>
#include <string>

#include "verify/attention_case.h"
#include "verify/verify.h"

namespace tessera {

/// Loads what a GPU's backend runs the cases with, on all threads: kernels are compiled side by side, where
/// each case would wait for its own. Nothing for backends on the CPU. What fails is left for the case, which
/// reports it.
void prepare_cases(std::span<const AttentionCase> cases, const std::string& backend,
                   const VerifyMemory& memory);

}  // namespace tessera
