// Checkpoints that other tools wrote, compared with what those tools say is in them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/hf_config.h"
#include "model/checkpoint/stored_tensor.h"
#include "model/tokenizer/tokenizer.h"
#include "model_files.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using testing_files::read_file;

const std::filesystem::path kModels = std::filesystem::path(TESSERA_FIXTURES) / "models";

Checkpoint open_golden(const std::string& name,
                       const CheckpointOptions& options = {.load_tokenizer = false}) {
  const std::filesystem::path gguf = kModels / name / "model.gguf";
  return open_checkpoint(std::filesystem::exists(gguf) ? gguf : kModels / name, options);
}

std::uint64_t fnv1a(std::string_view bytes, std::uint64_t state) {
  for (const char byte : bytes) state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return state;
}

struct Digest {
  const char* model;
  std::size_t num_tensors;
  std::uint64_t hash;
};

// Printed by tools/fixtures/checkpoint_digests.py, which reads the files with the safetensors and gguf
// packages.
constexpr Digest kDigests[] = {
    {"gguf_llama3_f32", 20, 0x198655f06f046cdf},
    {"gguf_llama_f16", 21, 0xed6e515376783dd8},
    {"gguf_llama_q8_0", 21, 0x1dad2b23044cc9b3},
    {"gguf_qwen2_q8_0", 26, 0xcac76c07f095671d},
    {"gguf_llama_mixed", 29, 0x260e38b254e6d199},
    {"gguf_llama_codebooks", 11, 0xcae0372a77f98b27},
    {"gguf_granite_q8_0", 21, 0xfba7bd00c1846e1e},
    {"gguf_olmo2_f16", 25, 0x0726a479efab4398},
    {"gguf_smollm3_bf16", 38, 0xd68d85d22ea82c1e},
    {"granite", 21, 0x77c529f479a4c7dd},
    {"granite4", 21, 0x508e0d17330a0808},
    {"olmo2", 25, 0x2073602343ca2748},
    {"gguf_olmo_q8_0", 16, 0x3d4cf5f7ca1b5dc3},
    {"olmo", 16, 0x2e19da86bd431741},
    {"smollm3", 66, 0x9fc9bfb19cfc86e3},
    {"gemma3", 80, 0x5742c1a4f4c65160},
    {"gguf_gemma3_q8_0", 80, 0xf69b33eb558f82d7},
    {"gemma4", 43, 0xecfcaa4ebbfcaf8d},
    {"gemma4_e", 67, 0x236c41a48c73ca41},
    {"gemma4_moe", 47, 0x9222a84bc3b1adb2},
    {"gemma", 20, 0x42fc3d4c09d2d1aa},
    {"gemma2", 35, 0x3cf35ada9dbb003a},
    {"gguf_gemma4_f16", 66, 0x4031a94d4922c236},
    {"gguf_gemma4_moe_q8_0", 48, 0x2b65a8dd95a277bf},
    {"gguf_gemma2_q8_0", 46, 0xd0e86ac6e301a8cd},
    {"gguf_gemma_f16", 20, 0x4bb58b9d436d9d3f},
    {"exaone4", 46, 0x6b3b975eed8814b9},
    {"gguf_exaone4_f16", 47, 0xee7df03b5b895a5d},
    {"gguf_olmo3_q8_0", 47, 0xdedfa1840a466939},
    {"olmo3", 47, 0xda1ea3c56ea48a90},
    {"ernie4_5", 20, 0xc655e438bd2b4707},
    {"gguf_ernie4_5_bf16", 20, 0x3c813d261f1e96dd},
    {"gguf_glm4_q8_0", 29, 0x4a39b141011d0798},
    {"gguf_glm_f16", 25, 0x14cf1553d93520ff},
    {"gguf_seed_oss_q8_0", 27, 0x2649e85da0f3f8ec},
    {"glm", 25, 0xb528dfae87ad0cfd},
    {"glm4", 29, 0x599ec4a8d0397fa6},
    {"seed_oss", 27, 0xce260ebeb28de5ef},
    {"cohere", 18, 0xf673026094005b77},
    {"cohere2", 34, 0x577f724ac9de585d},
    {"gguf_cohere2_f16", 34, 0xc98559c57fff8b6a},
    {"gguf_cohere_q8_0", 18, 0x4e0eb2016464d2f5},
    {"exaone", 21, 0x5c735c851b123dd0},
    {"gguf_exaone_q8_0", 20, 0x0c8952a3b3eb7f53},
    {"gguf_hunyuan_f16", 25, 0x467aac2841bb5adb},
    {"gguf_minicpm_q8_0", 21, 0x389198992b948916},
    {"gguf_ministral3_q8_0", 21, 0x75bbfc750c8d5f95},
    {"helium", 27, 0x8f67167c8f01a374},
    {"hunyuan", 24, 0xe2f58833ee30bdc9},
    {"internlm3", 35, 0xa730c64254d56fee},
    {"minicpm", 20, 0x82bc22b19eff6474},
    {"ministral3", 20, 0x9dc96a15e6a7e49e},
    {"gguf_phi3_q8_0", 15, 0xefcb9f277d173746},
    {"gguf_qwen3_bf16", 24, 0x57833a71347c754b},
    {"llama2", 21, 0xd2cdf12fc9322a1a},
    {"llama3", 20, 0x6e068e2a360eb44a},
    {"llama_linear", 21, 0x88753e793514abb4},
    {"llama_yarn", 21, 0xe26be40787702fc5},
    {"llama_yarn_attention_factor", 20, 0x735e5ccef0160769},
    {"mistral", 21, 0x9e61d56102791b86},
    {"phi3", 15, 0x05067fae8dcca949},
    {"phi3_longrope", 14, 0x96f40fb7b4ef1679},
    {"qwen2", 26, 0xcfbfd5ca6efefe75},
    {"qwen3", 24, 0xe67cee0f1f1c5e70},
    {"gguf_gpt_oss_mxfp4", 41, 0x896067d841e016a1},
    {"gguf_mixtral_mixed", 22, 0xe21d04a2f5ca83b4},
    {"gguf_qwen3_moe_q8_0", 27, 0x289bbe16a1450b05},
    {"gpt_oss", 41, 0xcbc51c16f7f6696c},
    {"gpt_oss_mxfp4", 40, 0x090768cc3f2442be},
    {"mixtral", 23, 0x45b140919e695931},
    {"qwen3_vl_moe", 27, 0x3840c788e8484120},
    {"qwen3_moe", 27, 0x3840c788e8484120},
    {"deepseek_v2", 29, 0xbef5e83b3e5a0df0},
    {"deepseek_v2_groups", 29, 0xf14f2c1d3c3f8bab},
    {"deepseek_v3", 34, 0x00083fcc571405de},
    {"minimax_m2", 29, 0x98e6747f3d8e0803},
    {"gguf_minimax_m2_q8_0", 29, 0xe0cb73021881b8f9},
    {"exaone_moe", 62, 0xaaf63ce746e99ea9},
    {"gguf_exaone_moe_q8_0", 30, 0xbac61f5a39d0fb9e},
    {"hunyuan_moe", 32, 0x503526f1fe0ea5b0},
    {"gguf_hunyuan_moe_q8_0", 33, 0x6333874471118d67},
    {"dots1", 30, 0x4439374613b778ed},
    {"ernie4_5_moe", 49, 0x50bdaed0055d090f},
    {"gguf_deepseek_v2_f16", 29, 0x2d30b40398398a12},
    {"gguf_deepseek_v3_q8_0", 34, 0x445e4ebaa5f6e311},
    {"gguf_dots1_f16", 30, 0xdeef20a6ceb7bba5},
    {"gguf_ernie4_5_moe_q8_0", 49, 0xa5c0c100ab0201cb},
    {"gguf_glm4_moe_q8_0", 32, 0xbb55e07d7fcababe},
    {"gguf_granitemoe_q8_0", 23, 0x42665d523ac50f31},
    {"gguf_granitemoeshared_q8_0", 29, 0x986a33ab9b77e1b0},
    {"gguf_olmoe_q8_0", 27, 0xc14ae043fa6bc949},
    {"gguf_qwen2_moe_q8_0", 37, 0x8a6e125d9534fb66},
    {"glm4_moe", 36, 0x9f3c4d2e9b0150f4},
    {"granitemoe", 23, 0x840d0fa026cc6ba1},
    {"granitemoeshared", 29, 0x736e934876ca43b7},
    {"flex_olmo", 27, 0x6dfb295c68055000},
    {"olmoe", 27, 0x399fdee5899ff55b},
    {"qwen2_moe", 37, 0x576f92f52f1564d3},
    {"qwen3_fp8", 24, 0xb27e31cf7c4563c6},
    {"llama_fp8_tensor", 11, 0x862d481a0132dbed},
    {"llama_fp8_channel", 11, 0xf2f80d759b0fa785},
    {"llama_packed", 11, 0x28f6b2de066103fc},
    {"llama_gptq", 20, 0x38d918cc9e055c80},
    {"qwen2_gptq", 14, 0x361857afabea6d62},
    {"qwen2_awq", 14, 0x742ddae93c96fa68},
    {"starcoder2", 35, 0x986e593f2d7b680c},
    {"phi", 33, 0xb969d1fccdd4372d},
    {"gpt_neox", 28, 0xf2768c606f04da6f},
    {"stablelm", 32, 0xd48e0e94b6a921dc},
    {"nemotron", 24, 0xaca39eda447158ae},
    {"arcee", 19, 0x215f540c092962e6},
    {"cohere_plus", 22, 0xa965f9f48a92cc7d},
    {"gguf_starcoder2_q8_0", 19, 0xc78b74ae48be2b47},
    {"gguf_phi_q8_0", 19, 0x2a042b4acc365c14},
    {"gguf_gpt_neox_q8_0", 16, 0x0e42e1b7631872f8},
    {"gguf_stablelm_q8_0", 18, 0x0d70547323a2366b},
    {"gguf_nemotron_q8_0", 14, 0x1ebbe5cffdfbbeb3},
    {"gguf_arcee_q8_0", 11, 0x50cec21101aa06cf},
    {"gguf_cohere_plus_q8_0", 12, 0xebd2ac9a217dda9a},
    {"llama_nf4", 11, 0xf6886e163032a5b3},
};

TEST(GoldenCheckpoint, HasTheTensorsThatOtherReadersFind) {
  for (const Digest& expected : kDigests) {
    const Checkpoint checkpoint = open_golden(expected.model);
    EXPECT_EQ(checkpoint.tensors.size(), expected.num_tensors) << expected.model;
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const auto& [name, tensor] : checkpoint.tensors) {
      hash = fnv1a(name + " " + std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape) + "\n",
                   hash);
      read_tensor(tensor, [&](std::span<const std::byte> bytes, std::size_t) {
        hash = fnv1a({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, hash);
      });
      EXPECT_NE(tensor.source.find(expected.model), std::string::npos);
    }
    EXPECT_EQ(hash, expected.hash) << expected.model;
    EXPECT_EQ(checkpoint.tensors.count("lm_head.weight"), checkpoint.config.tied_embeddings ? 0u : 1u);
  }
}

struct Sizes {
  const char* model;
  Architecture architecture;
  std::int64_t hidden_size, intermediate_size;
  int num_layers, num_heads, num_kv_heads, head_dim;
  float norm_eps, theta;
  bool tied, qkv_bias, qk_norm;
  RopePairing pairing;
  std::int32_t bos, eos;
};

TEST(GoldenCheckpoint, HasTheSizesThatTheModelsWereMadeWith) {
  constexpr auto kLlama = Architecture::kLlama, kMistral = Architecture::kMistral,
                 kQwen2 = Architecture::kQwen2, kQwen3 = Architecture::kQwen3;
  constexpr auto kHalves = RopePairing::kHalves, kInterleaved = RopePairing::kInterleaved;
  const Sizes cases[] = {
      {"llama2", kLlama, 32, 48, 2, 2, 2, 16, 1e-5f, 1e4f, false, false, false, kHalves, 1, 2},
      {"llama3", kLlama, 16, 48, 2, 4, 2, 16, 1e-5f, 5e5f, true, false, false, kHalves, 286, 287},
      {"llama_linear", kLlama, 16, 48, 2, 2, 1, 8, 1e-6f, 1e4f, false, false, false, kHalves, 1, 2},
      {"llama_yarn", kLlama, 32, 48, 2, 2, 2, 16, 1e-5f, 1e4f, false, false, false, kHalves, 287, 287},
      {"mistral", kMistral, 32, 48, 2, 4, 2, 16, 1e-5f, 1e4f, false, false, false, kHalves, 1, 2},
      {"qwen2", kQwen2, 32, 48, 2, 2, 1, 16, 1e-6f, 1e6f, true, true, false, kHalves, 285, 287},
      {"qwen3", kQwen3, 32, 48, 2, 4, 2, 16, 1e-6f, 1e6f, true, false, true, kHalves, 285, 287},
      {"gguf_llama3_f32", kLlama, 16, 48, 2, 2, 1, 16, 1e-5f, 5e5f, true, false, false, kInterleaved, 286,
       287},
      {"gguf_llama_f16", kLlama, 32, 48, 2, 2, 2, 16, 1e-5f, 1e4f, false, false, false, kInterleaved, 1, 2},
      {"gguf_llama_q8_0", kLlama, 32, 64, 2, 4, 2, 8, 1e-5f, 1e4f, false, false, false, kInterleaved, 1, 2},
      {"gguf_qwen2_q8_0", kQwen2, 32, 64, 2, 2, 1, 16, 1e-6f, 1e6f, true, true, false, kHalves, 285, 287},
      {"gguf_llama_mixed", kLlama, 256, 32, 3, 2, 1, 16, 1e-5f, 1e4f, true, false, false, kInterleaved, 1, 2},
      {"gguf_llama_codebooks", kLlama, 256, 256, 1, 4, 2, 64, 1e-5f, 1e4f, true, false, false, kInterleaved,
       1, 2},
      {"gguf_qwen3_bf16", kQwen3, 32, 48, 2, 4, 2, 16, 1e-6f, 1e6f, true, false, true, kHalves, 285, 287},
  };
  for (const Sizes& expected : cases) {
    const ModelConfig c = open_golden(expected.model).config;
    SCOPED_TRACE(expected.model);
    EXPECT_EQ(c.architecture, expected.architecture);
    EXPECT_EQ(c.vocab_size, 288);
    EXPECT_EQ(c.hidden_size, expected.hidden_size);
    EXPECT_EQ(c.intermediate_size, expected.intermediate_size);
    EXPECT_EQ(c.num_layers, expected.num_layers);
    EXPECT_EQ(c.num_heads, expected.num_heads);
    EXPECT_EQ(c.num_kv_heads, expected.num_kv_heads);
    EXPECT_EQ(c.head_dim, expected.head_dim);
    EXPECT_EQ(c.norm_eps, expected.norm_eps);
    EXPECT_EQ(c.rope.theta, expected.theta);
    EXPECT_EQ(c.rope.pairing, expected.pairing);
    EXPECT_EQ(c.rope.rotary_dim, 0);
    EXPECT_EQ(c.max_seq_len, 256);
    EXPECT_EQ(c.tied_embeddings, expected.tied);
    EXPECT_EQ(c.qkv_bias, expected.qkv_bias);
    EXPECT_FALSE(c.o_bias || c.mlp_bias);
    EXPECT_EQ(c.qk_norm == QkNorm::kEachHead, expected.qk_norm);
    EXPECT_EQ(c.activation, Activation::kSilu);
    EXPECT_EQ(c.bos_token_id, expected.bos);
    EXPECT_EQ(c.eos_token_ids, std::vector<std::int32_t>{expected.eos});
    EXPECT_EQ(c.sliding_window.has_value(), c.architecture == Architecture::kMistral);
  }
  EXPECT_EQ(open_golden("mistral").config.sliding_window, 12);
}

void expect_yarn(const RopeConfig& rope, float beta_fast, float beta_slow, double attention_factor) {
  ASSERT_TRUE(rope.yarn);
  EXPECT_EQ(rope.yarn->factor, 4);
  EXPECT_EQ(rope.yarn->original_max_seq_len, 64);
  EXPECT_EQ(rope.yarn->beta_fast, beta_fast);
  EXPECT_EQ(rope.yarn->beta_slow, beta_slow);
  EXPECT_FLOAT_EQ(rope.yarn->attention_factor.value(), static_cast<float>(attention_factor));
  EXPECT_TRUE(rope.yarn->truncate);
}

TEST(GoldenCheckpoint, HasTheRopeScaling) {
  const double implied = 0.1 * std::log(4.0) + 1;
  expect_yarn(open_golden("llama_yarn").config.rope, 8, 0.5, implied);
  expect_yarn(open_golden("llama_yarn_attention_factor").config.rope, 32, 1, 1.25);
  expect_yarn(open_golden("gguf_qwen3_bf16").config.rope, 8, 0.5, implied);
  EXPECT_EQ(open_golden("llama_linear").config.rope.linear->factor, 4);
  EXPECT_EQ(open_golden("gguf_llama_f16").config.rope.linear->factor, 4);
  const RopeConfig llama3 = open_golden("llama3").config.rope;
  ASSERT_TRUE(llama3.llama3);
  EXPECT_EQ(llama3.llama3->factor, 8);
  EXPECT_EQ(llama3.llama3->original_max_seq_len, 32);
  for (const char* plain : {"llama2", "mistral", "qwen2", "qwen3", "gguf_llama_q8_0", "gguf_qwen2_q8_0"}) {
    const RopeConfig rope = open_golden(plain).config.rope;
    EXPECT_FALSE(rope.linear || rope.llama3 || rope.yarn) << plain;
    EXPECT_TRUE(rope.frequency_divisors.empty()) << plain;
  }
}

TEST(GoldenCheckpoint, HasLongRopesFactors) {
  for (const auto& [model, original, rotary_dim] :
       {std::tuple("phi3_longrope", 32, 12), std::tuple("gguf_phi3_q8_0", 128, 12)}) {
    const RopeConfig rope = open_golden(model).config.rope;
    SCOPED_TRACE(model);
    EXPECT_EQ(rope.rotary_dim, rotary_dim);
    EXPECT_EQ(rope.pairing, RopePairing::kHalves);
    ASSERT_TRUE(rope.longrope);
    EXPECT_EQ(rope.longrope->short_divisors, (std::vector<float>{1, 1.1f, 1.25f, 1.5f, 1.8f, 2.5f}));
    EXPECT_EQ(rope.longrope->long_divisors, (std::vector<float>{1.05f, 1.6f, 2.5f, 4, 6, 9}));
    EXPECT_EQ(rope.longrope->original_max_seq_len, original);
    EXPECT_FLOAT_EQ(rope.longrope->attention_factor,
                    static_cast<float>(std::sqrt(1 + std::log(256.0 / original) / std::log(original))));
  }
  EXPECT_EQ(open_golden("phi3").config.sliding_window, 12);
  EXPECT_EQ(open_golden("phi3").config.rope.rotary_dim, 4);
  EXPECT_FALSE(open_golden("phi3_longrope").config.sliding_window);
  EXPECT_EQ(open_golden("gguf_phi3_q8_0").config.sliding_window, 20);
}

TEST(GoldenCheckpoint, HasMixturesOfExpertsOfOlmoeAndGranite) {
  for (const std::string name : {"olmoe", "gguf_olmoe_q8_0"}) {
    SCOPED_TRACE(name);
    const ModelConfig c = open_golden(name).config;
    EXPECT_EQ(c.architecture, Architecture::kOlmoe);
    EXPECT_EQ(c.qk_norm, QkNorm::kAllHeads);
    const MixtureConfig expected = {.num_experts = 6,
                                    .num_experts_per_token = 3,
                                    .intermediate_size = c.intermediate_size,
                                    .normalized = false};
    EXPECT_EQ(c.mixture, expected);
  }
  for (const std::string name : {"granitemoe", "gguf_granitemoe_q8_0"}) {
    SCOPED_TRACE(name);
    const ModelConfig c = open_golden(name).config;
    EXPECT_EQ(c.architecture, Architecture::kGraniteMoe);
    const MixtureConfig expected = {
        .num_experts = 4, .num_experts_per_token = 2, .intermediate_size = c.intermediate_size};
    EXPECT_EQ(c.mixture, expected);
    EXPECT_EQ(c.softmax_scale, 0.3f);
    EXPECT_EQ(c.embedding_scale, 1.5f);
    EXPECT_EQ(c.residual_scale, 0.7f);
    EXPECT_EQ(c.logits_scale, 0.5f);
  }
}

TEST(GoldenCheckpoint, HasExpertsThatAllTokensShare) {
  const std::vector<bool> all, all_but_first = {false, true}, every_second = {false, true, false, true};
  for (const auto& [name, architecture, shared, has_gate, has_bias, layers] :
       {std::tuple("qwen2_moe", Architecture::kQwen2Moe, 24, true, false, all),
        std::tuple("gguf_qwen2_moe_q8_0", Architecture::kQwen2Moe, 64, true, false, all),
        std::tuple("granitemoeshared", Architecture::kGraniteMoe, 24, false, false, all),
        std::tuple("gguf_granitemoeshared_q8_0", Architecture::kGraniteMoe, 64, false, false, all),
        std::tuple("glm4_moe", Architecture::kGlm4Moe, 32, false, true, all_but_first),
        std::tuple("gguf_glm4_moe_q8_0", Architecture::kGlm4Moe, 32, false, true, all_but_first),
        std::tuple("dots1", Architecture::kDots1, 16, false, true, all_but_first),
        std::tuple("gguf_dots1_f16", Architecture::kDots1, 16, false, true, all_but_first),
        std::tuple("ernie4_5_moe", Architecture::kErnie45Moe, 32, false, true, every_second),
        std::tuple("gguf_ernie4_5_moe_q8_0", Architecture::kErnie45Moe, 32, false, true, every_second)}) {
    SCOPED_TRACE(name);
    const ModelConfig c = open_golden(name).config;
    EXPECT_EQ(c.architecture, architecture);
    ASSERT_TRUE(c.mixture);
    EXPECT_EQ(c.mixture->shared_intermediate_size, shared);
    EXPECT_EQ(c.mixture->shared_gate, has_gate);
    EXPECT_EQ(c.mixture->score_bias, has_bias);
    EXPECT_EQ(c.layer_has_experts, layers);
    const bool is_glm = architecture == Architecture::kGlm4Moe,
               is_dots = architecture == Architecture::kDots1;
    EXPECT_EQ(c.mixture->scoring == ExpertScoring::kSigmoid, is_glm || is_dots);
    EXPECT_EQ(c.mixture->num_groups, is_glm ? 2 : 1);
    EXPECT_EQ(c.mixture->num_groups_per_token, 1);
    EXPECT_EQ(c.mixture->weight_scale, is_glm ? 1.5f : is_dots ? 2.5f : 1);
    EXPECT_EQ(c.mixture->normalized, !is_dots && architecture != Architecture::kQwen2Moe);
    EXPECT_EQ(c.rope.rotary_dim, is_glm ? 8 : 0);
  }
  EXPECT_EQ(open_golden("glm4_moe").config.qk_norm, QkNorm::kEachHead);
  EXPECT_EQ(open_golden("gguf_glm4_moe_q8_0").config.qk_norm, QkNorm::kNone);
}

TEST(GoldenCheckpoint, HasLatentAttention) {
  for (const auto& [name, latent] :
       {std::pair("deepseek_v2",
                  LatentAttentionConfig{.kv_rank = 24, .nope_dim = 16, .rope_dim = 8, .value_dim = 12}),
        std::pair("gguf_deepseek_v2_f16",
                  LatentAttentionConfig{.kv_rank = 32, .nope_dim = 16, .rope_dim = 16, .value_dim = 16}),
        std::pair("deepseek_v3",
                  LatentAttentionConfig{
                      .q_rank = 24, .kv_rank = 32, .nope_dim = 16, .rope_dim = 8, .value_dim = 16}),
        std::pair("gguf_deepseek_v3_q8_0",
                  LatentAttentionConfig{
                      .q_rank = 32, .kv_rank = 32, .nope_dim = 32, .rope_dim = 16, .value_dim = 32})}) {
    SCOPED_TRACE(name);
    const ModelConfig c = open_golden(name).config;
    EXPECT_EQ(c.architecture, Architecture::kDeepSeek);
    EXPECT_EQ(c.latent, latent);
    EXPECT_EQ(c.num_kv_heads, 1);
    EXPECT_EQ(c.head_dim, latent.kv_rank + latent.rope_dim);
    EXPECT_EQ(c.rope.rotary_dim, latent.rope_dim);
    const bool is_v3 = latent.q_rank > 0;
    const double mscale = is_v3 ? 0.1 * std::log(4.0) + 1 : 1;
    EXPECT_FLOAT_EQ(*c.softmax_scale, static_cast<float>(mscale * mscale / std::sqrt(latent.query_dim())));
    EXPECT_EQ(c.rope.yarn.has_value(), is_v3);
    EXPECT_EQ(c.rope.yarn.value_or(RopeYarnScaling{.attention_factor = 1}).attention_factor, 1);
    EXPECT_EQ(c.mixture->scoring == ExpertScoring::kSigmoid && c.mixture->score_bias, is_v3);
    EXPECT_EQ(c.mixture->num_groups, is_v3 ? 2 : 1);
    EXPECT_EQ(c.mixture->weight_scale, 1.5f);
    EXPECT_EQ(c.layer_has_experts, (std::vector<bool>{false, true}));
  }
}

TEST(GoldenCheckpoint, HasMixturesOfExperts) {
  for (const auto& [name, architecture, width] :
       {std::tuple("qwen3_moe", Architecture::kQwen3Moe, 32),
        std::tuple("mixtral", Architecture::kMixtral, 32), std::tuple("gpt_oss", Architecture::kGptOss, 32),
        std::tuple("gpt_oss_mxfp4", Architecture::kGptOss, 64),
        std::tuple("gguf_qwen3_moe_q8_0", Architecture::kQwen3Moe, 32),
        std::tuple("gguf_mixtral_mixed", Architecture::kMixtral, 32),
        std::tuple("gguf_gpt_oss_mxfp4", Architecture::kGptOss, 64)}) {
    const ModelConfig c = open_golden(name).config;
    SCOPED_TRACE(name);
    EXPECT_EQ(c.architecture, architecture);
    ASSERT_TRUE(c.mixture);
    EXPECT_EQ(c.mixture->num_experts, 4);
    EXPECT_EQ(c.mixture->num_experts_per_token, 2);
    EXPECT_EQ(c.mixture->intermediate_size, width);
    EXPECT_TRUE(c.mixture->normalized && c.layer_has_experts.empty());
    const bool is_gpt_oss = architecture == Architecture::kGptOss;
    EXPECT_EQ(c.mixture->router_bias && c.mixture->expert_bias && c.attention_sinks && c.o_bias, is_gpt_oss);
    EXPECT_EQ(c.layer_uses_sliding_window,
              is_gpt_oss ? std::vector<bool>({true, false}) : std::vector<bool>());
    EXPECT_EQ(c.rope.yarn.has_value() && !c.rope.yarn->truncate, is_gpt_oss);
  }
}

/// A folder's tensors and what they hold, to be written in another form.
struct FolderTensors {
  std::map<std::string, std::pair<nlohmann::json, std::string>> tensors;  // dtype and shape; bytes

  explicit FolderTensors(const std::filesystem::path& folder) {
    const std::string file = read_file(folder / "model.safetensors");
    std::uint64_t header_size = 0;
    std::memcpy(&header_size, file.data(), sizeof(header_size));
    const nlohmann::json header = nlohmann::json::parse(file.substr(8, header_size));
    for (const auto& [name, tensor] : header.items()) {
      if (name == "__metadata__") continue;
      const std::size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      tensors[name] = {tensor, file.substr(8 + header_size + begin, end - begin)};
    }
  }

  std::string file() const {
    nlohmann::json header;
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header[name] = tensor.first;
      header[name]["data_offsets"] = {data.size(), data.size() + tensor.second.size()};
      data += tensor.second;
    }
    return testing_files::safetensors(header.dump(), data);
  }
};

std::string bytes_of_tensor(const CheckpointTensor& tensor) {
  std::string bytes;
  read_tensor(tensor, [&](std::span<const std::byte> part, std::size_t first) {
    EXPECT_EQ(first, bytes.size());
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  });
  return bytes;
}

// As transformers 5 has them in memory.
TEST(GoldenCheckpoint, ReadsExpertsOfALayerInOneTensor) {
  const std::filesystem::path golden = kModels / "qwen3_moe";
  const Checkpoint expected = open_golden("qwen3_moe");
  FolderTensors packed(golden);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    std::string gate_up, down;
    for (int expert = 0; expert < 4; ++expert) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        auto node = packed.tensors.extract(fmt::format("{}{}.{}.weight", prefix, expert, part));
        (part == std::string("down_proj") ? down : gate_up) += node.mapped().second;
      }
    }
    packed.tensors[prefix + "gate_up_proj"] = {{{"dtype", "BF16"}, {"shape", {4, 64, 16}}}, gate_up};
    packed.tensors[prefix + "down_proj"] = {{{"dtype", "BF16"}, {"shape", {4, 16, 32}}}, down};
  }
  const testing_files::TemporaryFolder folder;
  folder.write("config.json", read_file(golden / "config.json"));
  folder.write("model.safetensors", packed.file());
  const Checkpoint got = open_checkpoint(folder.path(), {.load_tokenizer = false});
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_EQ(got.tensors.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(bytes_of_tensor(got.tensors.at(name)), bytes_of_tensor(tensor)) << name;
  }
}

TEST(GoldenCheckpoint, SaysWhichExpertIsWrong) {
  const auto error_with = [](const char* model, const std::function<void(FolderTensors&)>& change) {
    FolderTensors tensors(kModels / model);
    change(tensors);
    const testing_files::TemporaryFolder folder;
    folder.write("config.json", read_file(kModels / model / "config.json"));
    folder.write("model.safetensors", tensors.file());
    try {
      open_checkpoint(folder.path(), {.load_tokenizer = false});
      return std::string("no error");
    } catch (const Error& error) {
      return error.message();
    }
  };
  const auto expect_part = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const std::string up = "model.layers.1.mlp.experts.3.up_proj.weight";
  expect_part(error_with("qwen3_moe", [&](FolderTensors& t) { t.tensors.erase(up); }),
              "the tensor 'layers.1.mlp.experts.3.up_proj.weight' is missing");
  expect_part(error_with("qwen3_moe",
                         [&](FolderTensors& t) {
                           t.tensors.at(up).first["shape"] = {16, 32};
                         }),
              "it is BF16 (16, 32); BF16 (32, 16) was expected as of the first expert");
  expect_part(error_with("qwen3_moe", [&](FolderTensors& t) { t.tensors.at(up).first["shape"] = {32 * 16}; }),
              "2 dimensions that are not 0 were expected");
  expect_part(error_with("qwen3_moe",
                         [&](FolderTensors& t) {
                           auto extra = t.tensors.at(up);
                           t.tensors["model.layers.1.mlp.experts.4.up_proj.weight"] = extra;
                         }),
              "a qwen3_moe layer has no such tensor");
  const std::string scales = "model.layers.0.mlp.experts.gate_up_proj_scales";
  const std::string blocks = "model.layers.0.mlp.experts.gate_up_proj_blocks";
  expect_part(error_with("gpt_oss_mxfp4", [&](FolderTensors& t) { t.tensors.erase(scales); }),
              "gate_up_proj_scales' is missing");
  expect_part(error_with("gpt_oss_mxfp4",
                         [&](FolderTensors& t) {
                           t.tensors.at(scales).first["shape"] = {4, 1, 128};
                         }),
              "it is U8 (4, 1, 128); U8 (4, 128, 1) was expected as of the blocks");
  expect_part(error_with("gpt_oss_mxfp4",
                         [&](FolderTensors& t) {
                           t.tensors.at(blocks).first["shape"] = {4, 128, 2, 8};
                         }),
              "U8 (experts, rows, blocks, 16) was expected");
  expect_part(error_with("gpt_oss_mxfp4",
                         [&](FolderTensors& t) {
                           t.tensors.at(scales).first["shape"] = {2, 256, 1};
                           t.tensors.at(blocks).first["shape"] = {2, 256, 1, 16};
                         }),
              "the shape is (2, 128, 32), but the configuration calls for (4, 64, 32)");
}

TEST(GoldenCheckpoint, HasGemmasLayers) {
  for (const auto& [name, window, factor, offset] :
       {std::tuple("gemma3", 12, 8.0f, 1.0f), std::tuple("gguf_gemma3_q8_0", 20, 1.0f, 0.0f)}) {
    const ModelConfig c = open_golden(name).config;
    SCOPED_TRACE(name);
    EXPECT_EQ(c.architecture, Architecture::kGemma3);
    EXPECT_EQ(c.activation, Activation::kGeluTanh);
    EXPECT_TRUE(c.norms_before && c.norms_after && c.tied_embeddings && c.rounds_embedding_scale);
    EXPECT_EQ(c.norm_offset, offset);
    EXPECT_EQ(c.embedding_scale, std::sqrt(static_cast<float>(c.hidden_size)));
    EXPECT_EQ(c.softmax_scale, 1 / std::sqrt(static_cast<float>(c.head_dim)));
    EXPECT_EQ(c.sliding_window, window);
    EXPECT_EQ(c.layer_uses_sliding_window, (std::vector<bool>{true, true, true, true, true, false}));
    EXPECT_EQ(c.rope.theta, 1e6f);
    EXPECT_EQ(c.rope.linear.value_or(RopeLinearScaling{}).factor, factor);
    ASSERT_TRUE(c.sliding_rope);
    EXPECT_EQ(c.sliding_rope->theta, 1e4f);
    EXPECT_FALSE(c.sliding_rope->linear);
  }
}

TEST(GoldenCheckpoint, HasGemma4sLayers) {
  const ModelConfig dense = open_golden("gemma4").config;
  EXPECT_EQ(dense.full_attention, (FullAttentionConfig{1, 16, /*keys_as_values=*/true}));
  EXPECT_EQ(dense.head_dim, 8);
  EXPECT_EQ(dense.softmax_scale, 1.0f);
  EXPECT_EQ(dense.norm_offset, 0);
  EXPECT_EQ(dense.rope.num_turned_pairs, 4);
  EXPECT_EQ(dense.sliding_rope.value().num_turned_pairs, 0);
  EXPECT_EQ(dense.sliding_rope->theta, 100);
  EXPECT_EQ(dense.layer_uses_sliding_window, (std::vector<bool>{true, true, false}));
  EXPECT_TRUE(dense.v_norm && dense.layer_scales && !dense.mixture);
  EXPECT_EQ(dense.layer_embedding_size, 0);

  const ModelConfig shared = open_golden("gemma4_e").config;
  EXPECT_EQ(shared.full_attention, (FullAttentionConfig{2, 16, /*keys_as_values=*/false}));
  EXPECT_EQ(shared.layer_embedding_size, 8);
  EXPECT_EQ(shared.num_shared_kv_layers, 2);
  EXPECT_EQ(intermediate_size(shared, 1), 32);
  EXPECT_EQ(intermediate_size(shared, 2), 64);
  EXPECT_EQ(kv_layer(shared, 1), 1);
  EXPECT_EQ(kv_layer(shared, 2), 0) << "the last layer before them that slides";
  EXPECT_EQ(kv_layer(shared, 3), 1);

  const ModelConfig mixed = open_golden("gemma4_moe").config;
  ASSERT_TRUE(mixed.mixture);
  EXPECT_EQ(mixed.mixture->num_experts, 6);
  EXPECT_EQ(mixed.mixture->num_experts_per_token, 2);
  EXPECT_EQ(mixed.mixture->intermediate_size, 16);
  EXPECT_TRUE(mixed.mixture->beside_mlp && mixed.mixture->expert_scales && mixed.mixture->normalized);
}

TEST(GoldenCheckpoint, HasTheLayersThatSlideOfOlmo3AndExaone4) {
  const std::vector<bool> three_of_four = {true, true, true, false};
  for (const auto& [name, window] : {std::pair("olmo3", 12), std::pair("gguf_olmo3_q8_0", 20)}) {
    const ModelConfig c = open_golden(name).config;
    SCOPED_TRACE(name);
    EXPECT_EQ(c.architecture, Architecture::kOlmo2);
    EXPECT_EQ(c.sliding_window, window);
    EXPECT_EQ(c.layer_uses_sliding_window, three_of_four);
    EXPECT_TRUE(c.layer_uses_rope.empty());
    EXPECT_TRUE(c.rope.yarn);
    ASSERT_TRUE(c.sliding_rope);
    EXPECT_FALSE(c.sliding_rope->yarn);
    EXPECT_EQ(c.sliding_rope->theta, 5e5f);
  }
  for (const auto& [name, window] : {std::pair("exaone4", 12), std::pair("gguf_exaone4_f16", 20)}) {
    const ModelConfig c = open_golden(name).config;
    SCOPED_TRACE(name);
    EXPECT_EQ(c.architecture, Architecture::kExaone4);
    EXPECT_EQ(c.qk_norm, QkNorm::kEachHead);
    EXPECT_TRUE(c.norms_after && !c.norms_before && !c.sliding_rope);
    EXPECT_EQ(c.sliding_window, window);
    EXPECT_EQ(c.layer_uses_sliding_window, three_of_four);
    EXPECT_EQ(c.layer_uses_rope, three_of_four);
  }
}

TEST(GoldenCheckpoint, HasTheRopeOfPairsSideBySide) {
  for (const auto& [name, architecture, rotary_dim] :
       {std::tuple("glm4", Architecture::kGlm4, 8), std::tuple("gguf_glm4_q8_0", Architecture::kGlm4, 8),
        std::tuple("glm", Architecture::kGlm, 12), std::tuple("gguf_glm_f16", Architecture::kGlm, 8),
        std::tuple("ernie4_5", Architecture::kErnie45, 0),
        std::tuple("gguf_ernie4_5_bf16", Architecture::kErnie45, 0)}) {
    const ModelConfig c = open_golden(name).config;
    SCOPED_TRACE(name);
    EXPECT_EQ(c.architecture, architecture);
    EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
    EXPECT_EQ(c.rope.rotary_dim, rotary_dim);
    EXPECT_EQ(c.qkv_bias, architecture != Architecture::kErnie45);
    EXPECT_EQ(c.fused_gate_up, architecture != Architecture::kErnie45);
    EXPECT_EQ(c.norms_after, architecture == Architecture::kGlm4);
    EXPECT_FALSE(c.o_bias || c.mlp_bias || c.fused_qkv);
  }
}

TEST(GoldenCheckpoint, HasCoheresParallelBlocks) {
  for (const auto& [name, architecture, scale, window] :
       {std::tuple("cohere", Architecture::kCohere, 0.5f, 0),
        std::tuple("gguf_cohere_q8_0", Architecture::kCohere, 0.5f, 0),
        std::tuple("cohere2", Architecture::kCohere2, 0.25f, 12),
        std::tuple("gguf_cohere2_f16", Architecture::kCohere2, 0.25f, 20)}) {
    const ModelConfig c = open_golden(name).config;
    SCOPED_TRACE(name);
    EXPECT_EQ(c.architecture, architecture);
    EXPECT_EQ(c.norm, NormKind::kLayer);
    EXPECT_EQ(c.norm_eps, 1e-5f);
    EXPECT_TRUE(c.parallel_blocks && c.tied_embeddings);
    EXPECT_EQ(c.logits_scale, scale);
    EXPECT_EQ(c.rope.pairing, RopePairing::kInterleaved);
    EXPECT_EQ(c.sliding_window.value_or(0), window);
    if (window == 0) continue;
    EXPECT_EQ(c.layer_uses_sliding_window, (std::vector<bool>{true, true, true, false}));
    EXPECT_EQ(c.layer_uses_rope, c.layer_uses_sliding_window);
  }
}

TEST(GoldenCheckpoint, HasGemma2sSoftcaps) {
  for (const auto& [name, window, attention, logits, layers] :
       {std::tuple("gemma2", 12, 2.0f, 1.5f, std::vector<bool>{true, false, true}),
        std::tuple("gguf_gemma2_q8_0", 20, 3.0f, 2.0f, std::vector<bool>{true, false, true, false})}) {
    const ModelConfig c = open_golden(name).config;
    SCOPED_TRACE(name);
    EXPECT_EQ(c.architecture, Architecture::kGemma2);
    EXPECT_EQ(c.activation, Activation::kGeluTanh);
    EXPECT_TRUE(c.norms_before && c.norms_after && c.tied_embeddings && c.rounds_embedding_scale);
    EXPECT_EQ(c.qk_norm, QkNorm::kNone);
    EXPECT_EQ(c.embedding_scale, std::sqrt(static_cast<float>(c.hidden_size)));
    EXPECT_EQ(c.softmax_scale, 0.25f);
    EXPECT_EQ(c.attention_softcap, attention);
    EXPECT_EQ(c.logits_softcap, logits);
    EXPECT_EQ(c.sliding_window, window);
    EXPECT_EQ(c.layer_uses_sliding_window, layers);
    EXPECT_FALSE(c.sliding_rope);
  }
  for (const char* name : {"gemma", "gguf_gemma_f16"}) {
    const ModelConfig c = open_golden(name).config;
    SCOPED_TRACE(name);
    EXPECT_EQ(c.architecture, Architecture::kGemma);
    EXPECT_EQ(c.activation, Activation::kGeluTanh);
    EXPECT_TRUE(c.norms_before && c.tied_embeddings && c.rounds_embedding_scale);
    EXPECT_FALSE(c.norms_after || c.sliding_window || c.softmax_scale || c.logits_softcap);
    EXPECT_EQ(c.embedding_scale, std::sqrt(static_cast<float>(c.hidden_size)));
    EXPECT_EQ(c.head_dim, 24);
  }
}

struct PartForText {
  const char* model;
  const char* class_name;
  const char* model_type;  // of text_config
};

// As transformers 4 and 5 name the tensors of a model that takes images, too.
TEST(GoldenCheckpoint, FindsThePartForTextOfAModelOfImages) {
  for (const PartForText& part :
       {PartForText{"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text"},
        PartForText{"gemma4", "Gemma4ForConditionalGeneration", "gemma4_text"},
        PartForText{"gemma4", "Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text"},
        PartForText{"mistral", "Mistral3ForConditionalGeneration", "mistral"},
        PartForText{"qwen2", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text"},
        PartForText{"qwen2", "Qwen2VLForConditionalGeneration", "qwen2_vl_text"},
        PartForText{"qwen3", "Qwen3VLForConditionalGeneration", "qwen3_vl_text"}}) {
    SCOPED_TRACE(part.class_name);
    const Checkpoint expected = open_golden(part.model);
    const std::string file = read_file(kModels / part.model / "model.safetensors");
    std::uint64_t header_size = 0;
    std::memcpy(&header_size, file.data(), sizeof(header_size));
    const nlohmann::json header = nlohmann::json::parse(file.substr(8, header_size));
    nlohmann::json text = nlohmann::json::parse(read_file(kModels / part.model / "config.json"));
    text["model_type"] = part.model_type;
    if (std::string_view(part.class_name).starts_with("Qwen")) {
      const char* key = text.contains("rope_parameters") ? "rope_parameters" : "rope_scaling";
      if (!text[key].is_object()) text[key] = {{"type", "mrope"}};
      text[key]["mrope_section"] = {2, 3, 3};
    }
    const nlohmann::json config = {{"architectures", {part.class_name}}, {"text_config", text}};
    for (const std::string prefix : {"language_model.model.", "model.language_model."}) {
      SCOPED_TRACE(prefix);
      // What is no part of it is left out.
      nlohmann::json renamed = {{"vision_tower.encoder.layers.0.mlp.fc1.bias",
                                 {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}}}};
      for (const auto& [name, tensor] : header.items()) {
        renamed[name.starts_with("model.") ? prefix + name.substr(6) : name] = tensor;
      }
      const testing_files::TemporaryFolder folder;
      folder.write("model.safetensors",
                   testing_files::safetensors(renamed.dump(), file.substr(8 + header_size)));
      folder.write("config.json", config.dump());
      const Checkpoint got = open_checkpoint(folder.path(), {.load_tokenizer = false});
      ASSERT_EQ(got.tensors.size(), expected.tensors.size());
      for (const auto& [name, tensor] : expected.tensors) {
        const CheckpointTensor& other = got.tensors.at(name);
        EXPECT_EQ(other.shape, tensor.shape) << name;
        EXPECT_EQ(std::memcmp(other.data, tensor.data, tensor.size_bytes), 0) << name;
      }
      EXPECT_EQ(got.config.architecture, expected.config.architecture);
      EXPECT_EQ(got.config.hidden_size, expected.config.hidden_size);
      EXPECT_EQ(got.config.num_kv_heads, expected.config.num_kv_heads);
      EXPECT_EQ(got.config.head_dim, expected.config.head_dim);
      EXPECT_EQ(got.config.qkv_bias, expected.config.qkv_bias);
      EXPECT_EQ(got.config.qk_norm, expected.config.qk_norm);
      EXPECT_EQ(got.config.sliding_window, expected.config.sliding_window);
      EXPECT_EQ(got.config.layer_uses_sliding_window, expected.config.layer_uses_sliding_window);
      EXPECT_EQ(got.config.rope.theta, expected.config.rope.theta);
      EXPECT_EQ(got.config.rope.linear.value_or(RopeLinearScaling{}).factor,
                expected.config.rope.linear.value_or(RopeLinearScaling{}).factor);
    }
  }
}

TEST(GoldenCheckpoint, HasWhatLayersDifferIn) {
  for (const char* name : {"smollm3", "gguf_smollm3_bf16"}) {
    EXPECT_EQ(open_golden(name).config.layer_uses_rope, (std::vector<bool>{true, true, true, false})) << name;
  }
  EXPECT_TRUE(open_golden("llama2").config.layer_uses_rope.empty());
  for (const char* name : {"granite", "gguf_granite_q8_0"}) {
    const ModelConfig c = open_golden(name).config;
    EXPECT_EQ(c.softmax_scale, 0.3f) << name;
    EXPECT_EQ(c.embedding_scale, 1.5f) << name;
    EXPECT_EQ(c.residual_scale, 0.7f) << name;
    EXPECT_EQ(c.logits_scale, 0.5f) << name;
  }
  for (const char* name : {"olmo2", "gguf_olmo2_f16"}) {
    const ModelConfig c = open_golden(name).config;
    EXPECT_EQ(c.qk_norm, QkNorm::kAllHeads) << name;
    EXPECT_FALSE(c.norms_before) << name;
    EXPECT_TRUE(c.norms_after) << name;
    EXPECT_EQ(c.rope.pairing, RopePairing::kHalves) << name;
  }
}

// Llama 3.1's scaling by its definition, with factor 8, low 1, high 4 and 32 positions: frequencies of
// wavelengths below 32 / 4 are kept, those above 32 / 1 divided by 8, and between them the frequencies are
// mixed.
TEST(GoldenCheckpoint, HasTheRopeDivisorsOfGguf) {
  const RopeConfig rope = open_golden("gguf_llama3_f32").config.rope;
  EXPECT_FALSE(rope.llama3);
  ASSERT_EQ(rope.frequency_divisors.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(5e5, static_cast<double>(i) / 8);
    const double kept = std::clamp((32 / wavelength - 1) / (4 - 1), 0.0, 1.0);
    EXPECT_NEAR(rope.frequency_divisors[i] * (kept + (1 - kept) / 8), 1, 1e-6) << i;
  }
}

// The same model as each major version of transformers describes it.
TEST(GoldenCheckpoint, BothConfigStylesAgree) {
  for (const char* model :
       {"llama3", "llama_yarn", "phi3",   "phi3_longrope", "qwen2",    "smollm3",   "granite", "olmo2",
        "olmo3",  "exaone4",    "glm",    "glm4",          "seed_oss", "ernie4_5",  "cohere",  "cohere2",
        "gemma",  "gemma2",     "gemma3", "gemma4",        "gemma4_e", "gemma4_moe"}) {
    const ModelConfig a = parse_hf_config(read_file(kModels / model / "config.json"), "4");
    const ModelConfig b = parse_hf_config(read_file(kModels / model / "config_transformers5.json"), "5");
    SCOPED_TRACE(model);
    EXPECT_EQ(a.architecture, b.architecture);
    EXPECT_EQ(a.hidden_size, b.hidden_size);
    EXPECT_EQ(a.head_dim, b.head_dim);
    EXPECT_EQ(a.full_attention, b.full_attention);
    EXPECT_EQ(a.max_seq_len, b.max_seq_len);
    EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
    EXPECT_EQ(a.sliding_window, b.sliding_window);
    EXPECT_EQ(a.layer_uses_sliding_window, b.layer_uses_sliding_window);
    EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
    EXPECT_EQ(a.rope.theta, b.rope.theta);
    ASSERT_EQ(a.rope.llama3.has_value(), b.rope.llama3.has_value());
    if (a.rope.llama3) {
      EXPECT_EQ(a.rope.llama3->factor, b.rope.llama3->factor);
      EXPECT_EQ(a.rope.llama3->low_freq_factor, b.rope.llama3->low_freq_factor);
      EXPECT_EQ(a.rope.llama3->high_freq_factor, b.rope.llama3->high_freq_factor);
      EXPECT_EQ(a.rope.llama3->original_max_seq_len, b.rope.llama3->original_max_seq_len);
    }
    EXPECT_EQ(a.layer_uses_rope, b.layer_uses_rope);
    EXPECT_EQ(a.softmax_scale, b.softmax_scale);
    EXPECT_EQ(a.residual_scale, b.residual_scale);
    EXPECT_EQ(a.logits_scale, b.logits_scale);
    EXPECT_EQ(a.norm_eps, b.norm_eps);
    EXPECT_EQ(a.activation, b.activation);
    EXPECT_EQ(a.attention_softcap, b.attention_softcap);
    EXPECT_EQ(a.logits_softcap, b.logits_softcap);
    ASSERT_EQ(a.sliding_rope.has_value(), b.sliding_rope.has_value());
    if (a.sliding_rope) {
      EXPECT_EQ(a.sliding_rope->theta, b.sliding_rope->theta);
      EXPECT_EQ(a.rope.linear.value_or(RopeLinearScaling{}).factor,
                b.rope.linear.value_or(RopeLinearScaling{}).factor);
    }
    EXPECT_EQ(a.rope.rotary_dim, b.rope.rotary_dim);
    ASSERT_EQ(a.rope.longrope.has_value(), b.rope.longrope.has_value());
    if (a.rope.longrope) {
      EXPECT_EQ(a.rope.longrope->short_divisors, b.rope.longrope->short_divisors);
      EXPECT_EQ(a.rope.longrope->long_divisors, b.rope.longrope->long_divisors);
      EXPECT_EQ(a.rope.longrope->original_max_seq_len, b.rope.longrope->original_max_seq_len);
      EXPECT_EQ(a.rope.longrope->attention_factor, b.rope.longrope->attention_factor);
    }
    ASSERT_EQ(a.rope.yarn.has_value(), b.rope.yarn.has_value());
    if (a.rope.yarn) {
      EXPECT_EQ(a.rope.yarn->factor, b.rope.yarn->factor);
      EXPECT_EQ(a.rope.yarn->beta_fast, b.rope.yarn->beta_fast);
      EXPECT_EQ(a.rope.yarn->beta_slow, b.rope.yarn->beta_slow);
      EXPECT_EQ(a.rope.yarn->attention_factor, b.rope.yarn->attention_factor);
    }
  }
}

TEST(GoldenCheckpoint, HasTheTokenizer) {
  for (const Digest& golden : kDigests) {
    const Checkpoint checkpoint = open_golden(golden.model, {.load_tokenizer = true});
    ASSERT_NE(checkpoint.tokenizer, nullptr) << golden.model;
    const nlohmann::json expected =
        nlohmann::json::parse(read_file(kModels / golden.model / "expected.json"));
    ASSERT_FALSE(expected["tokenized"].empty());
    for (const auto& item : expected["tokenized"]) {
      EXPECT_EQ(checkpoint.tokenizer->encode(item["text"].get<std::string>()),
                item["tokens"].get<std::vector<TokenId>>())
          << golden.model << ": " << item["text"];
    }
  }
}

}  // namespace
}  // namespace tessera
