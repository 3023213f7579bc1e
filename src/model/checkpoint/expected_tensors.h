#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace tessera {

/// Along which axis several devices could share a tensor, so that each computes with its part alone until the
/// parts' results are added or put side by side (tensor parallelism, Shoeybi et al., 2019).
enum class SplitAxis {
  kNone,     ///< every device needs all of it
  kRows,     ///< output features, heads or tokens
  kColumns,  ///< input features: the products are sums of the parts' products
  kExperts,  ///< the first: each computes with experts of its own
};

/// A tensor that a configuration calls for.
struct ExpectedTensor {
  std::string name;  ///< as Checkpoint has it
  /// (out_features, in_features), or (features) of a vector; of experts with their number before it.
  std::vector<std::int64_t> shape;
  SplitAxis split = SplitAxis::kNone;
};

/// Whether a tensor of Checkpoint's name and so many dimensions is a matrix or several, not a vector or
/// biases.
bool is_matrix(std::string_view name, std::size_t num_dimensions);
/// Whether it is the router of a mixture of experts, whose type says nothing about the model's others.
bool is_router(std::string_view name);
/// Whether it is that of a mixture's experts.
bool is_of_experts(std::string_view name);

/// All tensors that `config` calls for, from the embedding to the output head. This is the one list of them.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

}  // namespace tessera
