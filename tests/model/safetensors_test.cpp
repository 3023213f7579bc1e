#include "model/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/text.h"
#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;

StoredTensors parse(const std::string& file) { return parse_safetensors(bytes_of(file), "m.safetensors"); }

TEST(Safetensors, ReadsEveryFieldOfEveryTensor) {
  const std::string header =
      R"({"__metadata__":{"format":"pt","x":"y"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"empty":{"dtype":"F16","shape":[0,7],)"
      R"("data_offsets":[16,16]},"i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}}   )";
  const StoredTensors tensors = parse(safetensors(header, std::string(24, 'x')));
  const std::size_t data = 8 + header.size();
  ASSERT_EQ(tensors.size(), 4u);
  const StoredTensor& a = tensors.at("a");
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_TRUE(a.shape.empty());
  EXPECT_EQ(a.offset, data);
  EXPECT_EQ(a.size_bytes, 4u);
  const StoredTensor& b = tensors.at("b");
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_EQ(b.dtype_name, "BF16");
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(b.offset, data + 4);
  EXPECT_EQ(b.size_bytes, 12u);
  EXPECT_EQ(tensors.at("empty").dtype, DType::kF16);
  EXPECT_EQ(tensors.at("empty").size_bytes, 0u);
  EXPECT_EQ(tensors.at("i").dtype_name, "I64");
  EXPECT_FALSE(tensors.at("i").dtype.has_value());
  EXPECT_TRUE(parse(safetensors("{}")).empty());
}

TEST(Safetensors, KnowsTheSizeOfEveryDType) {
  const std::pair<const char*, int> sizes[] = {
      {"F64", 8}, {"C64", 8},  {"I64", 8},     {"U64", 8},     {"F32", 4},    {"I32", 4},
      {"U32", 4}, {"F16", 2},  {"BF16", 2},    {"I16", 2},     {"U16", 2},    {"I8", 1},
      {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [name, size] : sizes) {
    const std::string end = std::to_string(3 * size);
    const std::string header =
        std::string(R"({"t":{"dtype":")") + name + R"(","shape":[3],"data_offsets":[0,)" + end + "]}}";
    EXPECT_EQ(
        parse(safetensors(header, std::string(3 * static_cast<std::size_t>(size), 'x'))).at("t").dtype_name,
        name);
    EXPECT_THROW(parse(safetensors(header, std::string(3 * static_cast<std::size_t>(size) - 1, 'x'))), Error);
  }
}

TEST(Safetensors, SaysWhatIsWrong) {
  const auto one = [](const std::string& entry) { return safetensors("{\"t\":" + entry + "}", "12345678"); };
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  ASSERT_EQ(parse(one(good)).size(), 1u);
  const struct {
    std::string file;
    const char* expected;
  } cases[] = {
      {"", "0 bytes, too few for the header's length at byte 0"},
      {"1234567", "7 bytes, too few"},
      {raw(std::uint64_t{3}) + "{}", "byte 0 says that the header has 3 bytes, but only 2 follow"},
      {raw(std::uint64_t{100'000'001}) + "{}", "at most 100000000 are allowed"},
      {raw(~std::uint64_t{0}) + "{}", "at most 100000000 are allowed"},
      {safetensors(""), "the header must open with '{' at byte 8"},
      {safetensors("[]"), "the header must open with '{' at byte 8"},
      {safetensors(" {}"), "the header must open with '{' at byte 8"},
      {safetensors("\xef\xbb\xbf{}"), "the header must open with '{' at byte 8"},
      {safetensors(std::string("{}\0\0", 4)), "a zero byte"},
      {safetensors(R"({"__metadata__":7})"),
       "__metadata__ (byte 23): a map from texts to texts was expected"},
      {safetensors(R"({"__metadata__":["a"]})"), "a map from texts to texts"},
      {safetensors(R"({"__metadata__":{"format":1}})"), "a map from texts to texts"},
      {safetensors(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ (byte 41) stands twice"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]})"), "overflows"},
      {safetensors("{\"t\":"), "invalid JSON at byte 5"},
      {safetensors("{\"\xff\":1}"), "ill-formed UTF-8"},
      {safetensors("{} x"), "invalid JSON"},
      {safetensors("{\"t\":" + std::string(1000, '[')), "deeper than 64"},
      {one("7"), "tensor 't' (byte 12): an object with dtype, shape and data_offsets was expected"},
      {one(R"({"shape":[2],"data_offsets":[0,8]})"), "tensor 't' (byte 12): dtype must be a string"},
      {one(R"({"dtype":4,"shape":[2],"data_offsets":[0,8]})"), "dtype must be a string"},
      {one(R"({"dtype":"F32","data_offsets":[0,8]})"), "shape must be a list"},
      {one(R"({"dtype":"F32","shape":{},"data_offsets":[0,8]})"), "shape must be a list"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "shape must hold whole numbers"},
      {one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "shape must hold whole numbers"},
      {one(R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})"), "shape must hold whole numbers"},
      {one(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})"),
       "shape must hold whole numbers"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
       "the shape (4294967296, 4294967296) overflows"},
      {one(R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,8]})"), "overflows"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})"), "data_offsets must hold two numbers"},
      {one(R"({"dtype":"F32","shape":[2]})"), "data_offsets must be a list"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
       "[8, 0] are not a range within the 8 bytes"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
       "[0, 12] are not a range within the 8 bytes"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775807]})"), "are not a range"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})"), "span 8 bytes, but F32 (1) takes 4"},
      {one(R"({"dtype":"F16","shape":[2],"data_offsets":[0,8]})"), "span 8 bytes, but F16 (2) takes 4"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "4 bytes from byte"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "before tensor 't', belong to no tensor"},
      {safetensors("{\"t\":" + good + ",\"u\":" + good + "}", "12345678"), "tensor 'u' begins at byte"},
      {safetensors("{\"t\":" + good + ",\"t\":" + good + "}", "12345678"),
       "tensor 't' (byte 65) stands twice"},
      {safetensors(R"({"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678"),
       "the key 'dtype' stands twice"},
      {safetensors("{}", "x"), "1 bytes from byte 10 on belong to no tensor"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(ErrorCode::kCorruptFile, [&] { parse(c.file); });
    EXPECT_HAS(message, c.expected);
    EXPECT_TRUE(message.starts_with("m.safetensors")) << message;
  }
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] { parse(one(R"({"dtype":"F4","shape":[2],"data_offsets":[0,8]})")); }),
             "the dtype 'F4' is not known");
}

TEST(Safetensors, NamesInMessagesAreShortAndPrintable) {
  const std::string message = error_of(ErrorCode::kCorruptFile, [] {
    parse(safetensors("{\"a\\u0007\\n" + std::string(100'000, 'n') + "\":1}"));
  });
  EXPECT_HAS(message, "'a\\x07\\x0annn");
  EXPECT_LT(message.size(), 500u);
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"F16","shape":[4],"data_offsets":[16,24]}})";
  const std::string file = safetensors(header, std::string(24, 'x'));
  ASSERT_EQ(parse(file).size(), 2u);
  for (std::size_t size = 0; size < file.size(); ++size) {
    error_of(ErrorCode::kCorruptFile, [&] { parse(file.substr(0, size)); });
  }
}

// Whatever a damaged file says, the result is an Error or tensors within the file.
TEST(Safetensors, SurvivesAnyChangedByte) {
  const std::string file =
      read_file(std::filesystem::path(TESSERA_FIXTURES) / "models/qwen2/model.safetensors");
  const std::size_t head = 8 + 3000;
  ASSERT_GT(file.size(), head);
  int refused = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::minstd_rand random(seed + 1);
    std::string damaged = file;
    damaged[random() % head] = static_cast<char>(random() % 256);
    try {
      for (const auto& [name, tensor] : parse(damaged)) {
        ASSERT_LE(tensor.offset, damaged.size());
        ASSERT_LE(tensor.size_bytes, damaged.size() - tensor.offset);
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

std::string decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int num_bits = 0;
  for (const char c : text.substr(0, text.find('='))) {
    bits = (bits << 6 | static_cast<unsigned>(kDigits.find(c))) & 0xffff;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits);
  }
  return bytes;
}

// tools/fixtures/make_safetensors_fixtures.py says how the files are made, and how to make many more.
TEST(Safetensors, RefusesWhatThePackageRefuses) {
  const char* const many = std::getenv("TESSERA_SAFETENSORS_FIXTURE");
  const std::filesystem::path path =
      many != nullptr ? std::filesystem::path(many)
                      : std::filesystem::path(TESSERA_FIXTURES) / "safetensors/mutated.json";
  const auto fixture = nlohmann::json::parse(read_file(path));
  int refused = 0, refused_by_both = 0, read_by_both = 0;
  for (const auto& item : fixture["files"]) {
    const std::string file = decode_base64(item[0].get_ref<const std::string&>());
    const bool package_reads = item[1].get<bool>();
    bool we_read = true;
    try {
      parse(file);
    } catch (const Error&) {
      we_read = false;
    }
    EXPECT_FALSE(we_read && !package_reads) << printable(file, 1000);
    refused += package_reads ? 0 : 1;
    refused_by_both += !package_reads && !we_read ? 1 : 0;
    read_by_both += package_reads && we_read ? 1 : 0;
  }
  EXPECT_GT(refused, 300);
  EXPECT_EQ(refused_by_both, refused);
  EXPECT_GT(read_by_both, 150);
}

}  // namespace
}  // namespace tessera
