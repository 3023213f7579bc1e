#include <dlfcn.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/block_format.h"
#include "core/mapped_file.h"
#include "core/quantize.h"
#include "core/shared_library.h"
#include "tessera/dtype.h"
#include "tessera/error.h"
#include "tessera/version.h"

namespace tessera {
namespace {

TEST(Error, WhatEndsWithTheLineThatRaisedIt) {
  const Error error(ErrorCode::kIo, "cannot open 'x'");
  EXPECT_EQ(error.message(), "cannot open 'x'");
  EXPECT_NE(std::string(error.what()).find("core_test.cpp:"), std::string::npos);
  EXPECT_EQ(error_code_name(error.code()), "Io");
}

TEST(SharedLibrary, IsFoundByTheLoaderInAToolkitOrWhereAVariableSays) {
  // Any library will do: the C library's mathematics.
  constexpr std::array kKnown = {"libtessera_has_no_such.so", "libm.so.6"};
  const SharedLibrary known = find_library({"TESSERA_TEST_LIBRARY", kKnown});
  ASSERT_TRUE(known.is_open()) << known.error();
  EXPECT_EQ(known.name(), "libm.so.6");
  double (*cosine)(double) = nullptr;
  ASSERT_TRUE(known.resolve("cos", cosine));
  EXPECT_EQ(cosine(0), 1);
  EXPECT_FALSE(known.resolve("no_such_function", cosine));
  EXPECT_EQ(cosine, nullptr);

  const std::filesystem::path toolkit = testing::TempDir() + "toolkit_of_core_test";
  std::filesystem::remove_all(toolkit);
  std::filesystem::create_directories(toolkit / "lib64");
  constexpr std::array kMissing = {"libtessera_test_toolkit.so"};
  constexpr std::array kVariables = {"TESSERA_TEST_TOOLKIT"};
  EXPECT_FALSE(find_library({"TESSERA_TEST_LIBRARY", kMissing, kVariables}).is_open());
  Dl_info info = {};
  ASSERT_NE(dladdr(known.symbol("cos"), &info), 0);
  const std::filesystem::path file = toolkit / "lib64" / kMissing[0];
  std::filesystem::copy_file(std::filesystem::canonical(info.dli_fname), file);
  ::setenv("TESSERA_TEST_TOOLKIT", toolkit.c_str(), 1);
  EXPECT_EQ(find_library({"TESSERA_TEST_LIBRARY", kMissing, kVariables}).name(), file.string());
  ::unsetenv("TESSERA_TEST_TOOLKIT");
  ::setenv("TESSERA_TEST_LIBRARY", "/there/is/no/such.so", 1);
  const SharedLibrary named = find_library({"TESSERA_TEST_LIBRARY", kKnown});
  ::unsetenv("TESSERA_TEST_LIBRARY");
  EXPECT_FALSE(named.is_open()) << "a file that was named must not be replaced by another";
  EXPECT_NE(named.error().find("/there/is/no/such.so"), std::string::npos);
}

TEST(DType, NamesRoundTrip) {
  for (const char* name : {"f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "q4_0", "q8_0", "q6_k", "iq4_nl",
                           "mxfp4", "tq2_0", "iq1_m", "iq3_xxs", "i64", "i32", "u8", "bool"}) {
    EXPECT_EQ(dtype_name(parse_dtype(name)), name);
  }
  EXPECT_EQ(parse_dtype("bfloat16"), DType::kBF16);
  EXPECT_THROW(parse_dtype("int3"), Error);
  EXPECT_EQ(dtype_bytes(DType::kQ8_0, 64), 68u);
  EXPECT_THROW(dtype_bytes(DType::kQ8_0, 33), Error);
}

TEST(DType, ANumberThatIsNoneIsAnErrorThatSaysSo) {
  const auto none = static_cast<DType>(77);
  EXPECT_EQ(dtype_name(none), "an unknown dtype");
  EXPECT_EQ(unit_roundoff(none), 0);
  try {
    dtype_bytes(none, 32);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find("77"), std::string::npos) << error.message();
  }
}

TEST(DType, WeightsOfNoFormatAreNamedNotTakenForAnother) {
  for (const DType dtype : {DType::kF64, DType::kF8E4M3, DType::kI32, DType::kBool, static_cast<DType>(77)}) {
    EXPECT_FALSE(is_weight_dtype(dtype));
    try {
      dispatch_weight(dtype, []<class T>() {});
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(error.message().find(dtype_name(dtype)), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("f32, f16, bf16, q4_0, q4_1, "), std::string::npos) << error.message();
    }
  }
}

TEST(DType, BlockFormatsAreThoseOfTheirHeaders) {
  for (const DType dtype : weight_dtypes()) {
    const BlockFormat& format = block_format(dtype);
    EXPECT_EQ(format.name, dtype_name(dtype));
    EXPECT_EQ(dtype_bytes(dtype, static_cast<std::size_t>(3 * format.elements)), 3 * format.bytes);
    dispatch_weight(dtype, [&]<class T>() {
      if constexpr (is_block_format<T>) {
        EXPECT_EQ(format.elements, T::kElements);
        EXPECT_EQ(format.bytes, std::size_t{T::kBytes});
      } else {
        EXPECT_EQ(format.elements, 1);
        EXPECT_EQ(format.bytes, sizeof(T));
        EXPECT_EQ(format.alignment, alignof(T));
      }
    });
  }
}

/// The error of a format's blocks as a share of the numbers' size.
double relative_error(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(dtype_bytes(dtype, values.size()));
  quantize_blocks(dtype, values, bytes.data());
  double error = 0, square = 0;
  dispatch_weight(dtype, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        double element[1];
        T::decode(reinterpret_cast<const unsigned char*>(bytes.data()) + i / T::kElements * T::kBytes,
                  static_cast<int>(i % T::kElements), element);
        error += (element[0] - values[i]) * (element[0] - values[i]);
        square += static_cast<double>(values[i]) * values[i];
      }
    }
  });
  return std::sqrt(error / square);
}

TEST(Quantize, ErrsAsTheBitsOfAFormatAllow) {
  // The best quantiser of equal steps errs on normal numbers by 0.345 (2 bits), 0.193 (3), 0.107 (4), 0.059
  // (5), 0.032 (6): Max, "Quantizing for minimum distortion" (1960), table II. Blocks have a step each, which
  // makes them better, but of few bits themselves. Ternary formats keep the largest and lose most of the
  // rest.
  const std::map<std::string, double> kMost = {
      {"q4_0", 0.107}, {"q4_1", 0.107}, {"q5_0", 0.059}, {"q5_1", 0.059},   {"q8_0", 0.01},
      {"q2_k", 0.345}, {"q3_k", 0.193}, {"q4_k", 0.107}, {"q5_k", 0.059},   {"q6_k", 0.032},
      {"iq4_nl", 0.1}, {"iq4_xs", 0.1}, {"mxfp4", 0.13}, {"tq1_0", 0.9999}, {"tq2_0", 0.9999}};
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(1 << 14);
  for (float& v : values) v = normal(random);
  for (const DType dtype : weight_dtypes()) {
    if (!is_quantizable(dtype)) continue;
    EXPECT_LE(relative_error(dtype, values), kMost.at(std::string(dtype_name(dtype)))) << dtype_name(dtype);
  }
}

TEST(Quantize, OfTheSmallestNumbersErrsNoMoreThanZerosDo) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(256 * 16);
  for (float& value : values) value = normal(random);
  for (int exponent = -12; exponent >= -36; exponent -= 2) {
    std::vector<float> small = values;
    for (float& value : small) value = std::ldexp(value, exponent);
    for (const DType dtype : weight_dtypes()) {
      if (!is_quantizable(dtype)) continue;
      SCOPED_TRACE(fmt::format("{}, 2^{}", dtype_name(dtype), exponent));
      EXPECT_LE(relative_error(dtype, small), 1.000001);
      // Integers of six and eight bits take on what steps of fp16 can't say.
      if (exponent < -18 || block_format(dtype).elements < 256) continue;
      EXPECT_LE(relative_error(dtype, small), 2 * relative_error(dtype, values));
    }
  }
}

TEST(Quantize, KeepsWhatAFormatHolds) {
  std::vector<float> zeros(256, 0.0f), ternary(256);
  for (std::size_t i = 0; i < 256; ++i)
    ternary[i] = 0.5f * static_cast<float>(static_cast<int>(i * i % 3) - 1);
  for (const DType dtype : weight_dtypes()) {
    if (!is_quantizable(dtype)) continue;
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    std::vector<std::byte> bytes(dtype_bytes(dtype, 256));
    quantize_blocks(dtype, zeros, bytes.data());
    dispatch_weight(dtype, [&]<class T>() {
      if constexpr (is_block_format<T>) {
        float block[T::kElements];
        T::decode(reinterpret_cast<const unsigned char*>(bytes.data()), 0, block);
        for (const float x : block) EXPECT_EQ(x, 0);
      }
    });
    if (dtype == DType::kTQ1_0 || dtype == DType::kTQ2_0 || dtype == DType::kMXFP4) {
      EXPECT_EQ(relative_error(dtype, ternary), 0);
    }
  }
}

TEST(Quantize, RefusesWhatNoBlockHolds) {
  std::vector<float> values(256, 1.0f);
  std::vector<std::byte> bytes(1024);
  const auto message = [&](DType dtype, std::size_t count) {
    try {
      quantize_blocks(dtype, std::span(values).first(count), bytes.data());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.message();
    }
    return std::string("nothing");
  };
  EXPECT_NE(message(DType::kQ4_K, 255).find("multiple of 256"), std::string::npos);
  EXPECT_NE(message(DType::kF16, 256).find("f16 is no format of blocks"), std::string::npos);
  values[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(message(DType::kQ4_K, 256).find("value 7 is nan"), std::string::npos);
  values[7] = 1e30f;
  EXPECT_NE(message(DType::kQ6_K, 256).find("fp16"), std::string::npos);
}

TEST(Quantize, RefusesFormatsOfCodebooksAndFillsTheirBlocksForTests) {
  std::vector<float> values(1024);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i % 37) - 0.18f;
  double square = 0;
  for (const float v : values) square += static_cast<double>(v) * static_cast<double>(v);
  int refused = 0;
  for (const DType dtype : weight_dtypes()) {
    if (block_format(dtype).elements == 1 || is_quantizable(dtype)) continue;
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    ++refused;
    std::vector<std::byte> bytes(dtype_bytes(dtype, values.size()));
    try {
      quantize_blocks(dtype, values, bytes.data());
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(error.message().find("is only read, not made"), std::string::npos) << error.message();
    }
    fill_blocks(dtype, values, bytes.data());
    double filled = 0;
    dispatch_weight(dtype, [&]<class T>() {
      if constexpr (is_block_format<T>) {
        for (std::size_t block = 0; block < values.size() / T::kElements; ++block) {
          double numbers[T::kElements];
          T::decode(reinterpret_cast<const unsigned char*>(bytes.data()) + block * T::kBytes, 0, numbers);
          for (const double x : numbers) filled += x * x;
        }
      }
    });
    EXPECT_NEAR(filled / square, 1, 0.01);  // 256 numbers share a step of fp16
    std::vector<std::byte> again(bytes.size());
    fill_blocks(dtype, values, again.data());
    EXPECT_EQ(again, bytes);
  }
  EXPECT_GT(refused, 0);
}

// Every half, widened by its definition (sign, exponent, fraction) in fp64.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = (bits & 1023) / 1024.0;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(fraction, -14) : sign * std::ldexp(1 + fraction, exponent - 15);
}

TEST(Half, AllValuesRoundTripAndMidpointsRoundToEven) {
  for (std::uint32_t b = 0; b < 65536; ++b) {
    Half h;
    h.bits = static_cast<std::uint16_t>(b);
    const float value = static_cast<float>(h);
    const double expected = half_value(h.bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(static_cast<float>(Half(value))));
      continue;
    }
    ASSERT_EQ(value, expected) << b;
    ASSERT_EQ(Half(value).bits, h.bits) << b;
    if ((b & 0x7fff) >= 0x7bff) continue;  // no finite neighbour above
    const double next = half_value(static_cast<std::uint16_t>(b + 1));
    const float middle = static_cast<float>((expected + next) / 2);
    ASSERT_EQ(Half(middle).bits, (b & 1) == 0 ? b : b + 1) << b;
    ASSERT_EQ(Half(std::nextafter(middle, value)).bits, b);
    ASSERT_EQ(Half(std::nextafter(middle, static_cast<float>(next))).bits, b + 1);
  }
  EXPECT_EQ(Half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half(65519.0f).bits, 0x7bff);
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(BFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(BFloat16(1.0f + 0x1p-8f).bits, 0x3f80);
  EXPECT_EQ(BFloat16(1.0f + 0x3p-8f).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::max()))));
}

TEST(MappedFile, ShowsTheBytesAndRefusesWhatIsNoFile) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "tessera_mapped_file_test";
  std::ofstream(path) << "tessera";
  const MappedFile file(path);
  ASSERT_EQ(file.bytes().size(), 7u);
  EXPECT_EQ(static_cast<char>(file.bytes()[0]), 't');
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_EQ(MappedFile(path).bytes().size(), 0u);
  EXPECT_THROW(MappedFile(std::filesystem::path(testing::TempDir())), Error);
  EXPECT_THROW(MappedFile("/nonexistent/file"), Error);
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(MappedFile{path}, Error) << "and without waiting for a writer";
  std::filesystem::remove(path);
}

TEST(MappedFile, IsFoundByItsAddresses) {
  const std::filesystem::path folder(testing::TempDir());
  const std::filesystem::path a = folder / "tessera_mapped_a", b = folder / "tessera_mapped_b";
  std::ofstream(a) << std::string(5000, 'a');
  std::ofstream(b) << "b";
  EXPECT_EQ(path_of_mapped_address(&a), nullptr);
  EXPECT_EQ(path_of_mapped_address(nullptr), nullptr);
  const std::byte* gone = nullptr;
  for (int round = 0; round < 3; ++round) {
    MappedFile first(a);
    const MappedFile second(b);
    EXPECT_STREQ(path_of_mapped_address(first.bytes().data()), a.c_str());
    EXPECT_STREQ(path_of_mapped_address(first.bytes().data() + 4999), a.c_str());
    EXPECT_STREQ(path_of_mapped_address(second.bytes().data()), b.c_str());
    EXPECT_EQ(path_of_mapped_address(second.bytes().data() + 1), nullptr);
    const MappedFile moved(std::move(first));
    EXPECT_STREQ(path_of_mapped_address(moved.bytes().data()), a.c_str());
    gone = moved.bytes().data();
  }
  EXPECT_EQ(path_of_mapped_address(gone), nullptr);
  std::filesystem::remove(a);
  std::filesystem::remove(b);
}

TEST(ReadFile, GivesTheContentAndRefusesWhatIsTooLongOrNoFile) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "tessera_read_file_test";
  const std::string content = std::string("tessera\0", 8) + std::string(100'000, 'x');
  std::ofstream(path, std::ios::binary) << content;
  EXPECT_EQ(read_file(path, content.size()), content);
  EXPECT_THROW(read_file(path, content.size() - 1), Error);
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_EQ(read_file(path, 0), "");
  EXPECT_THROW(read_file(testing::TempDir(), 10), Error);
  EXPECT_THROW(read_file("/nonexistent/file", 10), Error);
  std::filesystem::remove(path);
}

TEST(Version, HasThreeNumbers) { EXPECT_EQ(version(), "0.1.0"); }

}  // namespace
}  // namespace tessera
