#include "core/element.h"

#include <gtest/gtest.h>

#include <bit>
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

TEST(Float8E4M3, HasTheNumbersOfItsFormat) {
  for (int bits = 0; bits < 256; ++bits) {
    Float8E4M3 x;
    x.bits = static_cast<std::uint8_t>(bits);
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    const bool is_nan = (bits & 127) == 127;
    EXPECT_EQ(std::isnan(static_cast<double>(x)), is_nan) << bits;
    EXPECT_TRUE(std::isnan(formats::float_of_e4m3(x.bits)) == is_nan) << bits;
    if (is_nan) continue;
    EXPECT_EQ(static_cast<double>(x), bits < 128 ? value : -value) << bits;
    EXPECT_EQ(formats::float_of_e4m3(x.bits), static_cast<float>(x)) << bits;
    EXPECT_EQ(Float8E4M3(static_cast<float>(x)).bits, bits);
  }
}

TEST(Float8E4M3, RoundsToTheNearestAndHoldsWhatIsTooLarge) {
  const auto number = [](int bits) {
    Float8E4M3 x;
    x.bits = static_cast<std::uint8_t>(bits);
    return static_cast<float>(x);
  };
  for (int low = 0; low < 126; ++low) {
    const float below = number(low), above = number(low + 1), middle = (below + above) / 2;
    EXPECT_EQ(Float8E4M3(middle).bits, low + low % 2) << "ties to even";
    EXPECT_EQ(Float8E4M3(std::nextafter(middle, below)).bits, low);
    EXPECT_EQ(Float8E4M3(std::nextafter(middle, above)).bits, low + 1);
    EXPECT_EQ(Float8E4M3(-std::nextafter(middle, above)).bits, low + 1 + 128);
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(Float8E4M3(465.0f)), 448.0f);
  EXPECT_EQ(static_cast<float>(Float8E4M3(-1e30f)), -448.0f);
  EXPECT_EQ(Float8E4M3(1e-30f).bits, 0);
  EXPECT_EQ(Float8E4M3(-0.0f).bits, 128);
  for (const float x : {infinity, -infinity, std::nanf("")}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(Float8E4M3(x))));
  }
  std::mt19937 random(1);
  for (int n = 0; n < 100000; ++n) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    EXPECT_EQ(Float8E4M3(x).bits, formats::e4m3_of_float(x)) << x;
  }
}

}  // namespace
}  // namespace tessera
