#include "model/checkpoint/gguf_export.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "core/mapped_file.h"
#include "core/text.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/gguf_names.h"
#include "model/checkpoint/gguf_recurrent.h"
#include "model/checkpoint/hf_checkpoint.h"
#include "model/tokenizer/tokenizer.h"
#include "tessera/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// What a folder is called: its name or, of one snapshot in a cache of downloads
/// (models--org--NAME/snapshots/commit), the model's.
std::string model_name(const fs::path& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path.parent_path().filename() != "snapshots") return path.filename().string();
  const std::string name = path.parent_path().parent_path().filename().string();
  const std::size_t dashes = name.rfind("--");
  return dashes == name.npos ? name : name.substr(dashes + 2);
}

std::string_view activation_text(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "SiLU";
    case Activation::kGelu:
      return "GELU";
    case Activation::kGeluTanh:
      return "GELU's tanh approximation";
    case Activation::kClampedSilu:
      return "clamped SwiGLU";
    case Activation::kReluSquared:
      return "squared ReLU";
  }
  return "";
}

/// Writes the metadata of one model.
class Exporter {
 public:
  Exporter(const fs::path& folder, GgufModel& model)
      : folder_(folder),
        model_(model),
        config_(model.checkpoint.config),
        metadata_(model.metadata),
        architecture_(gguf_architecture_name(config_.architecture)) {}

  void write() {
    check();
    metadata_.set_text(gguf_keys::kArchitecture, architecture_);
    metadata_.set_text(gguf_keys::kType, "model");
    metadata_.set_text(gguf_keys::kName, model_name(folder_));
    write_sizes();
    write_rope();
    write_tokenizer();
    write_chat();
    list_tensors();
  }

 private:
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", folder_.string(), what));
  }

  std::string key(const char* name) const { return fmt::format("{}.{}", architecture_, name); }

  void check() const {
    if (architecture_.empty())
      unsupported(fmt::format("GGUF files have no name for the architecture {}; run the folder as it is",
                              architecture_name(config_.architecture)));
    if (const Activation usual = architecture_config(config_.architecture).activation;
        config_.activation != usual) {
      unsupported(fmt::format("the activation is not {}, the only one of GGUF files of this architecture",
                              activation_text(usual)));
    }
    if (config_.architecture == Architecture::kGemma2 || config_.architecture == Architecture::kGemma3)
      check_gemma();
    if (config_.latent) check_latent();
    if (config_.architecture == Architecture::kGemma4 && config_.rope.linear)
      unsupported("a factor of proportional RoPE is nothing that GGUF files of this architecture can say");
    check_sliding_layers();
    check_layers_without_rope();
    check_query_scaling();
    if (config_.mixture) check_mixture(*config_.mixture);
    // Readers know it of gpt-oss.
    const bool truncates = config_.architecture != Architecture::kGptOss;
    if (config_.rope.yarn && config_.rope.yarn->truncate != truncates)
      unsupported(
          fmt::format("the RoPE scaling yarn has truncate: {}, which GGUF files can't say", !truncates));
  }

  void check_mixture(const MixtureConfig& mixture) const {
    const GgufMixtureTraits traits = gguf_mixture_traits(config_.architecture);
    const std::int64_t shared = mixture.shared_intermediate_size;
    if (!config_.layer_has_experts.empty() && !expert_interval())
      unsupported(
          "experts in some of the layers only, or in these, are nothing that GGUF files of this architecture "
          "can say");
    if (traits.has_shared_count && shared % mixture.intermediate_size != 0)
      unsupported(
          fmt::format("the width of the experts that all tokens share, {}, is no multiple of {}, the "
                      "others', as GGUF files of this architecture have it",
                      shared, mixture.intermediate_size));
  }

  /// Every how many-th layer has experts, behind those that come before the first; none if files can't say
  /// which have.
  std::optional<int> expert_interval() const {
    const GgufMixtureTraits traits = gguf_mixture_traits(config_.architecture);
    if (!traits.has_dense_layers) return std::nullopt;
    for (int interval = 1; interval <= (traits.has_interval ? config_.num_layers : 1); ++interval) {
      if (gguf_expert_layers(config_.num_layers, num_dense_layers(), interval) == config_.layer_has_experts)
        return interval;
    }
    return std::nullopt;
  }

  /// Layers before the first with experts.
  std::int64_t num_dense_layers() const {
    const std::vector<bool>& layers = config_.layer_has_experts;
    return layers.empty() ? 0 : std::find(layers.begin(), layers.end(), true) - layers.begin();
  }

  /// Files can say YaRN's multipliers of scores where those of cos and sin are 1, and pairs that lie side by
  /// side.
  void check_latent() const {
    if (config_.rope.pairing != RopePairing::kInterleaved)
      unsupported("rope_interleave is false, which GGUF files of this architecture can't say");
    if (latent_log_multiplier() != 0 && config_.rope.yarn->attention_factor.value_or(0) != 1)
      unsupported("mscale and mscale_all_dim differ, which GGUF files of this architecture can't say");
  }

  void check_gemma() const {
    const bool is_gemma2 = config_.architecture == Architecture::kGemma2;
    if (config_.softmax_scale != gguf_gemma_softmax_scale(config_))
      unsupported("query_pre_attn_scalar is not head_dim, which readers of GGUF files take it for");
    if (is_gemma2 ? !config_.attention_softcap || !config_.logits_softcap
                  : config_.attention_softcap.has_value())
      unsupported(fmt::format("{}, which readers of GGUF files of this architecture don't expect",
                              is_gemma2 ? "attn_logit_softcapping or final_logit_softcapping is null"
                                        : "attn_logit_softcapping is set"));
  }

  void check_sliding_layers() const {
    if (config_.sliding_rope) check_sliding_rope();
    // Of which files list the layers.
    if (!config_.sliding_window || config_.architecture == Architecture::kGemma4) return;
    const std::int64_t interval = gguf_full_interval(config_.architecture);
    if (interval == 0) {
      if (config_.layer_uses_sliding_window.empty()) return;
      unsupported(
          "a sliding window in some of the layers only is nothing that GGUF files of this architecture "
          "can say");
    }
    ModelConfig usual = config_;
    usual.layer_uses_sliding_window.clear();
    set_sliding_window(usual, *config_.sliding_window, all_but_every(config_.num_layers, interval));
    if (usual.layer_uses_sliding_window != config_.layer_uses_sliding_window)
      unsupported(
          fmt::format("layers that slide are others than all but the last of each {}, the only ones of GGUF "
                      "files of this architecture",
                      interval));
  }

  std::vector<bool> sliding_layers() const {
    std::vector<bool> layers;
    for (int layer = 0; layer < config_.num_layers; ++layer) layers.push_back(slides(config_, layer));
    return layers;
  }

  void check_layers_without_rope() const {
    if (config_.layer_uses_rope.empty()) return;
    if (config_.architecture == Architecture::kExaone4 || config_.architecture == Architecture::kExaoneMoe ||
        config_.architecture == Architecture::kCohere2) {
      if (!config_.sliding_window || config_.layer_uses_rope != sliding_layers())
        unsupported("its layers with RoPE are others than those that slide");
    } else if (config_.layer_uses_rope != all_but_every(config_.num_layers, kNoRopeInterval)) {
      unsupported(
          fmt::format("its layers without RoPE are others than every {}th, the only ones of GGUF files of "
                      "this architecture",
                      kNoRopeInterval));
    }
  }

  /// Files have one key for the original contexts of YaRN and of the scaling of queries.
  void check_query_scaling() const {
    const auto& scaling = config_.query_scaling;
    if (!scaling) return;
    if (!config_.rope.yarn || config_.rope.yarn->original_max_seq_len != scaling->original_max_seq_len)
      unsupported(
          "llama_4_scaling_beta without YaRN of the same original_max_position_embeddings is nothing that "
          "GGUF files can say");
  }

  void check_sliding_rope() const {
    const RopeConfig& sliding = *config_.sliding_rope;
    const float theta = config_.architecture == Architecture::kGemma3   ? kGemma3SlidingTheta
                        : config_.architecture == Architecture::kGemma4 ? sliding.theta  // which files say
                                                                        : config_.rope.theta;
    if (sliding.theta != theta || sliding.linear || sliding.llama3 || sliding.yarn || sliding.longrope)
      unsupported(
          fmt::format("the RoPE of layers that slide is not a plain one of the base {}, which GGUF files of "
                      "this architecture have",
                      theta));
  }

  void write_mixture(const MixtureConfig& mixture) {
    const GgufMixtureTraits traits = gguf_mixture_traits(config_.architecture);
    const auto set = [&](const char* name, std::int64_t value) { metadata_.set_uint32(key(name), value); };
    set(gguf_keys::kExpertCount, mixture.num_experts);
    set(gguf_keys::kExpertUsedCount, mixture.num_experts_per_token);
    set(gguf_keys::kExpertFeedForwardLength, mixture.intermediate_size);
    const std::int64_t shared = mixture.shared_intermediate_size;
    if (traits.has_shared_count) set(gguf_keys::kExpertSharedCount, shared / mixture.intermediate_size);
    if (traits.has_shared_size && shared > 0) set(gguf_keys::kExpertSharedFeedForwardLength, shared);
    if (traits.has_dense_layers) set(gguf_keys::kLeadingDenseBlockCount, num_dense_layers());
    if (traits.has_interval) set(gguf_keys::kMoeLayerStep, expert_interval().value_or(1));
    if (traits.has_scores) {
      const bool is_sigmoid = mixture.scoring == ExpertScoring::kSigmoid;
      set(gguf_keys::kExpertGating, is_sigmoid ? gguf_keys::kGatingSigmoid : gguf_keys::kGatingSoftmax);
      metadata_.set_float(key(gguf_keys::kExpertWeightsScale), mixture.weight_scale);
      set(gguf_keys::kExpertGroupCount, mixture.num_groups);
      set(gguf_keys::kExpertGroupUsedCount, mixture.num_groups_per_token);
    }
    if (mixture.normalized != traits.normalized)
      metadata_.set_bool(key(gguf_keys::kExpertWeightsNorm), mixture.normalized);
  }

  void write_short_conv(const ShortConvConfig& conv) {
    metadata_.set_uint32(key(gguf_keys::kConvLength), conv.taps);
    std::vector<std::int32_t> heads;
    for (int layer = 0; layer < config_.num_layers; ++layer)
      heads.push_back(has_attention(config_, layer) ? config_.num_kv_heads : 0);
    metadata_.set_integers(key(gguf_keys::kHeadCountKv), heads);
  }

  void write_gated_delta(const GatedDeltaConfig& delta) {
    const auto set = [&](const char* name, std::int64_t value) { metadata_.set_uint32(key(name), value); };
    set(gguf_keys::kDeltaTaps, delta.taps);
    set(gguf_keys::kDeltaKeyDim, delta.key_dim);
    set(gguf_keys::kDeltaKeyHeads, delta.num_key_heads);
    set(gguf_keys::kDeltaValueHeads, delta.num_value_heads);
    set(gguf_keys::kDeltaValues, delta.value_columns());
    if (const auto interval = full_attention_interval()) {
      set(gguf_keys::kFullAttentionInterval, *interval);
    } else {
      std::vector<bool> layers = config_.layer_has_attention;
      layers.flip();
      metadata_.set_bools(key(gguf_keys::kRecurrentLayers), layers);
    }
    // Which readers of Qwen 3.5 insist on; texts have all positions equal.
    constexpr std::int32_t kSections[] = {11, 11, 10, 0};
    if (delta.takes_turns) metadata_.set_integers(key(gguf_keys::kRopeSections), kSections);
  }

  /// Every how many-th layer has attention; none if it is no interval.
  std::optional<int> full_attention_interval() const {
    for (int interval = 2; interval <= config_.num_layers; ++interval) {
      std::vector<bool> layers = all_but_every(config_.num_layers, interval);
      layers.flip();
      if (layers == config_.layer_has_attention) return interval;
    }
    return std::nullopt;
  }

  void write_sizes() {
    const auto set = [&](const char* name, std::int64_t value) { metadata_.set_uint32(key(name), value); };
    set(gguf_keys::kVocabSize, config_.vocab_size);
    set(gguf_keys::kContextLength, config_.max_seq_len);
    set(gguf_keys::kEmbeddingLength, config_.hidden_size);
    if (config_.architecture != Architecture::kGemma4)
      set(gguf_keys::kFeedForwardLength, config_.intermediate_size);
    if (config_.mixture) write_mixture(*config_.mixture);
    set(gguf_keys::kBlockCount, config_.num_layers);
    set(gguf_keys::kHeadCount, config_.num_heads);
    if (config_.architecture == Architecture::kGemma4) {
      write_gemma4_layers();
    } else {
      if (config_.short_conv) {
        write_short_conv(*config_.short_conv);
      } else {
        set(gguf_keys::kHeadCountKv, config_.num_kv_heads);
      }
      set(gguf_keys::kKeyLength, config_.head_dim);
      set(gguf_keys::kValueLength, config_.latent ? config_.latent->kv_rank : config_.head_dim);
    }
    if (config_.gated_delta) write_gated_delta(*config_.gated_delta);
    if (config_.latent) {
      if (config_.latent->q_rank > 0) set(gguf_keys::kQueryRank, config_.latent->q_rank);
      set(gguf_keys::kKeyValueRank, config_.latent->kv_rank);
      set(gguf_keys::kKeyLengthMla, config_.latent->query_dim());
      set(gguf_keys::kValueLengthMla, config_.latent->value_dim);
    }
    metadata_.set_float(
        key(config_.norm == NormKind::kLayer ? gguf_keys::kLayerNormEpsilon : gguf_keys::kRmsEpsilon),
        config_.norm_eps);
    if (config_.architecture == Architecture::kCohere || config_.architecture == Architecture::kCohere2)
      metadata_.set_float(key(gguf_keys::kLogitScale), config_.logits_scale);
    if (is_granite(config_.architecture))
      metadata_.set_float(key(gguf_keys::kSoftmaxScale), config_.softmax_scale.value_or(1));
    if (is_granite(config_.architecture) || config_.architecture == Architecture::kMiniCpm) {
      metadata_.set_float(key(gguf_keys::kEmbeddingScale), config_.embedding_scale);
      metadata_.set_float(key(gguf_keys::kResidualScale), config_.residual_scale);
      metadata_.set_float(key(gguf_keys::kLogitScale), 1 / config_.logits_scale);
    }
    if (config_.architecture == Architecture::kGptNeoX || config_.architecture == Architecture::kStableLm)
      metadata_.set_bool(key(gguf_keys::kParallelResidual), config_.parallel_blocks);
    if (config_.attention_softcap)
      metadata_.set_float(key(gguf_keys::kAttentionSoftcap), *config_.attention_softcap);
    if (config_.logits_softcap) metadata_.set_float(key(gguf_keys::kFinalSoftcap), *config_.logits_softcap);
    // Readers of Phi-3 and Gemma 2 take a file without the key for one of the first models, which had
    // windows.
    if (config_.sliding_window || config_.architecture == Architecture::kPhi3 ||
        config_.architecture == Architecture::kGemma2)
      set(gguf_keys::kSlidingWindow, config_.sliding_window.value_or(0));
    if (config_.sliding_window &&
        (config_.architecture == Architecture::kOlmo2 || config_.architecture == Architecture::kExaone4 ||
         config_.architecture == Architecture::kExaoneMoe || config_.architecture == Architecture::kGemma4))
      metadata_.set_bools(key(gguf_keys::kSlidingPattern), sliding_layers());
  }

  void write_gemma4_layers() {
    const auto set = [&](const char* name, std::int64_t value) { metadata_.set_uint32(key(name), value); };
    std::vector<std::int32_t> kv_heads, widths;
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      kv_heads.push_back(kv_sizes(config_, layer).num_kv_heads);
      widths.push_back(static_cast<std::int32_t>(intermediate_size(config_, layer)));
    }
    metadata_.set_integers(key(gguf_keys::kHeadCountKv), kv_heads);
    metadata_.set_integers(key(gguf_keys::kFeedForwardLength), widths);
    const FullAttentionConfig& full = *config_.full_attention;
    set(gguf_keys::kKeyLength, full.head_dim);
    set(gguf_keys::kValueLength, full.head_dim);
    set(gguf_keys::kKeyLengthSliding, config_.head_dim);
    set(gguf_keys::kValueLengthSliding, config_.head_dim);
    set(gguf_keys::kSharedKvLayers, config_.num_shared_kv_layers);
    set(gguf_keys::kLayerEmbeddingLength, config_.layer_embedding_size);
    metadata_.set_float(key(gguf_keys::kSlidingRopeBase), config_.sliding_rope->theta);
    set(gguf_keys::kSlidingRopeDimension, config_.head_dim);
    // Which readers expect even where all pairs are turned.
    const int num_turned = config_.rope.num_turned_pairs;
    std::vector<float>& divisors = model_.made[kGgufRopeDivisors];
    for (int pair = 0; pair < full.head_dim / 2; ++pair)
      divisors.push_back(num_turned == 0 || pair < num_turned ? 1.0f : kGgufStillDivisor);
  }

  void write_rope() {
    const RopeConfig& rope = config_.rope;
    const int head_dim = full_head_dim(config_);
    metadata_.set_float(key(gguf_keys::kRopeBase), rope.theta);
    metadata_.set_uint32(key(gguf_keys::kRopeDimension), rope.rotary_dim == 0 ? head_dim : rope.rotary_dim);
    if (rope.llama3) write_rope_divisors();
    if (rope.linear) {
      metadata_.set_text(key(gguf_keys::kRopeScaling), "linear");
      metadata_.set_float(key(gguf_keys::kRopeFactor), rope.linear->factor);
    }
    if (rope.longrope) {
      metadata_.set_uint32(key(gguf_keys::kRopeOriginalLength), rope.longrope->original_max_seq_len);
      metadata_.set_float(key(gguf_keys::kRopeAttentionFactor), rope.longrope->attention_factor);
      model_.made[kGgufShortRopeDivisors] = rope.longrope->short_divisors;
      model_.made[kGgufLongRopeDivisors] = rope.longrope->long_divisors;
    }
    // As its converters say of a base that is stretched.
    const bool is_hunyuan = config_.architecture == Architecture::kHunYuanDense ||
                            config_.architecture == Architecture::kHunYuanMoe;
    if (is_hunyuan && !rope.linear && !rope.longrope && !rope.yarn)
      metadata_.set_text(key(gguf_keys::kRopeScaling), "none");
    if (!rope.yarn) return;
    const RopeYarnScaling& yarn = *rope.yarn;
    const double latent_multiplier = latent_log_multiplier();
    if (latent_multiplier != 0)
      metadata_.set_float(key(gguf_keys::kYarnLogMultiplier), static_cast<float>(latent_multiplier));
    metadata_.set_text(key(gguf_keys::kRopeScaling), "yarn");
    metadata_.set_float(key(gguf_keys::kRopeFactor), yarn.factor);
    metadata_.set_uint32(key(gguf_keys::kRopeOriginalLength), yarn.original_max_seq_len);
    metadata_.set_float(key(gguf_keys::kYarnBetaFast), yarn.beta_fast);
    metadata_.set_float(key(gguf_keys::kYarnBetaSlow), yarn.beta_slow);
    if (config_.query_scaling) metadata_.set_float(key(gguf_keys::kQueryScale), config_.query_scaling->beta);
    // As its converters write it, whose cos and sin are not multiplied.
    const float log_multiplier = config_.architecture == Architecture::kMinistral3 ? 1.0f : 0.0f;
    if (log_multiplier != 0) metadata_.set_float(key(gguf_keys::kYarnLogMultiplier), log_multiplier);
    const float own = gguf_yarn_attention_factor(yarn.factor, log_multiplier);
    const float factor = yarn.attention_factor.value_or(own);
    if (factor != own && latent_multiplier == 0)
      metadata_.set_float(key(gguf_keys::kRopeAttentionFactor), factor / own);
  }

  /// Of latent attention with YaRN: (the root of what scores are multiplied by more than usually - 1) /
  /// ln(factor); 0 otherwise.
  double latent_log_multiplier() const {
    if (!config_.latent || !config_.rope.yarn || config_.rope.yarn->factor <= 1) return 0;
    const double usual = 1 / std::sqrt(static_cast<double>(config_.latent->query_dim()));
    const double mscale = std::sqrt(static_cast<double>(config_.softmax_scale.value_or(0)) / usual);
    return std::abs(mscale - 1) < 1e-6
               ? 0
               : (mscale - 1) / std::log(static_cast<double>(config_.rope.yarn->factor));
  }

  /// What each pair's frequency is divided by.
  void write_rope_divisors() {
    RopeConfig unscaled = config_.rope;
    unscaled.llama3.reset();
    const std::vector<float> whole = rope_frequencies(unscaled, config_.head_dim).inverse_frequencies;
    const std::vector<float> scaled = rope_frequencies(config_.rope, config_.head_dim).inverse_frequencies;
    std::vector<float>& divisors = model_.made[kGgufRopeDivisors];
    for (std::size_t i = 0; i < whole.size(); ++i) divisors.push_back(whole[i] / scaled[i]);
  }

  // ---- tokenizer ----

  void write_tokenizer() {
    const fs::path path = folder_ / kTokenizerJson;
    const std::shared_ptr<const Tokenizer>& tokenizer = model_.checkpoint.tokenizer;
    if (tokenizer == nullptr) {
      throw Error(ErrorCode::kIo,
                  fmt::format("'{}' has no {}, which a GGUF file holds, too; a tokenizer.model "
                              "is saved as one by transformers' AutoTokenizer",
                              folder_.string(), kTokenizerJson));
    }
    std::string json = read_file(path, kLongestTokenizerJson), source = path.string();
    if (const auto config = read_tokenizer_config(folder_)) {
      std::string merged = merged_tokenizer_json(json, source, *config);
      if (merged != json) source += " with tokenizer_config.json";
      json = std::move(merged);
    }
    const bool lists_merges = config_.architecture == Architecture::kGemma4;
    const auto [data, is_complete] =
        gguf_tokenizer_form(json, source, *tokenizer, config_.vocab_size, lists_merges);
    if (!is_complete) metadata_.set_text(gguf_keys::kHuggingFaceTokenizer, json);
    metadata_.set_text(gguf_keys::kTokenizerModel, data.model);
    metadata_.set_text(gguf_keys::kTokenizerPre, data.pre);
    metadata_.set_texts(gguf_keys::kTokens, data.tokens);
    metadata_.set_integers(gguf_keys::kTokenTypes, data.token_types);
    if (!data.scores.empty()) metadata_.set_floats(gguf_keys::kScores, data.scores);
    if (data.model != "llama") metadata_.set_texts(gguf_keys::kMerges, data.merges);
    metadata_.set_bool(gguf_keys::kAddBosToken, *data.add_bos_token);
    metadata_.set_bool(gguf_keys::kAddEosToken, *data.add_eos_token);
    if (data.add_space_prefix) metadata_.set_bool(gguf_keys::kAddSpacePrefix, *data.add_space_prefix);
    write_special_tokens(data);
  }

  /// The id of a special token of tokenizer_config.json, if it is one of the model's.
  std::optional<TokenId> special_token(const char* name) const {
    const auto& tokens = model_.checkpoint.chat.special_tokens;
    const auto found = tokens.find(name);
    if (found == tokens.end()) return std::nullopt;
    const std::optional<TokenId> id = model_.checkpoint.tokenizer->find_token(found->second);
    return id && *id < config_.vocab_size ? id : std::nullopt;
  }

  /// The token that `name` stands for in templates and that is put around a text: a GGUF file has one key for
  /// both.
  std::optional<TokenId> agreed(const char* name, std::optional<TokenId> around) const {
    const std::optional<TokenId> named = special_token(name);
    if (named && around && named != around) {
      const Tokenizer& tokenizer = *model_.checkpoint.tokenizer;
      unsupported(fmt::format(
          "tokenizer_config.json's {} is '{}', but tokenizer.json puts '{}' around texts; a "
          "GGUF file can name one",
          name, printable(tokenizer.token_text(*named)), printable(tokenizer.token_text(*around))));
    }
    return named ? named : around;
  }

  void set_token(const char* key, std::optional<TokenId> id) {
    if (id) metadata_.set_uint32(key, *id);
  }

  void write_special_tokens(const GgufTokenizerData& data) {
    const auto bos = agreed("bos_token", data.bos_token_id);
    set_token(gguf_keys::kBosToken, bos ? bos : config_.bos_token_id);
    std::vector<TokenId> ends;
    if (const auto eos = agreed("eos_token", data.eos_token_id)) ends.push_back(*eos);
    for (const TokenId id : config_.eos_token_ids)
      if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    constexpr std::array kEndKeys = {gguf_keys::kEosToken, gguf_keys::kEotToken, gguf_keys::kEomToken};
    if (ends.size() > kEndKeys.size()) {
      unsupported(
          fmt::format("its files name {} tokens (eos_token_id, eos_token) at which a text ends; a GGUF "
                      "file can name {}",
                      ends.size(), kEndKeys.size()));
    }
    for (std::size_t i = 0; i < ends.size(); ++i) set_token(kEndKeys[i], ends[i]);
    // What the key says becomes of characters without a token: in byte-level BPE tokenizer.json decides.
    auto unknown = data.unknown_token_id;
    if (!unknown && data.model != "gpt2") unknown = special_token("unk_token");
    set_token(gguf_keys::kUnknownToken, unknown);
    set_token(gguf_keys::kPaddingToken, special_token("pad_token"));
  }

  void write_chat() {
    std::vector<std::string> names;
    for (const auto& [name, text] : model_.checkpoint.chat.templates) {
      if (name == "default") {
        metadata_.set_text(gguf_keys::kChatTemplate, text);
      } else {
        metadata_.set_text(fmt::format("{}.{}", gguf_keys::kChatTemplate, name), text);
        names.push_back(name);
      }
    }
    if (!names.empty()) metadata_.set_texts(gguf_keys::kChatTemplates, names);
  }

  // ---- tensors ----

  /// Heads whose rows RoPE's pairing orders, 0 for a tensor that it leaves alone.
  int interleaved_heads(std::string_view name) const {
    if (gguf_rope_pairing(config_.architecture) == config_.rope.pairing) return 0;
    if (name.find(".q_proj.") != name.npos) return config_.num_heads;
    return name.find(".k_proj.") != name.npos ? config_.num_kv_heads : 0;
  }

  /// Experts' gate and up as Gemma 4's files have them, where both are of one type: each expert's rows of
  /// gate and then of up. None of another tensor.
  std::optional<CheckpointTensor> joined_gate_up(const std::string& name) const {
    constexpr std::string_view kGate = ".mlp.experts.gate_proj.weight";
    if (config_.architecture != Architecture::kGemma4 || !name.ends_with(kGate)) return std::nullopt;
    const CheckpointTensor& gate = model_.checkpoint.tensors.at(name);
    const CheckpointTensor& up = model_.checkpoint.tensors.at(with_part(name, "gate_proj", "up_proj"));
    if (gate.dtype != up.dtype) return std::nullopt;
    CheckpointTensor joined = gate;
    joined.shape[1] *= 2;
    joined.size_bytes *= 2;
    joined.data = nullptr;
    joined.read_part = [gate, up](std::int64_t expert, std::byte* out) {
      read_part(gate, static_cast<std::size_t>(expert), out);
      read_part(up, static_cast<std::size_t>(expert), out + bytes_of_part(gate));
    };
    return joined;
  }

  static std::string with_part(std::string name, std::string_view from, std::string_view to) {
    return name.replace(name.find(from), from.size(), to);
  }

  void list_tensors() {
    for (const auto& [name, tensor] : model_.checkpoint.tensors) {
      if (auto joined = joined_gate_up(name)) {
        GgufTensor& out = model_.tensors.emplace_back();
        out.name = gguf_tensor_name(with_part(name, "gate_proj", "gate_up_proj"), config_.architecture);
        out.dtype = joined->dtype;
        out.source = std::move(*joined);
        continue;
      }
      if (name.ends_with(".mlp.experts.up_proj.weight") &&
          joined_gate_up(with_part(name, "up_proj", "gate_proj")))
        continue;
      const bool is_of_values = name.ends_with("linear_attn.norm.weight");
      if (config_.norm_offset != 0 && name.ends_with("norm.weight") && !is_of_values) {
        model_.made[gguf_tensor_name(name, config_.architecture)] = norm_weights(tensor, config_.norm_offset);
        continue;
      }
      GgufTensor& out = model_.tensors.emplace_back();
      out.name = gguf_tensor_name(name, config_.architecture);
      out.source = tensor;
      // As converters write routers, too.
      const bool is_kept = is_matrix(name, tensor.shape.size()) && !is_router(name);
      out.dtype = is_kept ? tensor.dtype : DType::kF32;
      out.interleaved_heads = interleaved_heads(name);
    }
    for (const auto& [name, numbers] : model_.made) {
      GgufTensor& out = model_.tensors.emplace_back();
      out.name = name;
      out.source.shape = {static_cast<std::int64_t>(numbers.size())};
      out.source.data = std::as_bytes(std::span(numbers)).data();
      out.source.size_bytes = numbers.size() * sizeof(float);
    }
    std::sort(model_.tensors.begin(), model_.tensors.end(),
              [](const GgufTensor& a, const GgufTensor& b) { return a.name < b.name; });
  }

  const fs::path& folder_;
  GgufModel& model_;
  const ModelConfig& config_;
  GgufMetadata& metadata_;
  const std::string architecture_;
};

}  // namespace

GgufModel gguf_model_of_folder(const fs::path& folder) {
  GgufModel model;
  model.checkpoint = open_hf_checkpoint(folder, {});
  make_gguf_recurrent_form(model.checkpoint);
  Exporter(folder, model).write();
  return model;
}

}  // namespace tessera
