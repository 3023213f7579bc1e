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
};

/// A tensor that a configuration calls for.
struct ExpectedTensor {
  std::string name;                 ///< as Checkpoint has it
  std::vector<std::int64_t> shape;  ///< (out_features, in_features), or (features) of a vector
  SplitAxis split = SplitAxis::kNone;
};

/// All tensors that `config` calls for, from the embedding to the output head. This is the one list of them.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

}  // namespace tessera
