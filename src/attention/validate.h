#pragma once

#include "tessera/attention.h"

namespace tessera {

/// validate() of attention.h for a merge: throws Error{kInvalidArgument} that names field, value and
/// expectation.
void validate(const MergeStatesProblem& problem);

}  // namespace tessera
