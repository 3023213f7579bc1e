#include "core/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace tessera {
namespace {

/// The nearest of all finite T values, ties to the even one, found by looking at the neighbours of a guess.
template <class T>
double nearest_by_search(double value) {
  const auto as_double = [](std::uint16_t bits) {
    T t;
    t.bits = bits;
    return static_cast<double>(t);
  };
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  std::uint16_t low = 0, high = 0x7fff;  // magnitudes grow with the bits
  const double magnitude = std::abs(value);
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (as_double(middle) <= magnitude ? low : high) = middle;  // NaN and infinity compare as "too high"
  }
  const double below = as_double(low);
  const double above = as_double(static_cast<std::uint16_t>(low + 1));
  std::uint16_t bits = low;
  if (magnitude - below > above - magnitude || (magnitude - below == above - magnitude && low % 2 == 1))
    ++bits;
  return as_double(bits | sign);
}

template <class T>
class RoundTo : public testing::Test {};
using SixteenBit = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(RoundTo, SixteenBit);

TYPED_TEST(RoundTo, RoundsOnceToTheNearest) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> mantissa(1, 2);
  std::uniform_int_distribution<int> exponent(-28, 14);
  for (int n = 0; n < 20000; ++n) {
    const double value = std::ldexp(mantissa(random), exponent(random)) * (n % 2 == 0 ? 1 : -1);
    EXPECT_EQ(static_cast<double>(round_to<TypeParam>(value)), nearest_by_search<TypeParam>(value)) << value;
  }
}

TYPED_TEST(RoundTo, SeesBitsThatAFloatInBetweenWouldLose) {
  // Just above the middle of 1 and the next number, by less than a float can tell.
  const double middle = 1 + unit_roundoff(std::is_same_v<TypeParam, Half> ? DType::kF16 : DType::kBF16);
  const double next = 1 + 2 * (middle - 1);
  EXPECT_EQ(static_cast<double>(round_to<TypeParam>(middle)), 1.0);
  EXPECT_EQ(static_cast<double>(round_to<TypeParam>(middle + 0x1p-40)), next);
  EXPECT_EQ(static_cast<double>(round_to<TypeParam>(-middle - 0x1p-40)), -next);
  EXPECT_EQ(static_cast<double>(round_to<TypeParam>(middle - 0x1p-40)), 1.0);
}

TYPED_TEST(RoundTo, KeepsInfinityAndNan) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(static_cast<double>(round_to<TypeParam>(infinity)), infinity);
  EXPECT_EQ(static_cast<double>(round_to<TypeParam>(-1e300)), -infinity);
  EXPECT_TRUE(std::isnan(static_cast<double>(round_to<TypeParam>(std::nan("")))));
}

}  // namespace
}  // namespace tessera
