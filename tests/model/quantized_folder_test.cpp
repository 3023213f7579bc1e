// Hugging Face folders whose matrices are codes and scales: forms that the golden models don't have, and what
// is wrong with others. Numbers are computed here from the layouts' definitions.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/block_format.h"
#include "core/element.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/hf_config.h"
#include "model/checkpoint/hf_quantization.h"
#include "model_files.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing_files::error_of;
using testing_files::raw;

struct Part {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};
using Parts = std::map<std::string, Part>;

template <class T>
std::string bytes_of_all(const std::vector<T>& values) {
  std::string bytes;
  for (const T& value : values) bytes += raw(value);
  return bytes;
}

/// A folder with these tensors.
void write_folder(const testing_files::TemporaryFolder& folder, const json& config, const Parts& parts) {
  json header;
  std::string data;
  for (const auto& [name, part] : parts) {
    header[name] = {{"dtype", part.dtype},
                    {"shape", part.shape},
                    {"data_offsets", {data.size(), data.size() + part.data.size()}}};
    data += part.data;
  }
  folder.write("model.safetensors", testing_files::safetensors(header.dump(), data));
  folder.write("config.json", config.dump());
}

/// Heads of 16: q of 48 rows, k and v of 16, an MLP of 80.
const json kLlama = {{"architectures", {"LlamaForCausalLM"}},
                     {"hidden_size", 48},
                     {"num_attention_heads", 3},
                     {"num_key_value_heads", 1},
                     {"intermediate_size", 80},
                     {"num_hidden_layers", 1},
                     {"vocab_size", 32},
                     {"tie_word_embeddings", true},
                     {"dtype", "float16"}};

json with_quantization(json config, const json& quantization) {
  config["quantization_config"] = quantization;
  return config;
}

/// What the configuration calls for, of zeros in fp16.
Parts plain_parts(const json& config) {
  Parts parts;
  for (const ExpectedTensor& tensor : expected_tensors(parse_hf_config(config.dump(), "config.json"))) {
    std::size_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= static_cast<std::size_t>(extent);
    parts["model." + tensor.name] = {"F16", tensor.shape, std::string(2 * count, '\0')};
  }
  return parts;
}

constexpr const char* kStem = "model.layers.0.mlp.gate_proj";
constexpr const char* kName = "layers.0.mlp.gate_proj.weight";
constexpr std::int64_t kRows = 80, kColumns = 48;

Parts without_matrix(const json& config) {
  Parts parts = plain_parts(config);
  parts.erase(std::string(kStem) + ".weight");
  return parts;
}

/// Numbers of 0 to `most` that look like none in particular.
unsigned pseudo(std::int64_t i, unsigned most) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(i) * 2654435761u >> 7) % (most + 1));
}

std::vector<double> numbers_of(const CheckpointTensor& tensor) {
  std::vector<std::byte> bytes(tensor.size_bytes);
  read_parts(tensor, bytes.data());
  std::vector<double> numbers;
  dispatch_weight(tensor.dtype, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      const auto* block = reinterpret_cast<const unsigned char*>(bytes.data());
      for (std::size_t i = 0; i < bytes.size(); i += T::kBytes, block += T::kBytes) {
        double values[T::kElements];
        T::decode(block, 0, values);
        numbers.insert(numbers.end(), std::begin(values), std::end(values));
      }
    } else {
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
        T value;
        std::memcpy(&value, bytes.data() + i, sizeof value);
        numbers.push_back(static_cast<double>(value));
      }
    }
  });
  return numbers;
}

/// The matrix of a folder of these parts.
CheckpointTensor opened(const testing_files::TemporaryFolder& folder, const json& config, const Parts& parts,
                        Checkpoint& checkpoint) {
  write_folder(folder, config, parts);
  checkpoint = open_checkpoint(folder.path(), {.load_tokenizer = false});
  return checkpoint.tensors.at(kName);
}

void expect_numbers(const json& config, const Parts& parts, DType dtype,
                    const std::function<double(std::int64_t, std::int64_t)>& expected) {
  const testing_files::TemporaryFolder folder;
  Checkpoint checkpoint;
  const CheckpointTensor tensor = opened(folder, config, parts, checkpoint);
  EXPECT_EQ(tensor.dtype, dtype);
  ASSERT_EQ(tensor.shape, (std::vector<std::int64_t>{kRows, kColumns}));
  const std::vector<double> got = numbers_of(tensor);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      const double value = expected(row, column);
      const double rounded = dtype == DType::kBF16 ? static_cast<double>(round_to<BFloat16>(value))
                                                   : static_cast<double>(round_to<Half>(value));
      ASSERT_EQ(got[static_cast<std::size_t>(row * kColumns + column)], rounded) << row << ", " << column;
    }
  }
}

double e4m3(std::uint8_t bits) {
  Float8E4M3 number;
  number.bits = bits;
  return static_cast<double>(number);
}

std::string codes_of_bytes(unsigned most) {
  std::string bytes;
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) bytes.push_back(static_cast<char>(pseudo(i, most)));
  return bytes;
}

TEST(QuantizedFolder, HasRectanglesThatTheMatrixCutsShort) {
  const json config = with_quantization(kLlama, {{"quant_method", "fp8"}, {"weight_block_size", {32, 20}}});
  Parts parts = without_matrix(config);
  parts[std::string(kStem) + ".weight"] = {"F8_E4M3", {kRows, kColumns}, codes_of_bytes(126)};
  std::vector<float> scales;
  for (int i = 0; i < 9; ++i) scales.push_back(0.001f * static_cast<float>(i + 3));
  parts[std::string(kStem) + ".weight_scale_inv"] = {"F32", {3, 3}, bytes_of_all(scales)};
  expect_numbers(config, parts, DType::kF16, [&](std::int64_t row, std::int64_t column) {
    return e4m3(static_cast<std::uint8_t>(pseudo(row * kColumns + column, 126))) *
           double{scales[static_cast<std::size_t>(row / 32 * 3 + column / 20)]};
  });
}

TEST(QuantizedFolder, HasScalesThatAreExponents) {
  json config = with_quantization(kLlama, {{"quant_method", "fp8"}, {"weight_block_size", {32, 20}}});
  config["dtype"] = "bfloat16";
  Parts parts = without_matrix(config);
  parts[std::string(kStem) + ".weight"] = {"F8_E4M3", {kRows, kColumns}, codes_of_bytes(126)};
  parts[std::string(kStem) + ".weight_scale_inv"] = {
      "F8_E8M0", {3, 3}, "\x78\x79\x7a\x7b\x7c\x7d\x7e\x7f\x76"};
  const int exponents[] = {-7, -6, -5, -4, -3, -2, -1, 0, -9};
  expect_numbers(config, parts, DType::kBF16, [&](std::int64_t row, std::int64_t column) {
    return std::ldexp(e4m3(static_cast<std::uint8_t>(pseudo(row * kColumns + column, 126))),
                      exponents[row / 32 * 3 + column / 20]);
  });
}

TEST(QuantizedFolder, HasIntegersWithAScaleForEachRow) {
  const json config =
      with_quantization(kLlama, {{"quant_method", "compressed-tensors"}, {"format", "int-quantized"}});
  Parts parts = without_matrix(config);
  parts[std::string(kStem) + ".weight"] = {"I8", {kRows, kColumns}, codes_of_bytes(255)};
  std::vector<BFloat16> scales;
  for (std::int64_t i = 0; i < kRows; ++i) scales.emplace_back(0.001f * static_cast<float>(i + 3));
  parts[std::string(kStem) + ".weight_scale"] = {"BF16", {kRows, 1}, bytes_of_all(scales)};
  // What a model that runs in 8 bits needs for its activations doesn't matter here.
  parts[std::string(kStem) + ".input_scale"] = {"F32", {1}, raw(0.5f)};
  parts["model.layers.0.self_attn.k_scale"] = {"F32", {1}, raw(0.5f)};
  expect_numbers(config, parts, DType::kF16, [&](std::int64_t row, std::int64_t column) {
    const auto code =
        static_cast<std::int8_t>(static_cast<std::uint8_t>(pseudo(row * kColumns + column, 255)));
    return code * static_cast<double>(scales[static_cast<std::size_t>(row)]);
  });
}

/// Words of codes of `bits` bits, `in_word` of them from the lowest bits: word(i) is made of code(i, place).
std::string words(std::int64_t count, unsigned bits, const std::function<unsigned(std::int64_t, int)>& code) {
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t word = 0;
    for (unsigned place = 0; place < 32 / bits; ++place)
      word |= code(i, static_cast<int>(place)) << (place * bits);
    bytes += raw(word);
  }
  return bytes;
}

/// GPTQ's matrix, with the group of each column where `group_of` is given.
Parts gptq_parts(const json& config, unsigned bits, std::int64_t group_size,
                 const std::function<unsigned(std::int64_t, std::int64_t)>& zero) {
  const std::int64_t in_word = 32 / bits, groups = kColumns / group_size;
  const unsigned most = (1u << bits) - 1;
  Parts parts = without_matrix(config);
  const std::string stem = kStem;
  parts[stem + ".qweight"] = {"I32",
                              {kColumns / in_word, kRows},
                              words(kColumns / in_word * kRows, bits, [&](std::int64_t i, int place) {
                                return pseudo(i % kRows * kColumns + i / kRows * in_word + place, most);
                              })};
  parts[stem + ".qzeros"] = {
      "I32", {groups, kRows / in_word}, words(groups * kRows / in_word, bits, [&](std::int64_t i, int place) {
        return zero(i % (kRows / in_word) * in_word + place, i / (kRows / in_word));
      })};
  std::vector<Half> scales;
  for (std::int64_t i = 0; i < groups * kRows; ++i)
    scales.emplace_back(0.0011f * static_cast<float>(i % 37 + 3));
  parts[stem + ".scales"] = {"F16", {groups, kRows}, bytes_of_all(scales)};
  return parts;
}

double gptq_scale(std::int64_t row, std::int64_t group) {
  return static_cast<double>(Half(0.0011f * static_cast<float>((group * kRows + row) % 37 + 3)));
}

TEST(QuantizedFolder, HasGptqOfEightBitsWithoutGroupsOfColumns) {
  for (const char* format : {"gptq", "gptq_v2"}) {
    const json config = with_quantization(
        kLlama, {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 24}, {"checkpoint_format", format}});
    const Parts parts = gptq_parts(
        config, 8, 24, [](std::int64_t row, std::int64_t group) { return pseudo(row * 2 + group, 200); });
    const int more = std::string_view(format) == "gptq" ? 1 : 0;
    expect_numbers(config, parts, DType::kF16, [&](std::int64_t row, std::int64_t column) {
      const int code = static_cast<int>(pseudo(row * kColumns + column, 255));
      const int zero = static_cast<int>(pseudo(row * 2 + column / 24, 200)) + more;
      return (code - zero) * gptq_scale(row, column / 24);
    });
  }
}

TEST(QuantizedFolder, HasBlocksOfQ4_0WhereTheyHoldTheNumbers) {
  json config = kLlama;
  config["hidden_size"] = 96;  // columns of whole blocks
  config["num_attention_heads"] = 6;
  config = with_quantization(config, {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}});
  const std::string stem = kStem;
  for (const unsigned zero : {7u, 6u}) {
    Parts parts = without_matrix(config);
    parts[stem + ".qweight"] = {"I32", {12, kRows}, words(12 * kRows, 4, [](std::int64_t i, int place) {
                                  return pseudo(8 * i + place, 15);
                                })};
    parts[stem + ".qzeros"] = {
        "I32", {3, kRows / 8}, words(3 * kRows / 8, 4, [&](std::int64_t, int) { return zero; })};
    std::vector<Half> scales(3 * kRows, Half(0.01f));
    parts[stem + ".scales"] = {"F16", {3, kRows}, bytes_of_all(scales)};
    const testing_files::TemporaryFolder folder;
    Checkpoint checkpoint;
    const CheckpointTensor tensor = opened(folder, config, parts, checkpoint);
    EXPECT_EQ(tensor.dtype, zero == 7 ? DType::kQ4_0 : DType::kF16);
    EXPECT_EQ(checkpoint.quantization, "gptq, 4 bits");
    const std::vector<double> got = numbers_of(tensor);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t column = 0; column < 96; ++column) {
        const int code = static_cast<int>(pseudo(8 * (column / 8 * kRows + row) + column % 8, 15));
        const double value = (code - static_cast<int>(zero) - 1) * static_cast<double>(Half(0.01f));
        // Blocks don't round.
        const double expected = zero == 7 ? value : static_cast<double>(round_to<Half>(value));
        ASSERT_EQ(got[static_cast<std::size_t>(row * 96 + column)], expected);
      }
    }
  }
}

TEST(QuantizedFolder, HasBiasesThatAreNothing) {
  const json config = with_quantization(kLlama, {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 16}});
  Parts parts = gptq_parts(config, 4, 16, [](std::int64_t, std::int64_t) { return 7u; });
  parts[std::string(kStem) + ".bias"] = {"F16", {kRows}, std::string(2 * kRows, '\0')};
  const testing_files::TemporaryFolder folder;
  Checkpoint checkpoint;
  opened(folder, config, parts, checkpoint);
  EXPECT_FALSE(checkpoint.tensors.contains("layers.0.mlp.gate_proj.bias"));
  parts[std::string(kStem) + ".bias"].data[5] = 1;
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { opened(folder, config, parts, checkpoint); }),
             "mlp.gate_proj.bias (byte ");
}

TEST(QuantizedFolder, HasEightBitsOfBitsAndBytes) {
  const json config = with_quantization(kLlama, {{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}});
  Parts parts = without_matrix(config);
  parts[std::string(kStem) + ".weight"] = {"I8", {kRows, kColumns}, codes_of_bytes(255)};
  parts[std::string(kStem) + ".weight_format"] = {"U8", {}, std::string(1, '\0')};
  std::vector<float> most;  // of each row
  for (std::int64_t i = 0; i < kRows; ++i) most.push_back(0.1f * static_cast<float>(i + 3));
  parts[std::string(kStem) + ".SCB"] = {"F32", {kRows}, bytes_of_all(most)};
  expect_numbers(config, parts, DType::kF16, [&](std::int64_t row, std::int64_t column) {
    const auto code =
        static_cast<std::int8_t>(static_cast<std::uint8_t>(pseudo(row * kColumns + column, 255)));
    return code * (double{most[static_cast<std::size_t>(row)]} / 127);
  });
}

/// bitsandbytes' matrix of 4 bits, whose blocks of 64 go on in the next row.
Parts codebook_parts(const json& config, const std::string& state) {
  const std::string stem = std::string(kStem) + ".weight";
  Parts parts = without_matrix(config);
  std::string codes;
  for (std::int64_t i = 0; i < kRows * kColumns; i += 2)
    codes.push_back(static_cast<char>(pseudo(i, 15) << 4 | pseudo(i + 1, 15)));
  parts[stem] = {"U8", {kRows * kColumns / 2, 1}, codes};
  std::vector<float> values, scales;
  for (int i = 0; i < 16; ++i) values.push_back(static_cast<float>(i * i - 70) / 100);
  for (std::int64_t i = 0; i < kRows * kColumns / 64; ++i)
    scales.push_back(0.01f * static_cast<float>(i % 11 + 1));
  parts[stem + ".quant_map"] = {"F32", {16}, bytes_of_all(values)};
  parts[stem + ".absmax"] = {"F32", {kRows * kColumns / 64}, bytes_of_all(scales)};
  parts[stem + ".quant_state.bitsandbytes__fp4"] = {"U8", {static_cast<std::int64_t>(state.size())}, state};
  return parts;
}
constexpr const char* kState =
    R"({"quant_type": "fp4", "blocksize": 64, "dtype": "float16", "shape": [80, 48]})";

TEST(QuantizedFolder, HasFourBitsOfBitsAndBytesWithPlainScales) {
  const json config = with_quantization(kLlama, {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}});
  expect_numbers(
      config, codebook_parts(config, kState), DType::kF16, [&](std::int64_t row, std::int64_t column) {
        const std::int64_t i = row * kColumns + column, code = static_cast<std::int64_t>(pseudo(i, 15));
        return double{static_cast<float>(code * code - 70) / 100 *
                      (0.01f * static_cast<float>(i / 64 % 11 + 1))};
      });
  const auto error = [&](
                         const std::string& state,
                         const std::function<void(Parts&)>& change = [](Parts&) {}) {
    Parts parts = codebook_parts(config, state);
    change(parts);
    const testing_files::TemporaryFolder folder;
    Checkpoint checkpoint;
    return error_of(ErrorCode::kCorruptFile, [&] { opened(folder, config, parts, checkpoint); });
  };
  const std::string stem = std::string(kStem) + ".weight";
  EXPECT_HAS(error("{}"), "shape is missing");
  EXPECT_HAS(error("[80"), "invalid JSON at byte 3");
  EXPECT_HAS(error(R"({"shape": [80, 48]})"), "blocksize is missing");
  EXPECT_HAS(error(R"({"shape": [80, 48], "blocksize": 0})"), "blocksize is 0; a positive number");
  EXPECT_HAS(error(R"({"shape": [80, 50], "blocksize": 64})"), "2000 bytes of U8 were expected, of 80 by 50");
  EXPECT_HAS(error(R"({"shape": [80, 48], "blocksize": 32})"), "it is F32 (60); F32 (120) was expected");
  EXPECT_HAS(error(kState, [&](Parts& p) { p.erase(stem + ".quant_map"); }),
             "quant_map', which goes with it, is missing");
  EXPECT_HAS(error(kState,
                   [&](Parts& p) {
                     p[stem + ".nested_quant_map"] = {"F32", {256}, std::string(1024, '\0')};
                   }),
             "it is F32 (60); U8 (60) was expected");
}

TEST(QuantizedFolder, HasOneScaleWhateverTheMethodIsCalled) {
  for (const char* method : {"fp8", "fbgemm_fp8", "modelopt", "compressed-tensors"}) {
    SCOPED_TRACE(method);
    const json config = with_quantization(kLlama, {{"quant_method", method}});
    Parts parts = without_matrix(config);
    parts[std::string(kStem) + ".weight"] = {"F8_E4M3", {kRows, kColumns}, codes_of_bytes(126)};
    parts[std::string(kStem) + ".weight_scale"] = {"F32", {}, raw(0.37f)};
    parts[std::string(kStem) + ".input_scale"] = {"F32", {}, raw(0.5f)};
    expect_numbers(config, parts, DType::kF16, [&](std::int64_t row, std::int64_t column) {
      return e4m3(static_cast<std::uint8_t>(pseudo(row * kColumns + column, 126))) * double{0.37f};
    });
  }
}

TEST(QuantizedFolder, HasExpertsOfCodes) {
  json config = {{"architectures", {"MixtralForCausalLM"}},
                 {"hidden_size", 48},
                 {"num_attention_heads", 3},
                 {"num_key_value_heads", 1},
                 {"intermediate_size", 16},
                 {"num_hidden_layers", 1},
                 {"num_local_experts", 2},
                 {"num_experts_per_tok", 1},
                 {"vocab_size", 32}};
  config = with_quantization(config, {{"quant_method", "fp8"}, {"weight_block_size", nullptr}});
  Parts parts;
  for (auto& [name, part] : plain_parts(config)) {
    if (name.find(".experts.") == name.npos) parts[name] = part;
  }
  parts["model.layers.0.block_sparse_moe.gate.weight"] =
      std::move(parts.at("model.layers.0.mlp.router.weight"));
  parts.erase("model.layers.0.mlp.router.weight");
  for (int expert = 0; expert < 2; ++expert) {
    for (const char* matrix : {"w1", "w2", "w3"}) {
      const std::string stem = fmt::format("model.layers.0.block_sparse_moe.experts.{}.{}", expert, matrix);
      const bool is_down = std::string_view(matrix) == "w2";
      parts[stem + ".weight"] = {"F8_E4M3",
                                 {is_down ? 48 : 16, is_down ? 16 : 48},
                                 std::string(16 * 48, static_cast<char>(0x38 + expert))};  // 1 and 1.125
      parts[stem + ".weight_scale_inv"] = {"F32", {}, raw(is_down ? 0.25f : 0.5f)};
    }
  }
  const testing_files::TemporaryFolder folder;
  write_folder(folder, config, parts);
  const Checkpoint checkpoint = open_checkpoint(folder.path(), {.load_tokenizer = false});
  for (const auto& [name, scale] : {std::pair("gate_proj", 0.5), std::pair("down_proj", 0.25)}) {
    const CheckpointTensor& tensor =
        checkpoint.tensors.at(fmt::format("layers.0.mlp.experts.{}.weight", name));
    EXPECT_EQ(tensor.dtype, DType::kBF16);
    const std::vector<double> numbers = numbers_of(tensor);
    ASSERT_EQ(numbers.size(), 2u * 16 * 48);
    EXPECT_EQ(numbers.front(), scale);
    EXPECT_EQ(numbers.back(), 1.125 * scale);
  }
}

TEST(QuantizedFolder, SaysWhichPartIsWrong) {
  const json config = with_quantization(kLlama, {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 16}});
  const std::string stem = kStem;
  const Parts right = gptq_parts(config, 4, 16, [](std::int64_t, std::int64_t) { return 7u; });
  const auto error = [&](const std::function<void(Parts&)>& change) {
    Parts parts = right;
    change(parts);
    const testing_files::TemporaryFolder folder;
    Checkpoint checkpoint;
    return error_of(ErrorCode::kCorruptFile, [&] { opened(folder, config, parts, checkpoint); });
  };
  EXPECT_HAS(error([&](Parts& p) { p.erase(stem + ".scales"); }),
             "gate_proj.scales', which goes with it, is missing");
  EXPECT_HAS(error([&](Parts& p) { p.erase(stem + ".qzeros"); }),
             "gate_proj.qzeros', which goes with it, is missing");
  EXPECT_HAS(error([&](Parts& p) {
               p[stem + ".qzeros"].shape = {kRows / 8, 3};
             }),
             "it is I32 (10, 3); I32 (3, 10) was expected");
  EXPECT_HAS(error([&](Parts& p) { p[stem + ".qweight"].dtype = "F32"; }),
             "it is F32 (6, 80); I32 (6, 80) was expected");
  EXPECT_HAS(error([&](Parts& p) { p[stem + ".scales"].dtype = "I16"; }),
             "scales of F32, F16, BF16 or F8_E8M0 were expected");
  EXPECT_HAS(error([&](Parts& p) {
               p[stem + ".g_idx"] = {"I32", {kColumns}, std::string(4 * kColumns, '\3')};
             }),
             "number 0 is 50529027; a group, 0 to 2, was expected");
  // Half of the matrix.
  EXPECT_HAS(error([&](Parts& p) {
               p[stem + ".qweight"].shape = {3, kRows};
               p[stem + ".qweight"].data.resize(3 * kRows * 4);
             }),
             "it is F16 (3, 80); one for each 16 of 24 columns was expected");

  const json fp8 = with_quantization(kLlama, {{"quant_method", "fp8"}, {"weight_block_size", {32, 20}}});
  Parts parts = without_matrix(fp8);
  parts[stem + ".weight"] = {"F8_E4M3", {kRows, kColumns}, codes_of_bytes(126)};
  const testing_files::TemporaryFolder folder;
  Checkpoint checkpoint;
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { opened(folder, fp8, parts, checkpoint); }),
             "gate_proj.weight_scale', which goes with it, is missing");
  parts[stem + ".weight_scale_inv"] = {"F32", {2, 3}, std::string(24, '\0')};
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { opened(folder, fp8, parts, checkpoint); }),
             "it is F32 (2, 3); scales of the whole, of 80 rows or of rectangles of 32 by 20 were expected");
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { opened(folder, kLlama, parts, checkpoint); }),
             "the dtype is F8_E4M3");
}

TEST(QuantizedFolder, SaysWhatIsNotSupported) {
  const auto error = [](const json& quantization, ErrorCode code = ErrorCode::kUnsupported) {
    return error_of(
        code, [&] { parse_hf_quantization(with_quantization(kLlama, quantization).dump(), "config.json"); });
  };
  EXPECT_HAS(error({{"quant_method", "hqq"}}),
             "config.json: quantization_config: quant_method is \"hqq\"; supported are fp8, fbgemm_fp8, ");
  EXPECT_HAS(error({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}),
             "quant_algo is \"NVFP4\"; only FP8");
  EXPECT_HAS(error({{"quant_method", "mxfp4"}}), "quant_method is \"mxfp4\"");
  EXPECT_HAS(error({{"quant_method", "fp8"}, {"fmt", "e5m2"}}), "fmt is \"e5m2\"; only e4m3");
  EXPECT_HAS(error({{"quant_method", "gptq"}, {"bits", 3}}), "bits is 3; supported are 4 and 8");
  EXPECT_HAS(error({{"quant_method", "gptq"}, {"checkpoint_format", "marlin"}}),
             "checkpoint_format is \"marlin\"");
  EXPECT_HAS(error({{"quant_method", "awq"}, {"bits", 8}}), "bits is 8; only 4");
  EXPECT_HAS(error({{"quant_method", "awq"}, {"version", "gemv"}}), "version is \"gemv\"; only gemm");
  const json compressed = {{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}};
  EXPECT_HAS(error(compressed), "format is \"nvfp4-pack-quantized\"; supported are float-quantized");
  json other = {{"quant_method", "compressed-tensors"},
                {"format", "pack-quantized"},
                {"config_groups", {{"group_0", {{"weights", {{"num_bits", 3}, {"type", "int"}}}}}}}};
  EXPECT_HAS(error(other), "group_0: weights: num_bits is 3; supported are");
  other = {{"quant_method", "compressed-tensors"},
           {"format", "dense"},
           {"sparsity_config", {{"format", "sparse-24-bitmask"}}}};
  EXPECT_HAS(error(other), "sparsity_config: format is \"sparse-24-bitmask\"");
  EXPECT_HAS(error({{"quant_method", "gptq"}, {"group_size", 0}}, ErrorCode::kCorruptFile),
             "group_size is 0; a positive number, or -1");
  EXPECT_HAS(error({{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}}, ErrorCode::kCorruptFile),
             "weight_block_size is a list of 2 values; positive numbers");
  EXPECT_FALSE(parse_hf_quantization(kLlama.dump(), "config.json"));
  // gpt-oss's blocks are weights as any.
  const json gpt_oss = {{"architectures", {"GptOssForCausalLM"}},
                        {"quantization_config", {{"quant_method", "mxfp4"}}}};
  EXPECT_FALSE(parse_hf_quantization(gpt_oss.dump(), "config.json"));
}

}  // namespace
}  // namespace tessera
