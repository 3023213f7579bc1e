#include "model/checkpoint/gguf.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;

constexpr std::uint32_t kF32 = 0, kF16 = 1, kQ8K = 15, kQ8 = 8, kBf16 = 30;

GgufFile parse(const std::string& file) { return GgufFile(bytes_of(file), "m.gguf"); }

TEST(Gguf, ReadsEveryTypeOfMetadata) {
  GgufBuilder builder;
  builder.entry("u8", kIdU8, raw(std::uint8_t{200}))
      .entry("i8", kIdI8, raw(std::int8_t{-100}))
      .entry("u16", kIdU16, raw(std::uint16_t{60000}))
      .entry("i16", kIdI16, raw(std::int16_t{-30000}))
      .entry("u32", kIdU32, raw(std::uint32_t{4000000000}))
      .entry("i32", kIdI32, raw(std::int32_t{-2000000000}))
      .entry("u64", kIdU64, raw(std::uint64_t{1} << 62))
      .entry("too_big", kIdU64, raw(std::uint64_t{1} << 63))
      .entry("i64", kIdI64, raw(std::numeric_limits<std::int64_t>::min()))
      .entry("f32", kIdF32, raw(1.5f))
      .entry("f64", kIdF64, raw(0.1))
      .entry("yes", kIdBool, raw(std::uint8_t{1}))
      .entry("no", kIdBool, raw(std::uint8_t{0}))
      .text("text", "h\xc3\xa9llo")
      .text("no text", "")
      .array("u16s", kIdU16, 2, raw(std::uint16_t{1}) + raw(std::uint16_t{65535}))
      .array("floats", kIdF32, 3, raw(1.0f) + raw(-2.0f) + raw(0.5f))
      .array("texts", kIdString, 3, gguf_string("a") + gguf_string("") + gguf_string("bc"))
      .array("none", kIdString, 0, "")
      .array("nested", kIdArray, 2,
             raw(std::uint32_t{kIdU8}) + raw(std::uint64_t{3}) + "xyz" + raw(std::uint32_t{kIdString}) +
                 raw(std::uint64_t{1}) + gguf_string("q"));
  for (const std::uint32_t version : {2u, 3u}) {
    builder.version = version;
    const std::string bytes = builder.build();
    const GgufFile file = parse(bytes);
    EXPECT_EQ(file.metadata().size(), 20u);
    EXPECT_EQ(file.integer("u8"), 200);
    EXPECT_EQ(file.integer("i8"), -100);
    EXPECT_EQ(file.integer("u16"), 60000);
    EXPECT_EQ(file.integer("i16"), -30000);
    EXPECT_EQ(file.integer("u32"), 4000000000);
    EXPECT_EQ(file.integer("i32"), -2000000000);
    EXPECT_EQ(file.integer("u64"), std::int64_t{1} << 62);
    EXPECT_EQ(file.integer("i64"), std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(file.number("f32"), 1.5);
    EXPECT_EQ(file.number("f64"), 0.1);
    EXPECT_EQ(file.number("i8"), -100.0);
    EXPECT_EQ(file.boolean("yes"), true);
    EXPECT_EQ(file.boolean("no"), false);
    EXPECT_EQ(file.text("text"), "h\xc3\xa9llo");
    EXPECT_EQ(file.text("no text"), "");
    EXPECT_EQ(file.integers("u16s"), (std::vector<std::int64_t>{1, 65535}));
    EXPECT_EQ(file.floats("floats"), (std::vector<float>{1, -2, 0.5}));
    EXPECT_EQ(file.texts("texts"), (std::vector<std::string>{"a", "", "bc"}));
    EXPECT_EQ(file.texts("none"), std::vector<std::string>{});
    EXPECT_EQ(file.metadata().at("nested").count, 2u);
    EXPECT_EQ(file.integer("absent"), std::nullopt);
    EXPECT_EQ(file.number("absent"), std::nullopt);
    EXPECT_EQ(file.boolean("absent"), std::nullopt);
    EXPECT_EQ(file.text("absent"), std::nullopt);
    EXPECT_EQ(file.integers("absent"), std::nullopt);
    EXPECT_EQ(file.floats("absent"), std::nullopt);
    EXPECT_EQ(file.texts("absent"), std::nullopt);

    const auto refused = [](const auto& read) { return error_of(ErrorCode::kCorruptFile, read); };
    EXPECT_HAS(refused([&] { file.integer("too_big"); }), "m.gguf: the metadata key 'too_big' (byte ");
    EXPECT_HAS(refused([&] { file.integer("f32"); }), "a whole number below 2^63 was expected");
    EXPECT_HAS(refused([&] { file.integer("text"); }), "a whole number");
    EXPECT_HAS(refused([&] { file.integer("u16s"); }), "a whole number");
    EXPECT_HAS(refused([&] { file.number("yes"); }), "a number was expected");
    EXPECT_HAS(refused([&] { file.boolean("u8"); }), "a truth value was expected");
    EXPECT_HAS(refused([&] { file.text("texts"); }), "a string was expected");
    EXPECT_HAS(refused([&] { file.integers("u8"); }), "an array was expected");
    EXPECT_HAS(refused([&] { file.integers("texts"); }), "an array of whole numbers");
    EXPECT_HAS(refused([&] { file.integers("nested"); }), "an array of whole numbers");
    EXPECT_HAS(refused([&] { file.floats("u16s"); }), "an array of 32-bit floats was expected");
    EXPECT_HAS(refused([&] { file.texts("nested"); }), "an array of strings was expected");
  }
}

TEST(Gguf, ReadsTheTensorDirectory) {
  for (const std::uint32_t alignment : {1u, 32u, 64u, 4096u}) {
    GgufBuilder builder;
    builder.alignment = alignment;
    builder.u32("general.alignment", alignment)
        .tensor("a", {3, 2}, kF32, std::string(24, 'a'))
        .tensor("b", {64, 5}, kQ8, std::string(5 * 68, 'b'))
        .tensor("c", {1, 1, 1, 7}, kF16, std::string(14, 'c'))
        .tensor("d", {5}, kBf16, std::string(10, 'd'))
        .tensor("e", {0}, kF32, "");
    const std::string bytes = builder.build();
    const GgufFile file = parse(bytes);
    ASSERT_EQ(file.tensors().size(), 5u);
    const StoredTensor& a = file.tensors().at("a");
    EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(a.dtype, DType::kF32);
    EXPECT_EQ(bytes.substr(a.offset, a.size_bytes), std::string(24, 'a'));
    const StoredTensor& b = file.tensors().at("b");
    EXPECT_EQ(b.shape, (std::vector<std::int64_t>{5, 64}));
    EXPECT_EQ(b.dtype, DType::kQ8_0);
    EXPECT_EQ(bytes.substr(b.offset, b.size_bytes), std::string(340, 'b'));
    const StoredTensor& c = file.tensors().at("c");
    EXPECT_EQ(c.shape, (std::vector<std::int64_t>{7, 1, 1, 1}));
    EXPECT_EQ(c.dtype_name, "F16");
    EXPECT_EQ(bytes.substr(c.offset, c.size_bytes), std::string(14, 'c'));
    const StoredTensor& d = file.tensors().at("d");
    EXPECT_EQ(d.dtype, DType::kBF16);
    EXPECT_EQ(bytes.substr(d.offset, d.size_bytes), std::string(10, 'd'));
    EXPECT_EQ(file.tensors().at("e").size_bytes, 0u);
  }
}

std::string counts(std::uint64_t tensors, std::uint64_t metadata, const std::string& rest) {
  return "GGUF" + raw(std::uint32_t{3}) + raw(tensors) + raw(metadata) + rest;
}

TEST(Gguf, SaysWhatIsWrong) {
  const std::uint64_t huge = std::uint64_t{1} << 60;
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += raw(std::uint32_t{kIdArray}) + raw(std::uint64_t{1});
  const std::string floats(8, 'x');
  const struct {
    std::string file;
    const char* expected;
  } cases[] = {
      {"", "does not begin with the bytes 'GGUF' at byte 0"},
      {"GGU", "does not begin with"},
      {"GGML....", "does not begin with"},
      {"GGUF", "the version at byte 4 needs 4 bytes, but only 0 are left"},
      {counts(0, huge, ""),
       "byte 16 says that there are 1152921504606846976 metadata entries, but only 0 bytes"},
      {counts(huge, 0, ""), "byte 8 says that there are 1152921504606846976 tensors, but only 0 bytes"},
      {counts(0, 1, raw(huge) + std::string(20, 'x')),
       "a metadata key at byte 32 needs 1152921504606846976 bytes"},
      {counts(0, 1, gguf_string("key") + raw(std::uint32_t{13}) + floats),
       "the metadata key 'key' at byte 35 is of type 13"},
      {counts(0, 1, gguf_string("k\xff") + raw(std::uint32_t{0}) + "x"), "'k\\xff', is not UTF-8"},
      {counts(0, 1, gguf_string("k") + raw(std::uint32_t{8}) + raw(huge)), "needs 1152921504606846976 bytes"},
      {GgufBuilder().u32("k", 1).u32("k", 1).build(), "the metadata key 'k' at byte 41 is there twice"},
      {GgufBuilder().entry("k", kIdBool, "\x02").build(), "holds the byte 2 at byte 37"},
      {GgufBuilder().array("k", kIdBool, 2, "\x01\x05").build(), "holds the byte 5 at byte 50"},
      {GgufBuilder().array("k", kIdU64, huge, "").build(),
       "has 1152921504606846976 elements of at least 8 bytes"},
      {GgufBuilder().array("k", kIdString, huge, "").build(),
       "has 1152921504606846976 elements of at least 8"},
      {GgufBuilder().array("k", kIdArray, huge, "").build(),
       "has 1152921504606846976 elements of at least 12"},
      {GgufBuilder().array("k", 77, 0, "").build(), "is of type 77"},
      {GgufBuilder().array("k", kIdArray, 1, deep).build(), "nests arrays deeper than 8"},
      {GgufBuilder().u32("general.alignment", 0).build(),
       "'general.alignment' (byte 53): is 0, expected a power of two"},
      {GgufBuilder().u32("general.alignment", 48).build(), "is 48, expected a power of two"},
      {GgufBuilder().u32("general.alignment", 1u << 31).build(), "expected a power of two"},
      {GgufBuilder().text("general.alignment", "32").build(), "a whole number"},
      {GgufBuilder().tensor("t\x80", {2}, kF32, floats).build(),
       "a tensor's name at byte 24, 't\\x80', is not UTF-8"},
      {GgufBuilder().tensor("t", {2}, kF32, floats).tensor("t", {2}, kF32, floats).build(),
       "tensor 't' at byte 57 is there twice"},
      {GgufBuilder().tensor("t", {1, 1, 1, 1, 2}, kF32, floats).build(),
       "tensor 't' at byte 33 has 5 dimensions; at most 4"},
      {GgufBuilder().tensor("t", {std::uint64_t{1} << 32, std::uint64_t{1} << 32}, kF32, "").build(),
       "tensor 't' at byte 33: the shape (4294967296, 4294967296) overflows"},
      {GgufBuilder().tensor("t", {std::uint64_t{1} << 62}, kF32, "").build(), "overflows"},
      {GgufBuilder().tensor("t", {std::uint64_t{1} << 63}, kF32, "").build(), "overflows"},
      {GgufBuilder().tensor("t", {33}, kQ8, std::string(68, 'x')).build(), "no multiple of 32, Q8_0's block"},
      {GgufBuilder().tensor("t", {}, kQ8, std::string(68, 'x')).build(), "no multiple of 32"},
      {GgufBuilder().tensor("t", {3}, kF32, floats).build(),
       "tensor 't' needs 12 bytes at offset 0 behind byte 64, but only 8"},
      {GgufBuilder().tensor_at("t", {2}, kF32, 8, floats + floats).build(),
       "has the offset 8, no multiple of the alignment 32"},
      {GgufBuilder().tensor_at("t", {2}, kF32, 64, floats).build(),
       "needs 8 bytes at offset 64 behind byte 64"},
      {GgufBuilder().tensor_at("t", {2}, kF32, ~std::uint64_t{31}, floats).build(),
       "needs 8 bytes at offset"},
      {GgufBuilder().tensor("t", {2}, kF32, floats).tensor_at("u", {2}, kF32, 0).build(),
       "begins at byte 96, inside 't', which ends at byte 104"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(ErrorCode::kCorruptFile, [&] { parse(c.file); });
    EXPECT_HAS(message, c.expected);
    EXPECT_TRUE(message.starts_with("m.gguf: ")) << message;
  }
}

TEST(Gguf, SaysWhatIsNotSupported) {
  const auto refused = [](const std::string& file) {
    return error_of(ErrorCode::kUnsupported, [&] { parse(file); });
  };
  GgufBuilder builder;
  for (const std::uint32_t version : {0u, 1u, 4u}) {
    builder.version = version;
    EXPECT_HAS(refused(builder.build()),
               "version " + std::to_string(version) + " at byte 4; versions 2 and 3");
  }
  builder.version = 0x03000000;
  EXPECT_HAS(refused(builder.build()), "this file is big-endian");
  EXPECT_HAS(
      refused(GgufBuilder().tensor("blk.0.attn_q.weight", {256}, kQ8K, std::string(292, 'x')).build()),
      "tensor 'blk.0.attn_q.weight' is of type Q8_K (byte 63); supported are F32, F16, BF16, Q4_0, Q4_1, "
      "Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, TQ1_0, TQ2_0, "
      "IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S");
  EXPECT_HAS(refused(GgufBuilder().tensor("t", {64}, 40, "").build()), "is of type NVFP4");
  EXPECT_HAS(refused(GgufBuilder().tensor("t", {256}, 4, "").build()), "is of type number 4");
  EXPECT_HAS(refused(GgufBuilder().tensor("t", {256}, ~0u, "").build()), "is of type number 4294967295");
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string file =
      GgufBuilder()
          .u32("general.alignment", 32)
          .text("text", "value")
          .array("texts", kIdString, 2, gguf_string("a") + gguf_string("bc"))
          .array("nested", kIdArray, 1, raw(std::uint32_t{kIdU8}) + raw(std::uint64_t{3}) + "xyz")
          .tensor("a", {3, 2}, kF32, std::string(24, 'a'))
          .tensor("b", {32}, kQ8, std::string(34, 'b'))
          .build();
  ASSERT_EQ(parse(file).tensors().size(), 2u);
  for (std::size_t size = 0; size < file.size(); ++size) {
    error_of(ErrorCode::kCorruptFile, [&] { parse(file.substr(0, size)); });
  }
}

TEST(Gguf, SurvivesAnyChangedByte) {
  const std::string file =
      read_file(std::filesystem::path(TESSERA_FIXTURES) / "models/gguf_qwen3_bf16/model.gguf");
  const std::size_t head = file.find("output_norm.weight") + 60;
  ASSERT_LT(head, file.size());
  int refused = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::minstd_rand random(seed + 1);
    std::string damaged = file;
    damaged[random() % head] = static_cast<char>(random() % 256);
    try {
      const GgufFile parsed = parse(damaged);
      for (const auto& [name, tensor] : parsed.tensors()) {
        ASSERT_LE(tensor.offset, damaged.size());
        ASSERT_LE(tensor.size_bytes, damaged.size() - tensor.offset);
      }
      for (const auto& [key, value] : parsed.metadata()) {
        if (value.type == GgufType::kArray && value.element_type == GgufType::kString) parsed.texts(key);
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 400);
}

}  // namespace
}  // namespace tessera
