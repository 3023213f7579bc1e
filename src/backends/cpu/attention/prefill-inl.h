// A tile of many queries: fused attention with the rows (queries) in the lanes of the vectors, so that
// neither product needs a transposed k or v and the softmax needs no reduction across lanes. Included once
// for each target.
//
//   for each block of keys:                      all row blocks of the tile share the packed k and v
//     pack k and v
//     for each row block:                        s = [keys][rows], o = [head_dim_v][rows]
//       s = k q^T;  mask;  online softmax: p = exp(s - max);  o = exp(old max - max) o + v^T p
//
// Dao et al., "FlashAttention" (2022), section 3.1; Milakov and Gimelshein, "Online normalizer calculation
// for softmax" (2018).
//
// What a row computes does not depend on the other lanes, nor on where its tile begins: blocks of keys start
// at multiples of block_n, the sums run over the keys in ascending order, and a key that is hidden from the
// row adds exactly nothing.
#if defined(TESSERA_CPU_ATTENTION_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_PREFILL_INL_H_
#undef TESSERA_CPU_ATTENTION_PREFILL_INL_H_
#else
#define TESSERA_CPU_ATTENTION_PREFILL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "attention/narrow.h"
#include "attention/token_rows.h"
#include "backends/cpu/attention/bias-inl.h"
#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/math-inl.h"
#include "backends/cpu/attention/modifier.h"
#include "backends/cpu/attention/rows-inl.h"
#include "backends/cpu/attention/segments-inl.h"
#include "backends/cpu/attention/softcap-inl.h"
#include "backends/cpu/fetch_ahead.h"
#include "backends/cpu/unroll.h"
#include "core/block_format.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Accumulators of a register block: kMaxVectors vectors of rows times kColumns keys or value dimensions.
#if HWY_TARGET == HWY_SCALAR
constexpr int kMaxVectors = 4;
constexpr int kColumns = 4;
#elif HWY_TARGET == HWY_AVX2
constexpr int kMaxVectors = 3;  // 12 accumulators, 3 vectors of rows, 1 broadcast: all 16 registers
constexpr int kColumns = 4;
#else
constexpr int kMaxVectors = 3;
constexpr int kColumns = 8;
#endif
constexpr std::int64_t kRowBlock = kMaxVectors * kLanes;

// Words of q and k whose products are added up in a row.
constexpr std::int64_t kScoreChunk = 32;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

/// ProductArguments for kColumns columns from `column` on and the words [first, last).  kAdjacent: b_column
/// is 1, otherwise b_depth is.
template <int kVectors, bool kAdjacent>
HWY_INLINE void ProductPanel(const ProductArguments& arguments, std::int64_t column, std::int64_t first,
                             std::int64_t last) {
  const Floats d;
  using V = hn::Vec<Floats>;
  const std::int64_t b_column = kAdjacent ? 1 : arguments.b_column;
  const std::int64_t b_depth = kAdjacent ? arguments.b_depth : 1;
  const float* a = reinterpret_cast<const float*>(arguments.a) + first * kRowBlock;
  const float* b = reinterpret_cast<const float*>(arguments.b) + column * b_column + first * b_depth;
  float* c = arguments.c + column * kRowBlock;
  V sum[kColumns][kVectors];
  TESSERA_UNROLL
  for (int j = 0; j < kColumns; ++j) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) sum[j][i] = hn::Zero(d);
  }
  for (std::int64_t t = first; t < last; ++t) {
    V rows[kVectors];
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) rows[i] = hn::Load(d, a + i * kLanes);
    TESSERA_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const V value = hn::Set(d, b[j * b_column]);
      TESSERA_UNROLL
      for (int i = 0; i < kVectors; ++i) sum[j][i] = hn::MulAdd(rows[i], value, sum[j][i]);
    }
    a += kRowBlock;
    b += b_depth;
  }
  TESSERA_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const V factor = arguments.factor == nullptr || first > 0 ? hn::Set(d, 1.0f)
                                                              : hn::Load(d, arguments.factor + i * kLanes);
    TESSERA_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      float* at = c + j * kRowBlock + i * kLanes;
      const bool adds = arguments.factor != nullptr || first > 0;
      hn::Store(adds ? hn::MulAdd(hn::Load(d, at), factor, sum[j][i]) : sum[j][i], d, at);
    }
  }
}

template <int kVectors, bool kAdjacent>
HWY_INLINE void ProductPanels(const ProductArguments& arguments) {
  for (std::int64_t j = 0; j < arguments.columns; j += kColumns) {
    for (std::int64_t t = 0; t < arguments.depth; t += arguments.chunk) {
      ProductPanel<kVectors, kAdjacent>(arguments, j, t, std::min(t + arguments.chunk, arguments.depth));
    }
  }
}

template <int kVectors>
HWY_NOINLINE void Product(const ProductArguments& arguments) {
  if (arguments.b_column == 1) {
    ProductPanels<kVectors, true>(arguments);
  } else {
    ProductPanels<kVectors, false>(arguments);
  }
}

/// s = softcap(scale s) + bias for the keys [begin, end) of a block.
template <int kVectors>
HWY_NOINLINE void TransformScores(const CallContext& call, std::int64_t begin, std::int64_t end,
                                  const float* bias, float* s) {
  const Floats d;
  using V = hn::Vec<Floats>;
  const ScoreScaling scaled(d, call.scale, call.problem->scores.softcap);
  const V hidden = hn::Set(d, kHidden);
  for (std::int64_t n = begin; n < end; ++n) {
    for (int i = 0; i < kVectors; ++i) {
      const std::int64_t at = n * kRowBlock + i * kLanes;
      V x = scaled(hn::Load(d, s + at));
      if (bias != nullptr) {
        const V b = hn::Load(d, bias + at);
        x = hn::IfThenElse(hn::Eq(b, hidden), hidden, hn::Add(x, b));
      }
      hn::Store(x, d, s + at);
    }
  }
}

/// s[n] *= scales[n] for the keys [begin, end) of a block.
template <int kVectors>
HWY_NOINLINE void ScaleKeys(std::int64_t begin, std::int64_t end, const float* scales, float* s) {
  const Floats d;
  for (std::int64_t n = begin; n < end; ++n) {
    const auto scale = hn::Set(d, scales[n]);
    for (int i = 0; i < kVectors; ++i) {
      float* at = s + n * kRowBlock + i * kLanes;
      const auto x = hn::Load(d, at);
      // Beyond fp32, where a small scale would bring it back: NaN, which has the row computed anew.
      hn::Store(hn::MulAdd(x, scale, hn::Sub(x, x)), d, at);
    }
  }
}

/// s = -inf outside each row's [limits[row], limits[kRowBlock + row]) for the keys [begin, end) of a block.
template <int kVectors>
HWY_NOINLINE void HideOutside(const std::int32_t* limits, std::int64_t begin, std::int64_t end, float* s) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  for (int i = 0; i < kVectors; ++i) {
    const auto first = hn::Load(di, limits + i * kLanes);
    const auto last = hn::Load(di, limits + kRowBlock + i * kLanes);
    for (std::int64_t n = begin; n < end; ++n) {
      float* at = s + n * kRowBlock + i * kLanes;
      const auto key = hn::Set(di, static_cast<std::int32_t>(n));
      const auto visible = hn::AndNot(hn::Lt(key, first), hn::Lt(key, last));
      hn::Store(hn::IfThenElse(hn::RebindMask(d, visible), hn::Load(d, at), hn::Set(d, kHidden)), d, at);
    }
  }
}

/// The online softmax over the keys [begin, end) of a block: s becomes exp(scale s - new row_max), `rescale`
/// what the rows' older results have to be multiplied by.
template <int kVectors>
HWY_NOINLINE void SoftmaxStep(std::int64_t begin, std::int64_t end, float scale, float* s, float* row_max,
                              float* row_sum, float* rescale) {
  const Floats d;
  using V = hn::Vec<Floats>;
  const V factor = hn::Set(d, scale);
  const V hidden = hn::Set(d, kHidden);
  V largest[kVectors];
  TESSERA_UNROLL
  for (int i = 0; i < kVectors; ++i) largest[i] = hidden;
  for (std::int64_t n = begin; n < end; ++n) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      largest[i] = hn::Max(largest[i], hn::Load(d, s + n * kRowBlock + i * kLanes));
    }
  }
  V offset[kVectors];
  V sum[kVectors];
  TESSERA_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const V old_max = hn::Load(d, row_max + i * kLanes);
    const V new_max = hn::Max(old_max, hn::Mul(largest[i], factor));
    // A row that has seen no key yet: any finite number in place of -inf keeps exp(-inf - max) = 0.
    offset[i] = hn::IfThenZeroElse(hn::Eq(new_max, hidden), new_max);
    const V correction = Exp(d, hn::Sub(old_max, offset[i]));
    sum[i] = hn::Mul(hn::Load(d, row_sum + i * kLanes), correction);
    hn::Store(new_max, d, row_max + i * kLanes);
    hn::Store(correction, d, rescale + i * kLanes);
  }
  for (std::int64_t n = begin; n < end; ++n) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      float* at = s + n * kRowBlock + i * kLanes;
      const V p = Exp(d, hn::MulSub(hn::Load(d, at), factor, offset[i]));
      sum[i] = hn::Add(sum[i], p);
      hn::Store(p, d, at);
    }
  }
  TESSERA_UNROLL
  for (int i = 0; i < kVectors; ++i) hn::Store(sum[i], d, row_sum + i * kLanes);
}

/// o *= factor for all rows of a block.
template <int kVectors>
HWY_NOINLINE void ScaleRows(const float* factor, std::int64_t columns, float* o) {
  const Floats d;
  for (int i = 0; i < kVectors; ++i) {
    const auto f = hn::Load(d, factor + i * kLanes);
    // Adding 0 makes a zero's sign positive, whatever the order in which it came about.
    for (std::int64_t j = 0; j < columns; ++j) {
      float* at = o + j * kRowBlock + i * kLanes;
      hn::Store(hn::MulAdd(hn::Load(d, at), f, hn::Zero(d)), d, at);
    }
  }
}

/// The steps above for a number of vectors that is known at run time.
struct RowBlockSteps {
  void (*product)(const ProductArguments&);
  void (*transform_scores)(const CallContext&, std::int64_t, std::int64_t, const float*, float*);
  void (*scale_keys)(std::int64_t, std::int64_t, const float*, float*);
  void (*hide_outside)(const std::int32_t*, std::int64_t, std::int64_t, float*);
  void (*softmax_step)(std::int64_t, std::int64_t, float, float*, float*, float*, float*);
  void (*scale_rows)(const float*, std::int64_t, float*);
};

template <int kVectors>
RowBlockSteps MakeRowBlockSteps() {
  return {Product<kVectors>,     TransformScores<kVectors>, ScaleKeys<kVectors>,
          HideOutside<kVectors>, SoftmaxStep<kVectors>,     ScaleRows<kVectors>};
}

HWY_INLINE RowBlockSteps RowBlockStepsFor(std::int64_t vectors) {
  switch (vectors) {
    case 1:
      return MakeRowBlockSteps<1>();
    case 2:
      return MakeRowBlockSteps<2>();
#if HWY_TARGET == HWY_SCALAR
    case 3:
      return MakeRowBlockSteps<3>();
#endif
    default:
      return MakeRowBlockSteps<kMaxVectors>();
  }
}

/// Asks for rows some KiB before they are packed: other heads' lie between them, so that the processor does
/// not foresee them.
class RowsAhead {
 public:
  RowsAhead(const std::byte* const* rows, std::int64_t count, std::int64_t row_bytes)
      : rows_(rows),
        count_(count),
        row_bytes_(row_bytes),
        distance_(std::clamp<std::int64_t>(kBytesAhead / row_bytes, 1, kMaxRowsAhead)) {}

  /// The row that is packed that much later than row n.
  void Fetch(std::int64_t n) const {
    if (n + distance_ >= count_) return;
    const std::byte* row = rows_[n + distance_];
    for (std::int64_t i = 0; i < row_bytes_; i += 64) prefetch_line<CacheLevel::kSecond>(row + i);
    // Rows that don't begin with a line may end in one more.
    prefetch_line<CacheLevel::kSecond>(row + row_bytes_ - 1);
  }

 private:
  static constexpr std::int64_t kBytesAhead = 16 << 10;

  const std::byte* const* rows_;
  std::int64_t count_;
  std::int64_t row_bytes_;
  std::int64_t distance_;
};

/// A prefill tile at work: the parts of its scratch memory by name.
template <class T>
class PrefillTile {
 public:
  PrefillTile(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16)
      : call_(call),
        task_(task),
        bf16_(bf16),
        e4m3_(bf16 != nullptr && call.shape.narrow_kv ? e4m3_dot_kernels(call.target) : nullptr),
        layout_(call.layout),
        o_(Part<float>(layout_.o)),
        row_max_(Part<float>(layout_.row_max)),
        row_sum_(Part<float>(layout_.row_sum)),
        merged_o_(Part<float>(layout_.merged_o)),
        merged_max_(Part<float>(layout_.merged_max)),
        merged_sum_(Part<float>(layout_.merged_sum)),
        rescale_(Part<float>(layout_.rescale)),
        k_(Part<std::uint32_t>(layout_.k)),
        v_(Part<std::uint32_t>(layout_.v)),
        s_(Part<float>(layout_.s)),
        rows_(Part<float>(layout_.rows)),
        row_stride_((std::max(call.shape.head_dim_qk, call.shape.head_dim_v) + 15) / 16 * 16) {}

  void Run() {
    const std::int64_t rows = task_.row_end - task_.row_begin;
    const std::int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
    for (std::int64_t i = 0; i < blocks; ++i) PackQueries(RowBlockAt(i));

    if (call_.modifier != nullptr) {
      modifier_.emplace(call_, blocks, kRowBlock);
      for (std::int64_t i = 0; i < blocks; ++i)
        modifier_->begin_rows(i, task_, RowBlockAt(i).begin, RowBlockAt(i).end);
    }

    bool is_first = true;
    for_segments(
        call_, task_,
        [&](const TileTask& segment) {
          if (!is_first) SwapStates();
          is_first = false;
          AttendSegment(segment, blocks);
        },
        [&] {
          SwapStates();
          for (std::int64_t i = 0; i < blocks; ++i) MergeSegment(RowBlockAt(i));
        });
    for (std::int64_t i = 0; i < blocks; ++i) Finish(RowBlockAt(i));
  }

 private:
  template <class Element>
  Element* Part(std::size_t offset) const {
    return reinterpret_cast<Element*>(task_.scratch + offset);
  }

  /// The keys of one segment, from a state of which nothing is known.
  void AttendSegment(const TileTask& segment, std::int64_t blocks) {
    std::fill_n(o_, blocks * layout_.v_padded * kRowBlock, 0.0f);
    std::fill_n(row_max_, blocks * kRowBlock, kHidden);
    std::fill_n(row_sum_, blocks * kRowBlock, 0.0f);
    keys_end_ = keys_of_rows(call_, segment, task_.row_begin, task_.row_end).end;
    for_key_blocks(call_, segment, [&](std::int64_t start, const KeyRange& keys) {
      if (modifier_) {
        if (modifier_->seen_keys(task_, task_.row_begin, task_.row_end, keys).keys.empty()) return;
        modifier_->begin_keys(keys);
      }
      const bool finite = PackKeysAndValues(start, keys);
      for (std::int64_t i = 0; i < blocks; ++i) AccumulateSeen(RowBlockAt(i), start, keys, finite);
    });
  }

  /// Makes the state of the segments so far that of the next one, and back.
  void SwapStates() {
    std::swap(o_, merged_o_);
    std::swap(row_max_, merged_max_);
    std::swap(row_sum_, merged_sum_);
  }

  /// Merges what was computed of a segment, which lies in the merged state's place, into the state.
  void MergeSegment(const RowBlock& rows) {
    const Floats d;
    const std::int64_t first = rows.index * kRowBlock;
    for (std::int64_t lane = 0; lane < rows.vectors * kLanes; lane += kLanes) {
      float* at_max = row_max_ + first + lane;
      float* at_sum = row_sum_ + first + lane;
      const SegmentWeights weights(hn::Load(d, at_max), hn::Load(d, merged_max_ + first + lane));
      hn::Store(weights.largest, d, at_max);
      hn::Store(weights.Merge(hn::Load(d, at_sum), hn::Load(d, merged_sum_ + first + lane)), d, at_sum);
      const std::int64_t at = first * layout_.v_padded + lane;
      for (std::int64_t j = 0; j < layout_.v_padded * kRowBlock; j += kRowBlock) {
        float* o = o_ + at + j;
        hn::Store(weights.Merge(hn::Load(d, o), hn::Load(d, merged_o_ + at + j)), d, o);
      }
    }
  }

  RowBlock RowBlockAt(std::int64_t index) const { return row_block(task_, index, kRowBlock, kLanes); }

  std::uint32_t* Queries(const RowBlock& block) const {
    return Part<std::uint32_t>(layout_.q) + block.index * layout_.q_words * kRowBlock + block.lane;
  }
  float* Output(const RowBlock& block) const {
    return o_ + block.index * layout_.v_padded * kRowBlock + block.lane;
  }

  void PackQueries(const RowBlock& block) {
    const float q_scale = TokenRows(*call_.problem, task_.sequence, task_.extent).q_scale(task_.kv_head);
    for (std::int64_t r = 0; r < block.vectors * kLanes; r += 4) {
      for (std::int64_t i = 0; i < 4; ++i) {
        float* row = rows_ + i * row_stride_;
        const std::int64_t index = block.begin + r + i;
        if (index >= block.end) {
          std::fill_n(row, layout_.q_words, 0.0f);
          continue;
        }
        const std::byte* source =
            q_row(call_, task_, query_of_row(call_, index), head_of_row(call_, task_, index));
        if (call_.shape.narrow_q && e4m3_ != nullptr) {
          e4m3_->widen_row(source, call_.shape.head_dim_qk, reinterpret_cast<std::uint32_t*>(row));
        } else if (call_.shape.narrow_q) {
          ConvertNarrowRow(source, q_scale, call_.shape.head_dim_qk, layout_.q_words, row);
        } else if (bf16_ != nullptr) {
          PairRow(source, call_.shape.head_dim_qk, reinterpret_cast<std::uint32_t*>(row));
        } else {
          ConvertRow<T>(source, call_.shape.head_dim_qk, layout_.q_words, row);
        }
      }
      TransposeFromRows(rows_, row_stride_, layout_.q_words, reinterpret_cast<float*>(Queries(block)) + r,
                        kRowBlock);
    }
  }

  const std::byte** KeyRows() const { return Part<const std::byte*>(layout_.pointers); }
  const std::byte** ValueRows() const { return KeyRows() + call_.shape.block_n + kMaxRowsAhead; }
  std::int64_t RowBytes(int head_dim) const {
    return head_dim * static_cast<std::int64_t>(call_.shape.narrow_kv ? 1 : sizeof(T));
  }

  /// Packs the keys `block` at their places counted from `start`. Returns true if all of v is finite; what is
  /// not has become 0.
  bool PackKeysAndValues(std::int64_t start, KeyRange block) {
    const AttentionProblem& p = *call_.problem;
    const std::byte** k_rows = KeyRows();
    const std::byte** v_rows = ValueRows();
    const std::int64_t known_end = std::min(block.end + kMaxRowsAhead, keys_end_);
    kv_rows(call_, task_, p.k, block.begin, known_end, k_rows);
    kv_rows(call_, task_, p.v, block.begin, known_end, v_rows);
    const RowsAhead keys_ahead(k_rows, known_end - block.begin, RowBytes(call_.shape.head_dim_qk));
    const RowsAhead values_ahead(v_rows, known_end - block.begin, RowBytes(call_.shape.head_dim_v));
    const std::int64_t first = block.begin - start;
    const std::int64_t last = block.end - start;
    const TokenRows tokens(p, task_.sequence, task_.extent);
    bool found = false;
    for (std::int64_t n = first; n < last; ++n) {
      std::uint32_t* row = k_ + n * layout_.k_stride;
      keys_ahead.Fetch(n - first);
      if (bf16_ == nullptr) values_ahead.Fetch(n - first);
      if (e4m3_ != nullptr) {
        e4m3_->widen_row(k_rows[n - first], call_.shape.head_dim_qk, row);
      } else if (call_.shape.narrow_kv) {
        ConvertNarrowRow(k_rows[n - first], tokens.k_scale(start + n, task_.kv_head), call_.shape.head_dim_qk,
                         call_.shape.head_dim_qk, reinterpret_cast<float*>(row));
        float* v_row = reinterpret_cast<float*>(v_ + n * layout_.v_stride);
        ConvertNarrowRow(v_rows[n - first], tokens.v_scale(start + n, task_.kv_head), call_.shape.head_dim_v,
                         layout_.v_padded, v_row);
        found |= ConvertFiniteRow<float>(reinterpret_cast<const std::byte*>(v_row), call_.shape.head_dim_v,
                                         layout_.v_padded, v_row);
      } else if (bf16_ != nullptr) {
        PairRow(k_rows[n - first], call_.shape.head_dim_qk, row);
      } else {
        ConvertRow<T>(k_rows[n - first], call_.shape.head_dim_qk, call_.shape.head_dim_qk,
                      reinterpret_cast<float*>(row));
        found |= ConvertFiniteRow<T>(v_rows[n - first], call_.shape.head_dim_v, layout_.v_padded,
                                     reinterpret_cast<float*>(v_ + n * layout_.v_stride));
      }
    }
    if (bf16_ != nullptr) {
      for (std::int64_t n = first / 2 * 2; n < last; n += 2) {
        values_ahead.Fetch(std::max(n - first, std::int64_t{0}));
        values_ahead.Fetch(n + 1 - first);
        const std::byte* even = n < first ? nullptr : v_rows[n - first];
        const std::byte* odd = n + 1 < last ? v_rows[n + 1 - first] : nullptr;
        if (e4m3_ != nullptr) {
          even = WidenValue(even, rows_);
          odd = WidenValue(odd, rows_ + row_stride_);
        }
        found |= PairFiniteRows(even, odd, call_.shape.head_dim_v, layout_.v_padded,
                                v_ + n / 2 * layout_.v_stride);
      }
    }
    if (e4m3_ != nullptr) FillScales(tokens, start, block);
    return !found;
  }

  const std::byte* WidenValue(const std::byte* source, float* row) const {
    if (source == nullptr) return nullptr;
    e4m3_->widen_row(source, call_.shape.head_dim_v, reinterpret_cast<std::uint32_t*>(row));
    return reinterpret_cast<const std::byte*>(row);
  }

  /// What numbers leave out that meet as pairs of bf16.
  void FillScales(const TokenRows& tokens, std::int64_t start, KeyRange block) {
    const float q_scale = tokens.q_scale(task_.kv_head);
    for (std::int64_t key = block.begin; key < block.end; ++key) {
      KeyScales()[key - start] = q_scale * tokens.k_scale(key, task_.kv_head);
      ValueScales()[key - start] = tokens.v_scale(key, task_.kv_head);
    }
  }
  float* KeyScales() const { return Part<float>(layout_.scales); }
  float* ValueScales() const { return KeyScales() + call_.shape.block_n; }

  KeyRange SeenKeysOf(std::int64_t row_begin, std::int64_t row_end, KeyRange packed) const {
    const KeyRange keys = keys_of_rows(call_, task_, row_begin, row_end);
    return {std::max(keys.begin, packed.begin), std::min(keys.end, packed.end)};
  }

  /// One block of keys for one row block, or for each vector of its rows where these see much less alone, as
  /// through a window of few keys.
  void AccumulateSeen(const RowBlock& rows, std::int64_t start, KeyRange packed, bool finite) {
    const auto vector_at = [&](std::int64_t i) {
      RowBlock vector = rows;
      vector.begin += i * kLanes;
      vector.end = std::min(rows.end, vector.begin + kLanes);
      vector.vectors = 1;
      vector.lane = i * kLanes;
      return vector;
    };
    std::int64_t seen = 0;
    for (std::int64_t i = 0; i < rows.vectors; ++i)
      seen += std::max<std::int64_t>(SeenKeysOf(vector_at(i).begin, vector_at(i).end, packed).size(), 0);
    const std::int64_t all = rows.vectors * SeenKeysOf(rows.begin, rows.end, packed).size();
    if (modifier_ || kLanes == 1 || 10 * seen > 7 * all) return Accumulate(rows, start, packed, finite);
    for (std::int64_t i = 0; i < rows.vectors; ++i) Accumulate(vector_at(i), start, packed, finite);
  }

  /// One block of keys for some rows.
  void Accumulate(const RowBlock& rows, std::int64_t start, KeyRange packed, bool finite) {
    KeyRange keys = SeenKeysOf(rows.begin, rows.end, packed);
    SeenKeys seen{keys};
    if (modifier_) seen = modifier_->seen_keys(task_, rows.begin, rows.end, keys);
    keys = seen.keys;
    if (keys.empty()) return;
    const RowBlockSteps steps = RowBlockStepsFor(rows.vectors);
    const std::int64_t begin = keys.begin - start;
    const std::int64_t end = keys.end - start;

    // Whole register blocks of keys; what lies outside [begin, end) is computed from old contents and not
    // used.
    const std::int64_t columns_begin = begin / 8 * 8;
    ProductArguments qk;
    qk.a = Queries(rows);
    qk.b = k_ + columns_begin * layout_.k_stride;
    qk.b_column = layout_.k_stride;
    qk.b_depth = 1;
    qk.depth = layout_.q_words;
    qk.chunk = kScoreChunk;
    qk.columns = (end - columns_begin + 7) / 8 * 8;
    qk.c = s_ + columns_begin * kRowBlock;
    RunProduct(steps, rows, qk);
    if (e4m3_ != nullptr) steps.scale_keys(begin, end, KeyScales(), s_);

    const float* bias = nullptr;
    if (call_.transforms_scores && !call_.modifier_scales) {
      if (call_.has_bias) {
        float* filled = Part<float>(layout_.bias);
        FillBias(call_, task_, rows.begin, rows.end, keys, false, filled + begin * kRowBlock, kRowBlock);
        bias = filled;
      }
      steps.transform_scores(call_, begin, end, bias, s_);
    }
    if (modifier_)
      modifier_->modify(rows.index, keys, !seen.all, call_.modifier_scales ? call_.scale : 1,
                        s_ + begin * kRowBlock, bias == nullptr ? nullptr : bias + begin * kRowBlock);
    if (!all_visible(call_, task_, rows.begin, rows.end, keys)) {
      const std::int32_t* limits = FillLimits(rows, start);
      steps.hide_outside(limits, begin, end, s_);
    }
    if (!finite) SpoilNonFinite(rows, start, keys, packed);
    float* row_max = row_max_ + rows.index * kRowBlock + rows.lane;
    float* row_sum = row_sum_ + rows.index * kRowBlock + rows.lane;
    steps.softmax_step(begin, end, call_.transforms_scores ? 1.0f : call_.scale, s_, row_max, row_sum,
                       rescale_);
    if (e4m3_ != nullptr) steps.scale_keys(begin, end, ValueScales(), s_);

    ProductArguments pv;
    pv.b_column = 1;
    pv.b_depth = layout_.v_stride;
    pv.columns = layout_.v_padded;
    pv.factor = rescale_;
    pv.c = Output(rows);
    if (bf16_ != nullptr) {
      // Whole pairs of keys: a missing one has p = 0 and v = 0.
      const std::int64_t first_pair = begin / 2;
      if (begin % 2 != 0) std::fill_n(s_ + (begin - 1) * kRowBlock, kRowBlock, 0.0f);
      if (end % 2 != 0) std::fill_n(s_ + end * kRowBlock, kRowBlock, 0.0f);
      const std::int64_t pairs = (end + 1) / 2 - first_pair;
      std::uint32_t* p = Part<std::uint32_t>(layout_.p);
      bf16_->pair_probabilities(static_cast<int>(rows.vectors), s_ + 2 * first_pair * kRowBlock, 2 * pairs,
                                p);
      pv.a = p;
      pv.b = v_ + first_pair * layout_.v_stride;
      pv.depth = pairs;
    } else {
      pv.a = reinterpret_cast<const std::uint32_t*>(s_ + begin * kRowBlock);
      pv.b = v_ + begin * layout_.v_stride;
      pv.depth = end - begin;
    }
    pv.chunk = pv.depth;
    RunProduct(steps, rows, pv);
  }

  void RunProduct(const RowBlockSteps& steps, const RowBlock& rows, const ProductArguments& arguments) {
    if (bf16_ != nullptr) {
      bf16_->product(static_cast<int>(rows.vectors), arguments);
    } else {
      steps.product(arguments);
    }
  }

  const std::int32_t* FillLimits(const RowBlock& rows, std::int64_t start) {
    std::int32_t* limits = Part<std::int32_t>(layout_.limits);
    std::fill_n(limits, 2 * kRowBlock, 0);
    const std::int64_t block_n = call_.shape.block_n;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      const KeyRange seen = task_.diagonal.keys_of_query(query_of_row(call_, row));
      const std::int64_t lane = row - rows.begin;
      limits[lane] = static_cast<std::int32_t>(std::clamp<std::int64_t>(seen.begin - start, 0, block_n));
      limits[kRowBlock + lane] =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(seen.end - start, 0, block_n));
    }
    return limits;
  }

  /// Spoils the rows that see an infinity or NaN of v, which was packed as 0: Finish has them computed anew.
  void SpoilNonFinite(const RowBlock& rows, std::int64_t start, KeyRange keys, KeyRange packed) {
    const std::byte** v_rows = ValueRows();
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      const std::byte* source = v_rows[key - packed.begin];
      bool finite = true;
      for (std::int64_t j = 0; j < call_.shape.head_dim_v && finite; ++j) {
        const float value = call_.shape.narrow_kv
                                ? LoadElement<Float8E4M3>(source + j)
                                : LoadElement<T>(source + j * static_cast<std::int64_t>(sizeof(T)));
        finite = value - value == 0;
      }
      if (finite) continue;
      const float* s = s_ + (key - start) * kRowBlock;
      for (std::int64_t lane = 0; lane < rows.end - rows.begin; ++lane) {
        if (s[lane] != kHidden) Output(rows)[lane] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  void Finish(const RowBlock& rows) {
    float* row_max = row_max_ + rows.index * kRowBlock;
    float* row_sum = row_sum_ + rows.index * kRowBlock;
    std::fill_n(rescale_, kRowBlock, 0.0f);
    if (task_.partial == nullptr) {
      for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        const std::int64_t lane = row - rows.begin;
        const int head = head_of_row(call_, task_, row);
        const RowResult result = finish_row(call_, head, row_max[lane], row_sum[lane]);
        rescale_[lane] = result.o_factor;
        store_lse(call_, task_, query_of_row(call_, row), head, result.lse);
      }
      RowBlockStepsFor(rows.vectors).scale_rows(rescale_, layout_.v_padded, Output(rows));
    }
    for (std::int64_t row = rows.begin; row < rows.end; row += 4) {
      TransposeToRows(Output(rows) + (row - rows.begin), kRowBlock, layout_.v_padded, rows_, row_stride_);
      for (std::int64_t i = 0; i < std::min<std::int64_t>(4, rows.end - row); ++i) {
        StoreResult(row + i, rows_ + i * row_stride_, row_max[row + i - rows.begin],
                    row_sum[row + i - rows.begin]);
      }
    }
  }

  void StoreResult(std::int64_t row, const float* o, float row_max, float row_sum) {
    const std::int64_t head_dim = call_.shape.head_dim_v;
    if (task_.partial == nullptr) {
      const std::int64_t query = query_of_row(call_, row);
      const int head = head_of_row(call_, task_, row);
      if (stays_in_range(row_max, row_sum, o, head_dim)) {
        StoreRow<T>(o, head_dim, o_row(call_, task_, query, head));
      } else {
        attend_exactly(call_, task_, query, head);
      }
      return;
    }
    float* partial = task_.partial + (row - task_.row_begin) * partial_stride(call_.shape.head_dim_v);
    std::copy_n(o, head_dim, partial);
    partial[head_dim] = row_max;
    partial[head_dim + 1] = row_sum;
  }

  const CallContext& call_;
  const TileTask& task_;
  const Bf16DotKernels* bf16_;
  const E4m3DotKernels* e4m3_;  ///< not null: with bf16_, k and v are e4m3
  const ScratchLayout& layout_;
  float* o_;
  float* row_max_;
  float* row_sum_;
  float* merged_o_;  ///< of the segments before, while one is computed
  float* merged_max_;
  float* merged_sum_;
  float* rescale_;
  std::uint32_t* k_;
  std::uint32_t* v_;
  float* s_;
  float* rows_;
  std::int64_t row_stride_;
  std::int64_t keys_end_ = 0;  ///< of the segment at work
  std::optional<TileModifier> modifier_;
};

HWY_INLINE void RunPrefillTile(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) {
  const bool is_bf16 = wide_dtype(*call.problem) == DType::kBF16;
  dispatch_activation(wide_dtype(*call.problem),
                      [&]<class T>() { PrefillTile<T>(call, task, is_bf16 ? bf16 : nullptr).Run(); });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
