#pragma once

#include <cstdint>

#include "modifier/parse.h"
#include "tessera/attention.h"

namespace tessera::modifier {

/// What bounds a call's variables.
struct Lengths {
  std::int64_t batch = 0;
  std::int64_t seq_len_q = 0;   ///< the most of any sequence
  std::int64_t seq_len_kv = 0;  ///< likewise
  int num_heads = 0;
  int num_kv_heads = 0;
};

/// Checks that no division is by what may be 0 and that no int32 made of indices, lengths, scalars and
/// literals can leave its range. Numbers from tensors and from int(…) of fp32 may be any, and arithmetic with
/// them wraps around. Throws as fail_at.
void check_ranges(const ScoreModifier& modifier, const Parsed& parsed, const Lengths& lengths);

}  // namespace tessera::modifier
