// Folders and GGUF files that the tests write themselves: every way in which the parts can contradict each
// other.
#include "model/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/mapped_file.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/gguf_checkpoint.h"
#include "model/tokenizer/tokenizer.h"
#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;
using nlohmann::json;

constexpr CheckpointOptions kNoTokenizer{.load_tokenizer = false};

// One layer, hidden 8, 2 heads of 4, MLP 6, 5 tokens.
const json kConfig = {{"architectures", {"LlamaForCausalLM"}},
                      {"hidden_size", 8},
                      {"intermediate_size", 6},
                      {"num_attention_heads", 2},
                      {"num_key_value_heads", 1},
                      {"num_hidden_layers", 1},
                      {"vocab_size", 5},
                      {"max_position_embeddings", 16}};

struct FileTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
};
using FileTensors = std::map<std::string, FileTensor>;

const FileTensors kTensors = {
    {"model.embed_tokens.weight", {"F32", {5, 8}}},
    {"model.norm.weight", {"F32", {8}}},
    {"lm_head.weight", {"F32", {5, 8}}},
    {"model.layers.0.input_layernorm.weight", {"F32", {8}}},
    {"model.layers.0.self_attn.q_proj.weight", {"F32", {8, 8}}},
    {"model.layers.0.self_attn.k_proj.weight", {"F32", {4, 8}}},
    {"model.layers.0.self_attn.v_proj.weight", {"F32", {4, 8}}},
    {"model.layers.0.self_attn.o_proj.weight", {"F32", {8, 8}}},
    {"model.layers.0.post_attention_layernorm.weight", {"F32", {8}}},
    {"model.layers.0.mlp.gate_proj.weight", {"F32", {6, 8}}},
    {"model.layers.0.mlp.up_proj.weight", {"F32", {6, 8}}},
    {"model.layers.0.mlp.down_proj.weight", {"F32", {8, 6}}},
};

std::string safetensors_of(const FileTensors& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    std::size_t bytes = tensor.dtype == "F32" ? 4 : tensor.dtype == "I64" ? 8 : 2;
    for (const std::int64_t dim : tensor.shape) bytes *= static_cast<std::size_t>(dim);
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + bytes}}};
    data += std::string(bytes, static_cast<char>('a' + header.size()));
  }
  return safetensors(header.dump(), data);
}

class FolderTest : public testing::Test {
 protected:
  FolderTest() { folder_.write("config.json", kConfig.dump()); }

  void write_tensors(const FileTensors& tensors) {
    folder_.write("model.safetensors", safetensors_of(tensors));
  }
  Checkpoint open() const { return open_checkpoint(folder_.path(), kNoTokenizer); }
  std::string refusal(ErrorCode code = ErrorCode::kCorruptFile) const {
    return error_of(code, [&] { open(); });
  }

  FileTensors tensors_ = kTensors;
  TemporaryFolder folder_;
};

TEST_F(FolderTest, OpensAWholeOne) {
  write_tensors(kTensors);
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.tensors.size(), kTensors.size());
  EXPECT_EQ(checkpoint.files.size(), 1u);
  EXPECT_EQ(checkpoint.tokenizer, nullptr);
  const CheckpointTensor& tensor = checkpoint.tensors.at("layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(tensor.size_bytes, 128u);
  EXPECT_HAS(tensor.source, "model.safetensors: model.layers.0.self_attn.k_proj.weight");
  const auto file = checkpoint.files.front()->bytes();
  EXPECT_GE(tensor.data, file.data());
  EXPECT_LE(tensor.data + tensor.size_bytes, file.data() + file.size());
}

TEST_F(FolderTest, TakesNamesWithoutTheirPrefix) {
  tensors_.clear();
  for (const auto& [name, tensor] : kTensors) {
    tensors_[name.starts_with("model.") ? name.substr(6) : name] = tensor;
  }
  write_tensors(tensors_);
  EXPECT_EQ(open().tensors.size(), kTensors.size());
  tensors_["model.norm.weight"] = {"F32", {8}};
  write_tensors(tensors_);
  EXPECT_HAS(refusal(), "tensor 'norm.weight' (byte ");
}

TEST_F(FolderTest, EveryTensorMustBeThereWithItsShapeAndDType) {
  for (const auto& [name, tensor] : kTensors) {
    tensors_ = kTensors;
    tensors_.erase(name);
    write_tensors(tensors_);
    const std::string bare = name.starts_with("model.") ? name.substr(6) : name;
    EXPECT_HAS(refusal(), "the tensor '" + bare + "' of shape (");
    EXPECT_HAS(refusal(), folder_.path().string());

    tensors_ = kTensors;
    tensors_[name].shape.back() += 1;
    write_tensors(tensors_);
    EXPECT_HAS(refusal(), "model.safetensors: " + name + " (byte ");
    EXPECT_HAS(refusal(), "but the configuration calls for (");

    tensors_ = kTensors;
    tensors_[name].dtype = "I64";
    write_tensors(tensors_);
    EXPECT_HAS(refusal(ErrorCode::kUnsupported), "model.safetensors: " + name + " (byte ");
    EXPECT_HAS(refusal(ErrorCode::kUnsupported), "the dtype is I64; weights may be F32, F16, BF16");
  }
  for (const char* dtype : {"F16", "BF16"}) {
    tensors_ = kTensors;
    for (auto& [name, tensor] : tensors_) tensor.dtype = dtype;
    write_tensors(tensors_);
    EXPECT_EQ(open().tensors.at("norm.weight").size_bytes, 16u);
  }
}

TEST_F(FolderTest, ManyLayersInTheConfigAreOneError) {
  json config = kConfig;
  config["num_hidden_layers"] = 10000;
  folder_.write("config.json", config.dump());
  write_tensors(kTensors);
  EXPECT_HAS(refusal(), "the tensor 'layers.1.input_layernorm.weight' of shape (8) is missing");
}

TEST_F(FolderTest, LeavesOutWhatTheModelDoesNotCompute) {
  json config = kConfig;
  config["tie_word_embeddings"] = true;
  folder_.write("config.json", config.dump());
  tensors_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {2}};
  tensors_["model.layers.1.mlp.up_proj.weight"] = {"F32", {6, 8}};  // past the last layer
  tensors_["vision.weight"] = {"I64", {3}};
  tensors_.erase("lm_head.weight");
  write_tensors(tensors_);
  EXPECT_EQ(open().tensors.size(), kTensors.size() - 1);

  tensors_["model.layers.0.self_attn.q_proj.bias"] = {"F32", {8}};
  write_tensors(tensors_);
  EXPECT_HAS(refusal(ErrorCode::kUnsupported), "model.layers.0.self_attn.q_proj.bias (byte ");
  EXPECT_HAS(refusal(ErrorCode::kUnsupported), "a llama layer has no such tensor under this configuration");
}

// As transformers 5 does, which warns and goes by the file where it contradicts the configuration.
TEST_F(FolderTest, ATiedHeadIsOneThatSaysWhatTheEmbeddingSays) {
  json config = kConfig;
  config["tie_word_embeddings"] = true;
  folder_.write("config.json", config.dump());
  write_tensors(kTensors);  // each tensor is filled with a letter of its own
  Checkpoint checkpoint = open();
  EXPECT_FALSE(checkpoint.config.tied_embeddings);
  EXPECT_EQ(checkpoint.tensors.size(), kTensors.size());
  EXPECT_NE(*checkpoint.tensors.at("lm_head.weight").data,
            *checkpoint.tensors.at("embed_tokens.weight").data);

  std::string file = safetensors_of(kTensors);
  const char head = static_cast<char>(*checkpoint.tensors.at("lm_head.weight").data),
             embedding = static_cast<char>(*checkpoint.tensors.at("embed_tokens.weight").data);
  const std::size_t size = checkpoint.tensors.at("lm_head.weight").size_bytes;
  const std::size_t at = file.find(std::string(size, head));
  ASSERT_NE(at, file.npos);
  file.replace(at, size, std::string(size, embedding));
  folder_.write("model.safetensors", file);
  checkpoint = open();
  EXPECT_TRUE(checkpoint.config.tied_embeddings);
  EXPECT_EQ(checkpoint.tensors.count("lm_head.weight"), 0u);

  tensors_["lm_head.weight"].dtype = "F16";
  write_tensors(tensors_);
  EXPECT_FALSE(open().config.tied_embeddings);
  tensors_["lm_head.weight"].shape.front() -= 1;
  write_tensors(tensors_);
  EXPECT_HAS(refusal(), "lm_head.weight (byte ");

  tensors_ = kTensors;
  tensors_.erase("model.embed_tokens.weight");
  write_tensors(tensors_);
  checkpoint = open();
  EXPECT_TRUE(checkpoint.config.tied_embeddings);
  EXPECT_EQ(checkpoint.tensors.size(), kTensors.size() - 1);
  EXPECT_HAS(checkpoint.tensors.at("embed_tokens.weight").source, "lm_head.weight");
}

TEST_F(FolderTest, BiasesAreCalledForByTheConfig) {
  json config = kConfig;
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  folder_.write("config.json", config.dump());
  const std::pair<const char*, std::int64_t> biases[] = {
      {"self_attn.q_proj", 8}, {"self_attn.k_proj", 4}, {"self_attn.v_proj", 4}, {"self_attn.o_proj", 8},
      {"mlp.gate_proj", 6},    {"mlp.up_proj", 6},      {"mlp.down_proj", 8}};
  for (const auto& [name, size] : biases) {
    write_tensors(tensors_);
    EXPECT_HAS(refusal(), std::string("'layers.0.") + name + ".bias' of shape (");
    tensors_[std::string("model.layers.0.") + name + ".bias"] = {"F32", {size}};
  }
  write_tensors(tensors_);
  EXPECT_EQ(open().tensors.size(), kTensors.size() + 7);
}

TEST_F(FolderTest, ReadsShards) {
  FileTensors first, second;
  json map = json::object();
  for (const auto& [name, tensor] : kTensors) {
    const bool is_first = map.size() % 2 == 0;
    (is_first ? first : second)[name] = tensor;
    map[name] = is_first ? "a.safetensors" : "b.safetensors";
  }
  const auto write_index = [&](const json& index) {
    folder_.write("model.safetensors.index.json", index.dump());
  };
  folder_.write("a.safetensors", safetensors_of(first));
  folder_.write("b.safetensors", safetensors_of(second));
  write_index({{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
  EXPECT_EQ(open().tensors.size(), kTensors.size());
  EXPECT_EQ(open().files.size(), 2u);

  for (const char* bad : {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", "a\\b"}) {
    json escaping = map;
    escaping["model.norm.weight"] = bad;
    write_index({{"weight_map", escaping}});
    EXPECT_HAS(refusal(), "which is not the name of a file in the same folder");
  }
  json wrong = map;
  wrong["model.norm.weight"] =
      map["model.norm.weight"] == "a.safetensors" ? "b.safetensors" : "a.safetensors";
  write_index({{"weight_map", wrong}});
  EXPECT_HAS(refusal(), "the tensor 'model.norm.weight' is missing, which the index says is here");
  wrong["model.norm.weight"] = "c.safetensors";
  write_index({{"weight_map", wrong}});
  EXPECT_HAS(refusal(ErrorCode::kIo), "c.safetensors");
  wrong["model.norm.weight"] = 7;
  write_index({{"weight_map", wrong}});
  EXPECT_HAS(refusal(), "weight_map: 'model.norm.weight' must name a file");
  write_index({{"weight_map", json::array()}});
  EXPECT_HAS(refusal(), "weight_map, an object from tensors to files, is missing");
  write_index(json::array());
  EXPECT_HAS(refusal(), "index.json: weight_map");
  folder_.write("model.safetensors.index.json", "{\"weight_map\": {\"\xff\"");
  EXPECT_HAS(refusal(), "index.json: invalid JSON at byte");
  wrong = map;
  wrong.erase("model.norm.weight");
  write_index({{"weight_map", wrong}});
  EXPECT_HAS(refusal(), "the tensor 'norm.weight' of shape (8) is missing");
}

TEST_F(FolderTest, ReadsTheGenerationConfigAndTheChatTemplate) {
  write_tensors(kTensors);
  folder_.write("generation_config.json", R"({"eos_token_id": [3, 4]})");
  EXPECT_EQ(open().config.eos_token_ids, (std::vector<std::int32_t>{3, 4}));
  const auto chat_template = [&] { return open_checkpoint(folder_.path()).chat.templates["default"]; };
  EXPECT_EQ(chat_template(), "");
  folder_.write("tokenizer_config.json", R"({"chat_template": "{{ a }}"})");
  EXPECT_EQ(chat_template(), "{{ a }}");
  folder_.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": "y"}]})");
  EXPECT_EQ(chat_template(), "y");
  folder_.write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(chat_template(), "");
  folder_.write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, chat_template),
             "chat_template: is number, expected a string or a list of templates");
  folder_.write("chat_template.jinja", "{{ b }}");
  EXPECT_EQ(chat_template(), "{{ b }}");
  folder_.write("chat_template.jinja", "\xff");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, chat_template),
             "chat_template.jinja: the template is not UTF-8");
  EXPECT_TRUE(open().chat.templates.empty());
}

TEST_F(FolderTest, SaysWhatIsMissing) {
  EXPECT_HAS(refusal(ErrorCode::kIo), "has neither model.safetensors nor model.safetensors.index.json");
  folder_.write("pytorch_model.bin", "x");
  EXPECT_HAS(refusal(ErrorCode::kIo), "safe_serialization=True");
  folder_.write("model.safetensors", "");
  EXPECT_HAS(refusal(), "model.safetensors: the file has 0 bytes");
  folder_.write("config.json", "");
  EXPECT_HAS(refusal(), "config.json: invalid JSON at byte 0");
  folder_.write("config.json", std::string((4 << 20) + 1, ' '));
  EXPECT_HAS(refusal(), "config.json: the file has 4194305 bytes; at most 4194304 were expected");
  std::filesystem::remove(folder_.path() / "config.json");
  EXPECT_HAS(refusal(ErrorCode::kIo), "has no config.json");
}

TEST(OpenCheckpoint, SaysWhyAPathIsNoCheckpoint) {
  const TemporaryFolder folder;
  const auto refusal = [&](ErrorCode code, const char* name) {
    return error_of(code, [&] { open_checkpoint(folder.path() / name, kNoTokenizer); });
  };
  EXPECT_HAS(refusal(ErrorCode::kIo, "nothing"), "nothing': No such file or directory");
  folder.write("model.safetensors", safetensors("{}"));
  EXPECT_HAS(
      refusal(ErrorCode::kUnsupported, "model.safetensors"),
      "is neither a folder in the Hugging Face format nor a .gguf file; give the folder that holds it");
  folder.write("notes.txt", "hello");
  EXPECT_HAS(refusal(ErrorCode::kUnsupported, "notes.txt"), "is neither a folder");
  folder.write("empty.gguf", "");
  EXPECT_HAS(refusal(ErrorCode::kCorruptFile, "empty.gguf"),
             "does not begin with the bytes 'GGUF' at byte 0");
  EXPECT_HAS(error_of(ErrorCode::kIo, [] { open_checkpoint(""); }), "cannot open ''");
  EXPECT_HAS(error_of(ErrorCode::kIo, [] { open_checkpoint("someone/model-8B"); }),
             "cannot open 'someone/model-8B': No such file or directory; expected a folder");
  EXPECT_HAS(error_of(ErrorCode::kIo, [] { open_checkpoint("/dev/null"); }), "not a regular file");
}

// The same model as a GGUF file.
using GgufEdit = std::function<void(std::map<std::string, std::function<void(GgufBuilder&)>>& entries)>;

std::string gguf_model(const GgufEdit& edit = {}, const std::string& arch = "llama") {
  std::map<std::string, std::function<void(GgufBuilder&)>> entries;
  entries["general.architecture"] = [=](GgufBuilder& b) { b.text("general.architecture", arch); };
  const std::pair<const char*, std::uint32_t> numbers[] = {
      {"block_count", 1},         {"context_length", 16},      {"embedding_length", 8},
      {"feed_forward_length", 6}, {"attention.head_count", 2}, {"attention.head_count_kv", 1},
      {"vocab_size", 5}};
  for (const auto& [name, value] : numbers) {
    const std::string key = arch + "." + name;
    const std::uint32_t copy = value;
    entries[key] = [=](GgufBuilder& b) { b.u32(key, copy); };
  }
  const std::string eps = arch + ".attention.layer_norm_rms_epsilon";
  entries[eps] = [=](GgufBuilder& b) { b.f32(eps, 1e-5f); };
  const std::pair<const char*, std::vector<std::uint64_t>> tensors[] = {
      {"token_embd.weight", {8, 5}},   {"output_norm.weight", {8}},
      {"output.weight", {8, 5}},       {"blk.0.attn_norm.weight", {8}},
      {"blk.0.attn_q.weight", {8, 8}}, {"blk.0.attn_k.weight", {8, 4}},
      {"blk.0.attn_v.weight", {8, 4}}, {"blk.0.attn_output.weight", {8, 8}},
      {"blk.0.ffn_norm.weight", {8}},  {"blk.0.ffn_gate.weight", {8, 6}},
      {"blk.0.ffn_up.weight", {8, 6}}, {"blk.0.ffn_down.weight", {6, 8}}};
  for (const auto& [name, dims] : tensors) {
    std::size_t bytes = 4;
    for (const std::uint64_t dim : dims) bytes *= dim;
    const std::string copy = name;
    const auto dims_copy = dims;
    entries[copy] = [=](GgufBuilder& b) { b.tensor(copy, dims_copy, 0, std::string(bytes, 'x')); };
  }
  if (edit) edit(entries);
  GgufBuilder builder;
  for (const auto& [name, add] : entries) add(builder);
  return builder.build();
}

Checkpoint parse_gguf(const std::string& file) {
  return parse_gguf_checkpoint(bytes_of(file), "m.gguf", kNoTokenizer);
}

TEST(GgufCheckpoint, ReadsEveryField) {
  const Checkpoint plain = parse_gguf(gguf_model());
  EXPECT_EQ(plain.tensors.size(), 12u);
  const ModelConfig& c = plain.config;
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
  EXPECT_FALSE(c.tied_embeddings || c.sliding_window || c.bos_token_id || c.qkv_bias || c.rope.linear);
  EXPECT_TRUE(c.eos_token_ids.empty());

  const Checkpoint full = parse_gguf(gguf_model([](auto& e) {
    e.erase("llama.vocab_size");  // then the embedding tells
    e.erase("output.weight");
    e["general.type"] = [](GgufBuilder& b) { b.text("general.type", "model"); };
    e["llama.attention.sliding_window"] = [](GgufBuilder& b) { b.u32("llama.attention.sliding_window", 7); };
    e["llama.attention.head_count_kv"] = [](GgufBuilder& b) {
      b.array("llama.attention.head_count_kv", kIdI32, 2, raw(1) + raw(1));
    };
    e["llama.rope.dimension_count"] = [](GgufBuilder& b) { b.u32("llama.rope.dimension_count", 2); };
    e["llama.rope.freq_base"] = [](GgufBuilder& b) { b.f32("llama.rope.freq_base", 500.0f); };
    e["llama.rope.scaling.type"] = [](GgufBuilder& b) { b.text("llama.rope.scaling.type", "yarn"); };
    e["llama.rope.scaling.factor"] = [](GgufBuilder& b) { b.f32("llama.rope.scaling.factor", 1.0f); };
    e["llama.rope.scaling.attn_factor"] = [](GgufBuilder& b) {
      b.f32("llama.rope.scaling.attn_factor", 1.5f);
    };
    e["rope_freqs.weight"] = [](GgufBuilder& b) { b.tensor("rope_freqs.weight", {1}, 0, raw(2.0f)); };
    e["bos"] = [](GgufBuilder& b) { b.u32("tokenizer.ggml.bos_token_id", 1); };
    e["eos"] = [](GgufBuilder& b) { b.u32("tokenizer.ggml.eos_token_id", 4); };
    e["eot"] = [](GgufBuilder& b) { b.u32("tokenizer.ggml.eot_token_id", 3); };
    e["eom"] = [](GgufBuilder& b) { b.u32("tokenizer.ggml.eom_token_id", ~0u); };
    for (const auto& [name, size] : {std::pair<const char*, std::uint64_t>{"attn_q", 8},
                                     {"attn_k", 4},
                                     {"attn_v", 4},
                                     {"attn_output", 8},
                                     {"ffn_gate", 6},
                                     {"ffn_up", 6},
                                     {"ffn_down", 8}}) {
      const std::string bias = std::string("blk.0.") + name + ".bias";
      const std::uint64_t copy = size;
      e[bias] = [=](GgufBuilder& b) { b.tensor(bias, {copy}, 0, std::string(4 * copy, 'x')); };
    }
  }));
  const ModelConfig& f = full.config;
  EXPECT_EQ(f.vocab_size, 5);
  EXPECT_TRUE(f.tied_embeddings && f.qkv_bias && f.o_bias && f.mlp_bias);
  EXPECT_EQ(full.tensors.size(), 18u);
  EXPECT_EQ(f.sliding_window, 7);
  EXPECT_EQ(f.num_kv_heads, 1);
  EXPECT_EQ(f.rope.rotary_dim, 2);
  EXPECT_EQ(f.rope.theta, 500);
  EXPECT_EQ(f.rope.yarn->original_max_seq_len, 16);
  EXPECT_EQ(f.rope.yarn->attention_factor, 1.5f);
  EXPECT_EQ(f.rope.frequency_divisors, std::vector<float>{2});
  EXPECT_EQ(f.bos_token_id, 1);
  EXPECT_EQ(f.eos_token_ids, (std::vector<std::int32_t>{4, 3}));
}

/// A Mixtral of two experts, with a tensor for each or one of both.
GgufEdit with_experts(bool apart) {
  return [=](auto& e) {
    for (const char* name : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"})
      e.erase(name);
    const auto add = [&e](const std::string& name, const std::vector<std::uint64_t>& dims,
                          const std::string& data) {
      e[name] = [=](GgufBuilder& b) { b.tensor(name, dims, 0, data); };
    };
    for (const char* key : {"llama.expert_count", "llama.expert_used_count"}) {
      const std::string copy = key;
      e[copy] = [=](GgufBuilder& b) { b.u32(copy, copy.ends_with("used_count") ? 1 : 2); };
    }
    add("blk.0.ffn_gate_inp.weight", {8, 2}, std::string(64, 'r'));
    for (const std::string part : {"gate", "up", "down"}) {
      const std::vector<std::uint64_t> dims =
          part == "down" ? std::vector<std::uint64_t>{6, 8} : std::vector<std::uint64_t>{8, 6};
      const std::string first(192, part[0]), second(192, part[1]);
      if (apart) {
        add("blk.0.ffn_" + part + ".0.weight", dims, first);
        add("blk.0.ffn_" + part + ".1.weight", dims, second);
      } else {
        add("blk.0.ffn_" + part + "_exps.weight", {dims[0], dims[1], 2}, first + second);
      }
    }
  };
}

TEST(GgufCheckpoint, ReadsExpertsOfAllFiles) {
  for (const bool apart : {false, true}) {
    const std::string file = gguf_model(with_experts(apart));
    const Checkpoint c = parse_gguf(file);
    SCOPED_TRACE(apart);
    EXPECT_EQ(c.config.architecture, Architecture::kMixtral);
    ASSERT_TRUE(c.config.mixture);
    EXPECT_EQ(c.config.mixture->num_experts, 2);
    EXPECT_EQ(c.config.mixture->num_experts_per_token, 1);
    EXPECT_EQ(c.config.mixture->intermediate_size, 6);
    EXPECT_TRUE(c.config.mixture->normalized);
    for (const std::string part : {"gate", "up", "down"}) {
      const CheckpointTensor& tensor = c.tensors.at("layers.0.mlp.experts." + part + "_proj.weight");
      EXPECT_EQ(tensor.shape,
                part == "down" ? (std::vector<std::int64_t>{2, 8, 6}) : (std::vector<std::int64_t>{2, 6, 8}));
      std::string bytes;
      read_tensor(tensor, [&](std::span<const std::byte> read, std::size_t) {
        bytes.append(reinterpret_cast<const char*>(read.data()), read.size());
      });
      EXPECT_EQ(bytes, std::string(192, part[0]) + std::string(192, part[1]));
    }
  }
  const auto error_with = [](const std::string& key, const std::function<void(GgufBuilder&)>& entry) {
    return error_of(ErrorCode::kCorruptFile, [&] {
      parse_gguf(gguf_model([&](auto& e) {
        with_experts(false)(e);
        e.erase(key);
        if (entry) e[key] = entry;
      }));
    });
  };
  EXPECT_HAS(error_with("llama.expert_used_count", {}), "llama.expert_used_count");
  EXPECT_HAS(
      error_with("llama.expert_used_count", [](GgufBuilder& b) { b.u32("llama.expert_used_count", 3); }),
      "the number of experts of a token is 3, expected 1 to 2");
  EXPECT_HAS(
      error_with("llama.expert_count", [](GgufBuilder& b) { b.u32("llama.expert_count", 4'000'000'000); }),
      "llama.expert_count");
  EXPECT_HAS(error_with("llama.expert_count", [](GgufBuilder& b) { b.u32("llama.expert_count", 3); }),
             "the configuration calls for");
}

TEST(GgufCheckpoint, SaysWhatIsWrong) {
  const auto without = [](const char* key) {
    return gguf_model([=](auto& e) { ASSERT_EQ(e.erase(key), 1u); });
  };
  const auto number = [](const char* key, std::int64_t value) {
    return gguf_model([=](auto& e) { e[key] = [=](GgufBuilder& b) { b.entry(key, kIdI64, raw(value)); }; });
  };
  const auto tensor = [](const char* name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                         std::size_t bytes) {
    return gguf_model([=](auto& e) {
      e[name] = [=](GgufBuilder& b) { b.tensor(name, dims, type, std::string(bytes, 'x')); };
    });
  };
  const struct {
    std::string file;
    const char* expected;
  } cases[] = {
      {without("general.architecture"), "the metadata key 'general.architecture': is missing"},
      {without("llama.block_count"), "'llama.block_count': is missing"},
      {without("llama.context_length"), "'llama.context_length': is missing"},
      {without("llama.embedding_length"), "'llama.embedding_length': is missing"},
      {without("llama.feed_forward_length"), "'llama.feed_forward_length': is missing"},
      {without("llama.attention.head_count"), "'llama.attention.head_count': is missing"},
      {without("llama.attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon': is missing"},
      {without("token_embd.weight"), "the tensor 'embed_tokens.weight' of shape (5, 8) is missing"},
      {without("blk.0.ffn_up.weight"), "the tensor 'layers.0.mlp.up_proj.weight' of shape (6, 8) is missing"},
      {number("llama.block_count", 1000000000), "the number of layers is 1000000000, expected 1 to 10000"},
      {number("llama.block_count", std::int64_t{1} << 40), "is 1099511627776, expected 0 to 2147483647"},
      {number("llama.block_count", 2),
       "the tensor 'layers.1.input_layernorm.weight' of shape (8) is missing"},
      {number("llama.block_count", -1), "is -1, expected 0 to"},
      {number("llama.embedding_length", std::int64_t{1} << 40), "is 1099511627776; that is too large"},
      {number("llama.embedding_length", 1 << 22), "the hidden size is 4194304, expected 1 to 1048576"},
      {number("llama.embedding_length", 7), "is 7; without attention.key_length a positive multiple"},
      {number("llama.attention.head_count", 0), "is 8; without attention.key_length"},
      {number("llama.attention.head_count_kv", 0), "the number of key/value heads is 0"},
      {number("llama.attention.key_length", 8), "m.gguf: blk.0.attn_q.weight (byte "},
      {number("llama.vocab_size", 6), "the shape is (5, 8), but the configuration calls for (6, 8)"},
      {number("llama.attention.sliding_window", -5), "the sliding window is -5"},
      {number("llama.rope.dimension_count", 3), "the RoPE dimension is 3, expected an even number"},
      {number("llama.rope.dimension_count", 0), "is 0, expected an even number from 2 on"},
      {number("llama.rope.dimension_count", 6), "the RoPE dimension is 6, expected 0 to 4"},
      {number("llama.rope.freq_base", 0), "the RoPE base is 0"},
      {number("llama.rope.scaling.factor", -2), "the RoPE scaling's factor is -2"},
      {number("general.architecture", 2), "'general.architecture' (byte "},
      {tensor("rope_freqs.weight", {3}, 0, 12), "the number of RoPE frequency divisors is 3, expected 2"},
      {tensor("rope_freqs.weight", {2}, 1, 4), "rope_freqs.weight (byte "},
      {tensor("output_norm.weight", {9}, 0, 36), "m.gguf: output_norm.weight (byte "},
      {tensor("layers.0.mlp.up_proj.weight", {8, 6}, 0, 192), "is there twice"},
  };
  for (const auto& c : cases) {
    EXPECT_HAS(error_of(ErrorCode::kCorruptFile, [&] { parse_gguf(c.file); }), c.expected);
  }
}

/// Part `number` (from 0 on) of two of gguf_model(): the second has what lies in the layer.
std::string gguf_part(std::uint32_t number, std::uint32_t no, std::uint32_t count) {
  return gguf_model([&](auto& entries) {
    for (auto entry = entries.begin(); entry != entries.end();) {
      const bool is_tensor = entry->first.ends_with(".weight");
      const bool is_here = entry->first.starts_with("blk.") ? number == 1 : number == 0 || !is_tensor;
      entry = is_here ? std::next(entry) : entries.erase(entry);
    }
    entries["split"] = [=](GgufBuilder& b) {
      b.u32("split.no", no).u32("split.count", count).u32("split.tensors.count", 12);
    };
  });
}

TEST(GgufCheckpoint, ReadsAModelInParts) {
  const testing_files::TemporaryFolder folder;
  const auto open = [&] { return open_checkpoint(folder.path() / "m-00001-of-00002.gguf", kNoTokenizer); };
  folder.write("m-00001-of-00002.gguf", gguf_part(0, 0, 2));
  EXPECT_HAS(error_of(ErrorCode::kIo, open), "m-00002-of-00002.gguf");
  folder.write("m-00002-of-00002.gguf", gguf_part(1, 1, 2));
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.tensors.size(), 12u);
  EXPECT_EQ(checkpoint.files.size(), 2u);
  const Checkpoint whole = parse_gguf(gguf_model());
  EXPECT_EQ(checkpoint.config.hidden_size, whole.config.hidden_size);
  EXPECT_HAS(checkpoint.tensors.at("layers.0.self_attn.q_proj.weight").source, "m-00002-of-00002.gguf");

  // Another part than the first, a part of another model, one that is there twice.
  EXPECT_HAS(error_of(ErrorCode::kUnsupported,
                      [&] { open_checkpoint(folder.path() / "m-00002-of-00002.gguf", kNoTokenizer); }),
             "give the first of them");
  folder.write("m-00002-of-00002.gguf", gguf_part(1, 0, 2));
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, open), "'split.no'");
  folder.write("m-00002-of-00002.gguf", gguf_part(1, 1, 3));
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, open), "is 3, but the first part says 2");
  folder.write("m-00002-of-00002.gguf", gguf_part(0, 1, 2));
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, open), "is there twice");
}

TEST(GgufCheckpoint, FindsWhatIsNoWeightInAnyPart) {
  const testing_files::TemporaryFolder folder;
  const auto open = [&] { return open_checkpoint(folder.path() / "m-00001-of-00002.gguf", kNoTokenizer); };
  // As llama.cpp splits a model whose first part has no tensors.
  const auto write = [&](const std::string& other) {
    for (const std::uint32_t number : {0u, 1u}) {
      const std::string part = gguf_model([&](auto& entries) {
        entries[other] = [&](GgufBuilder& b) { b.tensor(other, {2}, 0, raw(1.5f) + raw(4.0f)); };
        for (auto entry = entries.begin(); entry != entries.end();) {
          const bool is_tensor = entry->first.ends_with(".weight");
          entry = is_tensor && number == 0 ? entries.erase(entry) : std::next(entry);
        }
        entries["split"] = [=](GgufBuilder& b) { b.u32("split.no", number).u32("split.count", 2); };
      });
      folder.write(number == 0 ? "m-00001-of-00002.gguf" : "m-00002-of-00002.gguf", part);
    }
  };
  write("rope_freqs.weight");
  EXPECT_EQ(open().config.rope.frequency_divisors, (std::vector<float>{1.5f, 4.0f}));
  write("rope_factors_long.weight");
  EXPECT_HAS(error_of(ErrorCode::kCorruptFile, open),
             "the number of RoPE frequency divisors is 0, expected 2");
}

TEST(GgufCheckpoint, ReadsTheTokenizerIfThereIsOne) {
  using Entries = std::map<std::string, std::function<void(GgufBuilder&)>>;
  const auto open = [](const std::function<void(GgufBuilder&)>& add) {
    const std::string file = gguf_model([&](Entries& e) { e["tokenizer"] = add; });
    return parse_gguf_checkpoint(bytes_of(file), "m.gguf", {});
  };
  std::string tokens, scores, types;
  for (const char* token : {"<unk>", "<s>", "a", "b", "ab"}) tokens += gguf_string(token);
  for (const float score : {0.0f, 0.0f, -2.0f, -3.0f, -1.0f}) scores += raw(score);
  for (const std::int32_t type : {2, 3, 1, 1, 1}) types += raw(type);
  const auto add_tokens = [&](GgufBuilder& b) {
    b.text("tokenizer.ggml.model", "llama").array("tokenizer.ggml.tokens", kIdString, 5, tokens);
  };
  EXPECT_EQ(open([](GgufBuilder&) {}).tokenizer, nullptr);
  EXPECT_EQ(open([](GgufBuilder& b) { b.text("tokenizer.ggml.model", "no_vocab"); }).tokenizer, nullptr);
  const Checkpoint whole = open([&](GgufBuilder& b) {
    add_tokens(b);
    b.array("tokenizer.ggml.scores", kIdF32, 5, scores).array("tokenizer.ggml.token_type", kIdI32, 5, types);
    b.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.unknown_token_id", 0);
    b.entry("tokenizer.ggml.add_bos_token", kIdBool, raw(std::uint8_t{1}));
    b.entry("tokenizer.ggml.add_space_prefix", kIdBool, raw(std::uint8_t{0}));
    b.text("tokenizer.chat_template", "{{ x }}");
  });
  ASSERT_NE(whole.tokenizer, nullptr);
  EXPECT_EQ(whole.tokenizer->encode("aba"), (std::vector<TokenId>{1, 4, 2}));
  EXPECT_EQ(whole.tokenizer->bos_token_id(), 1);
  EXPECT_EQ(whole.chat.templates.at("default"), "{{ x }}");

  const auto refusal = [&](const std::function<void(GgufBuilder&)>& add) {
    return error_of(ErrorCode::kCorruptFile, [&] { open(add); });
  };
  EXPECT_HAS(refusal([](GgufBuilder& b) { b.text("tokenizer.ggml.model", "llama"); }),
             "'tokenizer.ggml.tokens': is missing");
  // Without them each character would be a token of its own.
  EXPECT_HAS(refusal([&](GgufBuilder& b) {
               b.text("tokenizer.ggml.model", "gpt2").array("tokenizer.ggml.tokens", kIdString, 5, tokens);
             }),
             "'tokenizer.ggml.merges': is missing");
  EXPECT_HAS(refusal([&](GgufBuilder& b) {
               add_tokens(b);
               b.array("tokenizer.ggml.token_type", kIdI32, 1, raw(-1));
             }),
             "holds -1, which is no token type");
  EXPECT_HAS(refusal([](GgufBuilder& b) {
               b.text("tokenizer.ggml.model", "llama").text("tokenizer.ggml.tokens", "a");
             }),
             "an array was expected");
  EXPECT_HAS(refusal([](GgufBuilder& b) { b.text("tokenizer.chat_template", "\xff"); }),
             "'tokenizer.chat_template' (byte ");
}

TEST(GgufCheckpoint, SaysWhatIsNotSupported) {
  const auto text = [](const char* key, const char* value) {
    return gguf_model([=](auto& e) { e[key] = [=](GgufBuilder& b) { b.text(key, value); }; });
  };
  const auto number = [](const char* key, std::uint32_t value) {
    return gguf_model([=](auto& e) { e[key] = [=](GgufBuilder& b) { b.u32(key, value); }; });
  };
  const auto tensor = [](const char* name, std::uint32_t type, std::size_t bytes) {
    return gguf_model([=](auto& e) {
      e[name] = [=](GgufBuilder& b) { b.tensor(name, {32}, type, std::string(bytes, 'x')); };
    });
  };
  const struct {
    std::string file;
    const char* expected;
  } cases[] = {
      {text("general.architecture", "bert"), "the architecture 'bert' is not supported; supported are llama"},
      {text("general.type", "adapter"), "it holds a 'adapter', not a model"},
      {text("llama.rope.scaling.type", "dynamic"), "the RoPE scaling 'dynamic' is not supported"},
      {number("llama.rope.scaling.attn_factor", 2), "only together with the RoPE scalings yarn"},
      {number("llama.expert_shared_count", 1), "experts that all tokens share"},
      {gguf_model([](auto& e) {
         e["causal"] = [](GgufBuilder& b) {
           b.entry("llama.attention.causal", kIdBool, raw(std::uint8_t{0}));
         };
       }),
       "attention to later tokens"},
      {number("split.count", 3),
       "it is one of 3 parts of a model, which lie in files NAME-00001-of-00003.gguf"},
      {number("llama.attention.value_length", 8), "heads of values that differ in size"},
      {tensor("blk.0.attn_qkv.weight", 0, 128), "m.gguf: blk.0.attn_qkv.weight (byte "},
      {tensor("blk.0.attn_q_norm.weight", 0, 128), "a llama layer has no such tensor"},
      {gguf_model([](auto& e) {
         e["llama.attention.head_count_kv"] = [](GgufBuilder& b) {
           b.array("llama.attention.head_count_kv", kIdI32, 2, raw(1) + raw(2));
         };
       }),
       "'llama.attention.head_count_kv' differs between layers"},
      {gguf_model([](auto& e) {
         e["a"] = [](GgufBuilder& b) { b.u32("llama.attention.sliding_window", 4); };
         e["b"] = [](GgufBuilder& b) { b.u32("llama.attention.sliding_window_pattern", 2); };
       }),
       "a sliding window in some of the layers only"},
  };
  for (const auto& c : cases) {
    EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { parse_gguf(c.file); }), c.expected);
  }
}

TEST(GgufCheckpoint, SurvivesAnyChangedByte) {
  const std::string file = gguf_model();
  int refused = 0;
  for (unsigned seed = 0; seed < 6000; ++seed) {
    std::minstd_rand random(seed + 1);
    std::string damaged = file;
    damaged[random() % 1400] = static_cast<char>(random() % 256);
    try {
      const Checkpoint checkpoint = parse_gguf(damaged);
      for (const auto& [name, tensor] : checkpoint.tensors) {
        ASSERT_GE(tensor.data, bytes_of(damaged).data());
        ASSERT_LE(tensor.data + tensor.size_bytes, bytes_of(damaged).data() + damaged.size());
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(ExpectedTensors, SayWhereTheyCouldBeSplit) {
  ModelConfig config;
  config.architecture = Architecture::kQwen3;
  config.vocab_size = 100;
  config.hidden_size = 16;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  config.qk_norm = QkNorm::kEachHead;
  std::map<std::string, ExpectedTensor> tensors;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    EXPECT_TRUE(tensors.emplace(tensor.name, tensor).second) << tensor.name << " stands there twice";
  }
  EXPECT_EQ(tensors.size(), 3u + 2u * (7u + 7u + 4u));
  const auto expect = [&](const std::string& name, const std::vector<std::int64_t>& shape, SplitAxis split) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_EQ(tensors.at(name).shape, shape) << name;
    EXPECT_EQ(tensors.at(name).split, split) << name;
  };
  expect("embed_tokens.weight", {100, 16}, SplitAxis::kRows);
  expect("lm_head.weight", {100, 16}, SplitAxis::kRows);
  expect("norm.weight", {16}, SplitAxis::kNone);
  expect("layers.1.self_attn.q_proj.weight", {24, 16}, SplitAxis::kRows);
  expect("layers.1.self_attn.v_proj.bias", {8}, SplitAxis::kRows);
  expect("layers.1.self_attn.o_proj.weight", {16, 24}, SplitAxis::kColumns);
  expect("layers.1.self_attn.o_proj.bias", {16}, SplitAxis::kNone);
  expect("layers.1.self_attn.q_norm.weight", {4}, SplitAxis::kNone);
  expect("layers.0.mlp.gate_proj.weight", {40, 16}, SplitAxis::kRows);
  expect("layers.0.mlp.down_proj.weight", {16, 40}, SplitAxis::kColumns);
  config.tied_embeddings = true;
  config.qkv_bias = config.o_bias = config.mlp_bias = false;
  config.qk_norm = QkNorm::kNone;
  EXPECT_EQ(expected_tensors(config).size(), 2u + 2u * 9u);
  config.mixture = {.num_experts = 5,
                    .num_experts_per_token = 2,
                    .intermediate_size = 12,
                    .score_bias = true,
                    .shared_intermediate_size = 20,
                    .shared_gate = true};
  config.layer_has_experts = {false, true};
  tensors.clear();
  for (const ExpectedTensor& tensor : expected_tensors(config)) tensors.emplace(tensor.name, tensor);
  EXPECT_EQ(tensors.size(), 2u + 9u + 6u + 9u);
  expect("layers.0.mlp.gate_proj.weight", {40, 16}, SplitAxis::kRows);
  expect("layers.1.mlp.router.weight", {5, 16}, SplitAxis::kNone);
  expect("layers.1.mlp.e_score_correction.bias", {5}, SplitAxis::kNone);
  expect("layers.1.mlp.experts.down_proj.weight", {5, 16, 12}, SplitAxis::kExperts);
  expect("layers.1.mlp.shared_expert.up_proj.weight", {20, 16}, SplitAxis::kRows);
  expect("layers.1.mlp.shared_expert.down_proj.weight", {16, 20}, SplitAxis::kColumns);
  expect("layers.1.mlp.shared_expert_gate.weight", {16}, SplitAxis::kNone);
  config.latent = {.q_rank = 9, .kv_rank = 10, .nope_dim = 3, .rope_dim = 2, .value_dim = 7};
  config.num_kv_heads = 1;
  config.head_dim = 12;
  tensors.clear();
  for (const ExpectedTensor& tensor : expected_tensors(config)) tensors.emplace(tensor.name, tensor);
  EXPECT_EQ(tensors.size(), 2u + (9u + 4u) + (6u + 9u + 4u));
  expect("layers.0.self_attn.q_b_proj.weight", {30, 9}, SplitAxis::kRows);
  expect("layers.0.self_attn.kv_a_proj_with_mqa.weight", {12, 16}, SplitAxis::kNone);
  expect("layers.0.self_attn.k_b_proj.weight", {6, 10, 3}, SplitAxis::kRows);
  expect("layers.0.self_attn.v_b_proj.weight", {6, 7, 10}, SplitAxis::kRows);
  expect("layers.0.self_attn.o_proj.weight", {16, 42}, SplitAxis::kColumns);
}

}  // namespace
}  // namespace tessera
