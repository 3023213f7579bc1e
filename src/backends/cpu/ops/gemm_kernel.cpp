// out = x w^T as dot products along k, which both x and w have contiguous: a tile of kRows rows of x and
// kColumns rows of w keeps one vector of partial sums for each pair. For few rows of x (decode) it is bound
// by reading w; threads take ranges of w's rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/ops/gemm_kernel.cpp"
#include "backends/cpu/highway_targets.h"
// After the list of targets.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "backends/cpu/fetch_ahead.h"
#include "backends/cpu/ops/gemm_kernel.h"
#include "backends/cpu/ops/nibbles-inl.h"
#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/select_kernels.h"
#include "backends/cpu/ops/vector_io-inl.h"
#include "backends/cpu/simd_target.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace {

// Without vectors there is a row at a time instead: that has no registers to fill, and is there for its
// results.
constexpr int kTileRows = 4;
// As many sums as registers hold beside a vector of each column and one of x: of 16 registers they hold 12.
#if HWY_TARGET == HWY_AVX2
constexpr int kTileColumns = 3;
#else
constexpr int kTileColumns = 4;
#endif

/// How a row of weights advances by a step of kStep elements; the vectors of their groups of kGroup, which
/// share what group() gives.
template <class T>
struct WeightRow {
  static constexpr std::size_t kStep = kGemmStep;
  static constexpr std::size_t kGroup = kStep;
  static constexpr std::size_t kStepBytes = kStep * sizeof(T);
  struct Group {};
  const T* p;
  HWY_INLINE explicit WeightRow(const void* row) : p(static_cast<const T*>(row)) {}
  HWY_INLINE void begin_step() {}
  HWY_INLINE Group group(F32, std::size_t) const { return {}; }
  HWY_INLINE VecF32 vector(F32 d, Group, std::size_t element) const { return load_vector(d, p + element); }
  HWY_INLINE void advance() { p += kStep; }
};

/// Any format: a block at a time.
template <class Format>
requires is_block_format<Format>
struct WeightRow<Format> {
  static constexpr std::size_t kStep = Format::kElements;
  static constexpr std::size_t kGroup = std::min(Format::kGroup, 32);
  static constexpr std::size_t kStepBytes = Format::kBytes;
  static_assert(kStep % kGemmStep == 0);
  using Group = typename UnpackedBlock<Format>::Group;
  const unsigned char* p;
  UnpackedBlock<Format> unpacked;
  HWY_INLINE explicit WeightRow(const void* row) : p(static_cast<const unsigned char*>(row)) {}
  HWY_INLINE void begin_step() { unpacked.unpack_from(p); }
  HWY_INLINE Group group(F32 d, std::size_t element) const { return unpacked.group(d, element); }
  HWY_INLINE VecF32 vector(F32 d, const Group& group, std::size_t element) const {
    return unpacked.vector(d, group, element);
  }
  HWY_INLINE void advance() { p += Format::kBytes; }
};

template <>
struct WeightRow<formats::Q8_0> {
  static constexpr std::size_t kStep = kGemmStep;
  static constexpr std::size_t kGroup = kStep;
  static constexpr std::size_t kStepBytes = formats::Q8_0::kBytes;
  using Group = VecF32;  // the scale
  const std::byte* p;
  HWY_INLINE explicit WeightRow(const void* row) : p(static_cast<const std::byte*>(row)) {}
  HWY_INLINE void begin_step() {}
  HWY_INLINE VecF32 group(F32 d, std::size_t) const { return hn::Set(d, half_at(p)); }
  HWY_INLINE VecF32 vector(F32 d, VecF32 scale, std::size_t element) const {
    return hn::Mul(scale, load_vector(d, q8_values(p) + element));  // exact: 11 + 8 bits
  }
  HWY_INLINE void advance() { p += formats::Q8_0::kBytes; }
};

std::size_t row_bytes_of(const GemmPanel& p) {
  return dtype_bytes(p.weight->dtype, static_cast<std::size_t>(p.k));
}

/// How far ahead of its use a tile's weight is fetched, since a row is too short a stream for the hardware to
/// fetch it in time: a whole number of tiles, so that the streams of a
/// tile's rows fetch every line once.
std::size_t tile_prefetch_bytes(std::size_t tile_bytes) {
  constexpr std::size_t kLeast = std::size_t{32} << 10;  // enough to hide memory, little enough to stay in L2
  return (kLeast + tile_bytes - 1) / tile_bytes * tile_bytes;
}

/// Adds the products of one step to the sums.
template <class T, int kRows, int kColumns>
HWY_INLINE void step(F32 d, const float* HWY_RESTRICT x, std::int64_t x_stride,
                     std::array<WeightRow<T>, std::size_t{kColumns}>& w, std::size_t prefetch_bytes,
                     VecF32 (&sums)[kRows][kColumns]) {
  using Row = WeightRow<T>;
  for (int c = 0; c < kColumns; ++c) {
    prefetch_step<CacheLevel::kFirst, Row::kStepBytes>(reinterpret_cast<const char*>(w[c].p) +
                                                       prefetch_bytes);
    w[c].begin_step();
  }
  for (std::size_t first = 0; first < Row::kStep; first += Row::kGroup) {
    typename Row::Group groups[kColumns];
    for (int c = 0; c < kColumns; ++c) groups[c] = w[c].group(d, first);
    for (std::size_t e = first; e < first + Row::kGroup; e += hn::Lanes(d)) {
      VecF32 wv[kColumns];
      for (int c = 0; c < kColumns; ++c) wv[c] = w[c].vector(d, groups[c], e);
      for (int r = 0; r < kRows; ++r) {
        const VecF32 xv = hn::LoadU(d, x + r * x_stride + e);
        for (int c = 0; c < kColumns; ++c) sums[r][c] = hn::MulAdd(xv, wv[c], sums[r][c]);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) w[c].advance();
}

/// One tile of sums; rows of w past the last valid one repeat it.
template <class T, int kRows, int kColumns>
HWY_INLINE void tile(const GemmPanel& p, std::int64_t row, const void* const (&w_rows)[kColumns],
                     float (&out)[kRows][kColumns]) {
  const F32 d;
  const std::size_t prefetch_bytes = tile_prefetch_bytes(kColumns * row_bytes_of(p));
  VecF32 sums[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) sums[r][c] = hn::Zero(d);
  }
  const auto rows_of_w = [&]<std::size_t... kColumn>(std::index_sequence<kColumn...>) {
    return std::array<WeightRow<T>, kColumns>{WeightRow<T>(w_rows[kColumn])...};
  };
  auto w = rows_of_w(std::make_index_sequence<kColumns>());
  const float* x = p.x + row * p.x_stride;
  constexpr auto kStep = static_cast<std::int64_t>(WeightRow<T>::kStep);
  std::int64_t k = 0;
  for (; k + kStep <= p.k; k += kStep) step<T, kRows>(d, x + k, p.x_stride, w, prefetch_bytes, sums);
  if constexpr (!is_block_format<T>) {
    if (k < p.k) {  // the last weights with zeros behind them
      T rest[kColumns][kGemmStep] = {};
      for (int c = 0; c < kColumns; ++c) {
        std::memcpy(rest[c], w[c].p, static_cast<std::size_t>(p.k - k) * sizeof(T));
        w[c].p = rest[c];
      }
      step<T, kRows>(d, x + k, p.x_stride, w, prefetch_bytes, sums);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) out[r][c] = hn::GetLane(hn::SumOfLanes(d, sums[r][c]));
  }
}

/// Adds bias and what out held, rounds and stores `count` columns of one row.
inline void finish_row(const GemmPanel& p, std::int64_t row, std::int64_t column, int count,
                       const float* sums) {
  alignas(64) float values[kRowPadding];
  alignas(64) float addend[kRowPadding];
  std::copy(sums, sums + count, values);
  const std::int64_t offset = row * p.out.row_stride + column;
  if (p.bias != nullptr) {
    load_as_f32(p.bias->data, p.bias->dtype, column, static_cast<std::size_t>(count), addend);
    for (int i = 0; i < count; ++i) values[i] += addend[i];
  }
  if (p.accumulate) {
    load_as_f32(p.out.data, p.out.dtype, offset, static_cast<std::size_t>(count), addend);
    for (int i = 0; i < count; ++i) values[i] += addend[i];
  }
  store_from_f32(values, static_cast<std::size_t>(count), p.out.data, p.out.dtype, offset);
}

template <class T, int kRows, int kColumns>
HWY_INLINE void tile_rows(const GemmPanel& p, std::int64_t row, std::int64_t column, int count,
                          const void* const (&w_rows)[kColumns]) {
  float sums[kRows][kColumns];
  tile<T, kRows>(p, row, w_rows, sums);
  for (int r = 0; r < kRows; ++r) finish_row(p, row + r, column, count, sums[r]);
}

constexpr int kStreamSums = 4;  // vectors a row of x, so that additions needn't wait for each other

/// Steps of kStep weights as a stream takes them: what is prepared in memory for kAhead of them at once, and
/// the vectors that come of it. Numbers and small blocks need no preparation.
template <class T>
struct StreamSteps {
  static constexpr int kAhead = 1 << 20;
  HWY_INLINE void prepare(const std::byte*, int) {}
  /// Calls use(vector, element, weights) for the vectors of step i, which stands at p; the compiler knows
  /// `vector`, which counts those of up to 64 elements.
  template <class Use>
  HWY_INLINE void each_vector(F32 d, const std::byte* p, int, Use use) const {
    if constexpr (std::is_same_v<T, formats::Q8_0>) {
      const VecF32 scale = half_in_lanes(d, p);
      for (std::size_t e = 0; e < kGemmStep; e += hn::Lanes(d)) {
        use(e / hn::Lanes(d), e, hn::Mul(scale, load_vector(d, q8_values(p) + e)));  // exact: 11 + 8 bits
      }
    } else {
      for (std::size_t e = 0; e < kGemmStep; e += hn::Lanes(d)) {
        use(e / hn::Lanes(d), e, load_vector(d, reinterpret_cast<const T*>(p) + e));
      }
    }
  }
};

/// Blocks whose integers or steps go through memory. What is stored takes long to come back, and the products
/// of one block alone don't fill that time: several are taken apart, then multiplied.
template <class Prepared, std::size_t kStepBytes, int kAhead_>
struct PreparedSteps {
  static constexpr int kAhead = kAhead_;
  Prepared prepared[kAhead];
  HWY_INLINE void prepare(const std::byte* p, int count) {
    for (int i = 0; i < count; ++i, p += kStepBytes) {
      prepared[i].unpack_from(reinterpret_cast<const unsigned char*>(p));
    }
  }
};

template <class T>
inline constexpr bool kHasStoredIntegers =
    is_block_format<T> && !kHasNibbles<T> && !std::is_same_v<T, formats::Q8_0>;

template <class Format>
requires kHasStoredIntegers<Format>
struct StreamSteps<Format>
    : PreparedSteps<UnpackedBlock<Format>, Format::kBytes, std::max(1, 1024 / Format::kElements)> {
  template <class Use>
  HWY_INLINE void each_vector(F32 d, const std::byte*, int i, Use use) const {
    constexpr std::size_t kGroup = WeightRow<Format>::kGroup;
    constexpr std::size_t kPart = std::min(Format::kElements, 64);
    const UnpackedBlock<Format>& block = this->prepared[i];
    for (std::size_t part = 0; part < Format::kElements; part += kPart) {
      for (std::size_t first = 0; first < kPart; first += kGroup) {
        const auto group = block.group(d, part + first);
        for (std::size_t e = first; e < first + kGroup; e += hn::Lanes(d)) {
          use(e / hn::Lanes(d), part + e, block.vector(d, group, part + e));
        }
      }
    }
  }
};

template <class Format>
requires kHasNibbles<Format>
struct StreamSteps<Format> : PreparedSteps<BlockSteps<Format>, Format::kBytes, 4096 / Format::kElements> {
  template <class Use>
  HWY_INLINE void each_vector(F32 d, const std::byte* p, int i, Use use) const {
    each_nibble_vector<Format>(d, reinterpret_cast<const unsigned char*>(p), this->prepared[i], use);
  }
};

/// The sums of one row of w with kRows rows of x.
template <class T, int kRows>
HWY_INLINE void stream_row(F32 d, const GemmPanel& p, const float* x, const std::byte* w,
                           const FetchAhead& distances, VecF32 (&sums)[kRows][kStreamSums]) {
  using Row = WeightRow<T>;
  using Steps = StreamSteps<T>;
  constexpr auto kStep = static_cast<std::int64_t>(Row::kStep);
  constexpr int kTogether = kStep < 64 ? 2 : 1;  // steps whose vectors meet all sums
  const std::int64_t x_stride = p.x_stride;
  Steps steps;
  const auto multiply = [&](auto first_sum, int i) HWY_ATTR __attribute__((always_inline)) {
    const auto add = [&](std::size_t vector, std::size_t e, VecF32 weights) HWY_ATTR
        __attribute__((always_inline)) {
      for (int r = 0; r < kRows; ++r) {
        VecF32& sum = sums[r][(first_sum + vector) % kStreamSums];
        sum = hn::MulAdd(hn::LoadU(d, x + r * x_stride + e), weights, sum);
      }
    };
    fetch_ahead<Row::kStepBytes>(w, distances);
    steps.each_vector(d, w, i, add);
    w += Row::kStepBytes;
    x += kStep;
  };
  constexpr std::integral_constant<std::size_t, 0> kFirst;
  constexpr std::integral_constant<std::size_t, 2> kSecond;
  for (std::int64_t left = p.k / kStep; left > 0;) {
    const int count = static_cast<int>(std::min<std::int64_t>(left, Steps::kAhead));
    steps.prepare(w, count);
    int i = 0;
    for (; i + kTogether <= count; i += kTogether) {
      multiply(kFirst, i);
      if constexpr (kTogether == 2) multiply(kSecond, i + 1);
    }
    if (i < count) multiply(kFirst, i);
    left -= count;
  }
  if constexpr (!is_block_format<T>) {
    if (const std::int64_t rest = p.k % kStep; rest != 0) {  // the last weights with zeros behind them
      alignas(64) std::byte last[Row::kStepBytes] = {};
      std::memcpy(last, w, static_cast<std::size_t>(rest) * sizeof(T));
      w = last;
      multiply(kSecond, 0);
    }
  }
}

/// Columns [begin, end) for kRows rows of x from `row` on.
template <class T, int kRows>
void stream_columns(const GemmPanel& p, std::int64_t row, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const std::size_t row_bytes = row_bytes_of(p);
  const float* x = p.x + row * p.x_stride;
  const FetchAhead distances = fetch_ahead_distances();
  alignas(64) float out[kRows][kRowPadding];
  for (std::int64_t first = begin; first < end; first += kRowPadding) {
    const int count = static_cast<int>(std::min<std::int64_t>(kRowPadding, end - first));
    for (int c = 0; c < count; ++c) {
      VecF32 sums[kRows][kStreamSums];
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kStreamSums; ++i) sums[r][i] = hn::Zero(d);
      }
      const auto row_of_w = static_cast<std::size_t>(first + c);
      stream_row<T, kRows>(d, p, x, static_cast<const std::byte*>(p.weight->data) + row_of_w * row_bytes,
                           distances, sums);
      for (int r = 0; r < kRows; ++r) {
        const VecF32 sum = hn::Add(hn::Add(sums[r][0], sums[r][1]), hn::Add(sums[r][2], sums[r][3]));
        out[r][c] = hn::GetLane(hn::SumOfLanes(d, sum));
      }
    }
    for (int r = 0; r < kRows; ++r) finish_row(p, row + r, first, count, out[r]);
  }
}

template <class T>
void tiles_of(const GemmPanel& p, std::int64_t begin, std::int64_t end) {
  constexpr int kRows = kTileRows;
  constexpr int kColumns = kTileColumns;
  const std::size_t row_bytes = row_bytes_of(p);
  for (std::int64_t n = begin; n < end; n += kColumns) {
    const int count = static_cast<int>(std::min<std::int64_t>(kColumns, end - n));
    const void* w_rows[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      const std::size_t index = static_cast<std::size_t>(n + std::min(c, count - 1));
      w_rows[c] = static_cast<const std::byte*>(p.weight->data) + index * row_bytes;
    }
    std::int64_t m = 0;
    if constexpr (kEmulated) {
      for (; m < p.m; ++m) tile_rows<T, 1>(p, m, n, count, w_rows);
    } else {
      for (; m + kRows <= p.m; m += kRows) tile_rows<T, kRows>(p, m, n, count, w_rows);
      switch (p.m - m) {
        case 3:
          tile_rows<T, 3>(p, m, n, count, w_rows);
          break;
        case 2:
          tile_rows<T, 2>(p, m, n, count, w_rows);
          break;
        case 1:
          tile_rows<T, 1>(p, m, n, count, w_rows);
          break;
        default:
          break;
      }
    }
  }
}

template <class T>
void streams_of(const GemmPanel& p, std::int64_t begin, std::int64_t end) {
  if constexpr (kEmulated) {
    for (std::int64_t m = 0; m < p.m; ++m) stream_columns<T, 1>(p, m, begin, end);
  } else {
    switch (p.m) {
      case 1:
        return stream_columns<T, 1>(p, 0, begin, end);
      case 2:
        return stream_columns<T, 2>(p, 0, begin, end);
      case 3:
        return stream_columns<T, 3>(p, 0, begin, end);
      default:
        return stream_columns<T, 4>(p, 0, begin, end);
    }
  }
}

void tiles(const GemmPanel& p, std::int64_t begin, std::int64_t end) {
  dispatch_weight(p.weight->dtype, [&]<class T>() { tiles_of<T>(p, begin, end); });
}

void streams(const GemmPanel& p, std::int64_t begin, std::int64_t end) {
  dispatch_weight(p.weight->dtype, [&]<class T>() { streams_of<T>(p, begin, end); });
}

template <class Format>
void unpack_of(const unsigned char* from, std::int64_t count, UnpackedBlocks out) {
  constexpr int kGroups = Format::kElements / Format::kGroup;
  constexpr int kRepeats = std::max(Format::kGroup / static_cast<int>(kGemmStep), 1);
  for (std::int64_t i = 0; i < count; i += Format::kElements, from += Format::kBytes) {
    unpack(from, out.integers + i, Format());
    float steps[kGroups], offsets[kGroups];
    constexpr bool kInPlace = kRepeats == 1;
    unpack_steps(from, kInPlace ? out.steps : steps, kInPlace ? out.offsets : offsets, Format());
    for (int g = 0; !kInPlace && g < kGroups * kRepeats; ++g) {
      out.steps[g] = steps[g / kRepeats];
      if constexpr (Format::kHasOffset) out.offsets[g] = offsets[g / kRepeats];
    }
    out.steps += kGroups * kRepeats;
    if constexpr (Format::kHasOffset) out.offsets += kGroups * kRepeats;
  }
}

void unpack_blocks(const Weight& weight, std::int64_t row, std::int64_t first, std::int64_t count,
                   const UnpackedBlocks& out) {
  dispatch_weight(weight.dtype, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      const std::int64_t block = (row * weight.columns + first) / T::kElements;
      unpack_of<T>(static_cast<const unsigned char*>(weight.data) + block * T::kBytes, count, out);
    }
  });
}

}  // namespace

extern const GemmKernels kGemmKernels;
const GemmKernels kGemmKernels = {tiles, streams, unpack_blocks};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

const GemmKernels& gemm_kernels() { return TESSERA_SELECT_KERNELS(kGemmKernels); }

BlockGroups groups_of_blocks(DType dtype) {
  return dispatch_weight(dtype, []<class T>() -> BlockGroups {
    if constexpr (is_block_format<T>) {
      return {std::min<std::int64_t>(T::kGroup, kGemmStep), T::kHasOffset};
    } else {
      return {};
    }
  });
}

}  // namespace tessera::cpu
#endif
