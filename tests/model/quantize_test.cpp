// Quantised GGUF files against llama.cpp's choice of formats and against the files that they were made from.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "core/block_format.h"
#include "core/mapped_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/quantize_gguf.h"
#include "model/model_files.h"
#include "model/tokenizer/tokenizer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace testing_files;

const fs::path kModels = fs::path(TESSERA_FIXTURES) / "models";

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST(QuantizationMixes, AreThoseOfLlamaCpp) {
  std::ifstream file(kModels / "quantization_mixes.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const std::map<std::string, std::string> kParts = {
      {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"}, {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"ffn_gate", "mlp.gate_proj"},  {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  int compared = 0;
  for (const auto& [model_name, model] : fixture.at("models").items()) {
    ModelConfig config;
    config.num_layers = fixture.at("layers");
    config.num_heads = fixture.at("heads");
    config.num_kv_heads = model.at("kv_heads");
    config.tied_embeddings = model.at("tied");
    const std::int64_t hidden = model.at("hidden"), heads = fixture.at("heads"),
                       head_dim = fixture.at("head_dim");
    for (const auto& [mix, types] : model.at("mixes").items()) {
      SCOPED_TRACE(model_name + ", " + mix);
      const auto expect = [&, &mix = mix](const std::string& tensor, std::int64_t columns,
                                          const std::string& type) {
        EXPECT_EQ(dtype_name(mixed_dtype(mix, tensor, columns, config)), type) << tensor;
        ++compared;
      };
      for (const auto& [part, type] : types.items()) {
        if (part == "token_embd") {
          expect("embed_tokens.weight", hidden, type);
        } else if (part == "output") {
          expect("lm_head.weight", hidden, type);
        } else {
          for (int i = 0; i < config.num_layers; ++i) {
            expect("layers." + std::to_string(i) + "." + kParts.at(part) + ".weight",
                   part == "attn_output" ? heads * head_dim : hidden,
                   type.is_array() ? type.at(static_cast<std::size_t>(i)) : type);
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 18 * (2 * 7 * 17 + 2 + 1));
}

// As llama.cpp's quantiser treats attn_qkv, and ffn_up as it treats any.
TEST(QuantizationMixes, KnowFusedProjections) {
  ModelConfig config = architecture_config(Architecture::kPhi3);
  config.num_layers = 16;
  config.num_heads = config.num_kv_heads = 4;
  const auto qkv = [&](const char* mix) {
    return mixed_dtype(mix, "layers.5.self_attn.qkv_proj.weight", 256, config);
  };
  EXPECT_EQ(qkv("q3_k_s"), DType::kQ3_K);
  EXPECT_EQ(qkv("q3_k_m"), DType::kQ4_K);
  EXPECT_EQ(qkv("q3_k_l"), DType::kQ4_K);
  EXPECT_EQ(qkv("q4_k_s"), DType::kQ4_K);
  EXPECT_EQ(qkv("q4_k_m"), DType::kQ5_K);
  EXPECT_EQ(qkv("q5_k_m"), DType::kQ6_K);
  EXPECT_EQ(qkv("q8_0"), DType::kQ8_0);
  for (const char* mix : {"q3_k_m", "q4_k_m", "q5_k_m", "q8_0"}) {
    EXPECT_EQ(mixed_dtype(mix, "layers.5.mlp.gate_up_proj.weight", 256, config),
              mixed_dtype(mix, "layers.5.mlp.up_proj.weight", 256, config));
  }
}

// The embedding that is the head, too, has more bits than the mix; what only looks tokens up has not.
TEST(QuantizationMixes, EmbeddingsOfLayersHaveTheMixesOwnFormat) {
  ModelConfig config;
  config.num_layers = 35;
  config.num_heads = 8;
  config.num_kv_heads = 1;
  config.tied_embeddings = true;
  for (const auto& [mix, head, layers] :
       {std::tuple("q4_0", DType::kQ6_K, DType::kQ4_0), std::tuple("q4_k_m", DType::kQ6_K, DType::kQ4_K),
        std::tuple("q8_0", DType::kQ8_0, DType::kQ8_0), std::tuple("tq1_0", DType::kQ6_K, DType::kQ4_K)}) {
    EXPECT_EQ(mixed_dtype(mix, "embed_tokens.weight", 256, config), head) << mix;
    EXPECT_EQ(mixed_dtype(mix, "embed_tokens_per_layer.weight", 256, config), layers) << mix;
    EXPECT_EQ(mixed_dtype(mix, "per_layer_model_projection.weight", 256, config),
              mixed_dtype(mix, "layers.3.mlp.up_proj.weight", 256, config))
        << mix;
  }
}

/// A tensor's numbers in fp64.
std::vector<double> values_of(const CheckpointTensor& tensor) {
  std::vector<double> values;
  std::size_t count = 1;
  for (const std::int64_t extent : tensor.shape) count *= static_cast<std::size_t>(extent);
  dispatch_weight(tensor.dtype, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      for (std::size_t i = 0; i < count; ++i) {
        double element[1];
        T::decode(reinterpret_cast<const unsigned char*>(tensor.data) + i / T::kElements * T::kBytes,
                  static_cast<int>(i % T::kElements), element);
        values.push_back(element[0]);
      }
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, tensor.data + i * sizeof(T), sizeof value);
        values.push_back(static_cast<double>(value));
      }
    }
  });
  return values;
}

double relative_error(const CheckpointTensor& tensor, const CheckpointTensor& exact) {
  const std::vector<double> got = values_of(tensor), expected = values_of(exact);
  double error = 0, square = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    square += expected[i] * expected[i];
  }
  return std::sqrt(error / square);
}

TEST(QuantizeGguf, WritesAFileThatIsTheModelInFewerBits) {
  const TemporaryFolder folder;
  for (const char* name : {"gguf_llama_mixed", "gguf_llama_f16", "gguf_qwen3_bf16"}) {
    const Checkpoint before = open_checkpoint(kModels / name / "model.gguf");
    for (const std::string mix : {"q8_0", "q4_k_m", "f16"}) {
      SCOPED_TRACE(std::string(name) + ", " + mix);
      const fs::path out = folder.path() / (name + mix + ".gguf");
      const QuantizedSizes sizes = quantize_gguf(kModels / name / "model.gguf", mix, out);
      const Checkpoint after = open_checkpoint(out);
      EXPECT_EQ(after.config.hidden_size, before.config.hidden_size);
      EXPECT_EQ(after.config.rope.theta, before.config.rope.theta);
      EXPECT_EQ(after.tokenizer->encode("Once upon a time"), before.tokenizer->encode("Once upon a time"));
      ASSERT_EQ(after.tensors.size(), before.tensors.size());
      std::uint64_t bytes = 0;
      for (const auto& [tensor_name, tensor] : after.tensors) {
        const CheckpointTensor& source = before.tensors.at(tensor_name);
        bytes += tensor.size_bytes;
        EXPECT_EQ(tensor.shape, source.shape);
        if (tensor.shape.size() == 1) {
          EXPECT_EQ(values_of(tensor), values_of(source)) << tensor_name;
          continue;
        }
        EXPECT_EQ(tensor.dtype, mixed_dtype(mix, tensor_name, tensor.shape.back(), before.config));
        // Uniform numbers, which the random blocks have, are the hardest for steps that scale to extremes: of
        // four bits they err by a step / sqrt(12), of sqrt(12) / 15 the size of the numbers.
        EXPECT_LE(relative_error(tensor, source), mix == "q4_k_m" ? 0.107
                                                  : mix == "q8_0" ? 0.01
                                                                  : 0x1p-11)
            << tensor_name;
      }
      EXPECT_LE(bytes, sizes.bytes_after);
    }
  }
  EXPECT_EQ(names_in(folder.path()).size(), 9u);
}

TEST(QuantizeGguf, SaysWhatIsWrongAndLeavesNoFile) {
  const TemporaryFolder folder;
  const fs::path model = kModels / "gguf_llama_f16" / "model.gguf";
  const fs::path out = folder.path() / "out.gguf";
  EXPECT_HAS(error_of(ErrorCode::kInvalidArgument, [&] { quantize_gguf(model, "q4", out); }),
             "there is no mix of formats called 'q4'; expected one of f32, f16, bf16, q4_0");
  EXPECT_HAS(error_of(ErrorCode::kInvalidArgument, [&] { quantize_gguf(model, "iq2_xxs", out); }),
             "files of iq2_xxs can be read, not made");
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] { quantize_gguf(kModels / "gguf_llama_f16" / "expected.json", "q8_0", out); }),
             "nor a .gguf file");
  EXPECT_HAS(
      error_of(ErrorCode::kIo, [&] { quantize_gguf(model, "q8_0", folder.path() / "no" / "out.gguf"); }),
      "cannot write");
  EXPECT_FALSE(fs::exists(out));
  folder.write("out.gguf", "somebody's");
  EXPECT_HAS(error_of(ErrorCode::kIo, [&] { quantize_gguf(model, "q8_0", out); }), "exists already");
  EXPECT_EQ(read_file(out), "somebody's");

  // A number that no block holds: the file's last bytes are a matrix of fp16.
  std::string bytes = read_file(model);
  const Checkpoint checkpoint = open_checkpoint(model, {.load_tokenizer = false});
  const CheckpointTensor& matrix = checkpoint.tensors.at("layers.1.mlp.up_proj.weight");
  const std::size_t at = static_cast<std::size_t>(matrix.data - checkpoint.files.front()->bytes().data());
  bytes[at + 2 * 32 + 1] = 0x7c;
  bytes[at + 2 * 32] = 0;  // infinity, in row 1
  folder.write("bad.gguf", bytes);
  EXPECT_HAS(error_of(ErrorCode::kInvalidArgument,
                      [&] { quantize_gguf(folder.path() / "bad.gguf", "q8_0", folder.path() / "new.gguf"); }),
             "blk.1.ffn_up.weight, row 1: quantize_blocks: value 0 is inf");
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"bad.gguf", "out.gguf"}));
}

TEST(QuantizeGguf, TakesNoFileThatSomebodyElseMakesMeanwhile) {
  const TemporaryFolder folder;
  const fs::path model = kModels / "gguf_llama_f16" / "model.gguf";
  const fs::path out = folder.path() / "out.gguf", alone = folder.path() / "alone.gguf";
  quantize_gguf(model, "q8_0", alone);
  folder.write("out.gguf.partial", "somebody's");
  bool is_first = true;
  EXPECT_HAS(error_of(ErrorCode::kIo,
                      [&] {
                        quantize_gguf(model, "f32", out, [&](std::uint64_t, std::uint64_t) {
                          if (std::exchange(is_first, false)) quantize_gguf(model, "q8_0", out);
                        });
                      }),
             "exists already");
  EXPECT_EQ(read_file(out), read_file(alone));
  EXPECT_EQ(read_file(out.string() + ".partial"), "somebody's");
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"alone.gguf", "out.gguf", "out.gguf.partial"}));

  // A link that leads nowhere is something with that name, too.
  fs::create_symlink("nowhere", folder.path() / "link.gguf");
  EXPECT_HAS(error_of(ErrorCode::kIo, [&] { quantize_gguf(model, "q8_0", folder.path() / "link.gguf"); }),
             "exists already");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link.gguf"));
}

TEST(QuantizeGguf, LeavesNoFileWhereItIsCancelled) {
  const TemporaryFolder folder;
  struct Cancelled {};
  for (const char* const mix : {"f16", "q8_0"}) {
    EXPECT_THROW(quantize_gguf(kModels / "gguf_llama_f16" / "model.gguf", mix, folder.path() / "out.gguf",
                               [](std::uint64_t, std::uint64_t) { throw Cancelled{}; }),
                 Cancelled);
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

}  // namespace
}  // namespace tessera
