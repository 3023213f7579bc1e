// fp32 rows of q, k and v as two numbers of fp16 each, for attention kernels that multiply these:
//
//   x = scale (high + 2^-11 low)      high = fp16(x / scale), low = fp16(2^11 (x / scale - high))
//
// 11 bits of x in each, and low's sign is one more (Ootomo & Yokota, "Recovering single precision accuracy
// from Tensor Cores", 2022). The scale is a tile's: rows that the attention kernel multiplies together.
// Numbers whose high is below fp16's least normal number, 2^-29 of their tile's largest or so, keep fewer
// bits: what is lost is up to 2^-36 scale.
//
// Grid: (tiles of all heads of all sequences, tensors). A block splits a tile, which its registers hold;
// lanes that follow each other have a row's groups of eight numbers.

#include "common/score_terms.cuh"
#include "common/split_rows.h"

using namespace tessera::kernels;

namespace tessera::kernels {

constexpr int kSplitWarps = kSplitThreads / kWarpSize;
constexpr unsigned kInfinityBits = 0x7f800000u;

/// The rows of a sequence that a block has to write.
struct SplitSequence {
  int64 begin;  // its first row among the ragged tokens
  int len;      // rows that take part
  int end;      // behind these are zeros up to here: else what others hold there might be NaN
};

TESSERA_DEVICE SplitSequence sequence_of(const AttentionParams& p, const RowsToSplit& r, int b, int first) {
  const Sequence s = load_sequence(p, b);
  const int* cu_seqlens = r.is_q ? p.cu_seqlens_q : p.cu_seqlens_kv;
  const int len = r.is_q ? s.len_q : s.len_kv;
  if (cu_seqlens == nullptr) return {0, len, static_cast<int>(r.tokens)};
  const int begin = cu_seqlens[b];
  const int own = cu_seqlens[b + 1] - begin;
  // One that has no part in the call may stand behind one that has, whose last tile goes on into it.
  if (len == 0 && own > 0) return {begin, 0, first == 0 ? own : 0};
  // Behind the last sequence there may be tokens of none.
  return {begin, len, b + 1 == p.batch ? static_cast<int>(r.tokens - begin) : len};
}

/// Row i of a sequence.
TESSERA_DEVICE const float* row_of(const AttentionParams& p, const RowsToSplit& r, const SplitSequence& s,
                                   int b, int head, int i) {
  const Sequence sequence = {s.begin, s.begin, 0, 0, 0};
  if (!r.is_q) return kv_row<float>(p, r.from, sequence, b, head, i);
  return static_cast<const float*>(r.from.data) + query_offset(p, r.from, sequence, b, head, i);
}

/// Elements [d, d + 8) of a row, zeros behind its end.
template <int kPiece>
TESSERA_DEVICE void load_eight(const float* row, int d, int head_dim, float (&x)[kSplitElements]) {
  TESSERA_UNROLL
  for (int first = 0; first < kSplitElements; first += kPiece) {
    Vector<float, kPiece> piece = {};
    if (d + first < head_dim) piece = *reinterpret_cast<const Vector<float, kPiece>*>(row + d + first);
    TESSERA_UNROLL
    for (int e = 0; e < kPiece; ++e) x[first + e] = piece.element[e];
  }
}

/// Bits of magnitudes have the order of these as whole numbers, with infinities and NaN above all others.
struct Magnitudes {
  unsigned largest = 0;  // of the finite ones
  unsigned least = ~0u;  // of those that are not 0, less 1

  template <bool kTakesAll>
  TESSERA_DEVICE void add(const float (&x)[kSplitElements]) {
    TESSERA_UNROLL
    for (int e = 0; e < kSplitElements; ++e) {
      const unsigned bits = bits_of_float(x[e]) & 0x7fffffffu;
      if (kTakesAll || bits < kInfinityBits) largest = maximum(largest, bits);
      least = minimum(least, bits - 1);
    }
  }
  TESSERA_DEVICE float least_but_0() const { return least == ~0u ? infinity() : float_of_bits(least + 1); }
};

/// The exponent of what is stored beside x = 1.
TESSERA_DEVICE int split_exponent(float largest) {
  const int exponent = static_cast<int>(bits_of_float(largest) >> 23) - 127;
  return largest == 0.0f ? 0 : kSplitTop - minimum(maximum(exponent, -100), 127);
}

/// Two numbers as a word of highs and one of lows.
TESSERA_DEVICE void split_two(float first, float second, unsigned& high, unsigned& low) {
  constexpr float kLowScale = 1 << kSplitLowShift;
  const f16 highs[2] = {from_float<f16>(first), from_float<f16>(second)};
  const f16 lows[2] = {from_float<f16>((first - to_float(highs[0])) * kLowScale),
                       from_float<f16>((second - to_float(highs[1])) * kLowScale)};
  high = highs[0].bits | static_cast<unsigned>(highs[1].bits) << 16;
  low = lows[0].bits | static_cast<unsigned>(lows[1].bits) << 16;
}

/// A tile's rows as its threads have them: kRows of them each, 8 numbers of each row.
template <int kPiece, int kRows>
TESSERA_DEVICE void split_tile(const AttentionParams& p, const RowsToSplit& r, int index) {
  TESSERA_SHARED(largest_of_warps, unsigned[kSplitWarps]);
  TESSERA_SHARED(least_of_warps, unsigned[kSplitWarps]);  // of the rows' largest
  TESSERA_SHARED(least_but_0_of_warps, float[kSplitWarps]);
  const int tile = index % r.tiles_of_head;
  const int head = index / r.tiles_of_head % r.num_heads;
  const int b = index / r.tiles_of_head / r.num_heads;
  const int first = tile * r.rows_of_tile;
  const SplitSequence s = sequence_of(p, r, b, first);
  if (first >= s.end) return;
  const int len = minimum(s.len - first, r.rows_of_tile);
  const int end = minimum(s.end - first, r.rows_of_tile);
  const bool is_ragged = (r.is_q ? p.cu_seqlens_q : p.cu_seqlens_kv) != nullptr;
  const int64 outer = is_ragged ? 0 : b;
  f16* const to = static_cast<f16*>(r.to) + ((outer * r.num_heads + head) * r.tokens + s.begin + first) *
                                                static_cast<int64>(r.row_elements);

  const int half = r.row_elements / 2;
  const int lane = thread_x() % kWarpSize;
  const int warp = thread_x() / kWarpSize;
  const int lanes_of_row = split_lanes_of_row(r.row_elements);
  const int d = lane % lanes_of_row * kSplitElements;
  const int first_row = thread_x() / lanes_of_row;
  const int step = kSplitThreads / lanes_of_row;
  float x[kRows][kSplitElements];
  TESSERA_UNROLL
  for (int n = 0; n < kRows; ++n) {
    const int row = first_row + n * step;
    TESSERA_UNROLL
    for (int e = 0; e < kSplitElements; ++e) x[n][e] = 0.0f;
    if (row < len) load_eight<kPiece>(row_of(p, r, s, b, head, first + row), d, r.head_dim, x[n]);
  }

  unsigned largest = 0, least = kInfinityBits;
  float least_but_0 = infinity();
  TESSERA_UNROLL
  for (int n = 0; n < kRows; ++n) {
    Magnitudes of_row;
    of_row.add<true>(x[n]);
    if (warp_any(of_row.largest >= kInfinityBits)) {
      of_row.largest = 0;
      of_row.add<false>(x[n]);
    }
    least_but_0 = minimum(least_but_0, of_row.least_but_0());
    for (int mask = 1; mask < lanes_of_row; mask *= 2)
      of_row.largest = maximum(of_row.largest, shuffle_xor(of_row.largest, mask));
    largest = maximum(largest, of_row.largest);
    if (first_row + n * step < len) least = minimum(least, of_row.largest);
  }
  for (int mask = 1; mask < kWarpSize; mask *= 2) {
    largest = maximum(largest, shuffle_xor(largest, mask));
    least = minimum(least, shuffle_xor(least, mask));
    least_but_0 = minimum(least_but_0, shuffle_xor(least_but_0, mask));
  }
  if (lane == 0) {
    largest_of_warps[warp] = largest;
    least_of_warps[warp] = least;
    least_but_0_of_warps[warp] = least_but_0;
  }
  sync_threads();
  TESSERA_UNROLL
  for (int w = 0; w < kSplitWarps; ++w) {
    largest = maximum(largest, largest_of_warps[w]);
    least = minimum(least, least_of_warps[w]);
    least_but_0 = minimum(least_but_0, least_but_0_of_warps[w]);
  }

  const int exponent = split_exponent(float_of_bits(largest));
  const float scale = power_of_two(exponent);
  TESSERA_UNROLL
  for (int n = 0; n < kRows; ++n) {
    const int row = first_row + n * step;
    if (row >= end || d >= half) continue;
    Vector<unsigned, kSplitElements / 2> high, low;
    TESSERA_UNROLL
    for (int i = 0; i < kSplitElements / 2; ++i)
      split_two(x[n][2 * i] * scale, x[n][2 * i + 1] * scale, high.element[i], low.element[i]);
    f16* const split = to + row * static_cast<int64>(r.row_elements) + d;
    *reinterpret_cast<Vector<unsigned, kSplitElements / 2>*>(split) = high;
    *reinterpret_cast<Vector<unsigned, kSplitElements / 2>*>(split + half) = low;
  }
  constexpr float kLeastNormal = 1.0f / (1 << 14);  // of fp16
  const int loses = least_but_0 * scale < kLeastNormal ? 1 : 0;
  if (thread_x() == 0) r.tiles[index] = {power_of_two(-exponent), float_of_bits(least), loses, 0};
}

}  // namespace tessera::kernels

// By the rows of a thread, which are most of its registers.
#define TESSERA_SPLIT_ROWS(rows)                                                              \
  TESSERA_KERNEL(split_rows_##rows, kSplitThreads)(TESSERA_GRID_CONSTANT SplitRowsParams p) { \
    const RowsToSplit& r = p.tensors[block_y()];                                              \
    if (block_x() >= p.attention.batch * r.num_heads * r.tiles_of_head) return;               \
    if (r.piece == 4) split_tile<4, rows>(p.attention, r, block_x());                         \
    if (r.piece == 2) split_tile<2, rows>(p.attention, r, block_x());                         \
    if (r.piece == 1) split_tile<1, rows>(p.attention, r, block_x());                         \
  }
TESSERA_SPLIT_ROWS(4)
TESSERA_SPLIT_ROWS(6)
TESSERA_SPLIT_ROWS(8)
TESSERA_SPLIT_ROWS(10)
