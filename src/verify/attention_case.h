#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/attention.h"
#include "verify/modifier_example.h"

namespace tessera {

/// How the tokens, heads and elements of q, k, v and o follow one another in memory.
enum class StrideStyle {
  kBatchSeqHeads,
  kBatchHeadsSeq,
  kPacked,  ///< (batch, seq, heads * head_dim) as a slice of wider rows
  kOdd,     ///< a gap after every dimension and a start that is aligned to nothing but one element
};

enum class KvStorage { kDense, kPadded, kRagged, kPaged };

/// What stored queries, or keys and values, of 8 bits are multiplied by.
enum class KvScaling {
  kNone,
  kTensor,    ///< one scale
  kHead,      ///< one a kv head
  kPageHead,  ///< one a page and kv head; a sequence and kv head of dense keys, and of queries
};

/// What the numbers are.
enum class Content {
  kNormal,           ///< independent normal deviates
  kEqualLogits,      ///< all keys of a sequence are the same
  kConstantValue,    ///< all values of a sequence are the same: the output is that value
  kNanInHiddenKeys,  ///< k and v are NaN wherever no query sees the key
  kNanInLastKeys,    ///< the last three keys hold NaN: queries that see them become NaN, and only those
  kNanInKeys,        ///< every k is NaN, no v: rows with a visible key become NaN, the others stay empty
  kNanInValues,      ///< one v in eight rows is NaN: its column becomes NaN for queries that see the row
  kNanInOneValue,    ///< v is NaN in the middle key, whose k is 0: beside large scores it weighs nothing
  kInfiniteKeys,     ///< every third key has an infinite element in k, every ninth infinite v
  kLargestValues,    ///< v is up to the dtype's largest number
  kHeavyZeros,       ///< every fifth key weighs more than all others, and its v is 0: small weights are all
};

/// An additive or boolean mask.
struct MaskRecipe {
  DType dtype = DType::kF32;
  bool per_batch = false;
  bool per_head = false;
  bool per_query = false;
  double hidden_share = 0.3;  ///< of the entries: -inf or false
  std::int64_t kv_stride = 1;
  bool is_aligned = false;  ///< rows start at multiples of 16 bytes, as what copies tiles of a mask wants
  /// Hidden entries of an additive mask are its type's lowest number: a row that sees no others sees all
  /// alike.
  bool hides_by_lowest = false;

  friend bool operator==(const MaskRecipe&, const MaskRecipe&) = default;
};

/// A problem and its data, described.
struct AttentionCase {
  std::string name;
  bool quick = false;
  DType dtype = DType::kF32;
  std::int64_t batch = 2;
  std::int64_t seq_len_q = 37;
  std::int64_t seq_len_kv = 83;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim_qk = 64;
  int head_dim_v = 64;

  StrideStyle strides = StrideStyle::kBatchSeqHeads;
  std::vector<std::int64_t> lens_q;  ///< not empty: ragged queries of these lengths
  KvStorage kv_storage = KvStorage::kDense;
  std::vector<std::int64_t> lens_kv;  ///< keys of each sequence, unless dense
  int page_size = 16;
  std::optional<DType> kv_dtype;  ///< of k and v as stored; none: dtype
  KvScaling kv_scaling = KvScaling::kNone;
  bool narrow_q = false;  ///< q is stored in kv_dtype, too; dtype is o's
  KvScaling q_scaling = KvScaling::kNone;
  bool shared_kv = false;       ///< all sequences read the same keys, by a batch stride of 0
  bool values_in_keys = false;  ///< v is the first head_dim_v elements of k's rows, in k's memory

  std::optional<float> softmax_scale;
  std::optional<float> softcap;
  bool alibi = false;
  bool alibi_per_batch = false;
  bool sinks = false;
  std::optional<MaskRecipe> additive_mask;
  std::optional<MaskRecipe> boolean_mask;
  std::optional<DiagonalMask> diagonal;
  ModifierExample modifier = ModifierExample::kNone;

  Content content = Content::kNormal;
  double logit_spread = 1;  ///< standard deviation of q, which is that of the scores by the default scale
  double k_spread = 1;      ///< standard deviation of k
  double v_spread = 1;      ///< standard deviation of v
  int exponent_spread = 0;  ///< every number times a power of two of its own, from -this to this
  unsigned seed = 1;        ///< of the numbers
  bool with_lse = true;
  bool batch_invariant = false;

  friend bool operator==(const AttentionCase&, const AttentionCase&) = default;
};

}  // namespace tessera
