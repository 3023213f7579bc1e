#pragma once

#include "ops/arguments.h"

namespace tessera {

// Checks of the kernels' arguments, the same for every backend. Each throws Error{kInvalidArgument} that
// names the argument, its value and what was expected. Sizes of zero tokens are valid: nothing is computed.

/// Which dtypes activations may have: the reference also computes with fp64.
enum class ActivationDTypes { kDevice, kDeviceOrF64 };

// Looks at the description only, so it works for any device's pointers.
void validate(const EmbeddingArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const RmsNormArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const LayerNormArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const GemmArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const NormedGemmArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const RopeArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const RopeAppendArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const GatedActivationArguments& arguments,
              ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const RouteExpertsArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const ExpertGemmArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const CombineExpertsArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const CausalConvArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const GatedDeltaArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const SoftmaxArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const ScaleArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const SoftcapArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const CausalMaskArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const AdjustLogitsArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const SampleArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const LogprobsArguments& arguments, ActivationDTypes allowed = ActivationDTypes::kDevice);
void validate(const HostWeight& weight);

// Looks at arrays that are in host memory: token ids, positions, the block table, sampling parameters. The
// description must be valid.
void validate_contents(const EmbeddingArguments& arguments);
void validate_contents(const RopeAppendArguments& arguments);
void validate_contents(const ExpertGemmArguments& arguments);
/// Throws Error{kUnsupported} for an activation or sums that only some devices have kernels for.
void refuse_fused(const ExpertGemmArguments& arguments);
void validate_contents(const CausalConvArguments& arguments);
void validate_contents(const GatedDeltaArguments& arguments);
void validate_contents(const AdjustLogitsArguments& arguments);
void validate_contents(const SampleArguments& arguments);

}  // namespace tessera
