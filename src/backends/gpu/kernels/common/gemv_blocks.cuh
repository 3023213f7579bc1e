#pragma once

#include "common/block_units.cuh"
#include "common/gemv_rows.cuh"

// out = x w^T (+ bias) (+ out), or gated, for w in blocks and up to 8 rows of x, bound by reading w once. A
// block takes 4 rows of w; its warps take steps of these rows' columns in turn, 32 columns a lane.
//
//   memory: 16 bytes a lane, neighbouring lanes neighbouring bytes, the next step's while this one is
//   multiplied -> registers -> shared memory, a part for each warp, which alone waits for itself
//   -> the words of a lane's 32 columns, of one row after the other
//
// Blocks may stand at any address; a row's part of a step is moved from the multiple of 16 bytes before it
// on.
//
// Grid: (groups of 4 rows of w). Each row of x is summed in the same order whatever m is, so that results are
// batch-invariant.

namespace tessera::kernels {

/// Where a warp's step of a block's rows of w stands in memory.
template <class Format>
struct StepPlace {
  static constexpr int kVectors = step_vectors(Format::kElements, Format::kBytes, kWarpSize);  // of a row
  static constexpr int kStepBytes = step_columns(kWarpSize) / Format::kElements * Format::kBytes;
  int64 begin[kGemvRows];  // bytes of w before it
  int64 left;              // bytes of the row from there on
  int64 end;               // bytes of w

  TESSERA_DEVICE StepPlace(const GemmParams& p, int64 first_row, int64 column) {
    const int64 row_bytes = bytes_of(p.k), before = bytes_of(column);
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r)
      begin[r] = minimum(weight_row(p, first_row, r), p.n - 1) * row_bytes + before;
    left = row_bytes - before;
    end = p.n * row_bytes;
  }
  TESSERA_DEVICE static int64 bytes_of(int64 columns) { return columns / Format::kElements * Format::kBytes; }

  TESSERA_DEVICE void advance(int steps) {
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) begin[r] += int64{steps} * kStepBytes;
    left -= int64{steps} * kStepBytes;
  }
  TESSERA_DEVICE bool is_last() const { return left <= kStepBytes; }

  /// Bytes of the first vector that are before the step. A warp goes on by whole vectors, so that it is the
  /// same for all of its steps.
  TESSERA_DEVICE int shift(int r) const { return static_cast<int>(begin[r] & (kMovedBytes - 1)); }
  static_assert(2 * kStepBytes % kMovedBytes == 0,
                "two warps' steps are whole vectors, and so are a power of two's");

  /// Vector i of row r; beyond the last that lies in w whole, that. Of a step that isn't there, w's first.
  TESSERA_DEVICE const MovedWords* vector(const GemmParams& p, int r, int i) const {
    const bool is_there = left > 0;
    const int64 first = is_there ? begin[r] - shift(r) : 0;
    const auto in_step = static_cast<int>(minimum<int64>(left, kStepBytes));
    int last = minimum((shift(r) + in_step + kMovedBytes - 1) / kMovedBytes, kVectors) - 1;
    if (is_cut(r)) --last;  // no block is as short as a vector
    return reinterpret_cast<const MovedWords*>(static_cast<const unsigned char*>(p.weight.data) + first) +
           minimum(i, is_there ? last : 0);
  }
  /// Whether w ends in this step of row r, with a part of a vector.
  TESSERA_DEVICE bool is_cut(int r) const {
    return is_last() && begin[r] + left == end && (end & (kMovedBytes - 1)) != 0;
  }
};

/// A step of a block's rows of w on its way through registers to shared memory.
template <class Format>
struct MovedStep {
  static constexpr int kVectors = StepPlace<Format>::kVectors;
  static constexpr int kLoads = (kVectors + kWarpSize - 1) / kWarpSize;  // of a lane and row
  MovedWords vector[kGemvRows][kLoads];

  /// Without a branch, so that no load waits for another's end. Of a step that isn't there, something small.
  TESSERA_DEVICE void load(const GemmParams& p, const StepPlace<Format>& place) {
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      TESSERA_UNROLL
      for (int n = 0; n < kLoads; ++n)
        vector[r][n] = *place.vector(p, r, thread_x() % kWarpSize + n * kWarpSize);
    }
  }

  TESSERA_DEVICE void store(const GemmParams& p, const StepPlace<Format>& place, MovedWords* shared) const {
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      TESSERA_UNROLL
      for (int n = 0; n < kLoads; ++n) {
        // Lanes beyond the last vector have it, too.
        const int i = minimum(thread_x() % kWarpSize + n * kWarpSize, kVectors - 1);
        shared[r * kVectors + i] = vector[r][n];
      }
    }
    if (place.is_last() && (place.end & (kMovedBytes - 1)) != 0) store_cut(p, place, shared);
  }

 private:
  /// What w ends with of a vector that it does not fill.
  TESSERA_DEVICE static void store_cut(const GemmParams& p, const StepPlace<Format>& place,
                                       MovedWords* shared) {
    const int count = static_cast<int>(place.end & (kMovedBytes - 1));
    const int lane = thread_x() % kWarpSize;
    sync_warp();
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      if (!place.is_cut(r) || lane >= count) continue;
      const auto before = static_cast<int>(place.shift(r) + place.left) - count;
      reinterpret_cast<unsigned char*>(shared + r * kVectors)[before + lane] =
          static_cast<const unsigned char*>(p.weight.data)[place.end - count + lane];
    }
  }
};

/// A lane's octets of few rows of x, as stored.
template <class X, int kM>
struct UnitOfX {
  PackedGroup<X> octet[kM][4];

  template <class Unit>
  TESSERA_DEVICE void load(const GemmParams& p, int64 column, Unit) {
    TESSERA_UNROLL
    for (int m = 0; m < kM; ++m) {
      TESSERA_UNROLL
      for (int o = 0; o < 4; ++o) octet[m][o].load(row_of_x<X>(p, m) + column + Unit::octet_column(o), 0);
    }
  }
};

template <int kCount>
TESSERA_DEVICE float add_up(const float (&v)[kCount], float sum) {
  TESSERA_UNROLL
  for (int i = 0; i < kCount; ++i) sum += v[i];
  return sum;
}

/// Adds the products of a lane's unit of each row of w, unit_of(r) being that of row r, with few rows of x,
/// which stay in registers.
template <class Unit, class X, int kM, class UnitOf>
TESSERA_DEVICE void add_few(const UnitOfX<X, kM>& packed, UnitOf unit_of, float (&sum)[kGemvRows * kM]) {
  constexpr int kOctets = 4 / Unit::kGroups;  // of a group
  float x[kM][4][kGroupSize], x_sum[kM][Unit::kGroups] = {};
  TESSERA_UNROLL
  for (int m = 0; m < kM; ++m) {
    TESSERA_UNROLL
    for (int o = 0; o < 4; ++o) {
      packed.octet[m][o].get(x[m][o]);
      if constexpr (Unit::kHasOffset) x_sum[m][o / kOctets] = add_up(x[m][o], x_sum[m][o / kOctets]);
    }
  }
  TESSERA_UNROLL
  for (int r = 0; r < kGemvRows; ++r) {
    const Unit unit = unit_of(r);
    TESSERA_UNROLL
    for (int g = 0; g < Unit::kGroups; ++g) {
      float of_group[kM] = {};
      TESSERA_UNROLL
      for (int o = g * kOctets; o < (g + 1) * kOctets; ++o) {
        const auto q = unit.octet(o);
        TESSERA_UNROLL
        for (int m = 0; m < kM; ++m) {
          TESSERA_UNROLL
          for (int i = 0; i < kGroupSize; ++i) of_group[m] = q.multiply(i, x[m][o][i], of_group[m]);
        }
      }
      TESSERA_UNROLL
      for (int m = 0; m < kM; ++m) {
        float& total = sum[r * kM + m];
        total = fmaf(unit.step(g), of_group[m], total);
        if constexpr (Unit::kHasOffset) total = fmaf(unit.offset(g), x_sum[m][g], total);
      }
    }
  }
}

/// The same with more rows of x, of which an octet at a time is loaded, while units stay in registers. Rows
/// of x are taken in pairs.
template <class Unit, class X, int kM, class UnitOf>
TESSERA_DEVICE void add_many(const GemmParams& p, int64 column, UnitOf unit_of,
                             float (&sum)[kGemvRows * kM]) {
  constexpr int kOctets = 4 / Unit::kGroups;
  constexpr int kPairs = kM / 2;
  constexpr int kAtOnce = kM > 4 ? 1 : 2;  // pairs of rows of x whose loads are under way together
  Unit unit[kGemvRows];
  TESSERA_UNROLL
  for (int r = 0; r < kGemvRows; ++r) unit[r] = unit_of(r);
  if constexpr (kM > 4) keep_order();
  TESSERA_UNROLL
  for (int g = 0; g < Unit::kGroups; ++g) {
    FloatPair of_group[kGemvRows][kPairs] = {}, x_sum[kPairs] = {};
    TESSERA_UNROLL
    for (int o = g * kOctets; o < (g + 1) * kOctets; ++o) {
      float q[kGemvRows][kGroupSize];
      TESSERA_UNROLL
      for (int r = 0; r < kGemvRows; ++r) unit[r].octet(o).get(q[r]);
      TESSERA_UNROLL
      for (int first = 0; first < kPairs; first += kAtOnce) {
        PackedGroup<X> packed[kAtOnce][2];
        TESSERA_UNROLL
        for (int n = 0; n < 2 * kAtOnce; ++n)
          packed[n / 2][n % 2].load(row_of_x<X>(p, 2 * first + n) + column + Unit::octet_column(o), 0);
        TESSERA_UNROLL
        for (int n = 0; n < kAtOnce; ++n) {
          float upper[kGroupSize], lower[kGroupSize];
          packed[n][0].get(upper);
          packed[n][1].get(lower);
          TESSERA_UNROLL
          for (int i = 0; i < kGroupSize; ++i) {
            const FloatPair x = make_pair_of(upper[i], lower[i]);
            if constexpr (Unit::kHasOffset) x_sum[first + n] = add_pair(x_sum[first + n], x);
            TESSERA_UNROLL
            for (int r = 0; r < kGemvRows; ++r) {
              FloatPair& total = of_group[r][first + n];
              total = fma_pair(q[r][i], x, total);
            }
          }
        }
        if constexpr (kM > 4) keep_order();
      }
    }
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      TESSERA_UNROLL
      for (int m = 0; m < kM; ++m) {
        float& total = sum[r * kM + m];
        total = fmaf(unit[r].step(g), of_pair(of_group[r][m / 2], m % 2), total);
        if constexpr (Unit::kHasOffset) total = fmaf(unit[r].offset(g), of_pair(x_sum[m / 2], m % 2), total);
      }
    }
  }
}

template <class Format, class X, int kM>
TESSERA_DEVICE void gemv_blocks(const GemmParams& p) {
  using Unit = BlockUnit<Format>;
  constexpr int kUnits = Format::kElements / kUnitColumns;  // of a block
  constexpr int kColumns = step_columns(kWarpSize);
  constexpr int kVectors = StepPlace<Format>::kVectors;
  TESSERA_DYNAMIC_SHARED(all_shared);
  const int lane = thread_x() % kWarpSize;
  const int warp = uniform(thread_x() / kWarpSize);
  const int warps = block_size() / kWarpSize;
  auto* const shared = reinterpret_cast<MovedWords*>(all_shared) +
                       warp * warp_vectors(Format::kElements, Format::kBytes, kGemvRows, kWarpSize);
  const int64 first_row = first_row_of_block(p);

  allow_next_kernel();
  // The host gives each warp a step at least.
  int64 column = int64{warp} * kColumns;
  StepPlace<Format> place(p, first_row, column);
  int block_begin[kGemvRows];  // of a lane's block, in a row's part of shared memory
  TESSERA_UNROLL
  for (int r = 0; r < kGemvRows; ++r) block_begin[r] = place.shift(r) + lane / kUnits * Format::kBytes;
  MovedStep<Format> step;
  step.load(p, place);
  wait_for_prior_kernels();
  float sum[kGemvRows * kM] = {};
  for (; column < p.k; column += int64{warps} * kColumns) {
    sync_warp();
    step.store(p, place, shared);
    sync_warp();
    place.advance(warps);
    const bool has_unit = column + lane * kUnitColumns < p.k;
    // Lanes that have none load and multiply something, too: no branch stands between loads and their use,
    // since what would be waited for is what all ways to a place have in common.
    const int64 lane_column =
        has_unit ? column + lane / kUnits * Format::kElements + Unit::column(lane % kUnits) : 0;
    const auto unit_of = [&](int r) {
      Unit unit;
      unit.load({reinterpret_cast<const unsigned char*>(shared + r * kVectors), block_begin[r]},
                lane % kUnits);
      return unit;
    };
    if constexpr (kM <= 2) {
      UnitOfX<X, kM> x;
      x.load(p, lane_column, Unit());
      keep_order();
      step.load(p, place);
      keep_order();
      float added[kGemvRows * kM];
      TESSERA_UNROLL
      for (int i = 0; i < kGemvRows * kM; ++i) added[i] = sum[i];
      add_few<Unit, X, kM>(x, unit_of, added);
      TESSERA_UNROLL
      for (int i = 0; i < kGemvRows * kM; ++i) sum[i] = has_unit ? added[i] : sum[i];
    } else {
      // x, which is asked for later, would wait for w, or there are not registers enough.
      constexpr bool kIsLate = kLoadsEndInOrder || kM > 4;
      if constexpr (!kIsLate) step.load(p, place);
      if (has_unit) add_many<Unit, X, kM>(p, lane_column, unit_of, sum);
      if constexpr (kIsLate) step.load(p, place);
    }
  }
  finish_rows<kM>(p, first_row, sum, warps);
}

}  // namespace tessera::kernels
