// out = x w^T (+ bias) (+ out), or gated, for up to eight rows of 16-bit x and weights of blocks
// (TESSERA_BLOCKS) on Hopper, bound by reading w once. As sm80/gemm_block_bits.cu, but the copy engine brings
// the blocks, which one warp asks for: copies of 16 bytes by each lane are a fifth of that kernel's
// instructions, and go through the first-level cache, where each meets several lines.
//
// One block stays on a multiprocessor. Its ring has slots, 16 rows of w by 8 pieces, which two teams of eight
// warps take in turns:
//
//   copying warp   a slot after the other, a copy each, as soon as its team has read what was there
//   team 0         pieces 0-7 of group 0  | of group 1 | ... | 16-23 of group 0 | ...
//   team 1         pieces 8-15 of group 0 | of group 1 | ... | 24-31 of group 0 | ...
//
// so that a warp makes a piece's columns of x ready once for all groups of rows of w. Of the last 8 pieces of
// a row whose number is odd in eights, the teams take every other group.

#include "sm80/block_bits_units.cuh"
#include "sm90/gemm_block_stream.h"
#include "sm90/gemm_block_stream_traits.h"
#include "sm90/ptx.cuh"

namespace tessera::kernels::bits {

/// The slots of a block, and where one of its warps is among them. Their number is a multiple of kTeams, so
/// that a slot is always the same team's: a barrier says no more than whether its phase is odd, so that a team
/// that came to a slot whose bytes for the other team were still on the way would take them for its own.
template <class Format>
class Ring {
  using Slot = WeightSlot<Format>;

 public:
  TESSERA_DEVICE Ring(unsigned char* slots, unsigned long long* barriers, int count)
      : slots_(slots),
        filled_(shared_address(barriers)),
        emptied_(shared_address(barriers + kMostSlots)),
        count_(count) {}

  /// By one thread. `readers`: threads that read a slot.
  TESSERA_DEVICE void init(int readers) const {
    for (int i = 0; i < count_; ++i) {
      mbarrier_init(filled_ + i * 8, 1);
      mbarrier_init(emptied_ + i * 8, readers);
    }
  }

  /// Asks for the pieces from `piece` on of the rows from first_row on, and moves on. By one thread.
  TESSERA_DEVICE void copy(const TensorMap& w, int piece, int first_row) {
    mbarrier_wait(emptied_ + slot_ * 8, parity_ ^ 1);  // passes in the first turn
    const unsigned filled = filled_ + slot_ * 8;
    mbarrier_arrive_expect_tx(filled, Slot::kBytes);
    TESSERA_UNROLL
    for (int box = 0; box < Slot::kBoxes; ++box) {
      cp_async_bulk_tensor_3d(shared_address(slots_ + slot_ * Slot::kBytes + box * Slot::kBoxBytes), &w,
                              filled, (piece + box * Slot::kBoxPieces) * WeightPiece<Format>::kBytes / 8,
                              first_row, 0);
    }
    advance(1);
  }

  /// The slot whose turn it is, once it is there. All lanes.
  TESSERA_DEVICE const unsigned char* wait() const {
    mbarrier_wait(filled_ + slot_ * 8, parity_);
    return slots_ + slot_ * Slot::kBytes;
  }
  /// This thread has read it, and takes every other.
  TESSERA_DEVICE void release() {
    mbarrier_arrive(emptied_ + slot_ * 8);
    advance(kTeams);
  }
  TESSERA_DEVICE void advance(int slots) {
    slot_ += slots;
    if (slot_ < count_) return;
    slot_ -= count_;
    parity_ ^= 1;
  }

 private:
  unsigned char* slots_;
  unsigned filled_, emptied_;  // barriers, one a slot
  int count_;
  int slot_ = 0;
  int parity_ = 0;
};

/// Dynamic shared memory: the ring; what warps keep of x; the sums; normed x, or x whole; cosines and sines
/// of each row of x.
template <class X, class Format, int kXRows, bool kIsNormed>
TESSERA_DEVICE void gemm_block_stream(const BlockStreamParams& arguments, int block) {
  using Slot = WeightSlot<Format>;
  using Unit = WeightPiece<Format>;
  using Piece = typename XOfRows<X, Format, kXRows>::Type;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) unsigned long long barriers[2 * kMostSlots + 1];
  const BlockGemmParams& params = arguments.gemm;
  const StreamParams& stream = params.stream;
  const GemmParams& p = stream.gemm;
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  const int warps = block_size() / 32 - 1;  // that multiply
  const int at_once = params.groups_at_once;
  const int pieces = static_cast<int>(p.k / kPieceColumns);
  const int x_rows = static_cast<int>(p.m);
  const Groups groups(params, block);
  float* x_sums = reinterpret_cast<float*>(shared + params.stages * Slot::kBytes);
  const LaneSums<kXRows> table{x_sums + warps * x_floats_of_piece(kXRows), at_once};
  Words* normed = reinterpret_cast<Words*>(table.at(warps, 0, 0));
  float* turns = reinterpret_cast<float*>(normed + (kIsNormed ? p.m * p.k / kGroupSize : 0));
  const unsigned x_filled = shared_address(barriers + 2 * kMostSlots);

  allow_next_kernel();
  Ring<Format> ring(shared, barriers, params.stages);
  const bool copies = thread_x() == warps * 32;
  const int team_warps = warps / kTeams;
  UnitCursor next(groups, 0, pieces, at_once);
  const auto copy_next = [&] {
    ring.copy(arguments.w, next.piece, groups.first_row(next.group));
    if (pieces - next.piece > team_warps)
      ring.copy(arguments.w, next.piece + team_warps, groups.first_row(next.group));
    next.advance(groups, 0, pieces, warps, at_once);
  };
  const auto copy_slots = [&](int most) {
    for (int i = 0; i + kTeams <= most && !next.is_done(groups); i += kTeams) copy_next();
  };
  if (copies) {
    ring.init(team_warps * 32);
    mbarrier_init(x_filled, 1);
    fence_mbarrier_init();
    copy_slots(minimum(params.stages, kEarlySlots));
  }
  const int threads = warps * 32;  // that multiply
  const bool has_all_x = kIsNormed || arguments.holds_x != 0;
  if (warp == warps) {
    sync_threads();
    if (copies) {
      wait_for_prior_kernels();
      if (!kIsNormed && has_all_x) {
        mbarrier_arrive_expect_tx(x_filled, static_cast<int>(p.m * p.k * 2));
        for (int m = 0; m < x_rows; ++m)
          cp_async_bulk(shared_address(normed) + m * static_cast<int>(p.k) * 2,
                        static_cast<const X*>(p.x.data) + m * p.x.row_stride, static_cast<int>(p.k * 2),
                        x_filled);
      }
      while (!next.is_done(groups)) copy_next();
    }
    return;
  }
  if constexpr (kIsNormed) {
    __shared__ float scratch[kTeams * kSlotPieces];
    const NormWeights<X, kNormedRowGroups> weights(stream, threads);
    const Turn<kMostNormedRows> turn(stream);
    sync_threads();
    turn.store(stream, turns);
    wait_for_prior_kernels();
    const auto add_up = [&](float v) {
      TESSERA_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
      if (lane == 0) scratch[warp] = v;
      named_barrier_sync(1, threads);
      v = lane < warps ? scratch[lane] : 0.0f;
      TESSERA_UNROLL
      for (int mask = kTeams * kSlotPieces / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
      v = __shfl_sync(0xffffffffu, v, 0);
      named_barrier_sync(1, threads);
      return v;
    };
    const int x_groups = static_cast<int>(p.k / kGroupSize);
    if (p.m == 1) {
      norm_x<X, 1>(stream, threads, x_groups, weights, normed, add_up);
    } else {
      norm_x<X, kMostNormedRows>(stream, threads, x_groups, weights, normed, add_up);
    }
    named_barrier_sync(1, threads);
  } else {
    sync_threads();
    wait_for_prior_kernels();
    if (has_all_x) mbarrier_wait(x_filled, 0);
  }

  const X* x_data = has_all_x ? reinterpret_cast<const X*>(normed) : static_cast<const X*>(p.x.data);
  const int64 x_stride = has_all_x ? p.k : p.x.row_stride;
  Piece x(x_sums + warp * x_floats_of_piece(kXRows), lane);
  const int warp_of_team = warp % team_warps;
  const int begin = warp_of_team % Slot::kBoxPieces * Unit::kBytes;  // of the warp's piece in a slot's row
  const int in_slot =
      warp_of_team / Slot::kBoxPieces * Slot::kBoxBytes + lane / 4 * Slot::kStrideBytes + begin / 4 * 4;
  const unsigned above = opaque_two_to_the_23(stream);
  int place = warp / team_warps;  // of the team's next slot among every two
  ring.advance(place);
  const auto piece_at = [&](int first_piece, int of_two) {
    return first_piece + (pieces - first_piece > team_warps ? of_two * team_warps : 0) + warp_of_team;
  };
  for (int first_group = groups.begin; first_group < groups.end; first_group += at_once) {
    const int count = minimum(at_once, groups.end - first_group);
    for (int group = 0; group < count; ++group) *table.at(warp, group, lane) = {};
    for (int first_piece = 0; first_piece < pieces; first_piece += warps) {
      const bool is_shared = pieces - first_piece <= team_warps;
      const int piece = piece_at(first_piece, place);
      const int first = is_shared ? place : 0, step = is_shared ? kTeams : 1;
      if (is_shared) place ^= count % kTeams;  // what follows an odd number of slots
      const bool has_piece = piece < pieces;
      if (has_piece) {
        typename Piece::Stored stored;
        stored.load(x_data + static_cast<int64>(piece) * kPieceColumns, x_stride, x_rows, lane);
        sync_warp();  // all lanes have read the piece before
        x.set(stored, lane);
      }
      for (int group = first; group < count; group += step) {
        const unsigned char* slot = ring.wait() + in_slot;
        if (has_piece) {
          typename Piece::Fragment::Rows rows;
          rows.above = above;
          TESSERA_UNROLL
          for (int r = 0; r < 2; ++r) {
            rows.row[r] = slot + 8 * r * Slot::kStrideBytes;
            rows.behind[r] = Unit::kBytes % 4 == 0 ? 0 : static_cast<unsigned>(begin) % 4;
          }
          add_unit<kXRows>(table.at(warp, group, lane), x, rows, lane);
        }
        ring.release();
      }
    }
    named_barrier_sync(1, warps * 32);
    store_groups<X>(groups, first_group, count, table, turns, warps * 32);
    named_barrier_sync(1, warps * 32);
  }
}

/// Of w's rows in two formats: each block takes groups of one of them.
template <class X, class Upper, class Lower, int kXRows, bool kIsNormed>
TESSERA_DEVICE void gemm_block_stream_of_two(const TwoBlockStreamParams& params) {
  if (block_x() < params.upper_blocks) {
    gemm_block_stream<X, Upper, kXRows, kIsNormed>(params.upper, block_x());
  } else {
    gemm_block_stream<X, Lower, kXRows, kIsNormed>(params.lower, block_x() - params.upper_blocks);
  }
}

}  // namespace tessera::kernels::bits

using namespace tessera::kernels;

using Format = tessera::formats::TESSERA_BLOCKS;

#ifndef TESSERA_X_ROWS
#define TESSERA_X_ROWS 2
#endif
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#ifdef TESSERA_LOWER_BLOCKS
using LowerFormat = tessera::formats::TESSERA_LOWER_BLOCKS;
#define TESSERA_STREAM_KERNEL(name, T, kIsNormed)                                         \
  extern "C" __global__ void __launch_bounds__(kBlockStreamThreads)                       \
      name(const __grid_constant__ TwoBlockStreamParams p) {                              \
    bits::gemm_block_stream_of_two<T, Format, LowerFormat, TESSERA_X_ROWS, kIsNormed>(p); \
  }
#else
#define TESSERA_STREAM_KERNEL(name, T, kIsNormed)                                \
  extern "C" __global__ void __launch_bounds__(kBlockStreamThreads)              \
      name(const __grid_constant__ BlockStreamParams p) {                        \
    bits::gemm_block_stream<T, Format, TESSERA_X_ROWS, kIsNormed>(p, block_x()); \
  }
#endif
#if TESSERA_X_ROWS <= 2  // kMostNormedRows
#define TESSERA_STREAM_KERNELS(T)                        \
  TESSERA_STREAM_KERNEL(gemm_block_stream_##T, T, false) \
  TESSERA_STREAM_KERNEL(gemm_block_stream_normed_##T, T, true)
#else
#define TESSERA_STREAM_KERNELS(T) TESSERA_STREAM_KERNEL(gemm_block_stream_##T, T, false)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_STREAM_KERNELS(f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 3
TESSERA_STREAM_KERNELS(bf16)
#endif
