#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <vector>

#include "core/block_format.h"
#include "core/mapped_file.h"
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
  for (const char* name :
       {"f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "q8_0", "i64", "i32", "u8", "bool"}) {
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
      EXPECT_NE(error.message().find("f32, f16, bf16 or q8_0"), std::string::npos) << error.message();
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

TEST(Q8_0, DecodesWhatItEncodedToWithinAStepAnyPartOfABlock) {
  float values[formats::Q8_0::kElements];
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(i - 16) / 16;
  unsigned char block[formats::Q8_0::kBytes];
  const Half step(1.0f / 127);
  formats::Q8_0::encode(values, 1, step.bits, block);
  for (int begin = 0; begin < 32; begin += 8) {
    double part[8];
    formats::Q8_0::decode(block, begin, part);
    for (int i = 0; i < 8; ++i) {
      // A step of rounding towards 0, and 1/127 in fp16 is off by half a unit in its last place, 127 times.
      EXPECT_NEAR(part[i], static_cast<double>(values[begin + i]), (1 + 127 * 0x1p-11) / 127.0);
    }
  }
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
