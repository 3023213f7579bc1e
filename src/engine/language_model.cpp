#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "attention/backend.h"
#include "engine/drawable_tokens.h"
#include "engine/generator.h"
#include "engine/kv_cache.h"
#include "model/checkpoint/checkpoint.h"
#include "model/execution_plan.h"
#include "model/random_checkpoint.h"
#include "model/weights.h"
#include "ops/backend.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

// Rows that the output head handles at once when logits of all positions are asked for: enough to use each
// weight often, few enough that their logits stay small beside the weights.
constexpr std::int64_t kLogitsRows = 32;

constexpr std::int64_t kMaxBatch = 1 << 16;
constexpr std::int64_t kMaxSeqLen = std::numeric_limits<std::int32_t>::max() / 2;  // positions are 32-bit

/// The backends that a user's name stands for. One that has attention only (such as "unfused") runs with the
/// first kernels for the rest that are on the same device.
struct BackendNames {
  std::string attention;
  std::string ops;
};

BackendNames choose_backends(const std::string& name, const std::optional<Device>& device) {
  const std::span<const std::string_view> ops_names = ops_backend_names();
  const auto first_ops_on = [&](DeviceKind kind) {
    return std::ranges::find_if(
        ops_names, [&](std::string_view ops) { return find_attention_backend(ops).device_kind() == kind; });
  };
  if (name == "auto") {
    if (!device) return {name, std::string(preferred_ops_backend())};
    const auto ops = first_ops_on(device->kind);
    if (ops == ops_names.end()) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("device is {}, which no backend of this library runs on", device_name(*device)));
    }
    return {name, std::string(*ops)};
  }
  const DeviceKind kind = find_attention_backend(name).device_kind();
  if (device && device->kind != kind) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("device is {}, but the backend '{}' runs on {}; choose a device of that kind, or the "
                    "backend \"auto\"",
                    device_name(*device), name, device_name({kind, 0})));
  }
  if (std::ranges::find(ops_names, name) != ops_names.end()) return {name, name};
  return {name, std::string(*first_ops_on(kind))};
}

void require_range(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; expected {} to {}", field, value, least, most));
  }
}

std::int64_t resolve_max_seq_len(const ModelOptions& options, const ModelConfig& config) {
  const std::int64_t context = std::min(config.max_seq_len, kMaxSeqLen);
  if (options.max_seq_len == 0) return context;
  if (options.max_seq_len < 0 || options.max_seq_len > context) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("max_seq_len is {}; expected 1 to {}, the model's context length, or 0 for that",
                            options.max_seq_len, context));
  }
  return options.max_seq_len;
}

/// A GPU takes more rows to be busy.
int resolve_prefill_chunk(const ModelOptions& options, Device device) {
  if (options.prefill_chunk != 0) return options.prefill_chunk;
  return device.kind == DeviceKind::kCpu ? 512 : 2048;
}

DType resolve_activation_dtype(const ModelOptions& options, DType natural) {
  if (!options.activation_dtype) return natural;
  const DType dtype = *options.activation_dtype;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("activation_dtype is {}; expected f32, f16 or bf16", dtype_name(dtype)));
  }
  return dtype;
}

KvCacheShape make_cache_shape(const ModelConfig& config, const ModelOptions& options, DType dtype,
                              std::int64_t max_seq_len) {
  KvCacheShape shape;
  shape.num_layers = config.num_layers;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.dtype = dtype;
  shape.page_size = options.page_size;
  const auto pages_for = [&](std::int64_t tokens) { return (tokens - 1) / options.page_size + 1; };
  shape.num_pages = options.max_batch * pages_for(max_seq_len);  // more would never be used
  if (options.max_kv_tokens != 0) {
    shape.num_pages = std::min(shape.num_pages, pages_for(options.max_kv_tokens));
  }
  return shape;
}

/// What ends a text: for models with a chat template also the tokenizer's end of text, which then is the end
/// of a turn and which not every configuration names.
std::vector<std::int32_t> end_tokens(const Checkpoint& checkpoint) {
  std::vector<std::int32_t> ids = checkpoint.config.eos_token_ids;
  const auto spelling = checkpoint.chat.special_tokens.find("eos_token");
  if (checkpoint.chat.templates.empty() || !checkpoint.tokenizer ||
      spelling == checkpoint.chat.special_tokens.end())
    return ids;
  const std::optional<TokenId> id = checkpoint.tokenizer->find_token(spelling->second);
  if (id && *id < checkpoint.config.vocab_size && std::ranges::find(ids, *id) == ids.end())
    ids.push_back(*id);
  return ids;
}

ChatRequest chat_request(std::span<const ChatMessage> messages, const ChatOptions& options) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  ChatRequest request;
  request.messages = list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  request.tools = options.tools;
  request.variables = options.variables;
  request.add_generation_prompt = options.add_generation_prompt;
  request.template_name = options.template_name;
  return request;
}

}  // namespace

/// Members are destroyed from the last to the first: each refers to those above it.
class LanguageModel::Implementation {
 public:
  Implementation(Checkpoint checkpoint, std::shared_ptr<std::byte> memory, const ModelOptions& options)
      : memory_(std::move(memory)), checkpoint_(std::move(checkpoint)) {
    const ModelConfig& config = checkpoint_.config;
    require_range("max_batch", options.max_batch, 1, kMaxBatch);
    require_range("page_size", options.page_size, 1, kMaxSeqLen);
    require_range("max_kv_tokens", options.max_kv_tokens, 0, std::numeric_limits<std::int64_t>::max());
    require_range("prefill_chunk", options.prefill_chunk, 0, std::numeric_limits<int>::max());
    const std::int64_t max_seq_len = resolve_max_seq_len(options, config);
    const BackendNames backends = choose_backends(options.backend, options.device);

    ops_ = make_ops_backend(backends.ops, options.device ? options.device->index : 0);
    LoadProgress on_load;
    if (options.on_progress) {
      on_load = [&](std::uint64_t done, std::uint64_t total) {
        options.on_progress({Progress::Stage::kLoad, done, total});
      };
    }
    weights_ = load_weights(checkpoint_, *ops_, on_load);
    const DType activation_dtype = resolve_activation_dtype(options, weights_.activation_dtype);
    cache_ =
        std::make_unique<KvCache>(make_cache_shape(config, options, activation_dtype, max_seq_len), *ops_);

    ExecutionPlanOptions plan_options;
    plan_options.attention_backend = backends.attention;
    plan_options.activation_dtype = activation_dtype;
    plan_options.batch_invariant = options.batch_invariant;
    plan_options.max_batch = options.max_batch;
    plan_options.max_seq_len = max_seq_len;
    // Beyond what all sequences can hold, a larger chunk would only take memory.
    const std::int64_t prefill_chunk = std::min<std::int64_t>(resolve_prefill_chunk(options, ops_->device()),
                                                              options.max_batch * max_seq_len);
    plan_options.max_tokens = prefill_chunk + options.max_batch;
    plan_options.max_logits_rows = std::max<std::int64_t>(options.max_batch, kLogitsRows);
    DrawableTokens drawable = drawable_tokens(config, checkpoint_.tokenizer.get());
    plan_options.absent_tokens = std::move(drawable.absent);
    plan_ = std::make_unique<ExecutionPlan>(config, weights_, cache_->layers(), plan_options, *ops_);

    GeneratorOptions generator_options;
    generator_options.vocab_size = config.vocab_size;
    generator_options.token_limit = drawable.limit;
    generator_options.max_seq_len = max_seq_len;
    generator_options.prefill_chunk = prefill_chunk;
    generator_options.eos_token_ids = end_tokens(checkpoint_);
    generator_options.tokenizer = checkpoint_.tokenizer.get();
    generator_options.on_progress = options.on_progress;
    generator_ = std::make_unique<Generator>(*plan_, *cache_, *ops_, std::move(generator_options));
    describe(backends, max_seq_len);
  }

  const ModelInfo& info() const { return info_; }
  Generator& generator() { return *generator_; }
  const ChatTemplateData& chat() const { return checkpoint_.chat; }

  const Tokenizer& tokenizer() const {
    if (!checkpoint_.tokenizer) {
      throw Error(
          ErrorCode::kUnsupported,
          "the model has no tokenizer, so that it takes and gives tokens only; put a tokenizer.json into "
          "its folder or pass token ids");
    }
    return *checkpoint_.tokenizer;
  }

 private:
  void describe(const BackendNames& backends, std::int64_t max_seq_len) {
    const ModelConfig& config = checkpoint_.config;
    info_.architecture = architecture_name(config.architecture);
    info_.num_parameters = weights_.num_parameters;
    info_.weight_bytes = weights_.size_bytes;
    info_.decode_bytes = weights_.decode_bytes;
    info_.weight_dtype = weights_.matrix_dtype;
    info_.activation_dtype = plan_->options().activation_dtype;
    info_.vocab_size = config.vocab_size;
    info_.hidden_size = config.hidden_size;
    info_.intermediate_size = config.intermediate_size;
    info_.max_seq_len = max_seq_len;
    info_.num_layers = config.num_layers;
    info_.num_heads = config.num_heads;
    info_.num_kv_heads = config.num_kv_heads;
    info_.head_dim = config.head_dim;
    info_.has_tokenizer = checkpoint_.tokenizer != nullptr;
    info_.has_chat_template = !checkpoint_.chat.templates.empty();
    info_.backend = backends.attention == "auto" ? backends.ops : backends.attention;
    info_.device = ops_->device();
    info_.kv_cache_bytes = cache_->size_bytes();
  }

  std::shared_ptr<std::byte> memory_;  // of random weights; null for files
  Checkpoint checkpoint_;
  std::unique_ptr<OpsBackend> ops_;
  ModelWeights weights_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<ExecutionPlan> plan_;
  std::unique_ptr<Generator> generator_;
  ModelInfo info_;
};

LanguageModel::LanguageModel(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;
LanguageModel::~LanguageModel() = default;

LanguageModel LanguageModel::load(const std::filesystem::path& path, const ModelOptions& options) {
  return LanguageModel(std::make_unique<Implementation>(open_checkpoint(path), nullptr, options));
}

LanguageModel LanguageModel::random(const RandomModelShape& shape, DType weight_dtype,
                                    const ModelOptions& options) {
  // A missing device is an error before memory is filled.
  make_ops_backend(choose_backends(options.backend, options.device).ops,
                   options.device ? options.device->index : 0);
  RandomCheckpoint random = make_random_checkpoint(shape, weight_dtype);
  return LanguageModel(
      std::make_unique<Implementation>(std::move(random.checkpoint), std::move(random.memory), options));
}

const ModelInfo& LanguageModel::info() const { return implementation_->info(); }

std::vector<std::int32_t> LanguageModel::encode(std::string_view text, bool add_special_tokens) const {
  return implementation_->tokenizer().encode(text, {.add_special_tokens = add_special_tokens});
}

std::string LanguageModel::decode(std::span<const std::int32_t> tokens, bool skip_special_tokens) const {
  const Tokenizer& tokenizer = implementation_->tokenizer();
  return tokenizer.decode(ids_with_tokens(tokenizer, tokens, implementation_->info().vocab_size),
                          skip_special_tokens);
}

std::string LanguageModel::render_chat(std::span<const ChatMessage> messages,
                                       const ChatOptions& options) const {
  return tessera::render_chat(implementation_->chat(), chat_request(messages, options)).text;
}

std::vector<std::int32_t> LanguageModel::encode_chat(std::span<const ChatMessage> messages,
                                                     const ChatOptions& options) const {
  return tessera::encode_chat(implementation_->tokenizer(),
                              tessera::render_chat(implementation_->chat(), chat_request(messages, options)));
}

std::vector<float> LanguageModel::logits(std::span<const std::int32_t> tokens, bool all) {
  return implementation_->generator().logits(tokens, all);
}

Generation LanguageModel::generate(
    std::span<const std::int32_t> prompt, const GenerateOptions& options,
    const std::function<bool(std::int32_t token, std::string_view text)>& on_token) {
  const GenerationRequest request{prompt, options, on_token};
  return std::move(implementation_->generator().generate({&request, 1}).front());
}

std::vector<Generation> LanguageModel::generate_batch(std::span<const std::vector<std::int32_t>> prompts,
                                                      std::span<const GenerateOptions> options) {
  if (options.size() != 1 && options.size() != prompts.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} sets of options came with {} prompts; expected one for all or one a prompt",
                            options.size(), prompts.size()));
  }
  std::vector<GenerationRequest> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back({prompts[i], options[options.size() == 1 ? 0 : i], {}});
  }
  return implementation_->generator().generate(requests);
}

}  // namespace tessera
