// A tile of few queries (the heads of a group, mostly for one query): fused attention with head_dim in the
// lanes of the vectors, so that k and v stream from memory straight into multiply-adds. Included once for
// each target.
#if defined(TESSERA_CPU_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_DECODE_INL_H_
#undef TESSERA_CPU_ATTENTION_DECODE_INL_H_
#else
#define TESSERA_CPU_ATTENTION_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "attention/narrow.h"
#include "attention/token_rows.h"
#include "backends/cpu/attention/bias-inl.h"
#include "backends/cpu/attention/decode_steps-inl.h"
#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/modifier.h"
#include "backends/cpu/attention/prefill-inl.h"
#include "backends/cpu/attention/rows-inl.h"
#include "backends/cpu/attention/softcap-inl.h"
#include "backends/cpu/attention/stream_reader.h"
#include "core/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

/// Keys whose rows the prefill kernel's order takes side by side.
constexpr std::int64_t kKeysInOrder = kLanes;

/// A decode tile at work. kInOrder: with the prefill kernel's arithmetic. The key-value heads of a task lie
/// next to each other in memory, so that all of a token's are read before the next token's.
template <class T, int kRows, bool kInOrder>
class DecodeTile {
  // In the prefill kernel's order many tokens are worked on at a time, as many KiB as the first-level cache
  // has.
  using Reader = BasicStreamReader<kInOrder ? CacheLevel::kSecond : CacheLevel::kFirst>;
  // With bf16_: both products sum pairs in the prefill kernel's order, of rows of any length.
  static constexpr bool kPairsInOrder = kInOrder && std::is_same_v<T, BFloat16>;

 public:
  DecodeTile(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16)
      : call_(call),
        task_(task),
        bf16_(bf16),
        layout_(call.layout),
        heads_(call.shape.decode_heads),
        rows_(task.row_end - task.row_begin),
        chunks_((rows_ + kRows - 1) / kRows),
        q_stride_(std::max<std::int64_t>(Padded(call.shape.head_dim_qk), bf16 != nullptr ? 32 : 0)),
        o_stride_(bf16 == nullptr        ? Padded(call.shape.head_dim_v)
                  : call.shape.narrow_kv ? round_up(call.shape.head_dim_v, 64)
                                         : round_up(call.shape.head_dim_v, 32)),
        s_stride_(decode_keys(call.shape) * kRows),
        narrow_(call.shape.narrow_kv),
        e4m3_(bf16 != nullptr && narrow_ ? e4m3_dot_kernels(call.target) : nullptr),
        k_in_vectors_((!kInOrder && bf16 != nullptr) ||
                      decode_reads_keys(call.shape, kLanes, sizeof(T), kInOrder)),
        v_in_vectors_(bf16 != nullptr || decode_reads_values(call.shape, kLanes, kInOrder)),
        k_rows_(Part<const std::byte*>(layout_.pointers)),
        v_rows_(k_rows_ + call.shape.block_n + kMaxRowsAhead),
        stream_bytes_(RunBytes(std::min(call.shape.head_dim_qk, call.shape.head_dim_v))),
        ahead_(std::min<std::int64_t>(
            std::max<std::int64_t>(kBytesLoadedAhead / stream_bytes_, kInOrder ? kKeysInOrder : 1),
            std::min<std::int64_t>(call.shape.block_n, kMaxRowsAhead))) {}

  void Run() {
    for (std::int64_t i = 0; i < heads_ * chunks_; ++i) Start(i);
    const KeyRange keys = keys_of_rows(call_, task_, task_.row_begin, task_.row_end);
    if (call_.modifier != nullptr) {
      modifier_.emplace(call_, heads_ * chunks_, kRows);
      for (std::int64_t i = 0; i < heads_ * chunks_; ++i)
        modifier_->begin_rows(i, TaskOfHead(i / chunks_), FirstRow(i), LastRow(i));
    }
    // Pairs begin at even keys. One before the first is hidden, and another stands in for it.
    const bool begins_in_pair = sums_pairs_in_order() && !keys.empty() && keys.begin % 2 != 0;
    const std::int64_t first_key = keys.begin - (begins_in_pair ? 1 : 0);
    KeyRange block{first_key, first_key};
    while (block.end < keys.end) {
      // Blocks begin at the first key, or at multiples of block_n.
      const std::int64_t block_n = call_.shape.block_n;
      const std::int64_t size = block_n - (kInOrder ? block.end % block_n : 0);
      block = {block.end, std::min(block.end + size, keys.end)};
      if (modifier_ && !AnySeen(block)) continue;
      const std::int64_t skipped = std::max(keys.begin - block.begin, std::int64_t{0});
      kv_rows(call_, task_, call_.problem->k, block.begin + skipped, block.end, k_rows_ + skipped);
      kv_rows(call_, task_, call_.problem->v, block.begin + skipped, block.end, v_rows_ + skipped);
      if (skipped > 0) {
        k_rows_[0] = k_rows_[1];
        v_rows_[0] = v_rows_[1];
      }
      LookAhead(block, keys.end);
      Score(block);
      Weigh(block);
    }
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t r = 0; r < rows_; ++r) Finish(h, r);
    }
    if constexpr (kPairsInOrder) {
      // These take all of the scratch memory.
      for (const std::int64_t head : spoilt_) {
        TileTask task = TaskOfHead(head);
        if (task.partial != nullptr) task.partial += head * task.partial_head_stride;
        PrefillTile<T>(call_, task, bf16_).Run();
      }
    }
  }

 private:
  bool sums_pairs_in_order() const { return kPairsInOrder && bf16_ != nullptr; }

  static std::int64_t Padded(std::int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

  template <class Element>
  Element* Part(std::size_t offset) const {
    return reinterpret_cast<Element*>(task_.scratch + offset);
  }

  // What belongs to chunk i = head * chunks_ + chunk of rows.
  float* Queries(std::int64_t i) const { return Part<float>(layout_.q) + i * kRows * q_stride_; }
  float* Output(std::int64_t i) const { return Part<float>(layout_.o) + i * kRows * o_stride_; }
  float* BlockOutput(std::int64_t i) const { return Part<float>(layout_.block_o) + i * kRows * o_stride_; }
  /// What a block's values are added to.
  float* Target(std::int64_t i) const { return kInOrder ? BlockOutput(i) : Output(i); }
  float* Rescale(std::int64_t i) const { return Part<float>(layout_.rescale) + i * kRows; }
  float* RowMax(std::int64_t i) const { return Part<float>(layout_.row_max) + i * kRows; }
  float* RowSum(std::int64_t i) const { return Part<float>(layout_.row_sum) + i * kRows; }
  /// Probabilities as pairs of bf16, in the place of the scores: pair n is written after scores 2 n and 2 n +
  /// 1 are read.
  std::uint32_t* Pairs(std::int64_t i) const { return Part<std::uint32_t>(layout_.s) + i * s_stride_; }
  float* Scores(std::int64_t i) const { return Part<float>(layout_.s) + i * s_stride_; }

  TileTask TaskOfHead(std::int64_t head) const {
    TileTask task = task_;
    task.kv_head += static_cast<int>(head);
    return task;
  }

  /// Loads the queries of a chunk; rows past the last are zeros.
  void Start(std::int64_t i) {
    const TileTask task = TaskOfHead(i / chunks_);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t row = task.row_begin + i % chunks_ * kRows + r;
      float* q = Queries(i) + r * q_stride_;
      if (row < task.row_end) {
        const std::byte* source = q_row(call_, task, query_of_row(call_, row), head_of_row(call_, task, row));
        if (bf16_ != nullptr) {
          std::fill_n(q, q_stride_, 0.0f);
          auto* words = reinterpret_cast<std::uint32_t*>(q);
          if (call_.shape.narrow_q) {
            e4m3_->widen_row(source, call_.shape.head_dim_qk, words);
          } else {
            PairRow(source, call_.shape.head_dim_qk, words);
          }
          if (e4m3_ != nullptr) e4m3_->arrange_query(call_.shape.head_dim_qk, words);
        } else if (call_.shape.narrow_q) {
          ConvertNarrowRow(source, token_rows_.q_scale(task.kv_head), call_.shape.head_dim_qk, q_stride_, q);
          if (k_in_vectors_ && !kInOrder) PadFront(call_.shape.head_dim_qk, q);
        } else {
          ConvertRow<T>(source, call_.shape.head_dim_qk, q_stride_, q);
          if (k_in_vectors_ && !kInOrder) PadFront(call_.shape.head_dim_qk, q);
        }
      } else {
        std::fill_n(q, q_stride_, 0.0f);
      }
    }
    std::fill_n(Output(i), kRows * o_stride_, 0.0f);
    std::fill_n(RowMax(i), kRows, -std::numeric_limits<float>::infinity());
    std::fill_n(RowSum(i), kRows, 0.0f);
  }

  /// Completes the rows of a block with those that are read after them: the keys' with its values', the
  /// values' with the next block's keys'.
  void LookAhead(KeyRange block, std::int64_t keys_end) {
    const std::int64_t size = block.size();
    for (std::int64_t n = 0; n < ahead_; ++n) k_rows_[size + n] = v_rows_[std::min(n, size - 1)];
    const std::int64_t next_end = std::min(block.end + ahead_, keys_end);
    kv_rows(call_, task_, call_.problem->k, block.end, next_end, v_rows_ + size);
    for (std::int64_t n = std::max<std::int64_t>(next_end - block.end, 0); n < ahead_; ++n) {
      v_rows_[size + n] = v_rows_[size + n - 1];
    }
  }

  /// Bytes of a token's rows of all heads of the task.
  std::int64_t RunBytes(int head_dim) const {
    return heads_ * head_dim * static_cast<std::int64_t>(narrow_ ? 1 : sizeof(T));
  }

  /// Probabilities of a block of keys. The heads take turns after a few keys: memory comes at its full rate
  /// only in the order of its addresses.
  void Score(KeyRange keys) {
    if (!k_in_vectors_)
      CopyPadded(k_rows_, keys, call_.shape.head_dim_qk, layout_.k,
                 [&](std::int64_t j) { return token_rows_.k_scale(j, task_.kv_head); });
    const std::int64_t head_bytes = RunBytes(call_.shape.head_dim_qk) / heads_;
    const StreamedRows stream(k_rows_ + ahead_, keys.size(), stream_bytes_);
    Reader reader(stream);
    constexpr int kStep = kInOrder ? kKeysInOrder : kKeysAtOnce<T, kRows>;
    for (std::int64_t n = 0; n < keys.size(); n += kStep) {
      Reader again = reader;
      for (std::int64_t i = 0; i < heads_ * chunks_; ++i) {
        Reader& ahead = NextReader(i, reader, again);
        if constexpr (kInOrder) {
          if (sums_pairs_in_order()) {
            DecodeDotArguments dot;
            dot.rows = kRows;
            dot.keys = {k_rows_, keys.size(), k_in_vectors_ ? i / chunks_ * head_bytes : 0};
            dot.q = reinterpret_cast<const std::uint32_t*>(Queries(i));
            dot.q_stride = q_stride_;
            dot.head_dim = round_up(call_.shape.head_dim_qk, 8);
            dot.s = Scores(i);
            bf16_->decode_dot_in_order(dot, n, kScoreChunk, ahead);
          } else if (k_in_vectors_) {
            const HeadRows rows{k_rows_, keys.size(), i / chunks_ * head_bytes};
            DotKeysInOrder<T, kRows>(rows, n, Queries(i), q_stride_, call_.shape.head_dim_qk, ahead,
                                     Scores(i));
          } else {
            const HeadRows rows{k_rows_, keys.size(), 0};
            DotKeysInOrder<float, kRows>(rows, n, Queries(i), q_stride_, call_.shape.head_dim_qk, ahead,
                                         Scores(i));
          }
        } else if (bf16_ != nullptr) {
          DecodeDotArguments dot;
          dot.rows = kRows;
          dot.keys = {k_rows_, keys.size(), i / chunks_ * head_bytes};
          dot.q = reinterpret_cast<const std::uint32_t*>(Queries(i));
          dot.q_stride = q_stride_;
          dot.head_dim = call_.shape.head_dim_qk;
          dot.s = Scores(i);
          if (e4m3_ != nullptr) {
            e4m3_->decode_dot(dot, n, ahead);
          } else {
            bf16_->decode_dot(dot, n, ahead);
          }
        } else if (k_in_vectors_) {
          const HeadRows rows{k_rows_, keys.size(), i / chunks_ * head_bytes};
          const auto dot = narrow_ ? DotKeys<Float8E4M3, kRows, kStep> : DotKeys<T, kRows, kStep>;
          dot(rows, n, Queries(i), q_stride_, call_.shape.head_dim_qk, ahead, Scores(i));
        } else {
          const HeadRows rows{k_rows_, keys.size(), 0};
          DotKeys<float, kRows, kStep>(rows, n, Queries(i), q_stride_, q_stride_, ahead, Scores(i));
        }
      }
    }
    any_hidden_ = false;
    for (std::int64_t i = 0; i < heads_ * chunks_; ++i) {
      if (narrow_ && k_in_vectors_) ScaleScores(i, keys);
      const float* bias = MaskScores(i, keys);
      if (modifier_) Modify(i, keys, bias);
      if constexpr (kInOrder) {
        any_hidden_ |= DecodeSoftmaxInOrder<kRows>(keys.size(), call_.transforms_scores ? 1.0f : call_.scale,
                                                   Scores(i), RowMax(i), RowSum(i), Rescale(i));
        std::fill_n(BlockOutput(i), kRows * o_stride_, 0.0f);
        if (bf16_ != nullptr) bf16_->pair_decode_probabilities(kRows, Scores(i), keys.size(), Pairs(i));
        continue;
      }
      float rescale[kRows];
      DecodeSoftmax<kRows>(keys.size(), call_.transforms_scores ? 1.0f : call_.scale, Scores(i), RowMax(i),
                           RowSum(i), rescale);
      RescaleOutput(i, rescale);
      if (narrow_ && v_in_vectors_) ScaleWeights(i, keys);
      if (bf16_ != nullptr) bf16_->pair_decode_probabilities(kRows, Scores(i), keys.size(), Pairs(i));
    }
  }

  /// The scales of some keys, for the scores of a chunk: kRows of each key.
  template <class ScaleOf>
  const float* ScalesOf(KeyRange keys, const ScaleOf& scale_of) {
    const auto& paged = call_.problem->paged_kv;
    float* scales = Part<float>(layout_.bias);
    std::int64_t end = 0;
    for (std::int64_t key = keys.begin; key < keys.end; key = end) {
      end = paged ? std::min(keys.end, (key / paged->page_size + 1) * paged->page_size) : keys.end;
      std::fill(scales + (key - keys.begin) * kRows, scales + (end - keys.begin) * kRows, scale_of(key));
    }
    std::fill_n(scales + keys.size() * kRows, kLanes, 0.0f);
    return scales;
  }

  /// What the steps on narrow keys and values left out beside their scales.
  float LeftOut() const { return e4m3_ != nullptr ? 1.0f : kLeftOutFactor<Float8E4M3>; }

  /// Multiplies scores with narrow keys by the keys' scales, and by the query's if it isn't multiplied yet.
  void ScaleScores(std::int64_t i, KeyRange keys) {
    const int head = TaskOfHead(i / chunks_).kv_head;
    const float q_scale = e4m3_ != nullptr ? token_rows_.q_scale(head) : 1.0f;
    const float* scales =
        ScalesOf(keys, [&](std::int64_t key) { return q_scale * token_rows_.k_scale(key, head); });
    const Floats d;
    const auto left_out = hn::Set(d, LeftOut());
    for (float* s = Scores(i); s < Scores(i) + keys.size() * kRows; s += kLanes, scales += kLanes) {
      const auto x = hn::Load(d, s);
      // Beyond fp32, where a small scale would bring it back: NaN, which has the row computed anew.
      const auto spoilt = hn::Sub(x, x);
      hn::Store(hn::MulAdd(hn::Mul(x, hn::Load(d, scales)), left_out, spoilt), d, s);
    }
  }

  /// Multiplies weights by the scales of the narrow values that they are for. +0 stays what it says, that a
  /// key is hidden, and nothing becomes it.
  void ScaleWeights(std::int64_t i, KeyRange keys) {
    const int head = TaskOfHead(i / chunks_).kv_head;
    const float* scales = ScalesOf(keys, [&](std::int64_t key) { return token_rows_.v_scale(key, head); });
    const Floats d;
    const hn::RebindToUnsigned<Floats> du;
    const auto left_out = hn::Set(d, LeftOut());
    // Pairs of bf16 take what is below for +0.
    const auto smallest = hn::Set(
        d, e4m3_ != nullptr ? std::numeric_limits<float>::min() : std::numeric_limits<float>::denorm_min());
    for (float* p = Scores(i); p < Scores(i) + keys.size() * kRows; p += kLanes, scales += kLanes) {
      const auto weight = hn::Load(d, p);
      const auto scaled = hn::Mul(hn::Mul(weight, left_out), hn::Load(d, scales));
      const auto nonzero = hn::IfThenElse(hn::Lt(hn::Abs(scaled), smallest), hn::Set(d, -0.0f), scaled);
      const auto is_hidden = hn::RebindMask(d, hn::Eq(hn::BitCast(du, weight), hn::Zero(du)));
      hn::Store(hn::IfThenZeroElse(is_hidden, nonzero), d, p);
    }
  }

  /// Most blocks bring no new largest score, and nothing to do here.
  void RescaleOutput(std::int64_t i, const float* rescale) {
    for (int r = 0; r < kRows; ++r) {
      if (rescale[r] == 1) continue;
      float* o = Output(i) + r * o_stride_;
      for (std::int64_t j = 0; j < o_stride_; ++j) o[j] *= rescale[r];
    }
  }

  /// Of a head's chunks of rows, which read the same, the first takes the reader on.
  Reader& NextReader(std::int64_t i, Reader& reader, Reader& again) const {
    if (i % chunks_ == 0) {
      again = reader;
      return reader;
    }
    return again;
  }

  /// Adds the values of a block of keys to the output; the heads take turns.
  void Weigh(KeyRange keys) {
    if (!v_in_vectors_)
      CopyPadded(v_rows_, keys, call_.shape.head_dim_v, layout_.v,
                 [&](std::int64_t j) { return token_rows_.v_scale(j, task_.kv_head); });
    const std::int64_t head_bytes = RunBytes(call_.shape.head_dim_v) / heads_;
    const StreamedRows stream(v_rows_ + ahead_, keys.size(), stream_bytes_);
    Reader reader(stream);
    bool any_hidden = any_hidden_;
    for (std::int64_t c = 0; c < chunks_ && !kInOrder; ++c) any_hidden |= MayHide(c, keys);
    const std::int64_t fitting = kInOrder ? 0 : kValueBytesAtOnce / stream.row_bytes / 2 * 2;
    const std::int64_t step = std::max(fitting, kLeastValuesAtOnce<T>);
    for (std::int64_t n = 0; n < keys.size(); n += step) {
      const std::int64_t last = std::min(n + step, keys.size());
      Reader again = reader;
      for (std::int64_t i = 0; i < heads_ * chunks_; ++i) {
        Reader& ahead = NextReader(i, reader, again);
        HeadRows rows{v_rows_, keys.size(), 0};
        if (bf16_ != nullptr) {
          DecodeWeighArguments weigh;
          weigh.rows = kRows;
          weigh.values = {v_rows_, keys.size(), i / chunks_ * head_bytes};
          weigh.p = Pairs(i);
          weigh.head_dim = call_.shape.head_dim_v;
          weigh.o = Target(i);
          weigh.o_stride = o_stride_;
          weigh.skips_hidden = any_hidden;
          if constexpr (kInOrder) {
            bf16_->decode_weigh_in_order(weigh, n, last, ahead);
          } else if (e4m3_ != nullptr) {
            e4m3_->decode_weigh(weigh, n, last, ahead);
          } else {
            bf16_->decode_weigh(weigh, n, last, ahead);
          }
        } else if (v_in_vectors_) {
          rows.offset = i / chunks_ * head_bytes;
          const auto weigh = narrow_      ? any_hidden ? DecodeValues<Float8E4M3, kRows, true, Reader>
                                                       : DecodeValues<Float8E4M3, kRows, false, Reader>
                                  : any_hidden ? DecodeValues<T, kRows, true, Reader>
                                          : DecodeValues<T, kRows, false, Reader>;
          weigh(rows, n, last, Scores(i), call_.shape.head_dim_v, ahead, Target(i), o_stride_);
        } else {
          const auto weigh = any_hidden ? DecodeValues<float, kRows, true, Reader>
                                        : DecodeValues<float, kRows, false, Reader>;
          weigh(rows, n, last, Scores(i), o_stride_, ahead, Target(i), o_stride_);
        }
      }
    }
    for (std::int64_t i = 0; i < heads_ * chunks_ && kInOrder; ++i) AddBlock(i);
  }

  /// o = rescale * o + what the block's values came to.
  void AddBlock(std::int64_t i) {
    const Floats d;
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, Rescale(i)[r]);
      float* o = Output(i) + r * o_stride_;
      const float* block = BlockOutput(i) + r * o_stride_;
      for (std::int64_t j = 0; j < o_stride_; j += kLanes)
        hn::Store(hn::MulAdd(hn::Load(d, o + j), factor, hn::Load(d, block + j)), d, o + j);
    }
  }

  /// Replaces pointers to rows by pointers to copies that fill whole vectors, in fp32 or pairs.
  /// scale_of(key): of narrow rows.
  template <class ScaleOf>
  void CopyPadded(const std::byte** rows, KeyRange keys, std::int64_t head_dim, std::size_t part,
                  const ScaleOf& scale_of) {
    const std::int64_t stride = Padded(head_dim);
    float* copies = Part<float>(part);
    for (std::int64_t n = 0; n < keys.size(); ++n) {
      if (narrow_) {
        ConvertNarrowRow(rows[n], scale_of(keys.begin + n), head_dim, stride, copies + n * stride);
      } else if (sums_pairs_in_order()) {
        std::fill_n(copies + n * stride, stride, 0.0f);
        PairRow(rows[n], head_dim, reinterpret_cast<std::uint32_t*>(copies + n * stride));
      } else {
        ConvertRow<T>(rows[n], head_dim, stride, copies + n * stride);
      }
      rows[n] = reinterpret_cast<const std::byte*>(copies + n * stride);
    }
  }

  std::int64_t FirstRow(std::int64_t i) const { return task_.row_begin + i % chunks_ * kRows; }
  std::int64_t LastRow(std::int64_t i) const { return std::min(task_.row_end, FirstRow(i) + kRows); }

  bool PartlyHidden(std::int64_t i, KeyRange keys) const {
    return !all_visible(call_, task_, FirstRow(i), LastRow(i), keys);
  }
  bool MayHide(std::int64_t i, KeyRange keys) const {
    return call_.has_bias || modifier_ || PartlyHidden(i, keys);
  }

  /// Whether the modifier lets some row see some key of a block.
  bool AnySeen(KeyRange keys) {
    modifier_->begin_keys(keys);
    for (std::int64_t head = 0; head < heads_; ++head) {
      if (!modifier_->seen_keys(TaskOfHead(head), task_.row_begin, task_.row_end, keys).keys.empty())
        return true;
    }
    return false;
  }

  void Modify(std::int64_t i, KeyRange keys, const float* bias) {
    const SeenKeys seen = modifier_->seen_keys(TaskOfHead(i / chunks_), FirstRow(i), LastRow(i), keys);
    const bool all = seen.all && seen.keys.begin == keys.begin && seen.keys.end == keys.end;
    modifier_->modify(i, keys, !all, 1, Scores(i), bias);
  }

  /// Scale, softcap, bias and diagonal on the scores of a chunk. Bias and diagonal as they were added, null
  /// if there are none.
  const float* MaskScores(std::int64_t i, KeyRange keys) {
    if (!call_.transforms_scores && !PartlyHidden(i, keys)) return nullptr;
    const Floats d;
    const auto hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
    float* s = Scores(i);
    float* bias = nullptr;
    if (call_.has_bias || PartlyHidden(i, keys)) {
      bias = Part<float>(layout_.bias);
      std::fill_n(bias, keys.size() * kRows + kLanes, 0.0f);
      FillBias(call_, TaskOfHead(i / chunks_), FirstRow(i), LastRow(i), keys, true, bias, kRows);
    }
    const ScoreScaling scaled(d, call_.transforms_scores ? call_.scale : 1.0f, call_.problem->scores.softcap);
    for (std::int64_t e = 0; e < keys.size() * kRows; e += kLanes) {
      auto x = scaled(hn::Load(d, s + e));
      if (bias != nullptr) {
        const auto b = hn::Load(d, bias + e);
        x = hn::IfThenElse(hn::Eq(b, hidden), hidden, hn::Add(x, b));
      }
      hn::Store(x, d, s + e);
    }
    return bias;
  }

  void Finish(std::int64_t head, std::int64_t r) {
    const TileTask task = TaskOfHead(head);
    const std::int64_t row = task.row_begin + r;
    const std::int64_t head_dim = call_.shape.head_dim_v;
    const std::int64_t i = head * chunks_ + r / kRows;
    float* o = Output(i) + r % kRows * o_stride_;
    if (bf16_ != nullptr) {
      float* ordered = Part<float>(layout_.rows);
      (e4m3_ != nullptr ? e4m3_->order_dimensions : bf16_->order_dimensions)(o, head_dim, ordered);
      o = ordered;
    } else if (v_in_vectors_) {
      UnpadFront(head_dim, o);
    }
    // Hidden values were multiplied by 0 without a look at them: if that spoilt something, the prefill
    // kernel, which looks, computes the head.
    if (sums_pairs_in_order() && !stays_in_range(0, 0, o, head_dim)) {
      if (spoilt_.empty() || spoilt_.back() != head) spoilt_.push_back(head);
      return;
    }
    const float row_max = RowMax(i)[r % kRows];
    const float row_sum = RowSum(i)[r % kRows];
    if (task.partial != nullptr) {
      float* partial =
          task.partial + head * task.partial_head_stride + r * partial_stride(call_.shape.head_dim_v);
      std::copy_n(o, head_dim, partial);
      partial[head_dim] = row_max;
      partial[head_dim + 1] = row_sum;
      return;
    }
    const std::int64_t query = query_of_row(call_, row);
    const int query_head = head_of_row(call_, task, row);
    if (!stays_in_range(row_max, row_sum, o, head_dim)) {
      attend_exactly(call_, task, query, query_head);
      return;
    }
    const RowResult result = finish_row(call_, query_head, row_max, row_sum);
    if constexpr (kInOrder) {
      const Floats d;
      const auto factor = hn::Set(d, result.o_factor);
      for (std::int64_t j = 0; j < o_stride_; j += kLanes)
        hn::Store(hn::MulAdd(hn::Load(d, o + j), factor, hn::Zero(d)), d, o + j);
    } else {
      for (std::int64_t j = 0; j < head_dim; ++j) o[j] *= result.o_factor;
    }
    StoreRow<T>(o, head_dim, o_row(call_, task, query, query_head));
    store_lse(call_, task, query, query_head, result.lse);
  }

  const CallContext& call_;
  const TileTask& task_;
  const Bf16DotKernels* bf16_;
  const ScratchLayout& layout_;
  std::int64_t heads_;
  std::int64_t rows_;
  std::int64_t chunks_;
  std::int64_t q_stride_;
  std::int64_t o_stride_;
  std::int64_t s_stride_;
  TokenRows token_rows_{*call_.problem, task_.sequence, task_.extent};
  bool narrow_;                 // k and v of 8 bits, with scales
  const E4m3DotKernels* e4m3_;  // not null: with bf16_, k and v are e4m3
  bool any_hidden_ = false;     // in the present block, from some row
  bool k_in_vectors_;
  bool v_in_vectors_;
  const std::byte** k_rows_;
  const std::byte** v_rows_;
  std::optional<TileModifier> modifier_;
  std::vector<std::int64_t> spoilt_;  // heads
  std::int64_t
      stream_bytes_;  // of a row of either, so that reading the one after the other stays within both
  std::int64_t ahead_;
};

template <class T>
HWY_INLINE void RunDecodeTileOf(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) {
  const auto run = [&]<bool kInOrder>() {
    const std::int64_t rows = task.row_end - task.row_begin;
    if (rows == 1) {
      DecodeTile<T, 1, kInOrder>(call, task, bf16).Run();
    } else if (rows == 2) {
      DecodeTile<T, 2, kInOrder>(call, task, bf16).Run();
    } else {
      DecodeTile<T, 4, kInOrder>(call, task, bf16).Run();
    }
  };
  if (call.problem->batch_invariant) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

HWY_INLINE void RunDecodeTile(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) {
  dispatch_activation(wide_dtype(*call.problem), [&]<class T>() { RunDecodeTileOf<T>(call, task, bf16); });
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
