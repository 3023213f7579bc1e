#include "model/checkpoint/gguf_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "core/text.h"
#include "model/checkpoint/gguf_names.h"
#include "tessera/error.h"

namespace tessera {
namespace {

[[noreturn]] void throw_unsupported(const GgufFile& file, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", file.source(), what));
}

/// The keys of one architecture, "llama.block_count" and the like.
class ArchitectureKeys {
 public:
  explicit ArchitectureKeys(const GgufFile& file) : file_(file) {
    const auto name = file.text(gguf_keys::kArchitecture);
    if (!name) file.fail(gguf_keys::kArchitecture, "is missing");
    prefix_ = std::string(*name) + ".";
  }

  std::string_view architecture() const { return std::string_view(prefix_).substr(0, prefix_.size() - 1); }
  std::string key(const char* name) const { return prefix_ + name; }
  const GgufFile& file() const { return file_; }

  /// A number that some files give per layer; here all layers are alike.
  std::optional<std::int64_t> integer(const char* name) const {
    const auto values = integers(name);
    if (!values) return file_.integer(key(name));
    if (values->empty() || std::count(values->begin(), values->end(), values->front()) !=
                               static_cast<std::ptrdiff_t>(values->size())) {
      throw_unsupported(file_, fmt::format("the metadata key '{}' differs between layers", key(name)));
    }
    return values->front();
  }

  /// The numbers of all layers, where a file gives them so.
  std::optional<std::vector<std::int64_t>> integers(const char* name) const {
    const auto found = file_.metadata().find(key(name));
    if (found == file_.metadata().end() || found->second.type != GgufType::kArray) return std::nullopt;
    return file_.integers(key(name));
  }

  /// One for all layers, or one of each.
  std::vector<std::int64_t> required_list(const char* name, int num_layers) const {
    auto values = integers(name);
    if (!values) return {required_integer(name)};
    if (values->empty() || values->size() != static_cast<std::size_t>(num_layers)) {
      file_.fail(key(name), fmt::format("has {} values; one for each of the {} layers was expected",
                                        values->size(), num_layers));
    }
    return *std::move(values);
  }

  std::int64_t required_integer(const char* name) const {
    const auto value = integer(name);
    if (!value) file_.fail(key(name), "is missing");
    return *value;
  }

  /// For fields that ModelConfig keeps as int; validate() checks closer ranges.
  int required_int(const char* name) const { return to_int(name, required_integer(name)); }

  int to_int(const char* name, std::int64_t value) const {
    if (value < 0 || value > std::numeric_limits<int>::max()) {
      file_.fail(key(name), fmt::format("is {}, expected 0 to {}", value, std::numeric_limits<int>::max()));
    }
    return static_cast<int>(value);
  }

  std::optional<float> real(const char* name) const {
    const auto value = file_.number(key(name));
    if (!value) return std::nullopt;
    if (!(std::abs(*value) <= std::numeric_limits<float>::max())) {
      file_.fail(key(name), fmt::format("is {}, expected a number within fp32's range", *value));
    }
    return static_cast<float>(*value);
  }

  std::optional<std::string_view> text(const char* name) const { return file_.text(key(name)); }
  bool has(const char* name) const { return file_.metadata().find(key(name)) != file_.metadata().end(); }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

/// Empty if there is no such tensor.
std::vector<float> read_rope_divisors(std::span<const GgufPart> parts, const char* name) {
  for (const auto& [file, bytes] : parts) {
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) continue;
    const StoredTensor& tensor = found->second;
    if (tensor.dtype != DType::kF32 || tensor.shape.size() != 1) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: {} (byte {}) is {} {}, expected a vector of F32", file.source(), name,
                              tensor.offset, tensor.dtype_name, shape_text(tensor.shape)));
    }
    std::vector<float> divisors(tensor.size_bytes / sizeof(float));
    if (!divisors.empty()) std::memcpy(divisors.data(), bytes.data() + tensor.offset, tensor.size_bytes);
    return divisors;
  }
  return {};
}

/// Divisors of pairs that aren't turned, behind those that are, as their number.
void count_turned_pairs(RopeConfig& rope) {
  std::vector<float>& divisors = rope.frequency_divisors;
  const auto first_still = std::find_if(divisors.begin(), divisors.end(),
                                        [](float divisor) { return divisor >= kGgufLeastStillDivisor; });
  const bool all_behind = std::all_of(first_still, divisors.end(),
                                      [](float divisor) { return divisor >= kGgufLeastStillDivisor; });
  if (first_still == divisors.begin() || first_still == divisors.end() || !all_behind) return;
  rope.num_turned_pairs = static_cast<int>(first_still - divisors.begin());
  std::fill(first_still, divisors.end(), 1.0f);
  if (std::count(divisors.begin(), divisors.end(), 1.0f) == std::ssize(divisors)) divisors.clear();
}

RopeConfig read_rope(std::span<const GgufPart> parts, const ArchitectureKeys& keys,
                     const ModelConfig& config) {
  const GgufFile& file = parts.front().file;
  RopeConfig rope;
  rope.pairing = gguf_rope_pairing(config.architecture);
  rope.theta = keys.real(gguf_keys::kRopeBase).value_or(10000.0f);
  const int head_dim = full_head_dim(config);
  const auto rotary_dim = keys.integer(gguf_keys::kRopeDimension);
  if (rotary_dim && *rotary_dim != head_dim) {
    rope.rotary_dim = keys.to_int(gguf_keys::kRopeDimension, *rotary_dim);
    if (rope.rotary_dim == 0)
      file.fail(keys.key(gguf_keys::kRopeDimension), "is 0, expected an even number from 2 on");
  }
  rope.frequency_divisors = read_rope_divisors(parts, kGgufRopeDivisors);
  if (config.architecture == Architecture::kGemma4) count_turned_pairs(rope);

  // Older files have the factor alone, for positions divided by it.
  const std::string_view type = keys.text(gguf_keys::kRopeScaling).value_or("linear");
  const float factor = keys.real(gguf_keys::kRopeFactor).value_or(keys.real("rope.scale_linear").value_or(1));
  const float attention_factor = keys.real(gguf_keys::kRopeAttentionFactor)
                                     .value_or(keys.real("rope.scaling.yarn_attn_factor").value_or(1));
  RopeLongScaling longrope;
  longrope.short_divisors = read_rope_divisors(parts, kGgufShortRopeDivisors);
  longrope.long_divisors = read_rope_divisors(parts, kGgufLongRopeDivisors);
  if (type == "longrope" || !longrope.short_divisors.empty() || !longrope.long_divisors.empty()) {
    // Whatever the type is called: many files with these tensors name none.
    longrope.original_max_seq_len = keys.integer(gguf_keys::kRopeOriginalLength).value_or(config.max_seq_len);
    longrope.attention_factor = attention_factor;
    rope.longrope = std::move(longrope);
    return rope;
  }
  if (type == "yarn") {
    if (keys.real("rope.scaling.yarn_ext_factor").value_or(1) != 1) {
      throw_unsupported(file, "rope.scaling.yarn_ext_factor must be 1");
    }
    RopeYarnScaling yarn;
    yarn.factor = factor;
    yarn.beta_fast = keys.real(gguf_keys::kYarnBetaFast).value_or(yarn.beta_fast);
    yarn.beta_slow = keys.real(gguf_keys::kYarnBetaSlow).value_or(yarn.beta_slow);
    yarn.original_max_seq_len = keys.integer(gguf_keys::kRopeOriginalLength).value_or(config.max_seq_len);
    const float log_multiplier = keys.real(gguf_keys::kYarnLogMultiplier).value_or(0);
    yarn.attention_factor = attention_factor * gguf_yarn_attention_factor(factor, log_multiplier);
    // No key says it, and gpt-oss was trained so.
    yarn.truncate = config.architecture != Architecture::kGptOss;
    rope.yarn = yarn;
    return rope;
  }
  if (type != "none" && type != "linear") {
    throw_unsupported(file,
                      fmt::format("the RoPE scaling '{}' is not supported; supported are none, linear, yarn "
                                  "and longrope",
                                  printable(type)));
  }
  if (attention_factor != 1) {
    throw_unsupported(
        file, "an attention factor is supported only together with the RoPE scalings yarn and longrope");
  }
  if (type == "linear" && factor != 1 && factor != 0) rope.linear = RopeLinearScaling{.factor = factor};
  return rope;
}

/// Sets what files of Gemma's architectures don't say.
void read_gemma(const ArchitectureKeys& keys, ModelConfig& config) {
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  if (config.architecture == Architecture::kGemma) return;
  config.softmax_scale = gguf_gemma_softmax_scale(config);
  const bool is_gemma2 = config.architecture == Architecture::kGemma2;
  const auto softcap = [&](const char* name, float absent) -> std::optional<float> {
    const float cap = keys.real(name).value_or(is_gemma2 ? absent : 0);
    return cap != 0 ? std::optional(cap) : std::nullopt;
  };
  config.attention_softcap = softcap(gguf_keys::kAttentionSoftcap, kGgufGemma2AttentionSoftcap);
  config.logits_softcap = softcap(gguf_keys::kFinalSoftcap, kGgufGemma2LogitsSoftcap);
}

/// The layers that slide, by a list or by how many one in which doesn't.
std::vector<bool> read_sliding_layers(const GgufFile& file, const ArchitectureKeys& keys,
                                      const ModelConfig& config) {
  const std::string key = keys.key(gguf_keys::kSlidingPattern);
  const auto found = file.metadata().find(key);
  if (found != file.metadata().end() && found->second.type == GgufType::kArray) {
    std::vector<bool> list = *file.booleans(key);
    const auto num_layers = static_cast<std::size_t>(config.num_layers);
    // Some have those of the layers that guess more tokens, too.
    if (list.size() == static_cast<std::size_t>(keys.required_int(gguf_keys::kBlockCount)))
      list.resize(num_layers);
    if (list.size() != num_layers) {
      file.fail(key, fmt::format("has {} values; one for each of the {} layers was expected", list.size(),
                                 config.num_layers));
    }
    return list;
  }
  const std::int64_t interval = file.integer(key).value_or(gguf_full_interval(config.architecture));
  if (interval < 1) file.fail(key, "is below 1");
  return all_but_every(config.num_layers, interval);
}

/// Sets the window, the layers that slide, and their RoPE where it is another.
void read_sliding_window(const GgufFile& file, const ArchitectureKeys& keys, ModelConfig& config) {
  const Architecture architecture = config.architecture;
  const std::int64_t absent = architecture == Architecture::kGemma2 ? kGgufGemma2Window : 0;
  const std::int64_t window = keys.integer(gguf_keys::kSlidingWindow).value_or(absent);
  if (gguf_full_interval(architecture) == 0) {
    if (window == 0) return;
    if (keys.has(gguf_keys::kSlidingPattern))
      throw_unsupported(file, "a sliding window in some of the layers only is not supported");
    config.sliding_window = window;
    return;
  }
  if (architecture == Architecture::kGemma4) {
    RopeConfig& rope = config.sliding_rope.emplace();
    rope.pairing = config.rope.pairing;
    rope.theta = keys.real(gguf_keys::kSlidingRopeBase).value_or(kGemma3SlidingTheta);
    if (const auto rotary_dim = keys.integer(gguf_keys::kSlidingRopeDimension);
        rotary_dim && *rotary_dim != config.head_dim)
      rope.rotary_dim = keys.to_int(gguf_keys::kSlidingRopeDimension, *rotary_dim);
  }
  if (architecture == Architecture::kGemma3 || (architecture == Architecture::kOlmo2 && window != 0)) {
    RopeConfig& rope = config.sliding_rope.emplace();
    rope.pairing = config.rope.pairing;
    rope.rotary_dim = config.rope.rotary_dim;
    rope.theta =
        keys.real(gguf_keys::kSlidingRopeBase)
            .value_or(architecture == Architecture::kGemma3 ? kGemma3SlidingTheta : config.rope.theta);
  }
  if (window == 0 && architecture == Architecture::kCohere2)
    file.fail(keys.key(gguf_keys::kSlidingWindow), "is missing or 0");
  if (window == 0) return;
  validate(config, file.source());  // before anything as long as a number in the file
  std::vector<bool> layers = read_sliding_layers(file, keys, config);
  if (architecture == Architecture::kExaone4 || architecture == Architecture::kExaoneMoe ||
      architecture == Architecture::kCohere2)
    config.layer_uses_rope = layers;
  set_sliding_window(config, window, std::move(layers));
}

/// Throws for what no field of a ModelConfig says.
void refuse_unsupported(const GgufFile& file, const ArchitectureKeys& keys) {
  if (const auto type = file.text(gguf_keys::kType); type && *type != "model") {
    throw_unsupported(file, fmt::format("it holds a '{}', not a model", printable(*type)));
  }
  if (!file.boolean(keys.key("attention.causal")).value_or(true)) {
    throw_unsupported(file, "attention to later tokens, too, is not supported");
  }
  if (keys.real(gguf_keys::kClampQkv).value_or(0) > 0) {
    throw_unsupported(file, fmt::format("{} is set; only queries, keys and values of any size are supported",
                                        keys.key(gguf_keys::kClampQkv)));
  }
}

/// Of heads that go through latents. Files of old converters say of them what they come to instead.
void read_latent_sizes(const GgufFile& file, const ArchitectureKeys& keys, ModelConfig& config) {
  const auto size = [&](const char* name, std::int64_t value) {
    if (value < 0 || value > 1 << 20)
      file.fail(keys.key(name), fmt::format("is {}, expected 0 to {}", value, 1 << 20));
    return static_cast<int>(value);
  };
  const auto required = [&](const char* name) { return size(name, keys.required_integer(name)); };
  LatentAttentionConfig& latent = config.latent.emplace();
  latent.q_rank = size(gguf_keys::kQueryRank, keys.integer(gguf_keys::kQueryRank).value_or(0));
  latent.kv_rank = required(gguf_keys::kKeyValueRank);
  latent.rope_dim = required(gguf_keys::kRopeDimension);
  const bool is_new = keys.has(gguf_keys::kKeyLengthMla);
  latent.nope_dim = required(is_new ? gguf_keys::kKeyLengthMla : gguf_keys::kKeyLength) - latent.rope_dim;
  latent.value_dim = required(is_new ? gguf_keys::kValueLengthMla : gguf_keys::kValueLength);
  config.num_kv_heads = 1;
  config.head_dim = latent.kv_rank + latent.rope_dim;
}

/// RoPE's settings that files of latent attention have otherwise than those of other architectures.
void read_latent_rope(const ArchitectureKeys& keys, ModelConfig& config) {
  config.rope.rotary_dim = config.latent->rope_dim;
  double scale = 1 / std::sqrt(static_cast<double>(config.latent->query_dim()));
  // A tenth of mscale_all_dim, where cos and sin are not multiplied.
  const float log_multiplier = keys.real(gguf_keys::kYarnLogMultiplier).value_or(0);
  if (config.rope.yarn && log_multiplier != 0) {
    const double factor = static_cast<double>(config.rope.yarn->factor);
    const double mscale = factor > 1 ? static_cast<double>(log_multiplier) * std::log(factor) + 1 : 1;
    scale *= mscale * mscale;
    config.rope.yarn->attention_factor = 1;
  }
  config.softmax_scale = static_cast<float>(scale);
}

/// Layers without heads of keys have a convolution.
void read_short_conv(const ArchitectureKeys& keys, const WeightCollector& weights, ModelConfig& config) {
  const auto heads = keys.integers(gguf_keys::kHeadCountKv);
  if (!heads) {  // all have attention
    const auto count = keys.integer(gguf_keys::kHeadCountKv);
    config.num_kv_heads = keys.to_int(gguf_keys::kHeadCountKv, count.value_or(config.num_heads));
    return;
  }
  config.short_conv.emplace().taps = keys.required_int(gguf_keys::kConvLength);
  const std::int64_t most = heads->empty() ? 0 : *std::max_element(heads->begin(), heads->end());
  config.num_kv_heads = keys.to_int(gguf_keys::kHeadCountKv, most);
  for (std::size_t layer = 0; layer < heads->size(); ++layer) {
    const std::int64_t count = (*heads)[layer];
    if (count != 0 && count != most)
      throw_unsupported(keys.file(),
                        fmt::format("the metadata key '{}' differs between layers with attention",
                                    keys.key(gguf_keys::kHeadCountKv)));
    config.layer_has_attention.push_back(count != 0);
    config.short_conv->bias |= weights.contains(fmt::format("layers.{}.short_conv.conv.bias", layer));
  }
}

/// Sizes alone: which layers have attention depends on how many there are.
void read_gated_delta(const GgufFile& file, const ArchitectureKeys& keys, ModelConfig& config) {
  GatedDeltaConfig& delta = config.gated_delta.emplace();
  delta.taps = keys.required_int(gguf_keys::kDeltaTaps);
  delta.key_dim = keys.required_int(gguf_keys::kDeltaKeyDim);
  delta.num_key_heads = keys.required_int(gguf_keys::kDeltaKeyHeads);
  delta.num_value_heads = keys.required_int(gguf_keys::kDeltaValueHeads);
  const int values = keys.required_int(gguf_keys::kDeltaValues);
  if (delta.num_value_heads == 0 || values % delta.num_value_heads != 0) {
    file.fail(keys.key(gguf_keys::kDeltaValues),
              fmt::format("is {}, expected a multiple of the number of value heads, {}", values,
                          delta.num_value_heads));
  }
  delta.value_dim = values / delta.num_value_heads;
  // In the order in which ggml repeats heads of keys.
  delta.takes_turns = config.architecture != Architecture::kQwen3Next;
}

/// Of a checked number of layers.
void read_attention_layers(const GgufFile& file, const ArchitectureKeys& keys, ModelConfig& config) {
  const std::string key = keys.key(gguf_keys::kRecurrentLayers);
  if (file.metadata().find(key) != file.metadata().end()) {
    config.layer_has_attention = *file.booleans(key);
    if (config.layer_has_attention.size() >= static_cast<std::size_t>(config.num_layers))
      config.layer_has_attention.resize(static_cast<std::size_t>(config.num_layers));  // without those of MTP
  } else {
    const std::int64_t interval = keys.integer(gguf_keys::kFullAttentionInterval).value_or(4);
    if (interval < 1) file.fail(keys.key(gguf_keys::kFullAttentionInterval), "is below 1");
    config.layer_has_attention = all_but_every(config.num_layers, interval);
  }
  config.layer_has_attention.flip();
}

/// Of heads of layers that see all tokens, the last of which is the last of all, and of those that slide; of
/// layers that share keys and values, the last ones.
void read_gemma4_sizes(const ArchitectureKeys& keys, ModelConfig& config) {
  const auto kv_heads = keys.required_list(gguf_keys::kHeadCountKv, config.num_layers);
  const auto widths = keys.required_list(gguf_keys::kFeedForwardLength, config.num_layers);
  config.num_kv_heads = keys.to_int(gguf_keys::kHeadCountKv, kv_heads.front());
  config.head_dim = keys.required_int(gguf_keys::kKeyLengthSliding);
  FullAttentionConfig& full = config.full_attention.emplace();
  full.num_kv_heads = keys.to_int(gguf_keys::kHeadCountKv, kv_heads.back());
  full.head_dim = keys.required_int(gguf_keys::kKeyLength);
  config.num_shared_kv_layers =
      keys.to_int(gguf_keys::kSharedKvLayers, keys.integer(gguf_keys::kSharedKvLayers).value_or(0));
  config.intermediate_size = widths.front();
  if (widths.back() != widths.front()) config.shared_kv_intermediate_size = widths.back();
  config.layer_embedding_size = keys.integer(gguf_keys::kLayerEmbeddingLength).value_or(0);
}

/// What follows from which layers slide, which is known by now, and from the tensors.
void read_gemma4_layers(const GgufFile& file, const ArchitectureKeys& keys, const WeightCollector& weights,
                        ModelConfig& config) {
  if (slides(config, config.num_layers - 1))
    throw_unsupported(file, "a last layer with a sliding window is not supported of this architecture");
  const auto kv_heads = keys.required_list(gguf_keys::kHeadCountKv, config.num_layers);
  const auto widths = keys.required_list(gguf_keys::kFeedForwardLength, config.num_layers);
  // The first layer may see all tokens, too.
  for (int layer = 0; layer < config.num_layers && kv_heads.size() > 1; ++layer) {
    if (slides(config, layer)) {
      config.num_kv_heads = keys.to_int(gguf_keys::kHeadCountKv, kv_heads[static_cast<std::size_t>(layer)]);
      break;
    }
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    if (kv_heads.size() > 1 && kv_heads[i] != kv_sizes(config, layer).num_kv_heads) {
      throw_unsupported(file,
                        fmt::format("the metadata key '{}' differs between layers that slide, or between "
                                    "those that don't",
                                    keys.key(gguf_keys::kHeadCountKv)));
    }
    if (widths.size() > 1 && widths[i] != intermediate_size(config, layer)) {
      throw_unsupported(file,
                        fmt::format("the metadata key '{}' differs between layers other than the last "
                                    "{}, which share keys and values",
                                    keys.key(gguf_keys::kFeedForwardLength), config.num_shared_kv_layers));
    }
    if (kv_layer(config, layer) == layer && !slides(config, layer))
      config.full_attention->keys_as_values =
          !weights.contains(fmt::format("layers.{}.self_attn.v_proj.weight", layer));
  }
  config.layer_scales = weights.contains("layers.0.layer_scalar.weight");
  if (config.mixture) {
    config.mixture->beside_mlp = true;
    config.mixture->expert_scales = weights.contains("layers.0.mlp.experts.down_proj.scale");
  }
}

void read_sizes(const GgufFile& file, const ArchitectureKeys& keys, const WeightCollector& weights,
                ModelConfig& config) {
  const std::vector<std::int64_t>* embedding = weights.shape("embed_tokens.weight");
  if (const auto vocab_size = keys.integer(gguf_keys::kVocabSize)) {
    config.vocab_size = *vocab_size;
  } else if (embedding != nullptr && !embedding->empty()) {
    config.vocab_size = embedding->front();
  } else {
    file.fail(keys.key(gguf_keys::kVocabSize), "is missing, and so is the tensor token_embd.weight");
  }
  config.hidden_size = keys.required_integer(gguf_keys::kEmbeddingLength);
  config.num_layers =
      keys.required_int(gguf_keys::kBlockCount) -
      keys.to_int(gguf_keys::kNextnPredictLayers, keys.integer(gguf_keys::kNextnPredictLayers).value_or(0));
  config.num_heads = keys.required_int(gguf_keys::kHeadCount);
  if (config.architecture == Architecture::kGemma4) return read_gemma4_sizes(keys, config);
  config.intermediate_size = keys.required_integer(gguf_keys::kFeedForwardLength);
  if (config.architecture == Architecture::kDeepSeek) return read_latent_sizes(file, keys, config);
  if (has_short_conv(config.architecture)) {
    read_short_conv(keys, weights, config);
  } else {
    config.num_kv_heads = keys.to_int(gguf_keys::kHeadCountKv,
                                      keys.integer(gguf_keys::kHeadCountKv).value_or(config.num_heads));
  }
  if (has_gated_delta(config.architecture)) read_gated_delta(file, keys, config);
  if (const auto head_dim = keys.integer(gguf_keys::kKeyLength)) {
    config.head_dim = keys.to_int(gguf_keys::kKeyLength, *head_dim);
  } else {
    if (config.num_heads == 0 || config.hidden_size <= 0 || config.hidden_size % config.num_heads != 0) {
      file.fail(
          keys.key(gguf_keys::kEmbeddingLength),
          fmt::format("is {}; without attention.key_length a positive multiple of the head count, {}, was "
                      "expected",
                      config.hidden_size, config.num_heads));
    }
    if (config.hidden_size / config.num_heads > std::numeric_limits<int>::max()) {
      file.fail(keys.key(gguf_keys::kEmbeddingLength),
                fmt::format("is {}; that is too large", config.hidden_size));
    }
    config.head_dim = static_cast<int>(config.hidden_size / config.num_heads);
  }
  if (keys.integer(gguf_keys::kValueLength).value_or(config.head_dim) != config.head_dim) {
    throw_unsupported(file, "heads of values that differ in size from heads of keys are not supported");
  }
}

/// How a mixture's experts are scored.
void read_scores(const GgufFile& file, const ArchitectureKeys& keys, const GgufMixtureTraits& traits,
                 MixtureConfig& mixture) {
  mixture.scoring = traits.scoring;
  mixture.normalized = file.boolean(keys.key(gguf_keys::kExpertWeightsNorm)).value_or(traits.normalized);
  const std::int64_t gating = keys.integer(gguf_keys::kExpertGating).value_or(0);
  if (gating == gguf_keys::kGatingSoftmax || gating == gguf_keys::kGatingSoftmaxOfChosen) {
    mixture.scoring = ExpertScoring::kSoftmax;
    if (gating == gguf_keys::kGatingSoftmaxOfChosen) mixture.normalized = true;
  } else if (gating == gguf_keys::kGatingSigmoid) {
    mixture.scoring = ExpertScoring::kSigmoid;
  } else if (gating != 0) {
    throw_unsupported(file, fmt::format("{} is {}; supported are 1 (softmax), 2 (sigmoid) and 3 (softmax of "
                                        "the chosen)",
                                        keys.key(gguf_keys::kExpertGating), gating));
  }
  const float scale = keys.real(gguf_keys::kExpertWeightsScale).value_or(1);
  if (scale != 0) mixture.weight_scale = scale;  // as readers take it
  const auto count = [&](const char* name) {
    return std::max(1, keys.to_int(name, keys.integer(name).value_or(1)));
  };
  mixture.num_groups = count(gguf_keys::kExpertGroupCount);
  mixture.num_groups_per_token = count(gguf_keys::kExpertGroupUsedCount);
  // DeepSeek V2's are as good as their best expert, V3's, of sigmoid scores, as two together.
  if (traits.has_scores && mixture.scoring == ExpertScoring::kSoftmax) mixture.num_experts_of_group = 1;
}

/// Numbers alone: which layers have experts depends on how many there are.
void read_mixture(const GgufFile& file, const ArchitectureKeys& keys, ModelConfig& config) {
  const GgufMixtureTraits traits = gguf_mixture_traits(config.architecture);
  const std::int64_t num_experts = keys.integer(gguf_keys::kExpertCount).value_or(0);
  const std::int64_t num_shared = keys.integer(gguf_keys::kExpertSharedCount).value_or(0);
  const auto shared_size = keys.integer(gguf_keys::kExpertSharedFeedForwardLength);
  if (!traits.has_shared_count && !traits.has_shared_size &&
      (num_shared != 0 || shared_size.value_or(0) != 0)) {
    throw_unsupported(file, "experts that all tokens share are not supported of this architecture");
  }
  if (num_experts == 0) {
    if (!may_have_experts(config.architecture) || config.architecture == Architecture::kGemma4) return;
    file.fail(keys.key(gguf_keys::kExpertCount), "is missing");
  }
  if (config.architecture == Architecture::kLlama) config.architecture = Architecture::kMixtral;
  if (!may_have_experts(config.architecture))
    throw_unsupported(file, "mixtures of experts are not supported of this architecture");
  MixtureConfig& mixture = config.mixture.emplace();
  mixture.num_experts = keys.to_int(gguf_keys::kExpertCount, num_experts);
  mixture.num_experts_per_token = keys.required_int(gguf_keys::kExpertUsedCount);
  mixture.intermediate_size =
      keys.integer(gguf_keys::kExpertFeedForwardLength).value_or(config.intermediate_size);
  read_scores(file, keys, traits, mixture);
  mixture.router_bias = mixture.expert_bias = config.architecture == Architecture::kGptOss;
  constexpr std::int64_t kMostShared = 1024;
  if (num_shared < 0 || num_shared > kMostShared) {
    file.fail(keys.key(gguf_keys::kExpertSharedCount),
              fmt::format("is {}, expected 0 to {}", num_shared, kMostShared));
  }
  mixture.shared_intermediate_size = shared_size.value_or(
      num_shared * std::clamp<std::int64_t>(mixture.intermediate_size, 0, std::int64_t{1} << 40));
  mixture.shared_gate =
      (config.architecture == Architecture::kQwen2Moe || has_gated_delta(config.architecture)) &&
      mixture.shared_intermediate_size > 0;
}

/// Which layers have experts, and what these have.
void read_expert_layers(const GgufFile& file, const ArchitectureKeys& keys, const WeightCollector& weights,
                        ModelConfig& config) {
  const std::int64_t num_dense = keys.integer(gguf_keys::kLeadingDenseBlockCount).value_or(0);
  const std::int64_t interval = keys.integer(gguf_keys::kMoeLayerStep).value_or(1);
  if (interval < 1) file.fail(keys.key(gguf_keys::kMoeLayerStep), "is below 1");
  std::vector<bool> layers = gguf_expert_layers(config.num_layers, num_dense, interval);
  const auto first = std::find(layers.begin(), layers.end(), true);
  if (first == layers.end()) {
    config.mixture.reset();
    return;
  }
  config.mixture->score_bias = weights.contains(
      fmt::format("layers.{}.mlp.e_score_correction.bias", std::distance(layers.begin(), first)));
  if (std::find(layers.begin(), layers.end(), false) != layers.end())
    config.layer_has_experts = std::move(layers);
}

void read_control_tokens(const GgufFile& file, ModelConfig& config) {
  const auto bos = file.integer(gguf_keys::kBosToken);
  if (is_token(bos, config.vocab_size)) config.bos_token_id = static_cast<std::int32_t>(*bos);
  // The ends of a text, of a turn and of a message.
  for (const char* key : {gguf_keys::kEosToken, gguf_keys::kEotToken, gguf_keys::kEomToken}) {
    const auto id = file.integer(key);
    auto& ids = config.eos_token_ids;
    if (is_token(id, config.vocab_size) && std::find(ids.begin(), ids.end(), *id) == ids.end()) {
      ids.push_back(static_cast<std::int32_t>(*id));
    }
  }
}

}  // namespace

bool is_token(const std::optional<std::int64_t>& id, std::int64_t vocab_size) {
  return id && *id >= 0 && *id < vocab_size;
}

Architecture read_gguf_architecture(const GgufFile& file) {
  const ArchitectureKeys keys(file);
  const auto architecture = gguf_architecture(keys.architecture());
  if (!architecture) {
    throw_unsupported(file, fmt::format("the architecture '{}' is not supported; supported are {}",
                                        printable(keys.architecture()), gguf_architecture_names()));
  }
  return *architecture;
}

ModelConfig read_gguf_config(std::span<const GgufPart> parts, const WeightCollector& weights,
                             Architecture architecture) {
  const GgufFile& file = parts.front().file;
  const ArchitectureKeys keys(file);
  ModelConfig config = architecture_config(architecture);
  refuse_unsupported(file, keys);
  read_sizes(file, keys, weights, config);
  const char* eps_key =
      config.norm == NormKind::kLayer ? gguf_keys::kLayerNormEpsilon : gguf_keys::kRmsEpsilon;
  const auto eps = keys.real(eps_key);
  if (!eps) file.fail(keys.key(eps_key), "is missing");
  config.norm_eps = *eps;
  config.max_seq_len = keys.required_integer(gguf_keys::kContextLength);
  read_mixture(file, keys, config);
  config.rope = read_rope(parts, keys, config);
  if (config.latent) read_latent_rope(keys, config);

  if (is_gemma(architecture)) read_gemma(keys, config);
  if (architecture == Architecture::kGemma4) {
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
    config.softmax_scale = 1.0f;
    if (const float cap = keys.real(gguf_keys::kFinalSoftcap).value_or(0); cap != 0)
      config.logits_softcap = cap;
  }
  read_sliding_window(file, keys, config);
  if (architecture == Architecture::kMiniCpm) {
    // The first files say nothing of MiniCPM-2B's.
    const float root = std::sqrt(static_cast<float>(config.num_layers));
    config.embedding_scale = keys.real(gguf_keys::kEmbeddingScale).value_or(12);
    config.residual_scale = keys.real(gguf_keys::kResidualScale).value_or(1.4f / root);
    config.logits_scale =
        1 / keys.real(gguf_keys::kLogitScale).value_or(static_cast<float>(config.hidden_size) / 256);
  }
  if (is_granite(architecture)) {
    config.softmax_scale = keys.real(gguf_keys::kSoftmaxScale);
    config.embedding_scale = keys.real(gguf_keys::kEmbeddingScale).value_or(1);
    config.residual_scale = keys.real(gguf_keys::kResidualScale).value_or(1);
    config.logits_scale = 1 / keys.real(gguf_keys::kLogitScale).value_or(1);
  }
  if (architecture == Architecture::kCohere || architecture == Architecture::kCohere2) {
    const auto scale = keys.real(gguf_keys::kLogitScale);
    if (!scale) file.fail(keys.key(gguf_keys::kLogitScale), "is missing");
    config.logits_scale = *scale;
  }
  if (const float beta = keys.real(gguf_keys::kQueryScale).value_or(0); beta != 0) {
    if (architecture != Architecture::kMinistral3)
      throw_unsupported(file, "attention.temperature_scale is not supported of this architecture");
    if (!keys.has(gguf_keys::kRopeOriginalLength))
      file.fail(keys.key(gguf_keys::kRopeOriginalLength), "is missing");
    config.query_scaling =
        QueryScaling{.beta = beta, .original_max_seq_len = *keys.integer(gguf_keys::kRopeOriginalLength)};
  }
  validate(config, file.source());  // before anything as long as a number in the file
  if (config.mixture) read_expert_layers(file, keys, weights, config);
  if (config.gated_delta) read_attention_layers(file, keys, config);
  if (architecture == Architecture::kGemma4) read_gemma4_layers(file, keys, weights, config);
  if (architecture == Architecture::kGlm4Moe && weights.contains("layers.0.self_attn.q_norm.weight"))
    config.qk_norm = QkNorm::kEachHead;
  if (architecture == Architecture::kSmolLm3)  // which no key says
    config.layer_uses_rope = all_but_every(config.num_layers, kNoRopeInterval);
  // Some writers join them whatever the architecture is.
  if (weights.contains("layers.0.self_attn.qkv_proj.weight") &&
      !weights.contains("layers.0.self_attn.q_proj.weight"))
    config.fused_qkv = true;
  config.qkv_bias = weights.contains(config.fused_qkv ? "layers.0.self_attn.qkv_proj.bias"
                                                      : "layers.0.self_attn.q_proj.bias");
  config.o_bias = weights.contains("layers.0.self_attn.o_proj.bias");
  config.mlp_bias =
      weights.contains(config.gated_mlp ? "layers.0.mlp.gate_proj.bias" : "layers.0.mlp.up_proj.bias");
  if (architecture == Architecture::kGptNeoX)
    config.parallel_blocks = config.parallel_norms =
        file.boolean(keys.key(gguf_keys::kParallelResidual)).value_or(true);
  // Which is all that says so.
  if (architecture == Architecture::kStableLm)
    config.parallel_blocks = !weights.contains("layers.0.post_attention_layernorm.weight");
  if ((architecture == Architecture::kStableLm || architecture == Architecture::kCohere) &&
      weights.contains("layers.0.self_attn.q_norm.weight"))
    config.qk_norm = QkNorm::kOwnEachHead;
  config.tied_embeddings = !weights.contains("lm_head.weight");
  read_control_tokens(file, config);
  validate(config, file.source());
  return config;
}

}  // namespace tessera
