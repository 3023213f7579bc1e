#pragma once

#include "tessera/attention.h"
#include "tessera/tessera.h"

namespace tessera::c_api {

/// Each throws Error{kInvalidArgument} for a struct of a wrong size, flags that this version doesn't know and
/// numbers that are no type, device or alignment; whether the problem makes sense is validate()'s.
AttentionProblem attention_problem(const tessera_attention_problem* given);
AttentionOptions attention_options(const tessera_attention_options* given);
MergeStatesProblem merge_states_problem(const tessera_merge_states_problem* given);

}  // namespace tessera::c_api
