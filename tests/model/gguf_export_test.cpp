// GGUF files made of Hugging Face folders against those folders, against what transformers computed with them
// and against files that the `gguf` package wrote.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/block_format.h"
#include "core/mapped_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_names.h"
#include "model/checkpoint/quantize_gguf.h"
#include "model/golden_fixture.h"
#include "model/model_files.h"
#include "model/tokenizer_fixture.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace testing_files;
using nlohmann::json;

const fs::path kModels = fs::path(TESSERA_FIXTURES) / "models";

/// Whose architecture GGUF files don't know.
constexpr const char* kWithoutGguf = "flex_olmo";

/// Those of the golden models that are folders of what GGUF files know.
std::vector<std::string> folder_names() {
  std::vector<std::string> names = golden_fixture_names();
  std::erase_if(names,
                [](const std::string& name) { return name.starts_with("gguf_") || name == kWithoutGguf; });
  return names;
}

class ExportedFolder : public testing::TestWithParam<std::string> {
 protected:
  /// The GGUF file of the folder with matrices of that type.
  fs::path made(const std::string& type) const {
    const fs::path out = folder_.path() / (type + ".gguf");
    if (!fs::exists(out)) quantize_gguf(kModels / GetParam(), type, out);
    return out;
  }

  TemporaryFolder folder_;
};

TEST_P(ExportedFolder, ComputesWhatTransformersComputedWithTheFolder) {
  const GoldenFixture fixture = read_golden_fixture(GetParam());
  const std::size_t vocab_size = fixture.logits.size() / fixture.tokens.size();
  LanguageModel model = LanguageModel::load(made("f32"), golden_options("cpu"));
  constexpr double kTolerance = 2e-3;  // within which the fixtures' greedy tokens must be chosen
  EXPECT_LE(max_relative_row_error(model.logits(fixture.tokens, true), fixture.logits, vocab_size),
            kTolerance);
  GenerateOptions options;
  options.max_tokens = static_cast<std::int64_t>(fixture.greedy.size());
  EXPECT_EQ(model.generate(fixture.tokens, options).tokens, fixture.greedy);
}

TEST_P(ExportedFolder, GivesTheFoldersBitsWhereRowsKeepTheirOrder) {
  const GoldenFixture fixture = read_golden_fixture(GetParam());
  const Checkpoint checkpoint = open_checkpoint(fixture.model);
  const auto found = std::ranges::find_if(checkpoint.tensors, [](const auto& entry) {
    return entry.first.ends_with(".self_attn.o_proj.weight");
  });
  const auto& [name, matrix] = *found;
  const DType stored = matrix.dtype;
  if (block_format(stored).elements > 1) {  // the file's embedding would be of blocks, too
    const Checkpoint after = open_checkpoint(made(std::string(dtype_name(stored))));
    std::vector<std::byte> bytes(matrix.size_bytes);
    read_parts(matrix, bytes.data());
    const CheckpointTensor& kept = after.tensors.at(name);
    ASSERT_EQ(kept.dtype, stored);
    EXPECT_EQ(std::memcmp(kept.data, bytes.data(), bytes.size()), 0);
    return;
  }
  // The file has routers, and experts in blocks, as numbers of the same values but of another type.
  const bool is_converted = checkpoint.config.mixture.has_value();
  LanguageModel folder = LanguageModel::load(fixture.model, golden_options("cpu"));
  LanguageModel file = LanguageModel::load(made(std::string(dtype_name(stored))), golden_options("cpu"));
  const std::vector<float> expected = folder.logits(fixture.tokens, true),
                           got = file.logits(fixture.tokens, true);
  const ModelConfig& config = checkpoint.config;
  if (gguf_rope_pairing(config.architecture) == config.rope.pairing && !is_converted && !config.gated_delta) {
    EXPECT_EQ(got, expected);
  } else {  // sums over a head's elements or over heads in another order, or products of other types
    EXPECT_LE(max_relative_row_error(got, expected, expected.size() / fixture.tokens.size()), 1e-5);
  }
}

TEST_P(ExportedFolder, HoldsTheFoldersConfiguration) {
  const ModelConfig before = open_checkpoint(kModels / GetParam()).config;
  const ModelConfig after = open_checkpoint(made("f32")).config;
  EXPECT_EQ(after.architecture,
            before.architecture == Architecture::kMistral ? Architecture::kLlama : before.architecture);
  EXPECT_EQ(after.vocab_size, before.vocab_size);
  EXPECT_EQ(after.hidden_size, before.hidden_size);
  EXPECT_EQ(after.intermediate_size, before.intermediate_size);
  EXPECT_EQ(after.num_layers, before.num_layers);
  EXPECT_EQ(after.num_heads, before.num_heads);
  EXPECT_EQ(after.num_kv_heads, before.num_kv_heads);
  EXPECT_EQ(after.head_dim, before.head_dim);
  EXPECT_EQ(after.norm_eps, before.norm_eps);
  EXPECT_EQ(after.max_seq_len, before.max_seq_len);
  EXPECT_EQ(after.sliding_window, before.sliding_window);
  EXPECT_EQ(after.qkv_bias, before.qkv_bias);
  EXPECT_EQ(after.tied_embeddings, before.tied_embeddings);
  EXPECT_EQ(after.fused_qkv, before.fused_qkv);
  EXPECT_EQ(after.fused_gate_up, before.fused_gate_up);
  EXPECT_EQ(after.rope.rotary_dim, before.rope.rotary_dim);
  EXPECT_EQ(after.o_bias, before.o_bias);
  EXPECT_EQ(after.mlp_bias, before.mlp_bias);
  EXPECT_EQ(after.activation, before.activation);
  EXPECT_EQ(after.layer_uses_sliding_window, before.layer_uses_sliding_window);
  EXPECT_EQ(after.sliding_rope.value_or(after.rope).theta, before.sliding_rope.value_or(before.rope).theta);
  EXPECT_EQ(after.qk_norm, before.qk_norm);
  EXPECT_EQ(after.norm_offset, 0) << "a GGUF file has norms with what is added to them";
  EXPECT_EQ(after.norm, before.norm);
  EXPECT_EQ(after.parallel_blocks, before.parallel_blocks);
  EXPECT_EQ(after.norms_before, before.norms_before);
  EXPECT_EQ(after.norms_after, before.norms_after);
  EXPECT_EQ(after.layer_uses_rope, before.layer_uses_rope);
  EXPECT_EQ(after.softmax_scale.has_value(), before.softmax_scale.has_value());
  EXPECT_FLOAT_EQ(after.softmax_scale.value_or(1), before.softmax_scale.value_or(1));
  EXPECT_EQ(after.attention_softcap, before.attention_softcap);
  EXPECT_EQ(after.logits_softcap, before.logits_softcap);
  EXPECT_EQ(after.embedding_scale, before.embedding_scale);
  EXPECT_EQ(after.residual_scale, before.residual_scale);
  EXPECT_FLOAT_EQ(after.logits_scale, before.logits_scale);
  EXPECT_EQ(after.mixture, before.mixture);
  EXPECT_EQ(after.latent, before.latent);
  EXPECT_EQ(after.full_attention, before.full_attention);
  EXPECT_EQ(after.num_shared_kv_layers, before.num_shared_kv_layers);
  EXPECT_EQ(intermediate_size(after, after.num_layers - 1), intermediate_size(before, before.num_layers - 1));
  EXPECT_EQ(after.layer_embedding_size, before.layer_embedding_size);
  EXPECT_EQ(after.layer_scales, before.layer_scales);
  EXPECT_EQ(after.layer_has_experts, before.layer_has_experts);
  EXPECT_EQ(after.layer_has_attention, before.layer_has_attention);
  EXPECT_EQ(after.attention_gate, before.attention_gate);
  EXPECT_EQ(after.short_conv, before.short_conv);
  std::optional<GatedDeltaConfig> delta = before.gated_delta;
  if (delta) delta->takes_turns = before.architecture != Architecture::kQwen3Next;
  EXPECT_EQ(after.gated_delta, delta);
  EXPECT_EQ(after.bos_token_id, before.bos_token_id);
  EXPECT_EQ(after.eos_token_ids, before.eos_token_ids);
  for (const std::int64_t length : {std::int64_t{1}, before.max_seq_len}) {
    const RopeFrequencies expected = rope_frequencies(before.rope, before.head_dim, length);
    const RopeFrequencies got = rope_frequencies(after.rope, after.head_dim, length);
    EXPECT_FLOAT_EQ(got.attention_factor, expected.attention_factor);
    ASSERT_EQ(got.inverse_frequencies.size(), expected.inverse_frequencies.size());
    for (std::size_t i = 0; i < expected.inverse_frequencies.size(); ++i)
      EXPECT_FLOAT_EQ(got.inverse_frequencies[i], expected.inverse_frequencies[i]) << i;
  }
}

TEST_P(ExportedFolder, SplitsTextsAsTheFolderDoes) {
  const Checkpoint before = open_checkpoint(kModels / GetParam()), after = open_checkpoint(made("f32"));
  for (const std::string& text : fixture::strings()) {
    const std::vector<TokenId> tokens = before.tokenizer->encode(text);
    ASSERT_EQ(after.tokenizer->encode(text), tokens) << text;
    ASSERT_EQ(after.tokenizer->decode(tokens), before.tokenizer->decode(tokens)) << text;
  }
  for (const char* name : {"bos_token", "eos_token", "unk_token"}) {
    const auto expected = before.chat.special_tokens.find(name);
    if (expected == before.chat.special_tokens.end()) continue;
    EXPECT_EQ(after.chat.special_tokens.find(name)->second, expected->second);
  }
}

TEST_P(ExportedFolder, IsQuantisedAsItsF32FileIs) {
  for (const std::string type : {"q4_k_m", "q8_0", "f16", "bf16"}) {
    const fs::path twice = folder_.path() / ("twice_" + type + ".gguf");
    quantize_gguf(made("f32"), type, twice);
    EXPECT_TRUE(read_file(made(type)) == read_file(twice)) << type;
  }
}

INSTANTIATE_TEST_SUITE_P(, ExportedFolder, testing::ValuesIn(folder_names()),
                         [](const auto& info) { return info.param; });

TEST(GgufExport, HasTheKeysThatTheGgufPackageWrites) {
  const TemporaryFolder folder;
  // The files have models of their own; what they call things is the same.
  for (const auto& [name, other] : {std::pair{"llama2", "gguf_llama_q8_0"},
                                    std::pair{"llama3", "gguf_llama3_f32"},
                                    std::pair{"llama_linear", "gguf_llama_f16"},
                                    std::pair{"qwen2", "gguf_qwen2_q8_0"},
                                    std::pair{"qwen3", "gguf_qwen3_bf16"},
                                    std::pair{"phi3_longrope", "gguf_phi3_q8_0"},
                                    std::pair{"smollm3", "gguf_smollm3_bf16"},
                                    std::pair{"granite", "gguf_granite_q8_0"},
                                    std::pair{"olmo2", "gguf_olmo2_f16"},
                                    std::pair{"olmo3", "gguf_olmo3_q8_0"},
                                    std::pair{"exaone4", "gguf_exaone4_f16"},
                                    std::pair{"glm4", "gguf_glm4_q8_0"},
                                    std::pair{"glm", "gguf_glm_f16"},
                                    std::pair{"seed_oss", "gguf_seed_oss_q8_0"},
                                    std::pair{"ernie4_5", "gguf_ernie4_5_bf16"},
                                    std::pair{"cohere", "gguf_cohere_q8_0"},
                                    std::pair{"cohere2", "gguf_cohere2_f16"},
                                    std::pair{"ministral3", "gguf_ministral3_q8_0"},
                                    std::pair{"hunyuan", "gguf_hunyuan_f16"},
                                    std::pair{"exaone", "gguf_exaone_q8_0"},
                                    std::pair{"helium", "gguf_llama_q8_0"},
                                    std::pair{"minicpm", "gguf_minicpm_q8_0"},
                                    std::pair{"gemma", "gguf_gemma_f16"},
                                    std::pair{"gemma2", "gguf_gemma2_q8_0"},
                                    std::pair{"gemma3", "gguf_gemma3_q8_0"},
                                    std::pair{"gemma4_e", "gguf_gemma4_f16"},
                                    std::pair{"gemma4_moe", "gguf_gemma4_moe_q8_0"}}) {
    SCOPED_TRACE(name);
    quantize_gguf(kModels / name, "f32", folder.path() / name);
    const MappedFile ours(folder.path() / name), theirs(kModels / other / "model.gguf");
    const GgufFile got(ours.bytes(), name), expected(theirs.bytes(), other);
    for (const auto& [key, value] : expected.metadata()) {
      // That file has YaRN and the folder has not.
      if (key.find(".rope.scaling.") != key.npos && std::string_view(name) == "qwen3") continue;
      const auto found = got.metadata().find(key);
      ASSERT_NE(found, got.metadata().end()) << key;
      EXPECT_EQ(found->second.type, value.type) << key;
      EXPECT_EQ(found->second.element_type, value.element_type) << key;
    }
    for (const auto& [tensor, stored] : expected.tensors()) {
      const bool is_everywhere =
          tensor != "output.weight" && (!tensor.starts_with("blk.") || tensor.starts_with("blk.0."));
      EXPECT_TRUE(!is_everywhere || got.tensors().contains(tensor)) << tensor;
    }
    EXPECT_EQ(got.text("general.name"), name);
    EXPECT_EQ(got.text("tokenizer.ggml.model"), expected.text("tokenizer.ggml.model"));
    EXPECT_EQ(got.integers("tokenizer.ggml.token_type"), expected.integers("tokenizer.ggml.token_type"));
    EXPECT_EQ(got.texts("tokenizer.ggml.tokens"), expected.texts("tokenizer.ggml.tokens"));
    EXPECT_EQ(got.texts("tokenizer.ggml.merges"), expected.texts("tokenizer.ggml.merges"));
    EXPECT_EQ(got.boolean("tokenizer.ggml.add_bos_token"), expected.boolean("tokenizer.ggml.add_bos_token"));
  }
}

/// A copy of a golden folder that tests change.
class ChangedFolder {
 public:
  explicit ChangedFolder(const std::string& name) {
    for (const auto& entry : fs::directory_iterator(kModels / name))
      if (!entry.path().filename().string().starts_with("expected"))
        fs::copy(entry.path(), folder_.path() / entry.path().filename());
  }
  ChangedFolder& change(const std::string& file, const std::function<void(json&)>& how) {
    json document =
        fs::exists(folder_.path() / file) ? json::parse(read_file(folder_.path() / file)) : json::object();
    how(document);
    folder_.write(file, document.dump());
    return *this;
  }
  /// Replaces parts of the names of model.safetensors.
  ChangedFolder& rename_tensors(const std::vector<std::pair<std::string, std::string>>& parts) {
    const std::string file = read_file(folder_.path() / "model.safetensors");
    std::uint64_t header_size = 0;
    std::memcpy(&header_size, file.data(), sizeof(header_size));
    std::string header = file.substr(8, header_size);
    for (const auto& [from, to] : parts) {
      for (std::size_t at = header.find(from); at != header.npos; at = header.find(from, at + to.size()))
        header.replace(at, from.size(), to);
    }
    folder_.write("model.safetensors", safetensors(header, file.substr(8 + header_size)));
    return *this;
  }
  const TemporaryFolder& folder() const { return folder_; }
  const fs::path& path() const { return folder_.path(); }

  /// What is said when no file can be made, of which nothing is left then.
  std::string error(ErrorCode code) const {
    const fs::path out = folder_.path() / "out.gguf";
    const std::string message = error_of(code, [&] { quantize_gguf(folder_.path(), "q8_0", out); });
    for (const auto& entry : fs::directory_iterator(path()))
      EXPECT_FALSE(entry.path().filename().string().starts_with("out.gguf")) << entry.path();
    return message;
  }

 private:
  TemporaryFolder folder_;
};

TEST(GgufExport, HoldsChatTemplatesAndSpecialTokens) {
  ChangedFolder folder("qwen2");
  folder.change("tokenizer_config.json", [](json& config) {
    config["pad_token"] = "<|endoftext|>";
    config["chat_template"] = {{{"name", "default"}, {"template", "{{ eos_token }}"}},
                               {{"name", "tool_use"}, {"template", "tools"}}};
  });
  folder.change("generation_config.json", [](json& config) { config["eos_token_id"] = {287, 285}; });
  quantize_gguf(folder.path(), "q8_0", folder.path() / "out.gguf");
  const Checkpoint before = open_checkpoint(folder.path()),
                   after = open_checkpoint(folder.path() / "out.gguf");
  EXPECT_EQ(after.chat.templates, before.chat.templates);
  EXPECT_EQ(after.chat.special_tokens.at("pad_token"), "<|endoftext|>");
  EXPECT_EQ(after.chat.special_tokens.at("eos_token"), "<|im_end|>");
  EXPECT_EQ(after.config.eos_token_ids, (std::vector<std::int32_t>{287, 285}));
}

TEST(GgufExport, HoldsWhatTheTokenizersConfigurationAdds) {
  ChangedFolder folder("qwen2");
  folder.change("tokenizer_config.json", [](json& config) {
    config["added_tokens_decoder"]["286"] = {
        {"content", "<|im_start|>"}, {"special", true}, {"rstrip", true}};
  });
  quantize_gguf(folder.path(), "q8_0", folder.path() / "model.gguf");
  const Checkpoint before = open_checkpoint(folder.path()),
                   after = open_checkpoint(folder.path() / "model.gguf");
  const std::string text = "<|im_start|>  The rain";
  EXPECT_EQ(after.tokenizer->encode(text), before.tokenizer->encode(text));
  EXPECT_NE(after.tokenizer->encode(text),
            load_tokenizer_json(folder.path() / "tokenizer.json")->encode(text));

  folder.change("tokenizer_config.json", [](json& config) { config["split_special_tokens"] = true; });
  EXPECT_HAS(folder.error(ErrorCode::kUnsupported), "tokenizer_config.json: split_special_tokens");
}

TEST(GgufExport, HoldsWhatOnlyTheWholeTokenizerSays) {
  // Added tokens that are no control tokens, found where no letter touches them, and spaces of their own.
  for (const std::string name : {"llama2", "mistral", "qwen2"}) {
    ChangedFolder folder(name);
    folder.change("tokenizer.json", [&](json& tokenizer) {
      const int replaced = name == "qwen2" ? 286 : 287;
      auto& vocabulary = tokenizer["model"]["vocab"];
      for (auto entry = vocabulary.begin(); entry != vocabulary.end(); ++entry) {
        if (entry.value() != replaced) continue;
        vocabulary.erase(entry);
        break;
      }
      auto& added = tokenizer["added_tokens"];
      std::erase_if(added.get_ref<json::array_t&>(),
                    [&](const json& token) { return token["id"] == replaced; });
      const json token = {{"id", replaced},           {"content", "<tool>"}, {"special", false},
                          {"normalized", false},      {"single_word", true}, {"lstrip", false},
                          {"rstrip", name == "qwen2"}};
      added.insert(added.begin() + (name == "qwen2" ? 1 : 3), token);
    });
    const fs::path out = folder.path() / "out.gguf";
    quantize_gguf(folder.path(), "q8_0", out);
    const auto before = open_tokenizer(folder.path()), after = open_tokenizer(out);
    for (const std::string text : {"a <tool> b", "a<tool>b", " <tool>  <tool>", "the </s> heron <s>stone"}) {
      EXPECT_EQ(after->encode(text), before->encode(text)) << name << ": " << text;
      EXPECT_EQ(after->decode(after->encode(text)), before->decode(before->encode(text))) << text;
    }
    // It goes along when the file is quantised again.
    quantize_gguf(out, "q4_0", folder.path() / "again.gguf");
    EXPECT_EQ(open_tokenizer(folder.path() / "again.gguf")->encode("a <tool> b"),
              before->encode("a <tool> b"));
  }
}

// Gemma's: texts are split at spaces, which the normalizer has made symbols by then.
TEST(GgufExport, TakesASplitThatFindsNothing) {
  ChangedFolder folder("llama2");
  folder.change("tokenizer.json", [](json& tokenizer) {
    tokenizer["pre_tokenizer"] = {{"type", "Split"},
                                  {"pattern", {{"String", " "}}},
                                  {"behavior", "MergedWithPrevious"},
                                  {"invert", false}};
  });
  quantize_gguf(folder.path(), "q8_0", folder.path() / "out.gguf");
  const auto before = open_tokenizer(folder.path()), after = open_tokenizer(folder.path() / "out.gguf");
  for (const std::string& text : fixture::strings())
    EXPECT_EQ(after->encode(text), before->encode(text)) << text;
  folder.change("tokenizer.json", [](json& tokenizer) { tokenizer["pre_tokenizer"]["invert"] = true; });
  fs::remove(folder.path() / "out.gguf");
  EXPECT_HAS(folder.error(ErrorCode::kUnsupported), "can't say that texts are split by this \"Split\"");
}

// That of Phi-4-mini, as its tokenizer.json has it.
TEST(GgufExport, NamesThePreTokenizerOfGpt4o) {
  ChangedFolder folder("llama_yarn");
  const char* pattern =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
      R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
      R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  folder.change("tokenizer.json", [&](json& tokenizer) {
    tokenizer["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
          {{"type", "ByteLevel"},
           {"add_prefix_space", false},
           {"trim_offsets", true},
           {"use_regex", false}}}}};
  });
  quantize_gguf(folder.path(), "q8_0", folder.path() / "out.gguf");
  const MappedFile file(folder.path() / "out.gguf");
  EXPECT_EQ(GgufFile(file.bytes(), "out.gguf").text("tokenizer.ggml.pre"), "gpt-4o");
  const auto before = open_tokenizer(folder.path()), after = open_tokenizer(folder.path() / "out.gguf");
  for (const std::string& text : fixture::strings())
    EXPECT_EQ(after->encode(text), before->encode(text)) << text;
}

TEST(GgufExport, SaysWhatAFileCantHoldAndLeavesNone) {
  const auto config_error = [](const std::string& name, const char* key, const json& value) {
    ChangedFolder folder(name);
    return folder.change("config.json", [&](json& config) { config[key] = value; })
        .error(ErrorCode::kUnsupported);
  };
  EXPECT_HAS(config_error("llama2", "hidden_act", "gelu"), "the activation is not SiLU");
  {
    ChangedFolder folder("qwen2");
    folder.change("config.json", [](json& config) {
      config["use_sliding_window"] = true;
      config["sliding_window"] = 8;
      config["max_window_layers"] = 1;
    });
    EXPECT_HAS(folder.error(ErrorCode::kUnsupported), "a sliding window in some of the layers");
  }
  EXPECT_HAS(config_error("gemma3", "hidden_activation", "silu"), "the activation is not GELU's tanh");
  EXPECT_HAS(config_error("gemma3", "sliding_window_pattern", 2), "layers that slide are others");
  EXPECT_HAS(config_error("gemma3", "query_pre_attn_scalar", 8), "query_pre_attn_scalar is not head_dim");
  EXPECT_HAS(config_error("gemma3", "rope_local_base_freq", 5000), "the RoPE of layers that slide is not");
  EXPECT_HAS(config_error("gemma3", "attn_logit_softcapping", 50), "attn_logit_softcapping is set");
  EXPECT_HAS(config_error("gemma2", "attn_logit_softcapping", nullptr), "attn_logit_softcapping or final");
  EXPECT_HAS(config_error("gemma2", "query_pre_attn_scalar", 8), "query_pre_attn_scalar is not head_dim");
  EXPECT_HAS(
      config_error("gemma2", "layer_types", json({"full_attention", "sliding_attention", "full_attention"})),
      "layers that slide are others than all but the last of each 2");
  const json one_slides = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  for (const char* name : {"olmo3", "exaone4", "cohere2"}) {
    EXPECT_HAS(config_error(name, "layer_types", one_slides),
               "layers that slide are others than all but the last of each 4");
  }
  EXPECT_HAS(config_error("exaone4", "layer_types", json(std::vector<std::string>(4, "full_attention"))),
             "its layers with RoPE are others than those that slide");
  EXPECT_HAS(config_error("olmo3", "rope_theta", 5000), "the RoPE of layers that slide is not");
  EXPECT_HAS(config_error("deepseek_v3", "rope_interleave", false), "rope_interleave is false");
  {
    ChangedFolder folder("deepseek_v3");
    folder.change("config.json", [](json& config) { config["rope_scaling"]["mscale"] = 0.5; });
    EXPECT_HAS(folder.error(ErrorCode::kUnsupported), "mscale and mscale_all_dim differ");
  }
  EXPECT_HAS(config_error("smollm3", "no_rope_layers", json({1, 0, 1, 1})), "layers without RoPE are others");
  {
    ChangedFolder folder("llama_yarn");
    folder.change("config.json", [](json& config) { config["rope_scaling"]["truncate"] = false; });
    EXPECT_HAS(folder.error(ErrorCode::kUnsupported), "truncate: false");
  }
  {
    ChangedFolder folder("ministral3");
    folder.change("config.json", [](json& config) { config["rope_parameters"]["rope_type"] = "default"; });
    EXPECT_HAS(folder.error(ErrorCode::kUnsupported), "llama_4_scaling_beta without YaRN");
  }
  {
    ChangedFolder folder("qwen2_moe");
    folder.change("config.json", [](json& config) {
      config["mlp_only_layers"] = {0};
      config["intermediate_size"] = config["shared_expert_intermediate_size"];
    });
    // Of the first layer the shared expert becomes the MLP, and the others belong to a layer that is not
    // there.
    folder.rename_tensors({{"layers.0.mlp.shared_expert.", "layers.0.mlp."},
                           {"layers.0.mlp.shared_expert_gate.", "layers.9.mlp.shared_expert_gate."},
                           {"layers.0.mlp.gate.", "layers.9.mlp.gate."},
                           {"layers.0.mlp.experts.", "layers.9.mlp.experts."}});
    EXPECT_EQ(open_checkpoint(folder.path()).config.layer_has_experts, (std::vector<bool>{false, true}));
    EXPECT_HAS(folder.error(ErrorCode::kUnsupported), "experts in some of the layers only, or in these");
  }
  EXPECT_HAS(config_error("qwen2", "eos_token_id", json({1, 2, 3, 4})), "name 5 tokens");
  {
    ChangedFolder folder("llama2");
    folder.change("tokenizer_config.json", [](json& config) { config["bos_token"] = "</s>"; });
    EXPECT_HAS(folder.error(ErrorCode::kUnsupported), "bos_token is '</s>', but tokenizer.json puts '<s>'");
  }
}

// Many folders have a padding token for which nobody added a row to the embedding.
TEST(GgufExport, LeavesOutAddedTokensThatTheModelDoesNotHave) {
  for (const char* name : {"llama2", "qwen2"}) {
    ChangedFolder folder(name);
    const std::int64_t size = open_checkpoint(folder.path()).config.vocab_size;
    folder.change("added_tokens.json", [&](json& tokens) {
      tokens = {{"[PAD]", size}, {"<more>", size + 5}};
    });
    folder.change("tokenizer_config.json", [](json& config) { config["pad_token"] = "[PAD]"; });
    const fs::path out = folder.path() / "out.gguf";
    quantize_gguf(folder.path(), "f32", out);
    const MappedFile file(out);
    const GgufFile got(file.bytes(), name);
    EXPECT_EQ(got.texts("tokenizer.ggml.tokens")->size(), static_cast<std::size_t>(size));
    EXPECT_FALSE(got.metadata().contains("tokenizer.ggml.padding_token_id"));
    const Checkpoint before = open_checkpoint(folder.path()), after = open_checkpoint(out);
    for (const char* text : {"Once [PAD] more", "<more>", "usual text"})
      EXPECT_EQ(after.tokenizer->encode(text), before.tokenizer->encode(text));
  }
}

TEST(GgufExport, SaysThatGgufFilesHaveNoSuchArchitecture) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out.gguf";
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { quantize_gguf(kModels / kWithoutGguf, "f16", out); }),
             "GGUF files have no name for the architecture flex_olmo");
  EXPECT_FALSE(fs::exists(out));
}

TEST(GgufExport, SaysWhatIsWrongWithAFolderAndLeavesNoFile) {
  const ChangedFolder folder("llama3");
  fs::rename(folder.path() / "tokenizer.json", folder.path() / "away.json");
  EXPECT_HAS(folder.error(ErrorCode::kIo), "has no tokenizer.json");
  fs::rename(folder.path() / "away.json", folder.path() / "tokenizer.json");
  const fs::path shard = folder.path() / "model-00002-of-00003.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 5);
  EXPECT_HAS(folder.error(ErrorCode::kCorruptFile), "model-00002-of-00003.safetensors");
  fs::remove(shard);
  EXPECT_HAS(folder.error(ErrorCode::kIo), "model-00002-of-00003.safetensors");
  fs::remove(folder.path() / "config.json");
  EXPECT_HAS(folder.error(ErrorCode::kIo), "has no config.json");

  const TemporaryFolder other;
  EXPECT_HAS(error_of(ErrorCode::kIo, [&] { quantize_gguf(kModels / "llama2", "q8_0", other.path()); }),
             "exists already");
  EXPECT_HAS(error_of(ErrorCode::kInvalidArgument,
                      [&] { quantize_gguf(kModels / "llama2", "q9", other.path() / "out.gguf"); }),
             "no mix of formats called 'q9'");
}

TEST(GgufExport, AFullDiskIsAnErrorAndLeavesNoFile) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out.gguf";
  // A limit of this process's files stands in for the disk's.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t limit : {rlim_t{100}, rlim_t{100'000}}) {  // of the head, and of the tensors
    const rlimit full{limit, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
    const std::string error =
        error_of(ErrorCode::kIo, [&] { quantize_gguf(kModels / "llama2", "f32", out); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_HAS(error, "out.gguf': File too large");
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
  std::signal(SIGXFSZ, handler);
}

TEST(GgufExport, NamesANumberThatF16CantHold) {
  ChangedFolder folder("llama_linear");  // of bf16
  std::string bytes = read_file(folder.path() / "model.safetensors");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  const CheckpointTensor& matrix = checkpoint.tensors.at("layers.1.mlp.up_proj.weight");
  const auto at = static_cast<std::size_t>(matrix.data - checkpoint.files.front()->bytes().data());
  bytes[at] = 0, bytes[at + 1] = 0x48;  // 131072
  folder.folder().write("model.safetensors", bytes);
  const fs::path out = folder.path() / "out.gguf";
  EXPECT_HAS(error_of(ErrorCode::kInvalidArgument, [&] { quantize_gguf(folder.path(), "f16", out); }),
             "blk.1.ffn_up.weight, row 0: value 0 is 131072, but F16 ends at 65504");
  EXPECT_FALSE(fs::exists(out));
  quantize_gguf(folder.path(), "bf16", out);
}

// ---- tokenizers ----

GgufTokenizerForm form_of(const json& document, std::int64_t vocab_size) {
  const std::string text = document.dump();
  return gguf_tokenizer_form(text, "tokenizer.json", *parse_tokenizer_json(text, "tokenizer.json"),
                             vocab_size);
}

TEST(GgufTokenizerForm, SplitsTextsAsTheTokenizerDoes) {
  const std::map<std::string, std::string> kPreTokenizers = {
      {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"llama2", "default"}};
  for (const auto& [name, pre] : kPreTokenizers) {
    const auto tokenizer = fixture::tokenizer(name);
    const GgufTokenizerForm form = form_of(fixture::read(name), tokenizer->vocab_size() + 3);
    EXPECT_TRUE(form.is_complete) << name;
    EXPECT_EQ(form.data.pre, pre);
    const auto made = make_gguf_tokenizer(form.data, name);
    for (const std::string& text : fixture::strings()) {
      const std::vector<TokenId> tokens = tokenizer->encode(text);
      ASSERT_EQ(made->encode(text), tokens) << name << ": " << text;
      ASSERT_EQ(made->decode(tokens), tokenizer->decode(tokens)) << name << ": " << text;
    }
    // Ids beyond the tokenizer's have names in the file and no token for those who read it.
    const auto padding = static_cast<std::size_t>(tokenizer->vocab_size());
    EXPECT_EQ(form.data.tokens.size(), padding + 3);
    EXPECT_EQ(form.data.tokens[padding], "[PAD" + std::to_string(padding) + "]");
    EXPECT_EQ(form.data.token_types[padding], 5);
    EXPECT_FALSE(made->contains(static_cast<TokenId>(padding)));
    EXPECT_EQ(made->vocab_size(), tokenizer->vocab_size());
  }
}

TEST(GgufTokenizerForm, NamesWhatItCantSay) {
  const auto error = [](const std::string& name, const std::function<void(json&)>& change,
                        std::int64_t size = 4096) {
    json document = fixture::read(name);
    change(document);
    return error_of(ErrorCode::kUnsupported, [&] { form_of(document, size); });
  };
  EXPECT_HAS(
      error("llama3",
            [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = R"(\p{L}+|\P{L})"; }),
      "pre_tokenizer: GGUF files name pre-tokenizers");
  EXPECT_HAS(error("llama3", [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }),
             "pre_tokenizer.pretokenizers[0]: GGUF files name pre-tokenizers");
  EXPECT_HAS(error("qwen2", [](json& t) { t["normalizer"]["type"] = "NFKC"; }), "normalizer: a GGUF file");
  EXPECT_HAS(error("gpt2", [](json& t) { t["pre_tokenizer"]["add_prefix_space"] = true; }),
             "add_prefix_space");
  EXPECT_HAS(error("gpt2", [](json& t) { t["model"]["ignore_merges"] = true; }),
             "GGUF files name pre-tokenizers");
  EXPECT_HAS(error(
                 "gpt2", [](json&) {}, 1299),
             "has id 1299, but the model has 1299 tokens");
  EXPECT_HAS(error(
                 "llama3", [](json&) {}, 1206),
             "\"<|begin_of_text|>\", which is put before a text, has id 1206, but the model has 1206 tokens");
  EXPECT_HAS(error("llama2", [](json& t) { t["model"]["byte_fallback"] = false; }), "byte_fallback");
  EXPECT_HAS(error("llama2", [](json& t) { t["normalizer"]["normalizers"].erase(1); }),
             "spaces are not replaced");
  EXPECT_HAS(error("llama2", [](json& t) { t["normalizer"]["normalizers"][0]["prepend"] = "_"; }),
             "normalizer.normalizers[0]");
  EXPECT_HAS(error("llama2", [](json& t) { t["model"]["merges"].erase(100); }), "pairs make the token");
  const auto part_merges_of_a_token = [](json& t) {
    auto& merges = t["model"]["merges"].get_ref<json::array_t&>();
    const auto made = [](const json& merge) {
      if (merge.is_array()) return merge[0].get<std::string>() + merge[1].get<std::string>();
      std::string text = merge.get<std::string>();
      return text.erase(text.find(' '), 1);
    };
    std::size_t i = 0;
    while (made(merges.at(i)) != made(merges.at(i + 1))) ++i;
    const auto first = merges.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(first, first + 1, merges.end());
  };
  EXPECT_HAS(error("llama2", part_merges_of_a_token), "as an earlier one did before merges of other tokens");
  EXPECT_HAS(error("llama2",
                   [](json& t) {
                     auto& single = t["post_processor"]["single"];
                     single.insert(single.begin(), single[0]);
                   }),
             "post_processor: puts 2 tokens before a text");
}

}  // namespace
}  // namespace tessera
