#include "core/quantize.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/block_format.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using formats::IQ4_NL;
using formats::IQ4_XS;
using formats::MXFP4;
using formats::Q2_K;
using formats::Q3_K;
using formats::Q4_0;
using formats::Q4_1;
using formats::Q4_K;
using formats::Q5_0;
using formats::Q5_1;
using formats::Q5_K;
using formats::Q6_K;
using formats::Q8_0;
using formats::TQ1_0;
using formats::TQ2_0;

/// The integers that a format has, in ascending order: all from `least` to `most`, or those of a table.
struct Integers {
  int least = 0, most = 0;
  std::span<const int> table;

  int nearest(float x) const {
    if (table.empty()) {
      // Without a branch or a call, so that loops become vectors. A NaN gives the least.
      const float inside = std::min(std::max(static_cast<float>(least), x), static_cast<float>(most));
      constexpr float kNoFraction = 0x1.8p23f;  // numbers near it are whole: adding it rounds, ties to even
      return static_cast<int>((inside + kNoFraction) - kNoFraction);
    }
    const auto above = std::find_if(table.begin(), table.end() - 1,
                                    [&](int integer) { return static_cast<float>(integer) >= x; });
    if (above == table.begin()) return table.front();
    const auto below = above - 1;
    return x - static_cast<float>(*below) < static_cast<float>(*above) - x ? *below : *above;
  }
};

/// The format's values at four bits, by place.
template <class Format>
constexpr std::array<int, 16> four_bit_table() {
  std::array<int, 16> table{};
  for (int bits = 0; bits < 16; ++bits) {
    unsigned char block[Format::kBytes] = {};
    block[Format::kBytes - 16] = static_cast<unsigned char>(bits);
    table[static_cast<std::size_t>(bits)] = Format::integer(block, 0);
  }
  return table;
}

/// Large weights move what a layer gives more than small ones.
template <std::size_t kCount>
std::array<float, kCount> importance(const float* x) {
  float squares = 0;
  for (std::size_t i = 0; i < kCount; ++i) squares += x[i] * x[i];
  const float mean = std::sqrt(squares / static_cast<float>(kCount));
  std::array<float, kCount> weights;
  for (std::size_t i = 0; i < kCount; ++i) weights[i] = mean + std::abs(x[i]);
  return weights;
}

/// The number of the largest size.
template <std::size_t kCount>
float extreme(const float* x) {
  return *std::max_element(x, x + kCount, [](float a, float b) { return std::abs(a) < std::abs(b); });
}

/// The step whose multiples by the integers come closest to x: tries such as bring the extreme near an end of
/// the range, each improved by least squares for the integers that it gives.
template <std::size_t kCount>
float best_step(const float* x, const Integers& integers) {
  const float most = extreme<kCount>(x);
  if (most == 0) return 0;
  const std::array<float, kCount> weights = importance<kCount>(x);
  // For numbers whose squares leave fp32's range.
  float best = most / static_cast<float>(integers.least), best_gain = -1;
  const auto try_step = [&](float step) {
    float product = 0, square = 0;
    const float inverse = 1 / step;
    for (std::size_t i = 0; i < kCount; ++i) {
      const float q = static_cast<float>(integers.nearest(x[i] * inverse));
      product += weights[i] * x[i] * q;
      square += weights[i] * q * q;
    }
    // The error is that of a step of 0 less this.
    if (square > 0 && product * product > best_gain * square) {
      best_gain = product * product / square;
      best = product / square;
    }
  };
  constexpr int kTries = 9;
  for (const int end : {integers.least, integers.most}) {
    for (int i = -kTries; i <= kTries; ++i) {
      const float at = static_cast<float>(end) * (1 + 0.0125f * static_cast<float>(i));
      if (at != 0) try_step(most / at);
    }
  }
  return best;
}

struct Line {
  float step = 0, offset = 0;
};

/// step >= 0 and offset for integers from 0 to `most`; offset at most 0 unless `any_offset`.
template <std::size_t kCount>
Line best_line(const float* x, int most, bool any_offset) {
  const auto [low, high] = std::minmax_element(x, x + kCount);
  const float least = any_offset ? *low : std::min(*low, 0.0f);
  if (*high <= least) return {0, least};
  const std::array<float, kCount> weights = importance<kCount>(x);
  const Integers integers{0, most, {}};
  Line best;
  float best_error = std::numeric_limits<float>::infinity();
  const auto error_of = [&](const Line& line, std::array<float, kCount>& q) {
    float error = 0;
    const float inverse = 1 / line.step;
    for (std::size_t i = 0; i < kCount; ++i) {
      q[i] = static_cast<float>(integers.nearest((x[i] - line.offset) * inverse));
      const float difference = line.step * q[i] + line.offset - x[i];
      error += weights[i] * difference * difference;
    }
    return error;
  };
  constexpr int kTries = 12;
  for (int i = -kTries; i <= kTries; ++i) {
    Line line{(*high - least) / (static_cast<float>(most) + 0.1f * static_cast<float>(i)), least};
    for (int round = 0; round < 2; ++round) {
      if (!(line.step > 0) || !std::isfinite(1 / line.step)) break;
      std::array<float, kCount> q;
      const float error = error_of(line, q);
      if (error < best_error) {
        best_error = error;
        best = line;
      }
      // Least squares for these integers.
      float w = 0, wq = 0, wqq = 0, wx = 0, wqx = 0;
      for (std::size_t j = 0; j < kCount; ++j) {
        w += weights[j];
        wq += weights[j] * q[j];
        wqq += weights[j] * q[j] * q[j];
        wx += weights[j] * x[j];
        wqx += weights[j] * q[j] * x[j];
      }
      const float determinant = w * wqq - wq * wq;
      if (!(determinant > 0)) break;
      line = {(w * wqx - wq * wx) / determinant, (wqq * wx - wq * wqx) / determinant};
      if (!any_offset && line.offset > 0) line = {wqx / wqq, 0};
    }
  }
  return std::isfinite(best_error) ? best : Line{(*high - least) / static_cast<float>(most), least};
}

/// As a half, of which the number that it holds is given back.
float store_half(float value, unsigned char* out) {
  const Half half(value);
  const float stored = static_cast<float>(half);
  if (!std::isfinite(stored)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("quantize_blocks: a block needs the step {}; expected values small enough for "
                            "steps that fp16 holds",
                            value));
  }
  std::memcpy(out, &half, sizeof half);
  return stored;
}

/// The same of a step whose integers reach as far as they must: among fp16's smallest numbers, which lie far
/// apart, the next larger one.
float store_step_half(float step, unsigned char* out) {
  constexpr float kSmallestHalf = 0x1p-24f, kFarApart = 64 * kSmallestHalf;
  if (std::abs(step) < kFarApart)
    step = std::copysign(std::ceil(std::abs(step) / kSmallestHalf) * kSmallestHalf, step);
  return store_half(step, out);
}

/// The integers of x under steps that are stored already, as the format decodes them.
template <class Format>
void nearest_integers(const float* x, const unsigned char* block, const Integers& integers,
                      int (&q)[Format::kElements]) {
  for (int i = 0; i < Format::kElements; ++i) {
    const auto s = Format::template step<float>(block, i / Format::kGroup);
    q[i] = s.step == 0 ? integers.nearest(0) : integers.nearest((x[i] - s.offset) / s.step);
  }
}

void add_bits(unsigned char& byte, int bits, int shift) {
  byte = static_cast<unsigned char>(byte | bits << shift);
}

void store_nibble_of_32(unsigned char* bytes, int i, int bits) {
  add_bits(bytes[i % 16], bits, i < 16 ? 0 : 4);
}
void store_two_bits_of_256(unsigned char* bytes, int i, int bits) {
  add_bits(bytes[i / 128 * 32 + i % 32], bits, i % 128 / 32 * 2);
}
void store_four_bits_of_256(unsigned char* bytes, int i, int bits) {
  add_bits(bytes[i / 64 * 32 + i % 32], bits, i % 64 / 32 * 4);
}

/// Q4_0, Q5_0, Q8_0, IQ4_NL: one half, integers of either sign.
template <class Format>
float store_step(const float* x, const Integers& integers, unsigned char* block) {
  const float step = best_step<Format::kElements>(x, integers);
  // A table without a 0 makes numbers far below a step worse than a step of 0 does.
  return integers.table.empty() ? store_step_half(step, block) : store_half(step, block);
}

void encode(const float* x, unsigned char* block, Q4_0) {
  const Integers integers{-8, 7, {}};
  store_step<Q4_0>(x, integers, block);
  int q[Q4_0::kElements];
  nearest_integers<Q4_0>(x, block, integers, q);
  for (int i = 0; i < Q4_0::kElements; ++i) store_nibble_of_32(block + 2, i, q[i] + 8);
}

void encode(const float* x, unsigned char* block, Q5_0) {
  const Integers integers{-16, 15, {}};
  store_step<Q5_0>(x, integers, block);
  int q[Q5_0::kElements];
  nearest_integers<Q5_0>(x, block, integers, q);
  for (int i = 0; i < Q5_0::kElements; ++i) {
    store_nibble_of_32(block + 6, i, (q[i] + 16) & 0xf);
    add_bits(block[2 + i / 8], (q[i] + 16) >> 4, i % 8);
  }
}

void encode(const float* x, unsigned char* block, Q8_0) {
  const Integers integers{-127, 127, {}};
  store_step_half(std::abs(extreme<Q8_0::kElements>(x)) / 127, block);
  int q[Q8_0::kElements];
  nearest_integers<Q8_0>(x, block, integers, q);
  for (int i = 0; i < Q8_0::kElements; ++i) block[2 + i] = static_cast<unsigned char>(q[i]);
}

void encode(const float* x, unsigned char* block, Q4_1) {
  const Line line = best_line<Q4_1::kElements>(x, 15, true);
  store_step_half(line.step, block);
  store_half(line.offset, block + 2);
  int q[Q4_1::kElements];
  nearest_integers<Q4_1>(x, block, {0, 15, {}}, q);
  for (int i = 0; i < Q4_1::kElements; ++i) store_nibble_of_32(block + 4, i, q[i]);
}

void encode(const float* x, unsigned char* block, Q5_1) {
  const Line line = best_line<Q5_1::kElements>(x, 31, true);
  store_step_half(line.step, block);
  store_half(line.offset, block + 2);
  int q[Q5_1::kElements];
  nearest_integers<Q5_1>(x, block, {0, 31, {}}, q);
  for (int i = 0; i < Q5_1::kElements; ++i) {
    store_nibble_of_32(block + 8, i, q[i] & 0xf);
    add_bits(block[4 + i / 8], q[i] >> 4, i % 8);
  }
}

/// Steps and offsets of a block's groups as integers up to `most` times two halves.
template <class Format>
struct GroupLines {
  static constexpr int kGroups = Format::kElements / Format::kGroup;
  int step[kGroups], offset[kGroups];

  GroupLines(const float* x, int most_integer, int most, unsigned char* step_half,
             unsigned char* offset_half) {
    Line lines[kGroups];
    float largest = 0, lowest = 0;
    for (int g = 0; g < kGroups; ++g) {
      lines[g] = best_line<Format::kGroup>(x + g * Format::kGroup, most_integer, false);
      largest = std::max(largest, lines[g].step);
      lowest = std::min(lowest, lines[g].offset);
    }
    const Integers integers{0, most, {}};
    const float unit = store_step_half(largest / static_cast<float>(most), step_half);
    const float offset_unit = store_step_half(-lowest / static_cast<float>(most), offset_half);
    for (int g = 0; g < kGroups; ++g) {
      // A step that is none would leave the offset alone, the group's lowest number.
      step[g] = unit == 0 || lines[g].step == 0 ? 0 : std::max(1, integers.nearest(lines[g].step / unit));
      offset[g] = offset_unit == 0 ? 0 : integers.nearest(-lines[g].offset / offset_unit);
    }
  }
};

void encode(const float* x, unsigned char* block, Q2_K) {
  const GroupLines<Q2_K> lines(x, 3, 15, block + 80, block + 82);
  for (int g = 0; g < 16; ++g) {
    block[g] = static_cast<unsigned char>(lines.step[g] | lines.offset[g] << 4);
  }
  int q[Q2_K::kElements];
  nearest_integers<Q2_K>(x, block, {0, 3, {}}, q);
  for (int i = 0; i < Q2_K::kElements; ++i) store_two_bits_of_256(block + 16, i, q[i]);
}

/// The halves and the 12 bytes of Q4_K and Q5_K.
template <class Format>
void store_six_bit_lines(const float* x, int most_integer, unsigned char* block) {
  const GroupLines<Format> lines(x, most_integer, 63, block, block + 2);
  unsigned char* bytes = block + 4;
  for (int g = 0; g < 4; ++g) {
    bytes[g] = static_cast<unsigned char>(lines.step[g] | (lines.step[g + 4] >> 4) << 6);
    bytes[g + 4] = static_cast<unsigned char>(lines.offset[g] | (lines.offset[g + 4] >> 4) << 6);
    bytes[g + 8] = static_cast<unsigned char>((lines.step[g + 4] & 0xf) | (lines.offset[g + 4] & 0xf) << 4);
  }
}

void encode(const float* x, unsigned char* block, Q4_K) {
  store_six_bit_lines<Q4_K>(x, 15, block);
  int q[Q4_K::kElements];
  nearest_integers<Q4_K>(x, block, {0, 15, {}}, q);
  for (int i = 0; i < Q4_K::kElements; ++i) store_four_bits_of_256(block + 16, i, q[i]);
}

void encode(const float* x, unsigned char* block, Q5_K) {
  store_six_bit_lines<Q5_K>(x, 31, block);
  int q[Q5_K::kElements];
  nearest_integers<Q5_K>(x, block, {0, 31, {}}, q);
  for (int i = 0; i < Q5_K::kElements; ++i) {
    store_four_bits_of_256(block + 48, i, q[i] & 0xf);
    add_bits(block[16 + i % 32], q[i] >> 4, i / 32);
  }
}

/// The steps of a block's groups as integers from -most to most - 1 times a half.
template <class Format>
struct GroupSteps {
  static constexpr int kGroups = Format::kElements / Format::kGroup;
  int step[kGroups];

  GroupSteps(const float* x, const Integers& integers, int most, unsigned char* half) {
    float steps[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      steps[g] = best_step<Format::kGroup>(x + g * Format::kGroup, integers);
    }
    const float unit = store_step_half(extreme<kGroups>(steps) / static_cast<float>(-most), half);
    const Integers range{-most, most - 1, {}};
    for (int g = 0; g < kGroups; ++g) step[g] = unit == 0 ? 0 : range.nearest(steps[g] / unit);
  }
};

void encode(const float* x, unsigned char* block, Q3_K) {
  const Integers integers{-4, 3, {}};
  const GroupSteps<Q3_K> steps(x, integers, 32, block + 108);
  for (int g = 0; g < 16; ++g) {
    const int bits = steps.step[g] + 32;
    add_bits(block[96 + g % 8], bits & 0xf, g < 8 ? 0 : 4);
    add_bits(block[104 + g % 4], bits >> 4, g / 4 * 2);
  }
  int q[Q3_K::kElements];
  nearest_integers<Q3_K>(x, block, integers, q);
  for (int i = 0; i < Q3_K::kElements; ++i) {
    store_two_bits_of_256(block + 32, i, (q[i] + 4) & 3);
    add_bits(block[i % 32], (q[i] + 4) >> 2, i / 32);
  }
}

void encode(const float* x, unsigned char* block, Q6_K) {
  const Integers integers{-32, 31, {}};
  const GroupSteps<Q6_K> steps(x, integers, 128, block + 208);
  for (int g = 0; g < 16; ++g) block[192 + g] = static_cast<unsigned char>(steps.step[g]);
  int q[Q6_K::kElements];
  nearest_integers<Q6_K>(x, block, integers, q);
  for (int i = 0; i < Q6_K::kElements; ++i) {
    add_bits(block[i / 128 * 64 + i % 64], (q[i] + 32) & 0xf, i % 128 / 64 * 4);
    store_two_bits_of_256(block + 128, i, (q[i] + 32) >> 4);
  }
}

constexpr std::array<int, 16> kIq4Table = four_bit_table<IQ4_NL>();

int place_in_iq4_table(int integer) {
  return static_cast<int>(std::find(kIq4Table.begin(), kIq4Table.end(), integer) - kIq4Table.begin());
}

void encode(const float* x, unsigned char* block, IQ4_NL) {
  const Integers integers{kIq4Table.front(), kIq4Table.back(), kIq4Table};
  store_step<IQ4_NL>(x, integers, block);
  int q[IQ4_NL::kElements];
  nearest_integers<IQ4_NL>(x, block, integers, q);
  for (int i = 0; i < IQ4_NL::kElements; ++i) store_nibble_of_32(block + 2, i, place_in_iq4_table(q[i]));
}

void encode(const float* x, unsigned char* block, IQ4_XS) {
  const Integers integers{kIq4Table.front(), kIq4Table.back(), kIq4Table};
  const GroupSteps<IQ4_XS> steps(x, integers, 32, block);
  for (int g = 0; g < 8; ++g) {
    const int bits = steps.step[g] + 32;
    add_bits(block[2 + g / 4], bits >> 4, g % 4 * 2);
    add_bits(block[4 + g / 2], bits & 0xf, g % 2 * 4);
  }
  int q[IQ4_XS::kElements];
  nearest_integers<IQ4_XS>(x, block, integers, q);
  for (int i = 0; i < IQ4_XS::kElements; ++i) {
    store_nibble_of_32(block + 8 + i / 32 * 16, i % 32, place_in_iq4_table(q[i]));
  }
}

void encode(const float* x, unsigned char* block, MXFP4) {
  static constexpr std::array<int, 15> kTable = {-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12};
  static constexpr std::array<int, 16> kPlaces = four_bit_table<MXFP4>();
  const Integers integers{-12, 12, kTable};
  const float most = std::abs(extreme<MXFP4::kElements>(x));
  // A step of 2^(e - 128) brings the largest to between 8 and 16; 12 is the most, so the next may be better.
  const int exponent = most == 0 ? 0 : std::ilogb(most) - 3 + 128;
  double best_error = std::numeric_limits<double>::infinity();
  unsigned char best = 0;
  for (int e = std::clamp(exponent, 0, 253); e <= std::clamp(exponent + 1, 0, 253); ++e) {
    block[0] = static_cast<unsigned char>(e);
    const float step = MXFP4::step<float>(block, 0).step;
    double error = 0;
    for (int i = 0; i < MXFP4::kElements; ++i) {
      const double difference =
          static_cast<double>(static_cast<float>(integers.nearest(x[i] / step)) * step - x[i]);
      error += difference * difference;
    }
    if (error < best_error) {
      best_error = error;
      best = block[0];
    }
  }
  block[0] = best;
  int q[MXFP4::kElements];
  nearest_integers<MXFP4>(x, block, integers, q);
  for (int i = 0; i < MXFP4::kElements; ++i) {
    const auto place = std::find(kPlaces.begin(), kPlaces.end(), q[i]) - kPlaces.begin();
    store_nibble_of_32(block + 1, i, static_cast<int>(place));
  }
}

/// The weights of ternary models are -1, 0 or 1 times the largest.
template <class Format>
void store_ternary(const float* x, unsigned char* half, unsigned char* block, int (&q)[Format::kElements]) {
  store_half(std::abs(extreme<Format::kElements>(x)), half);
  nearest_integers<Format>(x, block, {-1, 1, {}}, q);
}

void encode(const float* x, unsigned char* block, TQ2_0) {
  int q[TQ2_0::kElements];
  store_ternary<TQ2_0>(x, block + 64, block, q);
  for (int i = 0; i < TQ2_0::kElements; ++i) store_two_bits_of_256(block, i, q[i] + 1);
}

void encode(const float* x, unsigned char* block, TQ1_0) {
  int q[TQ1_0::kElements];
  store_ternary<TQ1_0>(x, block + 52, block, q);
  // `count` bytes of `places` digits each, the first of most weight; as a fraction of 3^5, rounded up.
  const auto store = [&](unsigned char* bytes, int first, int count, int places) {
    for (int byte = 0; byte < count; ++byte) {
      int number = 0;
      for (int place = 0; place < 5; ++place) {
        number = 3 * number + (place < places ? q[first + place * count + byte] + 1 : 0);
      }
      bytes[byte] = static_cast<unsigned char>((number * 256 + 242) / 243);
    }
  };
  store(block, 0, 32, 5);
  store(block + 32, 160, 16, 5);
  store(block + 48, 240, 4, 4);
}

template <class T>
concept Quantizable = requires(const float* x, unsigned char* block) {
  encode(x, block, T());
};

/// The half that all steps of a block of a codebook's format are multiples of.
template <class Format>
void store_unit(Half half, unsigned char* block, Format) {
  std::memcpy(block, &half, sizeof half);
}
void store_unit(Half half, unsigned char* block, formats::IQ1_M) {
  for (int i = 0; i < 4; ++i) {
    unsigned char& upper = block[48 + 2 * i + 1];
    upper = static_cast<unsigned char>((upper & 0xf) | (half.bits >> (4 * i) & 0xf) << 4);
  }
}

template <class Format>
double mean_square(const unsigned char* block) {
  float numbers[Format::kElements];
  Format::decode(block, 0, numbers);
  double sum = 0;
  for (const float x : numbers) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum / Format::kElements;
}

/// A block of a codebook's format: its bits are those of FNV-1a sums of x (Fowler, Noll & Vo).
template <class Format>
void scatter(const float* x, unsigned char* block, Format) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  double square = 0;
  for (int i = 0; i < Format::kElements; ++i) {
    sum = (sum ^ std::bit_cast<std::uint32_t>(x[i])) * 0x100000001b3u;
    square += static_cast<double>(x[i]) * static_cast<double>(x[i]) / Format::kElements;
  }
  for (int i = 0; i < Format::kBytes; ++i) {
    sum = (sum ^ static_cast<unsigned>(i)) * 0x100000001b3u;
    block[i] = static_cast<unsigned char>(sum >> 40);
  }
  store_unit(Half(1.0f), block, Format());
  const auto unit = static_cast<float>(std::sqrt(square / mean_square<Format>(block)));
  store_unit(Half(unit), block, Format());
}

}  // namespace

void quantize_blocks(DType dtype, std::span<const float> values, std::byte* out) {
  const std::size_t size_bytes = dtype_bytes(dtype, values.size());
  const auto wrong = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  if (wrong != values.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("quantize_blocks: value {} is {}; expected finite numbers",
                            wrong - values.begin(), *wrong));
  }
  dispatch_weight(dtype, [&]<class T>() {
    if constexpr (Quantizable<T>) {
      std::memset(out, 0, size_bytes);
      auto* block = reinterpret_cast<unsigned char*>(out);
      for (std::size_t i = 0; i < values.size(); i += T::kElements, block += T::kBytes) {
        encode(values.data() + i, block, T());
      }
    } else if constexpr (is_block_format<T>) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("quantize_blocks: {} is only read, not made, which would take knowledge of how "
                              "much each weight matters; expected another format, such as q2_k or q3_k",
                              dtype_name(dtype)));
    } else {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("quantize_blocks: {} is no format of blocks", dtype_name(dtype)));
    }
  });
}

bool is_quantizable(DType dtype) {
  return is_weight_dtype(dtype) && dispatch_weight(dtype, []<class T>() { return Quantizable<T>; });
}

void fill_blocks(DType dtype, std::span<const float> values, std::byte* out) {
  dispatch_weight(dtype, [&]<class T>() {
    if constexpr (is_block_format<T> && !Quantizable<T>) {
      dtype_bytes(dtype, values.size());  // refuses what is not whole blocks
      auto* block = reinterpret_cast<unsigned char*>(out);
      for (std::size_t i = 0; i < values.size(); i += T::kElements, block += T::kBytes) {
        scatter(values.data() + i, block, T());
      }
    } else {
      quantize_blocks(dtype, values, out);
    }
  });
}

}  // namespace tessera
