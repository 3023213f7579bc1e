// A tile of few queries with AMX's products of bf16 tiles, row by row with the arithmetic of amx_prefill.cpp,
// bit for bit. There k and v are packed once for up to 1024 rows; here they are read for one, so that packing
// would be most of the work:
//
//   for each block of keys, for 32 keys and each head of the task at a time:
//     s[keys][rows] = k q^T      k is the left operand as it lies in memory; a row has one column of q and s
//   for each head:               mask;  p = exp(s - max) as bf16
//   for 32 keys and each head at a time:
//     o[rows][dims] += p v       p is the left operand, v the right one: two keys interleaved
//
// In prefill v^T is the left operand and p the right one: a product's sum runs over the same pairs of keys in
// the same order, whichever side they are on.
//
// v is not looked at before it is multiplied. An infinity or NaN in it spoils o, hidden or not; heads to
// which that happens are computed by amx_prefill_tile.
#include "backends/cpu/attention/amx_decode.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/attention/amx_prefill.h"
#include "backends/cpu/attention/amx_vectors.h"
#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/stream_reader.h"
#include "backends/cpu/unroll.h"
#include "core/rounding.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kKeyStep = 32;     // keys of a step of p v, and two tiles of k
constexpr std::int64_t kDimStep = 64;     // dimensions of o that are worked on side by side
constexpr std::int64_t kTileWords = 256;  // of 32 bits: fp32, or pairs of bf16
constexpr std::int64_t kKeysAhead = 32;   // that are read ahead
constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736f;

/// Where the parts of a thread's scratch memory lie, in bytes, each aligned to 64. `rows` are a power of two.
struct Layout {
  std::int64_t steps = 0;      ///< tiles that a row of q or k spans, one part
  std::int64_t v_padded = 0;   ///< head_dim_v, up to a multiple of kDimStep
  std::int64_t key_steps = 0;  ///< of a block
  std::size_t q = 0;           ///< [heads][parts][steps] tiles [pair of dimensions][rows]
  std::size_t o = 0;           ///< [heads][rows][v_padded] fp32; of 32 dimensions as unpacking leaves them
  std::size_t row_max = 0;     ///< [heads][16] fp32, the rows again and again
  std::size_t row_sum = 0;     ///< [heads][rows] fp32
  std::size_t s = 0;           ///< [heads][keys][rows] fp32
  std::size_t p = 0;           ///< [heads][key_steps][parts] tiles [rows][32 keys]
  std::size_t k = 0;           ///< [2][2][parts][steps] tiles [key][pair of dimensions]
  std::size_t v = 0;           ///< [2][2][parts][2] tiles [pair of keys][dimension]
  std::size_t bias = 0;        ///< [keys][rows] fp32
  std::size_t partial = 0;     ///< [heads][rows][partial_stride(head_dim_v)] fp32
  std::size_t pointers = 0;    ///< [2][block_n + kKeysAhead] addresses of rows of k and of v
  std::size_t size_bytes = 0;

  Layout(const TileShape& shape, std::int64_t rows, int parts) {
    const std::int64_t heads = shape.decode_heads;
    steps = divide_up(std::int64_t{shape.head_dim_qk}, 2 * kLanes);
    v_padded = round_up(std::int64_t{shape.head_dim_v}, kDimStep);
    key_steps = divide_up(std::int64_t{shape.block_n}, kKeyStep);
    q = take(heads * parts * steps * kLanes * rows);
    o = take(heads * rows * v_padded);
    row_max = take(heads * kLanes);
    row_sum = take(heads * rows);
    s = take(heads * key_steps * kKeyStep * rows);
    p = take(heads * key_steps * parts * kLanes * rows);
    k = take(4 * parts * steps * kTileWords);
    v = take(8 * parts * kTileWords);
    bias = take(key_steps * kKeyStep * rows + kLanes);
    partial = take(heads * rows * partial_stride(shape.head_dim_v));
    pointers = take(2 * 2 * (std::int64_t{shape.block_n} + kKeysAhead));
  }

 private:
  std::size_t take(std::int64_t words) {
    const std::size_t offset = size_bytes;
    size_bytes += static_cast<std::size_t>(round_up(words * 4, 64));
    return offset;
  }
};

// A product's result has to wait for some 50 cycles before it can be added to: four are under way at a time.

/// Tiles for scores: 0 to 3 are s, 4 and 5 are q, and have a column for each row; 6 and 7 are k.
template <int kRows>
amx::TileConfig score_tile_config() {
  amx::TileConfig config;
  for (int i = 0; i < 6; ++i) config.row_bytes[i] = 4 * kRows;
  return config;
}

/// Tiles for values: 0 to 3 are o, 4 is p, and have a row for each row; 6 and 7 are v.
template <int kRows>
amx::TileConfig weigh_tile_config() {
  amx::TileConfig config;
  for (int i = 0; i < 5; ++i) config.rows[i] = kRows;
  return config;
}

/// A tile at work, of up to kRows rows a head.
template <class T, int kRows>
class AmxDecodeTile {
  static constexpr int kPartCount = kParts<T>;
  static constexpr std::int64_t kKeysOfVector = kLanes / kRows;
  using Reader = BasicStreamReader<CacheLevel::kSecond>;

 public:
  AmxDecodeTile(const CallContext& call, const TileTask& task)
      : call_(call),
        task_(task),
        layout_(call.shape, kRows, kPartCount),
        heads_(call.shape.decode_heads),
        k_bytes_(2 * std::int64_t{call.shape.head_dim_qk}),
        v_bytes_(2 * std::int64_t{call.shape.head_dim_v}),
        k_rows_(part<const std::byte*>(layout_.pointers)),
        v_rows_(k_rows_ + call.shape.block_n + kKeysAhead) {}

  void run() {
    accumulate();
    std::vector<std::int64_t> spoilt;
    for (std::int64_t head = 0; head < heads_; ++head) {
      if (!collect(head)) spoilt.push_back(head);
    }
    // These take all of the scratch memory.
    for (const std::int64_t head : spoilt) {
      TileTask task = task_of_head(head);
      if (task.partial != nullptr) task.partial += head * task.partial_head_stride;
      amx_prefill_tile(call_, task);
    }
  }

 private:
  template <class Element>
  Element* part(std::size_t offset) const {
    return reinterpret_cast<Element*>(task_.scratch + offset);
  }
  TileTask task_of_head(std::int64_t head) const {
    TileTask task = task_;
    task.kv_head += static_cast<int>(head);
    return task;
  }
  std::int64_t rows() const { return task_.row_end - task_.row_begin; }

  std::uint32_t* queries(std::int64_t head) const {
    return part<std::uint32_t>(layout_.q) + head * kPartCount * layout_.steps * kLanes * kRows;
  }
  float* output(std::int64_t head) const { return part<float>(layout_.o) + head * kRows * layout_.v_padded; }
  float* row_max(std::int64_t head) const { return part<float>(layout_.row_max) + head * kLanes; }
  float* row_sum(std::int64_t head) const { return part<float>(layout_.row_sum) + head * kRows; }
  float* scores(std::int64_t head) const {
    return part<float>(layout_.s) + head * layout_.key_steps * kKeyStep * kRows;
  }
  std::uint32_t* weights(std::int64_t head, std::int64_t key_step) const {
    return part<std::uint32_t>(layout_.p) +
           (head * layout_.key_steps + key_step) * kPartCount * kLanes * kRows;
  }

  void accumulate() {
    for (std::int64_t head = 0; head < heads_; ++head) {
      pack_queries(head);
      std::fill_n(output(head), kRows * layout_.v_padded, 0.0f);
      std::fill_n(row_max(head), kLanes, kHidden);
      std::fill_n(row_sum(head), kRows, 0.0f);
    }
    const KeyRange all = keys_of_rows(call_, task_, task_.row_begin, task_.row_end);
    for_key_blocks(call_, task_, [&](std::int64_t start, const KeyRange& keys) {
      kv_rows(call_, task_, call_.problem->k, keys.begin, keys.end, k_rows_);
      kv_rows(call_, task_, call_.problem->v, keys.begin, keys.end, v_rows_);
      look_ahead(keys, all.end);
      score(start, keys);
      for (std::int64_t head = 0; head < heads_; ++head) {
        mask(head, start, keys);
        softmax(head, (keys.begin - start) / kKeyStep, divide_up(keys.end - start, kKeyStep));
      }
      weigh(start, keys);
    });
  }

  /// Completes the rows of a block with those that are read after them: the keys' with its values', the
  /// values' with the next block's keys'.
  void look_ahead(KeyRange block, std::int64_t keys_end) {
    const std::int64_t size = block.size();
    for (std::int64_t n = 0; n < kKeysAhead; ++n) k_rows_[size + n] = v_rows_[std::min(n, size - 1)];
    const std::int64_t next_end = std::min(block.end + kKeysAhead, keys_end);
    kv_rows(call_, task_, call_.problem->k, block.end, next_end, v_rows_ + size);
    for (std::int64_t n = std::max<std::int64_t>(next_end - block.end, 0); n < kKeysAhead; ++n)
      v_rows_[size + n] = v_rows_[size + n - 1];
  }

  TESSERA_AMX_TARGET void pack_queries(std::int64_t head) {
    const TileTask task = task_of_head(head);
    std::uint32_t* q = queries(head);
    std::fill_n(q, kPartCount * layout_.steps * kLanes * kRows, 0u);
    for (std::int64_t r = 0; r < rows(); ++r) {
      const std::int64_t row = task.row_begin + r;
      const std::byte* source = q_row(call_, task, query_of_row(call_, row), head_of_row(call_, task, row));
      for (std::int64_t t = 0; t < layout_.steps; ++t) {
        __m512i pairs[kPartCount];
        split<T>(load_numbers(source, 2 * kLanes * t, call_.shape.head_dim_qk), pairs);
        for (int part = 0; part < kPartCount; ++part) {
          alignas(64) std::uint32_t words[kLanes];
          _mm512_store_si512(words, pairs[part]);
          for (std::int64_t i = 0; i < kLanes; ++i)
            q[((part * layout_.steps + t) * kLanes + i) * kRows + r] = words[i];
        }
      }
    }
  }

  /// A row of keys or values as it is read: null where there is none.
  static const std::byte* row_at(const std::byte* const* rows, std::int64_t n, std::int64_t first,
                                 std::int64_t last, std::int64_t offset) {
    return n < first || n >= last ? nullptr : rows[n - first] + offset;
  }

  /// Scores of a block of keys; of those that fill its steps up, something. Two heads, or two steps of keys,
  /// are worked on side by side.
  void score(std::int64_t start, KeyRange keys) {
    const amx::TilesInUse tiles(score_tile_config<kRows>());
    const std::int64_t first = keys.begin - start;
    const std::int64_t last = keys.end - start;
    const std::int64_t step_begin = first / kKeyStep;
    const std::int64_t units = (divide_up(last, kKeyStep) - step_begin) * heads_;
    const StreamedRows stream(k_rows_ + kKeysAhead, keys.size(), heads_ * k_bytes_);
    Reader reader(stream);
    for (std::int64_t unit = 0; unit < units; unit += 2) {
      ScoreUnit two[2];
      for (std::int64_t i = 0; i < std::min<std::int64_t>(2, units - unit); ++i) {
        const std::int64_t n = (step_begin + (unit + i) / heads_) * kKeyStep;
        const std::int64_t head = (unit + i) % heads_;
        two[i].q = queries(head);
        two[i].s = scores(head) + n * kRows;
        for (std::int64_t half = 0; half < 2; ++half)
          two[i].k[half] = key_tiles(2 * i + half, n + half * kLanes, first, last, head * k_bytes_);
      }
      if (unit + 1 < units) {
        score_units<2>(two, reader);
      } else {
        score_units<1>(two, reader);
      }
    }
  }

  /// The address and distance of 16 keys from n on as tiles take them: in place, or else packed, if there are
  /// parts or some key is elsewhere.
  struct KeyTiles {
    const std::byte* base = nullptr;
    std::int64_t row_bytes = 0;
    std::int64_t step_bytes = 0;
    std::int64_t part_bytes = 0;
  };

  /// A head's scores of 32 keys.
  struct ScoreUnit {
    KeyTiles k[2];
    const std::uint32_t* q = nullptr;
    float* s = nullptr;
  };

  TESSERA_AMX_TARGET KeyTiles key_tiles(std::int64_t place, std::int64_t n, std::int64_t first,
                                        std::int64_t last, std::int64_t offset) {
    if (kPartCount == 1 && call_.shape.head_dim_qk % kKeyStep == 0 && first <= n && n + kLanes <= last) {
      const std::byte* const* rows = k_rows_ + (n - first);
      const std::int64_t distance = rows[1] - rows[0];
      bool spaced = true;
      for (std::int64_t i = 2; i < kLanes; ++i) spaced &= rows[i] - rows[i - 1] == distance;
      if (spaced) return {rows[0] + offset, distance, 64, 0};
    }
    std::uint32_t* tiles = part<std::uint32_t>(layout_.k) + place * kPartCount * layout_.steps * kTileWords;
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::byte* row = row_at(k_rows_, n + i, first, last, offset);
      for (std::int64_t t = 0; t < layout_.steps && row != nullptr; ++t) {
        __m512i pairs[kPartCount];
        split<T>(load_numbers(row, 2 * kLanes * t, call_.shape.head_dim_qk), pairs);
        for (int part = 0; part < kPartCount; ++part)
          _mm512_store_si512(tiles + (part * layout_.steps + t) * kTileWords + i * kLanes, pairs[part]);
      }
    }
    return {reinterpret_cast<const std::byte*>(tiles), 64, 4 * kTileWords, 4 * kTileWords * layout_.steps};
  }

  template <int kUnits>
  void score_units(const ScoreUnit (&units)[2], Reader& reader) {
    using namespace amx;
    Reader ahead = reader;
    tilezero<0>();
    tilezero<1>();
    if constexpr (kUnits == 2) {
      tilezero<2>();
      tilezero<3>();
    }
    for (int parts = 0; parts < kPartCount * kPartCount; ++parts) {
      const std::int64_t right = parts % kPartCount * layout_.steps * kLanes * kRows;
      const auto left = [&](int unit, int half, std::int64_t t) {
        const KeyTiles& k = units[unit].k[half];
        return k.base + parts / kPartCount * k.part_bytes + t * k.step_bytes;
      };
      for (std::int64_t t = 0; t < layout_.steps; ++t) {
        tileloadd<4>(units[0].q + right + t * kLanes * kRows, 4 * kRows);
        tileloadd<6>(left(0, 0, t), units[0].k[0].row_bytes);
        tdpbf16ps<0, 6, 4>();
        tileloadd<7>(left(0, 1, t), units[0].k[1].row_bytes);
        tdpbf16ps<1, 7, 4>();
        if constexpr (kUnits == 2) {
          tileloadd<5>(units[1].q + right + t * kLanes * kRows, 4 * kRows);
          tileloadd<6>(left(1, 0, t), units[1].k[0].row_bytes);
          tdpbf16ps<2, 6, 5>();
          tileloadd<7>(left(1, 1, t), units[1].k[1].row_bytes);
          tdpbf16ps<3, 7, 5>();
        }
        if (parts > 0) continue;
        for (std::int64_t i = 0; i < kUnits * kKeyStep / 8; ++i) ahead.template advance<8>();
      }
    }
    reader = ahead;
    tilestored<0>(units[0].s, 4 * kRows);
    tilestored<1>(units[0].s + kLanes * kRows, 4 * kRows);
    if constexpr (kUnits == 2) {
      tilestored<2>(units[1].s, 4 * kRows);
      tilestored<3>(units[1].s + kLanes * kRows, 4 * kRows);
    }
  }

  /// Scale, softcap, bias and what is hidden.
  TESSERA_AMX_TARGET void mask(std::int64_t head, std::int64_t start, KeyRange keys) {
    const TileTask task = task_of_head(head);
    const std::int64_t begin = keys.begin - start;
    const std::int64_t end = keys.end - start;
    const std::int64_t step_begin = begin / kKeyStep * kKeyStep;
    const std::int64_t step_end = round_up(end, kKeyStep);
    float* s = scores(head);
    if (call_.transforms_scores) {
      const KernelTable& vectors = kernel_table(SimdTarget::kAvx512);
      vectors.scale_scores(call_, s + step_begin * kRows, (step_end - step_begin) * kRows);
      if (call_.has_bias) {
        float* bias = part<float>(layout_.bias);
        std::fill_n(bias, keys.size() * kRows + kLanes, 0.0f);
        vectors.fill_bias(call_, task, task.row_begin, task.row_end, keys, false, bias, kRows);
        for (std::int64_t i = 0; i < keys.size() * kRows; ++i) {
          float& score = s[begin * kRows + i];
          score = bias[i] == kHidden ? kHidden : score + bias[i];
        }
      }
    }
    std::fill(s + step_begin * kRows, s + begin * kRows, kHidden);
    std::fill(s + end * kRows, s + step_end * kRows, kHidden);
    if (all_visible(call_, task, task.row_begin, task.row_end, keys)) return;
    for (std::int64_t r = 0; r < rows(); ++r) {
      const KeyRange seen = task.diagonal.keys_of_query(query_of_row(call_, task.row_begin + r));
      for (std::int64_t key = keys.begin; key < std::min(seen.begin, keys.end); ++key)
        s[(key - start) * kRows + r] = kHidden;
      for (std::int64_t key = std::max(seen.end, keys.begin); key < keys.end; ++key)
        s[(key - start) * kRows + r] = kHidden;
    }
  }

  /// The largest of a vector's keys for each row, and again for each key.
  TESSERA_AMX_TARGET static __m512 largest_of_keys(__m512 x) {
    if constexpr (kRows <= 8) x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    if constexpr (kRows <= 4) x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    return x;
  }

  /// The online softmax over the steps [step_begin, step_end) of a block: p = 2^(score - row_max).
  TESSERA_AMX_TARGET void softmax(std::int64_t head, std::int64_t step_begin, std::int64_t step_end) {
    float* s = scores(head);
    const std::int64_t begin = step_begin * kKeyStep * kRows;
    const std::int64_t end = step_end * kKeyStep * kRows;
    const __m512 slack = _mm512_set1_ps(8.0f);
    const __m512 factor = _mm512_set1_ps((call_.transforms_scores ? 1.0f : call_.scale) * kLog2E);
    const __m512 hidden = _mm512_set1_ps(kHidden);
    __m512 largest = hidden;
    __m512 largest_odd = hidden;
    for (std::int64_t i = begin; i < end; i += 2 * kLanes) {
      largest = _mm512_max_ps(largest, _mm512_load_ps(s + i));
      largest_odd = _mm512_max_ps(largest_odd, _mm512_load_ps(s + i + kLanes));
    }
    largest = _mm512_mul_ps(largest_of_keys(_mm512_max_ps(largest, largest_odd)), factor);
    __m512 old_max = _mm512_load_ps(row_max(head));
    const __mmask16 moves = _mm512_cmp_ps_mask(largest, _mm512_add_ps(old_max, slack), _CMP_GT_OQ);
    if (moves != 0) {
      const __m512 new_max = _mm512_mask_mov_ps(old_max, moves, largest);
      const __mmask16 scales = _mm512_mask_cmp_ps_mask(moves, old_max, hidden, _CMP_NEQ_UQ);
      if (scales != 0) rescale(head, scales, exp2_or_zero(_mm512_sub_ps(old_max, new_max)));
      _mm512_store_ps(row_max(head), new_max);
      old_max = new_max;
    }
    const __m512 offset = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(old_max, hidden, _CMP_NEQ_UQ), old_max);
    for (std::int64_t i = begin; i < end; i += 2 * kLanes) {
      TESSERA_UNROLL
      for (std::int64_t j = 0; j < 2 * kLanes; j += kLanes) {
        const __m512 x = _mm512_fmsub_ps(_mm512_load_ps(s + i + j), factor, offset);
        _mm512_store_ps(s + i + j, exp2_or_zero(x));
      }
    }
    add_weights(s + begin, end - begin, row_sum(head));
    for (std::int64_t n = step_begin; n < step_end; ++n)
      round_weights(s + n * kKeyStep * kRows, weights(head, n));
  }

  /// Scales the sums and o of the rows that `scales` has.
  TESSERA_AMX_TARGET void rescale(std::int64_t head, __mmask16 scales, __m512 corrections) {
    alignas(64) float correction[kLanes];
    _mm512_store_ps(correction, corrections);
    for (std::int64_t r = 0; r < kRows; ++r) {
      if ((scales >> r & 1) == 0) continue;
      row_sum(head)[r] *= correction[r];
      float* o = output(head) + r * layout_.v_padded;
      for (std::int64_t d = 0; d < layout_.v_padded; d += kLanes)
        _mm512_store_ps(o + d, _mm512_mul_ps(_mm512_load_ps(o + d), _mm512_set1_ps(correction[r])));
    }
  }

  /// The sums of p [keys][kRows]: the even keys one after the other, the odd ones apart.
  TESSERA_AMX_TARGET static void add_weights(const float* p, std::int64_t count, float* sum) {
    if constexpr (kRows == 4) {
      __m128 even = _mm_load_ps(sum);
      __m128 odd = _mm_setzero_ps();
      for (std::int64_t i = 0; i < count; i += 8) {
        even = _mm_add_ps(even, _mm_load_ps(p + i));
        odd = _mm_add_ps(odd, _mm_load_ps(p + i + 4));
      }
      _mm_store_ps(sum, _mm_add_ps(even, odd));
    } else if constexpr (kRows == 8) {
      __m256 even = _mm256_load_ps(sum);
      __m256 odd = _mm256_setzero_ps();
      for (std::int64_t i = 0; i < count; i += 16) {
        even = _mm256_add_ps(even, _mm256_load_ps(p + i));
        odd = _mm256_add_ps(odd, _mm256_load_ps(p + i + 8));
      }
      _mm256_store_ps(sum, _mm256_add_ps(even, odd));
    } else {
      __m512 even = _mm512_load_ps(sum);
      __m512 odd = _mm512_setzero_ps();
      for (std::int64_t i = 0; i < count; i += 32) {
        even = _mm512_add_ps(even, _mm512_load_ps(p + i));
        odd = _mm512_add_ps(odd, _mm512_load_ps(p + i + 16));
      }
      _mm512_store_ps(sum, _mm512_add_ps(even, odd));
    }
  }

  /// tiles[part][row][32 keys] = the parts of p [32 keys][kRows].
  TESSERA_AMX_TARGET static void round_weights(const float* p, std::uint32_t* tiles) {
    // Two vectors are kKeys keys; their bf16 are put row by row, and each row's run where it belongs.
    constexpr std::int64_t kKeys = 2 * kKeysOfVector;
    constexpr std::int64_t kRunWords = kKeys / 2;
    alignas(64) std::uint16_t row_by_row[32];
    for (std::int64_t i = 0; i < 32; ++i)
      row_by_row[i] = static_cast<std::uint16_t>(i % kKeys * kRows + i / kKeys);
    const __m512i order = _mm512_load_si512(row_by_row);
    for (std::int64_t key = 0; key < kKeyStep; key += kKeys) {
      const __m512 first = _mm512_load_ps(p + key * kRows);
      const __m512 second = _mm512_load_ps(p + key * kRows + kLanes);
      __m512i parts[kPartCount];
      parts[0] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
      if constexpr (kPartCount == 2) {
        const __m512i first_high = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(parts[0]));
        const __m512i second_high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(parts[0], 1));
        parts[1] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
            _mm512_sub_ps(second, _mm512_castsi512_ps(_mm512_slli_epi32(second_high, 16))),
            _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32(first_high, 16)))));
      }
      for (int part = 0; part < kPartCount; ++part) {
        alignas(64) std::uint32_t words[kLanes];
        _mm512_store_si512(words, _mm512_permutexvar_epi16(order, parts[part]));
        std::uint32_t* to = tiles + part * kLanes * kRows + key / 2;
        TESSERA_UNROLL
        for (std::int64_t r = 0; r < kRows; ++r)
          std::memcpy(to + r * kLanes, words + r * kRunWords, kRunWords * sizeof(std::uint32_t));
      }
    }
  }

  /// o += p v over a block of keys. Values are packed a while before they are multiplied: tiles can't be
  /// loaded from stores that are still under way.
  void weigh(std::int64_t start, KeyRange keys) {
    const amx::TilesInUse tiles(weigh_tile_config<kRows>());
    const std::int64_t first = keys.begin - start;
    const std::int64_t last = keys.end - start;
    const StreamedRows stream(v_rows_ + kKeysAhead, keys.size(), heads_ * v_bytes_);
    Reader reader(stream);
    std::uint32_t* packed = part<std::uint32_t>(layout_.v);
    std::uint32_t* packed_next = packed + 4 * kPartCount * kTileWords;
    const std::uint32_t* p = nullptr;
    float* o = nullptr;
    for (std::int64_t n = first / kKeyStep * kKeyStep; n < last; n += kKeyStep) {
      for (std::int64_t head = 0; head < heads_; ++head) {
        const std::byte* rows[kKeyStep];
        for (std::int64_t i = 0; i < kKeyStep; ++i)
          rows[i] = row_at(v_rows_, n + i, first, last, head * v_bytes_);
        const bool all_keys = first <= n && n + kKeyStep <= last;
        for (std::int64_t d = 0; d < layout_.v_padded; d += kDimStep) {
          Reader ahead = reader;
          for (std::int64_t i = 0; i < 2; ++i) {
            for (std::int64_t j = 0; j < kKeyStep / 8; ++j) ahead.template advance<8>();
            const std::int64_t dim = d + i * 2 * kLanes;
            std::uint32_t* to = packed_next + i * 2 * kPartCount * kTileWords;
            if (all_keys && dim + 2 * kLanes <= call_.shape.head_dim_v) {
              pack_values<true>(rows, dim, to);
            } else {
              pack_values<false>(rows, dim, to);
            }
          }
          reader = ahead;
          if (o != nullptr) weigh_dims(p, packed, o);
          std::swap(packed, packed_next);
          p = weights(head, n / kKeyStep);
          o = output(head) + d;
        }
      }
    }
    if (o != nullptr) weigh_dims(p, packed, o);
  }

  /// Packs 32 dimensions of the values of 32 keys. kWhole: all of them are there.
  template <bool kWhole>
  TESSERA_AMX_TARGET void pack_values(const std::byte* const* rows, std::int64_t dim, std::uint32_t* tiles) {
    for (std::int64_t pair = 0; pair < kLanes; ++pair) {
      __m512i parts[2][kPartCount];
      for (int i = 0; i < 2; ++i) {
        const std::byte* row = rows[2 * pair + i];
        __m512i numbers = _mm512_setzero_si512();
        if constexpr (kWhole) {
          numbers = _mm512_loadu_si512(row + 2 * dim);
        } else if (row != nullptr) {
          numbers = load_numbers(row, dim, call_.shape.head_dim_v);
        }
        split<T>(numbers, parts[i]);
      }
      for (int part = 0; part < kPartCount; ++part) {
        std::uint32_t* to = tiles + 2 * part * kTileWords + pair * kLanes;
        _mm512_store_si512(to, _mm512_unpacklo_epi16(parts[0][part], parts[1][part]));
        _mm512_store_si512(to + kTileWords, _mm512_unpackhi_epi16(parts[0][part], parts[1][part]));
      }
    }
  }

  /// o += p v for 64 dimensions of packed values.
  void weigh_dims(const std::uint32_t* p, const std::uint32_t* v, float* o) {
    using namespace amx;
    const std::int64_t o_bytes = 4 * layout_.v_padded;
    constexpr std::int64_t kNextDims = 2 * kPartCount * kTileWords;
    tileloadd<0>(o, o_bytes);
    tileloadd<1>(o + kLanes, o_bytes);
    tileloadd<2>(o + 2 * kLanes, o_bytes);
    tileloadd<3>(o + 3 * kLanes, o_bytes);
    // High by high, low v by high p, high v by low p.
    for (int parts = 0; parts < 2 * kPartCount - 1; ++parts) {
      const std::uint32_t* right = v + (parts == 1 ? 2 * kTileWords : 0);
      tileloadd<4>(p + (parts == 2 ? kLanes * kRows : 0), kTileRowBytes);
      tileloadd<6>(right, kTileRowBytes);
      tdpbf16ps<0, 4, 6>();
      tileloadd<7>(right + kTileWords, kTileRowBytes);
      tdpbf16ps<1, 4, 7>();
      tileloadd<6>(right + kNextDims, kTileRowBytes);
      tdpbf16ps<2, 4, 6>();
      tileloadd<7>(right + kNextDims + kTileWords, kTileRowBytes);
      tdpbf16ps<3, 4, 7>();
    }
    tilestored<0>(o, o_bytes);
    tilestored<1>(o + kLanes, o_bytes);
    tilestored<2>(o + 2 * kLanes, o_bytes);
    tilestored<3>(o + 3 * kLanes, o_bytes);
  }

  /// Writes a head's results. Returns false, and writes none, if a row of them is not finite.
  bool collect(std::int64_t head) {
    const std::int64_t head_dim = call_.shape.head_dim_v;
    const std::int64_t stride = partial_stride(call_.shape.head_dim_v);
    const TileTask task = task_of_head(head);
    float* partial = task_.partial != nullptr ? task_.partial + head * task_.partial_head_stride
                                              : part<float>(layout_.partial) + head * kRows * stride;
    bool finite = true;
    for (std::int64_t r = 0; r < rows(); ++r) {
      const float* o = output(head) + r * layout_.v_padded;
      float* to = partial + r * stride;
      // Unpacking puts the first four of each eight dimensions into one tile and the others into another.
      // Adding 0 makes a zero's sign positive.
      float worst = 0;
      for (std::int64_t d = 0; d < head_dim; ++d) {
        const float x = o[d / 32 * 32 + d % 8 / 4 * 16 + d % 32 / 8 * 4 + d % 4] + 0.0f;
        worst += x * 0;
        to[d] = x;
      }
      to[head_dim] = row_max(head)[r];
      to[head_dim + 1] = row_sum(head)[r];
      finite = finite && worst == 0 && std::isfinite(row_sum(head)[r]);
    }
    if (finite && task_.partial == nullptr)
      kernel_table(SimdTarget::kAvx512).finish_segments(call_, task, partial);
    return finite;
  }

  const CallContext& call_;
  const TileTask& task_;
  const Layout layout_;
  const std::int64_t heads_;
  const std::int64_t k_bytes_;  ///< of a head's row
  const std::int64_t v_bytes_;
  const std::byte** k_rows_;  ///< of the present block
  const std::byte** v_rows_;
};

template <class T>
void run_tile(const CallContext& call, const TileTask& task) {
  const std::int64_t rows = task.row_end - task.row_begin;
  if (rows <= 4) {
    AmxDecodeTile<T, 4>(call, task).run();
  } else if (rows <= 8) {
    AmxDecodeTile<T, 8>(call, task).run();
  } else {
    AmxDecodeTile<T, 16>(call, task).run();
  }
}

}  // namespace

std::size_t amx_decode_scratch_bytes(const TileShape& shape, DType dtype) {
  return Layout(shape, kAmxDecodeRows, dtype == DType::kF16 ? 2 : 1).size_bytes;
}

void amx_decode_tile(const CallContext& call, const TileTask& task) {
  if (call.problem->q.dtype == DType::kF16) {
    run_tile<Half>(call, task);
  } else {
    run_tile<BFloat16>(call, task);
  }
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

std::size_t amx_decode_scratch_bytes(const TileShape&, DType) { return 0; }
void amx_decode_tile(const CallContext&, const TileTask&) {}

}  // namespace tessera::cpu

#endif
