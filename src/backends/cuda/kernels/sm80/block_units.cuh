#pragma once

#include "sm80/fused_rows.cuh"
#include "sm80/gemm_blocks.h"
#include "sm80/gemm_blocks_traits.h"
#include "sm80/ptx.cuh"

// What products of few rows with weights of blocks share: whose rows of w are whose, how they come to shared
// memory, and how the warps' sums become results. See gemm_blocks.cu.

namespace tessera::kernels {

/// The groups of rows of w of one block.
struct Groups {
  const BlockGemmParams& params;
  int begin, end;
  int columns;    // of out, before the result is rotated
  int per_group;  // columns of out that a group makes

  /// Of block `block` of those that take the groups of `all`.
  TESSERA_DEVICE Groups(const BlockGemmParams& all, int block) : params(all) {
    const GemmParams& p = params.stream.gemm;
    per_group = p.gated == 0 ? kTileRows : kTileRows / 2;
    columns = static_cast<int>(p.gated == 0 ? p.n : p.n / 2);
    begin = block * params.groups_per_block + minimum(block, params.more_groups);
    end = begin + params.groups_per_block + (block < params.more_groups ? 1 : 0);
  }
  /// A group's first row of w. The last group is loaded whole, with rows of the one before.
  TESSERA_DEVICE int first_row(int group) const {
    return minimum(first_row_of_group(params.stream, group), columns - per_group);
  }
};

/// Goes over a warp's units: some groups at once, its pieces of these, each piece of all these groups.
struct UnitCursor {
  int first_group;  // of those at once
  int piece;
  int group;
  int end_group;  // of those at once

  TESSERA_DEVICE UnitCursor(const Groups& groups, int first_piece, int pieces, int at_once)
      : first_group(first_piece < pieces ? groups.begin : groups.end),
        piece(first_piece),
        group(first_group),
        end_group(minimum(first_group + at_once, groups.end)) {}
  TESSERA_DEVICE bool is_done(const Groups& groups) const { return first_group >= groups.end; }
  TESSERA_DEVICE void advance(const Groups& groups, int first_piece, int pieces, int step, int at_once) {
    if (++group < end_group) return;
    piece += step;
    if (piece >= pieces) {
      piece = first_piece;
      first_group += at_once;
      end_group = minimum(first_group + at_once, groups.end);
    }
    group = first_group;
  }
};

/// A lane's copies of a unit, a piece of a group's rows. Rows whose pieces are no multiples of 16 bytes are
/// copied from the multiple before on. kMayPassEnd: of the last unit's rows some may be none of the matrix.
template <class Format, bool kMayPassEnd = false>
struct UnitCopies {
  using Piece = WeightPiece<Format>;
  static constexpr int kVectors = kTileRows * Piece::kVectors;
  static constexpr int kVectorsPerLane = (kVectors + 31) / 32;
  unsigned from[kVectorsPerLane];  // bytes from the unit's first on
  unsigned to[kVectorsPerLane];    // its lowest bits are free for the number of the vector in its row
  unsigned span;                   // bytes from the unit's first on to its last row's last

  TESSERA_DEVICE UnitCopies(int rows_apart, unsigned row_bytes, int lane)
      : span(static_cast<unsigned>(rows_apart + kTileRows / 2) * row_bytes) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectorsPerLane; ++i) {
      const int row = (lane + i * 32) / Piece::kVectors;
      const int vector = (lane + i * 32) % Piece::kVectors;
      from[i] = static_cast<unsigned>(row % 8 + row / 8 * rows_apart) * row_bytes;
      to[i] = static_cast<unsigned>(row * Piece::kStrideBytes + vector * 16);
      if (Piece::kIsAligned) {
        from[i] += static_cast<unsigned>(vector) * 16;
      } else {
        to[i] |= static_cast<unsigned>(vector);
      }
    }
  }
  /// The unit `offset` bytes behind the first of a matrix of `size_bytes`.
  TESSERA_DEVICE void start(unsigned shared, const void* matrix, unsigned offset, unsigned size_bytes,
                            int lane) const {
    const unsigned char* w = static_cast<const unsigned char*>(matrix);
    const auto begin_of = [&](int i) {
      return Piece::kIsAligned ? offset + from[i] : (offset + from[i]) / 16 * 16 + to[i] % 16 * 16;
    };
    if ((kMayPassEnd || !Piece::kIsAligned) && size_bytes - offset < span + 32) {
      // The matrix may end within a vector, or before it. Copies of less than 16 bytes read all 16.
      TESSERA_UNROLL
      for (int i = 0; i < kVectorsPerLane; ++i) {
        if (lane + i * 32 >= kVectors) continue;
        const unsigned begin = minimum(begin_of(i), size_bytes), left = size_bytes - begin;
        const unsigned target = shared + to[i] / 16 * 16;
        if (left == 0 || left >= 16) {
          cp_async_16(target, w + (left > 0 ? begin : 0), left > 0);
        } else {
          TESSERA_UNROLL_BY(1)
          for (unsigned b = 0; b < 16; ++b) store_shared_byte(target + b, b < left ? w[begin + b] : 0);
        }
      }
      return;
    }
    TESSERA_UNROLL
    for (int i = 0; i < kVectorsPerLane; ++i) {
      if (lane + i * 32 < kVectors) cp_async_16(shared + to[i] / 16 * 16, w + begin_of(i), true);
    }
  }
};

using Sums = Vector<float, 4>;
static_assert(sizeof(Sums) == 16, "as block_gemm_shared_bytes has it");

/// The warps' sums of some groups: [warp][group][row of w mod 8][pair of rows of x], each of two rows of w.
struct SumTable {
  Sums* data;
  int groups, pairs;

  TESSERA_DEVICE Sums* at(int warp, int group, int row, int pair) const {
    return data + ((warp * groups + group) * 8 + row) * pairs + pair;
  }
  /// Of row tile_row of a group's 16 and row m of x.
  TESSERA_DEVICE float get(int warp, int group, int tile_row, int m) const {
    return at(warp, group, tile_row % 8, m / 2)->element[tile_row / 8 * 2 + m % 2];
  }
};

/// Adds up the sums of the block's first `threads` threads and writes what `count` groups make. O: of a
/// rotated result. A lane adds up a row of w times one of x; rows that make a pair are their neighbours'.
template <class O, class Table>
TESSERA_DEVICE void store_groups(const Groups& groups, int first_group, int count, const Table& table,
                                 const float* turns, int threads) {
  const StreamParams& stream = groups.params.stream;
  const GemmParams& p = stream.gemm;
  const int warps = threads / 32;
  const bool has_rope = stream.rope.num_heads != 0;
  const bool has_pairs = has_rope || p.gated != 0;
  const bool of_neighbours = has_rope && stream.rope.rotation.interleaved != 0;
  const int sums = count * kTileRows * static_cast<int>(p.m);
  for (int begin = thread_x() / 32 * 32; begin < sums; begin += threads) {
    const int i = minimum(begin + thread_x() % 32, sums - 1);
    const int in_tile = i % kTileRows;
    const int tile_row = of_neighbours ? in_tile : in_tile / 2 + in_tile % 2 * 8;
    const int group = i / kTileRows % count;
    const int m = i / kTileRows / count;
    const int first_row = groups.first_row(first_group + group);
    const int row = first_row + tile_row % 8 + tile_row / 8 * stream.rows_apart;
    float total = 0.0f;
    for (int warp = 0; warp < warps; ++warp) total += table.get(warp, group, tile_row, m);
    if (p.bias.data != nullptr) total += load_scalar(p.bias, row);
    const float of_other = shuffle_xor(total, 1);
    if (begin + thread_x() % 32 >= sums || (has_pairs && in_tile % 2 != 0)) continue;
    if (has_rope) {
      if constexpr (!is_same<O, float>)
        store_pair<O>(stream, m, row, of_neighbours ? row + 1 : row + stream.rows_apart, total, of_other,
                      turns);
      continue;
    }
    const int column = first_row + tile_row;
    if (column < (first_group + group) * groups.per_group) continue;  // the group before has it
    if (p.gated != 0) total = gate_activation(p.gated - 1, total) * of_other;
    const int64 offset = m * p.out.row_stride + column;
    if (p.accumulate) total += load_scalar(p.out, offset);
    store_scalar(p.out, offset, total);
  }
}

}  // namespace tessera::kernels
