// A tile of many queries with AMX's products of bf16 tiles. Like prefill-inl.h with the rows (queries) in the
// columns of the tiles, so that the softmax needs no reduction across lanes:
//
//   for each block of keys:                     all row blocks of the tile share the packed k and v
//     pack k [keys][head_dim] and v^T [head_dim_v][keys]
//     for each row block of 64:                 2 x 2 accumulator tiles of 16 x 16, 2 of each operand
//       s[keys][rows] = k q^T;  mask;  p = exp(s - max) as bf16;  o^T[head_dim_v][rows] += v^T p
//
// q, and p as the softmax writes it, are pairs of rows' numbers next to each other: the layout that the
// instruction wants of its right operand. k is its left operand as it lies in memory; v is transposed.
//
// f16: a number is the sum of two bf16, high and low, exactly (11 bits in 8 + 8). q k^T takes all four
// products, p v the three that matter: the fourth is below 2^-17 of the result.
//
// Dao et al., "FlashAttention" (2022), section 3.1; the rare rescaling of o follows Shah et al.,
// "FlashAttention-3" (2024), and its successors.
//
// What a row computes does not depend on the other lanes, nor on where its tile begins: blocks of keys start
// at multiples of block_n, sums run over the keys in ascending order, and a hidden key adds exactly nothing.
#include "backends/cpu/attention/amx_prefill.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/attention/amx_bias.h"
#include "backends/cpu/attention/amx_products.h"
#include "backends/cpu/attention/amx_vectors.h"
#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/modifier.h"
#include "backends/cpu/unroll.h"
#include "core/rounding.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kRowBlock = kAmxRowBlock;
constexpr std::int64_t kRowTiles = kAmxRowTiles;
constexpr std::int64_t kRowPairs = kRowTiles / 2;
constexpr std::int64_t kKeyStep = 32;    // keys that a row of pairs holds, and two tiles of scores
constexpr std::int64_t kRowsAhead = 16;  // rows of k that are asked for before they are packed
constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736f;

/// Where the parts of a thread's scratch memory lie, in bytes, each aligned to 64. Operands and accumulators
/// are stored tile by tile, each a KiB in a row, in the order in which the products read them; "tiles[2]" are
/// two neighbours of which one product takes both.
struct AmxLayout {
  std::int64_t steps = 0;      ///< tiles that a row of q or k spans, one part
  std::int64_t dim_pairs = 0;  ///< pairs of tiles that head_dim_v spans
  std::int64_t v_padded = 0;   ///< head_dim_v, up to a multiple of 16
  std::int64_t key_pairs = 0;  ///< pairs of tiles that block_n spans, of which each is one step of p v
  std::size_t q = 0;           ///< [row_blocks][kRowPairs][parts][steps] tiles[2]: [pair of dimensions][row]
  std::size_t o = 0;           ///< [row_blocks][2 dim_pairs][kRowTiles] tiles: [dimension][row]
  std::size_t row_max = 0;     ///< [row_blocks * kRowBlock] fp32, base 2: what the scores are taken against
  std::size_t row_sum = 0;     ///< [row_blocks * kRowBlock] fp32, of 2^(score - row_max)
  std::size_t merged_o = 0, merged_max = 0, merged_sum = 0;  ///< like those three, of the segments before
  std::size_t k = 0;         ///< [key_pairs][parts][steps] tiles[2]: [key][pair of dimensions]
  std::size_t v = 0;         ///< [dim_pairs][key_pairs][parts] tiles[2]: [dimension][pair of keys]
  std::size_t s = 0;         ///< [2 key_pairs][kRowTiles] tiles: [key][row]
  std::size_t p = 0;         ///< [kRowPairs][key_pairs][parts] tiles[2]: [pair of keys][row]
  std::size_t bias = 0;      ///< [keys][kRowBlock] fp32
  std::size_t rows = 0;      ///< [kLanes][v_padded] fp32
  std::size_t pointers = 0;  ///< [2][block_n] addresses of rows of k and of v
  std::size_t size_bytes = 0;

  AmxLayout(const TileShape& shape, int parts) {
    steps = divide_up(std::int64_t{shape.head_dim_qk}, 2 * kLanes);
    dim_pairs = divide_up(std::int64_t{shape.head_dim_v}, 2 * kLanes);
    v_padded = round_up(std::int64_t{shape.head_dim_v}, kLanes);
    key_pairs = divide_up(std::int64_t{shape.block_n}, kKeyStep);
    const std::int64_t blocks = divide_up(std::int64_t{shape.block_m}, kRowBlock);
    q = take(blocks * kRowPairs * parts * steps * 2 * kTileWords);
    o = take(blocks * 2 * dim_pairs * kRowTiles * kTileWords);
    row_max = take(blocks * kRowBlock);
    row_sum = take(blocks * kRowBlock);
    merged_o = take(shape.segments ? blocks * 2 * dim_pairs * kRowTiles * kTileWords : 0);
    merged_max = take(shape.segments ? blocks * kRowBlock : 0);
    merged_sum = take(shape.segments ? blocks * kRowBlock : 0);
    k = take(key_pairs * parts * steps * 2 * kTileWords);
    v = take(dim_pairs * key_pairs * parts * 2 * kTileWords);
    s = take(2 * key_pairs * kRowTiles * kTileWords);
    p = take(kRowPairs * key_pairs * parts * 2 * kTileWords);
    bias = take(key_pairs * kKeyStep * kRowBlock);
    rows = take(kLanes * v_padded);
    pointers = take(2 * 2 * std::int64_t{shape.block_n});
  }

 private:
  std::size_t take(std::int64_t words) {
    const std::size_t offset = size_bytes;
    size_bytes += static_cast<std::size_t>(round_up(words * 4, 64));
    return offset;
  }
};

/// A tile at work: the parts of its scratch memory by name.
template <class T>
class AmxTile {
 public:
  AmxTile(const CallContext& call, const TileTask& task)
      : call_(call),
        task_(task),
        layout_(call.shape, kParts<T>),
        o_(part<float>(layout_.o)),
        row_max_(part<float>(layout_.row_max)),
        row_sum_(part<float>(layout_.row_sum)),
        merged_o_(part<float>(layout_.merged_o)),
        merged_max_(part<float>(layout_.merged_max)),
        merged_sum_(part<float>(layout_.merged_sum)),
        k_(part<std::uint32_t>(layout_.k)),
        v_(part<std::uint32_t>(layout_.v)),
        s_(part<float>(layout_.s)),
        p_(part<std::uint32_t>(layout_.p)),
        k_rows_(part<const std::byte*>(layout_.pointers)),
        v_rows_(k_rows_ + call.shape.block_n) {}

  void run() {
    const std::int64_t rows = task_.row_end - task_.row_begin;
    const std::int64_t blocks = divide_up(rows, kRowBlock);
    for (std::int64_t i = 0; i < blocks; ++i) pack_queries(block_at(i));

    if (call_.modifier != nullptr) {
      modifier_.emplace(call_, blocks * kRowTiles, kLanes);
      for (std::int64_t i = 0; i < blocks; ++i) begin_modifier_rows(block_at(i));
    }

    bool is_first = true;
    for_segments(
        call_, task_,
        [&](const TileTask& segment) {
          if (!is_first) swap_states();
          is_first = false;
          attend_segment(segment, blocks);
        },
        [&] {
          swap_states();
          for (std::int64_t i = 0; i < blocks; ++i) merge_segment(block_at(i));
        });
    for (std::int64_t i = 0; i < blocks; ++i) finish(block_at(i));
  }

 private:
  static constexpr int kPartCount = kParts<T>;

  template <class Element>
  Element* part(std::size_t offset) const {
    return reinterpret_cast<Element*>(task_.scratch + offset);
  }

  /// The keys of one segment, from a state of which nothing is known.
  void attend_segment(const TileTask& segment, std::int64_t blocks) {
    std::fill_n(o_, blocks * output_words(), 0.0f);
    std::fill_n(row_max_, blocks * kRowBlock, kHidden);
    std::fill_n(row_sum_, blocks * kRowBlock, 0.0f);
    for_key_blocks(call_, segment, [&](std::int64_t start, const KeyRange& keys) {
      if (modifier_) {
        if (modifier_->seen_keys(task_, task_.row_begin, task_.row_end, keys).keys.empty()) return;
        modifier_->begin_keys(keys);
      }
      const bool finite = pack_keys_and_values(start, keys);
      for (std::int64_t i = 0; i < blocks; ++i) accumulate(block_at(i), start, keys, finite);
    });
  }

  /// Makes the state of the segments so far that of the next one, and back.
  void swap_states() {
    std::swap(o_, merged_o_);
    std::swap(row_max_, merged_max_);
    std::swap(row_sum_, merged_sum_);
  }

  /// Merges what was computed of a segment, which lies in the merged state's place, into the state.
  TESSERA_AMX_TARGET void merge_segment(const RowBlock& rows) {
    for (std::int64_t i = 0; i < rows.vectors; ++i) {
      const std::int64_t at = rows.index * kRowBlock + i * kLanes;
      const SegmentWeights weights(_mm512_load_ps(row_max_ + at), _mm512_load_ps(merged_max_ + at));
      _mm512_store_ps(row_max_ + at, weights.largest);
      _mm512_store_ps(row_sum_ + at,
                      weights.merge(_mm512_load_ps(row_sum_ + at), _mm512_load_ps(merged_sum_ + at)));
      for (std::int64_t d = 0; d < layout_.v_padded; ++d) {
        float* o = output_at(rows, d, i);
        _mm512_store_ps(o, weights.merge(_mm512_load_ps(o), _mm512_load_ps(o - o_ + merged_o_)));
      }
    }
  }

  RowBlock block_at(std::int64_t index) const { return row_block(task_, index, kRowBlock, kLanes); }

  // First tiles of the operands and accumulators.
  std::uint32_t* queries(const RowBlock& block, std::int64_t row_pair) const {
    return part<std::uint32_t>(layout_.q) +
           (block.index * kRowPairs + row_pair) * kPartCount * layout_.steps * 2 * kTileWords;
  }
  std::uint32_t* keys_at(std::int64_t key_pair) const {
    return k_ + key_pair * kPartCount * layout_.steps * 2 * kTileWords;
  }
  std::uint32_t* values_at(std::int64_t dim_pair, std::int64_t key_pair) const {
    return v_ + (dim_pair * layout_.key_pairs + key_pair) * kPartCount * 2 * kTileWords;
  }
  std::uint32_t* weights_at(std::int64_t row_pair, std::int64_t key_pair) const {
    return p_ + (row_pair * layout_.key_pairs + key_pair) * kPartCount * 2 * kTileWords;
  }
  /// The score of a key, counted from the block's start, and the first of 16 rows.
  float* score_at(std::int64_t key, std::int64_t row_tile) const {
    return s_ + (key / kLanes * kRowTiles + row_tile) * kTileWords + key % kLanes * kLanes;
  }
  /// A dimension of o of the first of 16 rows.
  float* output_at(const RowBlock& block, std::int64_t dim, std::int64_t row_tile) const {
    return o_ + block.index * output_words() + (dim / kLanes * kRowTiles + row_tile) * kTileWords +
           dim % kLanes * kLanes;
  }
  std::int64_t output_words() const { return 2 * layout_.dim_pairs * kRowTiles * kTileWords; }

  TESSERA_AMX_TARGET void pack_queries(const RowBlock& block) {
    const std::int64_t head_dim = call_.shape.head_dim_qk;
    for (std::int64_t i = 0; i < block.vectors; ++i) {
      const std::byte* sources[kLanes];
      for (std::int64_t r = 0; r < kLanes; ++r) {
        const std::int64_t row = block.begin + i * kLanes + r;
        sources[r] = row < block.end
                         ? q_row(call_, task_, query_of_row(call_, row), head_of_row(call_, task_, row))
                         : nullptr;
      }
      for (std::int64_t t = 0; t < layout_.steps; ++t) {
        __m512i rows[kPartCount][kLanes];
        for (std::int64_t r = 0; r < kLanes; ++r) {
          __m512i pairs[kPartCount];
          for (__m512i& x : pairs) x = _mm512_setzero_si512();
          if (sources[r] != nullptr) split<T>(load_numbers(sources[r], 2 * kLanes * t, head_dim), pairs);
          for (int part = 0; part < kPartCount; ++part) rows[part][r] = pairs[part];
        }
        for (int part = 0; part < kPartCount; ++part) {
          transpose(rows[part]);
          std::uint32_t* tile = queries(block, i / 2) + ((part * layout_.steps + t) * 2 + i % 2) * kTileWords;
          for (std::int64_t r = 0; r < kLanes; ++r) _mm512_store_si512(tile + r * kLanes, rows[part][r]);
        }
      }
    }
  }

  /// Packs the keys `block` at their places counted from `start`. Returns true if all of v is finite; what is
  /// not has become 0.
  TESSERA_AMX_TARGET bool pack_keys_and_values(std::int64_t start, KeyRange block) {
    kv_rows(call_, task_, call_.problem->k, block.begin, block.end, k_rows_);
    kv_rows(call_, task_, call_.problem->v, block.begin, block.end, v_rows_);
    const std::int64_t first = block.begin - start;
    const std::int64_t last = block.end - start;
    for (std::int64_t n = first; n < last; ++n) {
      prefetch(k_rows_[std::min(n + kRowsAhead, last - 1) - first], call_.shape.head_dim_qk);
      prefetch(v_rows_[n - first], call_.shape.head_dim_v);
      std::uint32_t* row = keys_at(n / kKeyStep) + n % kKeyStep / kLanes * kTileWords + n % kLanes * kLanes;
      for (std::int64_t t = 0; t < layout_.steps; ++t) {
        __m512i pairs[kPartCount];
        split<T>(load_numbers(k_rows_[n - first], 2 * kLanes * t, call_.shape.head_dim_qk), pairs);
        for (int part = 0; part < kPartCount; ++part) {
          _mm512_store_si512(row + (part * layout_.steps + t) * 2 * kTileWords, pairs[part]);
        }
      }
    }
    bool finite = true;
    // Whole steps of keys: those that are not there are zeros.
    for (std::int64_t n = first / kKeyStep * kKeyStep; n < last; n += kKeyStep) {
      const std::byte* sources[kKeyStep];
      for (std::int64_t i = 0; i < kKeyStep; ++i) {
        sources[i] = n + i < first || n + i >= last ? nullptr : v_rows_[n + i - first];
      }
      for (std::int64_t d = 0; d < layout_.dim_pairs; ++d) finite &= pack_values(sources, d, n / kKeyStep);
    }
    return finite;
  }

  /// Asks for a row that is read soon: rows lie too far apart for the processor to foresee them.
  static void prefetch(const std::byte* row, std::int64_t head_dim) {
    constexpr std::int64_t kLine = 64;
    for (std::int64_t i = 0; i < 2 * head_dim; i += kLine) __builtin_prefetch(row + i);
  }

  /// Packs 32 dimensions of the values of 32 keys. Returns true if all are finite; what is not has become 0.
  TESSERA_AMX_TARGET bool pack_values(const std::byte* const* sources, std::int64_t dim_pair,
                                      std::int64_t key_pair) {
    __m512i values[kPartCount][kKeyStep];
    __mmask32 found = 0;
    for (std::int64_t i = 0; i < kKeyStep; ++i) {
      __m512i numbers = _mm512_setzero_si512();
      if (sources[i] != nullptr)
        numbers = load_numbers(sources[i], dim_pair * 2 * kLanes, call_.shape.head_dim_v);
      const __mmask32 spoilt = non_finite<T>(numbers);
      found |= spoilt;
      __m512i parts[kPartCount];
      split<T>(_mm512_maskz_mov_epi16(static_cast<__mmask32>(~spoilt), numbers), parts);
      for (int part = 0; part < kPartCount; ++part) values[part][i] = parts[part];
    }
    for (int part = 0; part < kPartCount; ++part) {
      std::uint32_t* tiles = values_at(dim_pair, key_pair) + 2 * part * kTileWords;
      // Interleaving two keys leaves, of each eight dimensions, the first four to one vector and the others
      // to another.
      for (int four = 0; four < 2; ++four) {
        __m512i rows[kLanes];
        for (std::int64_t i = 0; i < kLanes; ++i) {
          const __m512i even = values[part][2 * i];
          const __m512i odd = values[part][2 * i + 1];
          rows[i] = four == 0 ? _mm512_unpacklo_epi16(even, odd) : _mm512_unpackhi_epi16(even, odd);
        }
        transpose(rows);
        for (std::int64_t i = 0; i < kLanes; ++i) {
          const std::int64_t dim = i / 4 * 8 + four * 4 + i % 4;
          _mm512_store_si512(tiles + dim * kLanes, rows[i]);
        }
      }
    }
    return found == 0;
  }

  /// One block of keys for one row block.
  void accumulate(const RowBlock& rows, std::int64_t start, KeyRange packed, bool finite) {
    KeyRange keys = keys_of_rows(call_, task_, rows.begin, rows.end);
    keys = {std::max(keys.begin, packed.begin), std::min(keys.end, packed.end)};
    SeenKeys seen{keys};
    if (modifier_) seen = modifier_->seen_keys(task_, rows.begin, rows.end, keys);
    keys = seen.keys;
    if (keys.empty()) return;
    const std::int64_t begin = keys.begin - start;
    const std::int64_t end = keys.end - start;
    // Whole steps of keys, of which those outside [begin, end) count as hidden.
    const std::int64_t step_begin = begin / kKeyStep * kKeyStep;
    const std::int64_t step_end = round_up(end, kKeyStep);
    score(rows, step_begin / kKeyStep, step_end / kKeyStep);
    hide(rows, step_begin, begin);
    hide(rows, end, step_end);
    if (adds_bias_) {
      add_bias(rows, start, keys);
    } else if (call_.transforms_scores && !call_.modifier_scales) {
      transform_scores(rows, start, keys);
    }
    if (modifier_) modify(rows, start, keys, !seen.all);
    if (!all_visible(call_, task_, rows.begin, rows.end, keys)) hide_outside(rows, start, begin, end);
    if (!finite) spoil_non_finite(rows, start, keys, packed);
    softmax(rows, step_begin, step_end);
    weigh(rows, step_begin / kKeyStep, step_end / kKeyStep);
  }

  /// Scores of the pairs of key tiles [begin, end).
  void score(const RowBlock& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      for (std::int64_t i = 0; i < rows.vectors; i += 2) {
        float* s = score_at(n * kKeyStep, i);
        const auto product = i + 1 < rows.vectors ? score_tiles<2, kPartCount> : score_tiles<1, kPartCount>;
        product(keys_at(n), queries(rows, i / 2), layout_.steps, s);
      }
    }
  }

  /// Hides the keys [begin, end) of a block from all rows.
  void hide(const RowBlock& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      for (std::int64_t i = 0; i < rows.vectors; ++i) std::fill_n(score_at(n, i), kLanes, kHidden);
    }
  }

  void begin_modifier_rows(const RowBlock& rows) {
    for (std::int64_t i = 0; i < rows.vectors; ++i) {
      const std::int64_t first = rows.begin + i * kLanes;
      modifier_->begin_rows(rows.index * kRowTiles + i, task_, first, std::min(first + kLanes, rows.end));
    }
  }

  /// The score modifier, tile by tile.
  void modify(const RowBlock& rows, std::int64_t start, KeyRange keys, bool masks) {
    for (std::int64_t key = keys.begin; key < keys.end;) {
      const std::int64_t end = std::min(keys.end, start + ((key - start) / kLanes + 1) * kLanes);
      for (std::int64_t i = 0; i < rows.vectors; ++i)
        modifier_->modify(rows.index * kRowTiles + i, {key, end}, masks,
                          call_.modifier_scales ? call_.scale : 1, score_at(key - start, i), nullptr);
      key = end;
    }
    if (call_.has_bias) hide_biased(rows, start, keys);
  }

  /// s = -inf where the bias is, whatever the modifier made of it.
  TESSERA_AMX_TARGET void hide_biased(const RowBlock& rows, std::int64_t start, KeyRange keys) {
    const float* bias = part<float>(layout_.bias);
    const __m512 hidden = _mm512_set1_ps(kHidden);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      for (std::int64_t i = 0; i < rows.vectors; ++i) {
        const __m512 b = _mm512_load_ps(bias + (key - keys.begin) * kRowBlock + i * kLanes);
        const __mmask16 is_hidden = _mm512_cmp_ps_mask(b, hidden, _CMP_EQ_OQ);
        _mm512_mask_store_ps(score_at(key - start, i), is_hidden, hidden);
      }
    }
  }

  /// s = scale s + bias.
  TESSERA_AMX_TARGET void add_bias(const RowBlock& rows, std::int64_t start, KeyRange keys) {
    for (std::int64_t i = 0; i < rows.vectors; ++i) {
      const AmxBias bias(call_, task_, rows.begin + i * kLanes, rows.end, keys);
      for (std::int64_t key = keys.begin; key < keys.end;) {
        const std::int64_t end = std::min(keys.end, start + ((key - start) / kLanes + 1) * kLanes);
        bias.add(key, static_cast<int>(end - key), call_.scale, score_at(key - start, i));
        key = end;
      }
    }
  }

  /// s = softcap(scale s) + bias.
  TESSERA_AMX_TARGET void transform_scores(const RowBlock& rows, std::int64_t start, KeyRange keys) {
    const KernelTable& vectors = kernel_table(SimdTarget::kAvx512);
    for (std::int64_t key = keys.begin; key < keys.end;) {
      const std::int64_t end = std::min(keys.end, start + ((key - start) / kLanes + 1) * kLanes);
      for (std::int64_t i = 0; i < rows.vectors; ++i)
        vectors.scale_scores(call_, score_at(key - start, i), (end - key) * kLanes);
      key = end;
    }
    if (!call_.has_bias) return;
    float* bias = part<float>(layout_.bias);
    vectors.fill_bias(call_, task_, rows.begin, rows.end, keys, false, bias, kRowBlock);
    const __m512 hidden = _mm512_set1_ps(kHidden);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      for (std::int64_t i = 0; i < rows.vectors; ++i) {
        float* s = score_at(key - start, i);
        const __m512 b = _mm512_load_ps(bias + (key - keys.begin) * kRowBlock + i * kLanes);
        const __mmask16 is_hidden = _mm512_cmp_ps_mask(b, hidden, _CMP_EQ_OQ);
        _mm512_store_ps(s, _mm512_mask_mov_ps(_mm512_add_ps(_mm512_load_ps(s), b), is_hidden, hidden));
      }
    }
  }

  /// s = -inf for the keys that each row's own position hides.
  TESSERA_AMX_TARGET void hide_outside(const RowBlock& rows, std::int64_t start, std::int64_t begin,
                                       std::int64_t end) {
    for (std::int64_t i = 0; i < rows.vectors; ++i) {
      alignas(64) std::int32_t first[kLanes] = {};
      alignas(64) std::int32_t last[kLanes] = {};
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const std::int64_t row = rows.begin + i * kLanes + lane;
        if (row >= rows.end) break;
        const KeyRange seen = task_.diagonal.keys_of_query(query_of_row(call_, row));
        first[lane] = static_cast<std::int32_t>(std::clamp<std::int64_t>(seen.begin - start, 0, end));
        last[lane] = static_cast<std::int32_t>(std::clamp<std::int64_t>(seen.end - start, 0, end));
      }
      const __m512i from = _mm512_load_si512(first);
      const __m512i to = _mm512_load_si512(last);
      for (std::int64_t n = begin; n < end; ++n) {
        const __m512i key = _mm512_set1_epi32(static_cast<int>(n));
        const __mmask16 visible = _mm512_mask_cmplt_epi32_mask(_mm512_cmple_epi32_mask(from, key), key, to);
        float* s = score_at(n, i);
        _mm512_store_ps(s, _mm512_mask_mov_ps(_mm512_set1_ps(kHidden), visible, _mm512_load_ps(s)));
      }
    }
  }

  /// Spoils the rows that see an infinity or NaN of v, which was packed as 0: finish has them computed anew.
  void spoil_non_finite(const RowBlock& rows, std::int64_t start, KeyRange keys, KeyRange packed) {
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      const T* row = reinterpret_cast<const T*>(v_rows_[key - packed.begin]);
      bool finite = true;
      for (int d = 0; d < call_.shape.head_dim_v && finite; ++d) {
        const float value = static_cast<float>(row[d]);
        finite = value - value == 0;
      }
      if (finite) continue;
      for (std::int64_t row = 0; row < rows.end - rows.begin; ++row) {
        const std::int64_t lane = row % kLanes;
        if (score_at(key - start, row / kLanes)[lane] == kHidden) continue;
        output_at(rows, 0, row / kLanes)[lane] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  /// The online softmax over the keys [begin, end) of a block: p = 2^(score - row_max).
  void softmax(const RowBlock& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < rows.vectors; ++i) softmax_of_lanes(rows, i, begin, end);
  }

  TESSERA_AMX_TARGET void softmax_of_lanes(const RowBlock& rows, std::int64_t row_tile, std::int64_t begin,
                                           std::int64_t end) const {
    float* row_max = row_max_ + rows.index * kRowBlock + row_tile * kLanes;
    float* row_sum = row_sum_ + rows.index * kRowBlock + row_tile * kLanes;
    // A larger score than those before moves what they are taken against only where it is so much larger that
    // 2^(difference) could grow out of hand: o then rarely has to be scaled.
    const __m512 slack = _mm512_set1_ps(8.0f);
    const __m512 factor = _mm512_set1_ps((call_.transforms_scores ? 1.0f : call_.scale) * kLog2E);
    const __m512 hidden = _mm512_set1_ps(kHidden);
    __m512 largest = hidden;
    __m512 largest_odd = hidden;
    for (std::int64_t n = begin; n < end; n += kLanes) {
      const float* s = score_at(n, row_tile);
      TESSERA_UNROLL
      for (int i = 0; i < kLanes; i += 2) {
        largest = _mm512_max_ps(largest, _mm512_load_ps(s + i * kLanes));
        largest_odd = _mm512_max_ps(largest_odd, _mm512_load_ps(s + (i + 1) * kLanes));
      }
    }
    largest = _mm512_mul_ps(_mm512_max_ps(largest, largest_odd), factor);
    __m512 old_max = _mm512_load_ps(row_max);
    __m512 sum = _mm512_load_ps(row_sum);
    const __mmask16 moves = _mm512_cmp_ps_mask(largest, _mm512_add_ps(old_max, slack), _CMP_GT_OQ);
    if (moves != 0) {
      const __m512 new_max = _mm512_mask_mov_ps(old_max, moves, largest);
      // Rows that have seen no key have nothing to scale.
      const __mmask16 scales = _mm512_mask_cmp_ps_mask(moves, old_max, hidden, _CMP_NEQ_UQ);
      if (scales != 0) {
        const __m512 correction =
            _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), scales, exp2_or_zero(_mm512_sub_ps(old_max, new_max)));
        sum = _mm512_mul_ps(sum, correction);
        for (std::int64_t d = 0; d < layout_.v_padded; ++d) {
          float* o = output_at(rows, d, row_tile);
          _mm512_store_ps(o, _mm512_mul_ps(_mm512_load_ps(o), correction));
        }
      }
      _mm512_store_ps(row_max, new_max);
      old_max = new_max;
    }
    // A row that has seen no key yet: any finite number in place of -inf keeps 2^(-inf - max) = 0.
    const __m512 offset = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(old_max, hidden, _CMP_NEQ_UQ), old_max);
    // The conversion of two vectors puts the first one's bf16 into the lower half; pairing takes turns.
    const __m512i turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512 sum_odd = _mm512_setzero_ps();
    for (std::int64_t n = begin; n < end; n += kLanes) {
      const float* s = score_at(n, row_tile);
      std::uint32_t* p =
          weights_at(row_tile / 2, n / kKeyStep) + row_tile % 2 * kTileWords + n % kKeyStep / 2 * kLanes;
      TESSERA_UNROLL
      for (int i = 0; i < kLanes; i += 2) {
        const __m512 even = exp2_or_zero(_mm512_fmsub_ps(_mm512_load_ps(s + i * kLanes), factor, offset));
        const __m512 odd =
            exp2_or_zero(_mm512_fmsub_ps(_mm512_load_ps(s + (i + 1) * kLanes), factor, offset));
        sum = _mm512_add_ps(sum, even);
        sum_odd = _mm512_add_ps(sum_odd, odd);
        const __m512i high = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
        const __m512i paired = _mm512_permutexvar_epi16(turns, high);
        _mm512_store_si512(p + i / 2 * kLanes, paired);
        if constexpr (kPartCount == 2) {
          const __m512 even_high = _mm512_castsi512_ps(_mm512_slli_epi32(paired, 16));
          const __m512 odd_high = _mm512_castsi512_ps(_mm512_and_si512(paired, _mm512_set1_epi32(-0x10000)));
          const __m512i low = reinterpret_cast<__m512i>(
              _mm512_cvtne2ps_pbh(_mm512_sub_ps(odd, odd_high), _mm512_sub_ps(even, even_high)));
          _mm512_store_si512(p + 2 * kTileWords + i / 2 * kLanes, _mm512_permutexvar_epi16(turns, low));
        }
      }
    }
    _mm512_store_ps(row_sum, _mm512_add_ps(sum, sum_odd));
  }

  /// o += p v for the pairs of key tiles [begin, end).
  void weigh(const RowBlock& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < rows.vectors; i += 2) {
      for (std::int64_t d = 0; d < layout_.dim_pairs; ++d) {
        const bool two_dims = (2 * d + 1) * kLanes < layout_.v_padded;
        const bool two_rows = i + 1 < rows.vectors;
        const auto product = two_dims
                                 ? two_rows ? weigh_tiles<2, 2, kPartCount> : weigh_tiles<2, 1, kPartCount>
                             : two_rows ? weigh_tiles<1, 2, kPartCount>
                                        : weigh_tiles<1, 1, kPartCount>;
        product(values_at(d, begin), weights_at(i / 2, begin), end - begin,
                output_at(rows, 2 * d * kLanes, i));
      }
    }
  }

  TESSERA_AMX_TARGET void finish(const RowBlock& rows) {
    const std::int64_t head_dim = call_.shape.head_dim_v;
    float* results = part<float>(layout_.rows);
    for (std::int64_t i = 0; i < rows.vectors; ++i) {
      const std::int64_t first = rows.begin + i * kLanes;
      const std::int64_t count = std::min(kLanes, rows.end - first);
      const float* row_sum = row_sum_ + rows.index * kRowBlock + i * kLanes;
      alignas(64) float row_max[kLanes];
      alignas(64) float factor[kLanes];
      for (std::int64_t r = 0; r < count; ++r) {
        const float base_2 = row_max_[rows.index * kRowBlock + i * kLanes + r];
        const bool keeps_base = task_.partial != nullptr && call_.problem->batch_invariant;
        row_max[r] = keeps_base ? base_2 : natural_maximum(base_2);
        factor[r] = 1;
        if (task_.partial != nullptr) continue;
        const int head = head_of_row(call_, task_, first + r);
        const RowResult result = finish_row(call_, head, row_max[r], row_sum[r]);
        factor[r] = result.o_factor;
        store_lse(call_, task_, query_of_row(call_, first + r), head, result.lse);
      }
      std::fill(factor + count, factor + kLanes, 0.0f);
      const __m512 factors = _mm512_load_ps(factor);
      for (std::int64_t d = 0; d < layout_.v_padded; d += kLanes) {
        __m512i block[kLanes];
        for (std::int64_t j = 0; j < kLanes; ++j) {
          // Adding 0 makes a zero's sign positive, whatever the order in which it came about.
          block[j] = _mm512_castps_si512(
              _mm512_fmadd_ps(_mm512_load_ps(output_at(rows, d + j, i)), factors, _mm512_setzero_ps()));
        }
        transpose(block);
        for (std::int64_t r = 0; r < kLanes; ++r)
          _mm512_store_si512(results + r * layout_.v_padded + d, block[r]);
      }
      for (std::int64_t r = 0; r < count; ++r) {
        const float* o = results + r * layout_.v_padded;
        if (task_.partial != nullptr) {
          float* partial =
              task_.partial + (first + r - task_.row_begin) * partial_stride(call_.shape.head_dim_v);
          std::copy_n(o, head_dim, partial);
          partial[head_dim] = row_max[r];
          partial[head_dim + 1] = row_sum[r];
          continue;
        }
        const std::int64_t query = query_of_row(call_, first + r);
        const int head = head_of_row(call_, task_, first + r);
        if (stays_in_range(row_max[r], row_sum[r], o, head_dim)) {
          store_row(o, head_dim, o_row(call_, task_, query, head));
        } else {
          attend_exactly(call_, task_, query, head);
        }
      }
    }
  }

  /// row[0, count), of which a whole number of vectors can be read, as T, rounded to nearest even.
  TESSERA_AMX_TARGET static void store_row(const float* row, std::int64_t count, std::byte* target) {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const __m512 x = _mm512_load_ps(row + i);
      __m256i rounded;
      if constexpr (kPartCount == 1) {
        rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
      } else {
        rounded = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      }
      const std::int64_t left = std::min(count - i, kLanes);
      _mm256_mask_storeu_epi16(target + 2 * i, static_cast<__mmask16>((1u << left) - 1), rounded);
    }
  }

  const CallContext& call_;
  const TileTask& task_;
  const AmxLayout layout_;
  float* o_;
  float* row_max_;  ///< base 2
  float* row_sum_;
  float* merged_o_;  ///< of the segments before, while one is computed
  float* merged_max_;
  float* merged_sum_;
  std::uint32_t* k_;
  std::uint32_t* v_;
  float* s_;
  std::uint32_t* p_;
  const std::byte** k_rows_;  ///< of the present block
  const std::byte** v_rows_;
  std::optional<TileModifier> modifier_;
  const bool adds_bias_ = AmxBias::takes(call_);
};

/// merged = both of a row's partial results: SegmentWeights, with a vector of dimensions where tiles have one
/// of rows.
TESSERA_AMX_TARGET void merge_rows(std::int64_t head_dim, const float* segment, float* merged) {
  const SegmentWeights weights(_mm512_set1_ps(merged[head_dim]), _mm512_set1_ps(segment[head_dim]));
  const __m512 sum =
      weights.merge(_mm512_set1_ps(merged[head_dim + 1]), _mm512_set1_ps(segment[head_dim + 1]));
  // Rows have room for whole vectors.
  for (std::int64_t i = 0; i < head_dim; i += kLanes)
    _mm512_storeu_ps(merged + i, weights.merge(_mm512_loadu_ps(merged + i), _mm512_loadu_ps(segment + i)));
  merged[head_dim] = _mm512_cvtss_f32(weights.largest);
  merged[head_dim + 1] = _mm512_cvtss_f32(sum);
}

}  // namespace

void amx_merge_segment(const CallContext& call, std::int64_t rows, const float* segment, float* merged) {
  const std::int64_t stride = partial_stride(call.shape.head_dim_v);
  for (std::int64_t r = 0; r < rows; ++r)
    merge_rows(call.shape.head_dim_v, segment + r * stride, merged + r * stride);
}

bool amx_takes(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

std::size_t amx_scratch_bytes(const TileShape& shape, DType dtype) {
  return AmxLayout(shape, dtype == DType::kF16 ? 2 : 1).size_bytes;
}

void amx_prefill_tile(const CallContext& call, const TileTask& task) {
  const amx::TilesInUse tiles;
  if (call.problem->q.dtype == DType::kF16) {
    AmxTile<Half>(call, task).run();
  } else {
    AmxTile<BFloat16>(call, task).run();
  }
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

bool amx_takes(DType) { return false; }
std::size_t amx_scratch_bytes(const TileShape&, DType) { return 0; }
void amx_merge_segment(const CallContext&, std::int64_t, const float*, float*) {}
void amx_prefill_tile(const CallContext&, const TileTask&) {}

}  // namespace tessera::cpu

#endif
