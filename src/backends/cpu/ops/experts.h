#pragma once

#include "ops/arguments.h"

namespace tessera::cpu {

// Mixtures of experts, of valid arguments.

void route_experts(const RouteExpertsArguments& arguments);

/// A product for each expert that has slots, of its slots' rows together.
void expert_gemm(const ExpertGemmArguments& arguments);

void combine_experts(const CombineExpertsArguments& arguments);

}  // namespace tessera::cpu
