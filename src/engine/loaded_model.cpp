#include "engine/loaded_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "attention/backend.h"
#include "tessera/error.h"

namespace tessera {
namespace {

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

DType resolve_activation_dtype(const LoadOptions& options, DType natural) {
  if (!options.activation_dtype) return natural;
  const DType dtype = *options.activation_dtype;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("activation_dtype is {}; expected f32, f16 or bf16", dtype_name(dtype)));
  }
  return dtype;
}

/// What ends a text: for models with a chat template also the tokenizer's end of text, which then is the end
/// of a turn and which not every configuration names.
std::vector<std::int32_t> find_end_tokens(const Checkpoint& checkpoint) {
  std::vector<std::int32_t> ids = checkpoint.config.eos_token_ids;
  const auto spelling = checkpoint.chat.special_tokens.find("eos_token");
  if (!checkpoint.chat.templates.empty() && checkpoint.tokenizer &&
      spelling != checkpoint.chat.special_tokens.end()) {
    const std::optional<TokenId> id = checkpoint.tokenizer->find_token(spelling->second);
    if (id && *id < checkpoint.config.vocab_size) ids.push_back(*id);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

LoadedModel::LoadedModel(Checkpoint checkpoint, std::shared_ptr<std::byte> memory, const LoadOptions& options)
    : memory_(std::move(memory)), checkpoint_(std::move(checkpoint)) {
  const BackendNames backends = choose_backends(options.backend, options.device);
  ops_ = make_ops_backend(backends.ops, options.device ? options.device->index : 0);
  LoadProgress on_load;
  if (options.on_progress) {
    on_load = [&](std::uint64_t done, std::uint64_t total) {
      options.on_progress({Progress::Stage::kLoad, done, total});
    };
  }
  weights_ = load_weights(checkpoint_, *ops_, on_load);
  attention_backend_ = backends.attention;
  info_.activation_dtype = resolve_activation_dtype(options, weights_.activation_dtype);
  info_.kv_dtype = info_.activation_dtype;
  drawable_ = drawable_tokens(config(), tokenizer());
  end_tokens_ = find_end_tokens(checkpoint_);
  describe(backends.attention == "auto" ? backends.ops : backends.attention);
}

void LoadedModel::require_device(const LoadOptions& options) {
  make_ops_backend(choose_backends(options.backend, options.device).ops,
                   options.device ? options.device->index : 0);
}

const Tokenizer& LoadedModel::require_tokenizer() const {
  if (tokenizer() == nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        "the model has no tokenizer, so that it takes and gives tokens only; put a tokenizer.json into "
        "its folder or pass token ids");
  }
  return *tokenizer();
}

void LoadedModel::describe(const std::string& backend) {
  info_.architecture = architecture_name(config().architecture);
  info_.num_parameters = weights_.num_parameters;
  info_.weight_bytes = weights_.size_bytes;
  info_.decode_bytes = weights_.decode_bytes;
  info_.weight_dtype = weights_.matrix_dtype;
  info_.vocab_size = config().vocab_size;
  info_.hidden_size = config().hidden_size;
  info_.intermediate_size = config().intermediate_size;
  info_.max_seq_len = config().max_seq_len;
  info_.num_layers = config().num_layers;
  info_.num_heads = config().num_heads;
  info_.num_kv_heads = config().num_kv_heads;
  info_.head_dim = config().head_dim;
  info_.has_tokenizer = tokenizer() != nullptr;
  info_.has_chat_template = !checkpoint_.chat.templates.empty();
  info_.quantization = checkpoint_.quantization;
  info_.backend = backend;
  info_.device = ops_->device();
}

}  // namespace tessera
