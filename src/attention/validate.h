#pragma once

#include "tessera/attention.h"

namespace tessera {

/// Checks the pointers of a problem whose sizes and dtypes are valid: none null that is followed, each a
/// multiple of its elements' size, and, in CPU memory, lengths and pages within the tensors. Throws like
/// validate().
void validate_pointers(const AttentionProblem& problem);

/// validate() of attention.h for a merge: throws Error{kInvalidArgument} that names field, value and
/// expectation.
void validate(const MergeStatesProblem& problem);

/// The same of a merge's pointers.
void validate_pointers(const MergeStatesProblem& problem);

}  // namespace tessera
