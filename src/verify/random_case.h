#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "verify/attention_case.h"

namespace tessera {

/// A random problem and how it is run.
struct RandomCase {
  AttentionCase attention;
  bool host_tensors = false;  ///< tensors in main memory, whatever the backend computes on
  bool replayed = false;      ///< also recorded as a graph and replayed, where the device has graphs
  bool repeated = false;      ///< also called behind another problem with the same workspace
  int num_splits = 0;         ///< AttentionConfig's, for backends that split keys
};

/// What random problems are drawn from.
struct RandomLimits {
  /// Multiply-adds of a problem: 5 % of problems use up to ten times as many.
  double multiply_adds = 1e7;
  bool takes_f64 = false;
  bool takes_modifiers = true;
};

/// Problem `index` of a seed: always the same.
RandomCase draw_random_case(std::uint64_t seed, std::uint64_t index, const RandomLimits& limits);

/// The case in one line, "dtype=bf16 batch=2 …": what differs from a default RandomCase.
std::string to_text(const RandomCase& random_case);

/// The inverse of to_text. Throws Error{kInvalidArgument} that names the field for text that describes no
/// case, or one whose tensors would take more than some gigabytes.
RandomCase parse_random_case(std::string_view text);

}  // namespace tessera
