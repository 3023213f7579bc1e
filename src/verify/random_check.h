#pragma once

#include <string>

#include "verify/random_case.h"
#include "verify/verify.h"

namespace tessera {

/// Runs a random case in all the ways that it asks for and compares every number with its own bound
/// (attention_bounds.h). result.error and result.bound are those of the number that comes nearest to its
/// bound, or is furthest beyond. Throws Error only for what makes no sense.
void check_random_case(const RandomCase& random_case, const std::string& backend, const VerifyMemory& memory,
                       VerifyResult& result);

/// The same, with an Error as a failure.
VerifyResult run_random_case(const RandomCase& random_case, const std::string& backend,
                             const VerifyMemory& memory);

}  // namespace tessera
