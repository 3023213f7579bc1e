// Models: loading, tokens, conversations, logits.

#include "c_api/model.h"

#include <fmt/core.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "c_api/dtypes.h"
#include "c_api/memory.h"
#include "c_api/structs.h"

namespace tessera::c_api {
namespace {

tessera_model_options read_model_options(const tessera_model_options* given) {
  const tessera_model_options c = read_optional_struct(given, "options");
  constexpr std::uint64_t kKnown =
      TESSERA_MODEL_HAS_DEVICE | TESSERA_MODEL_BATCH_INVARIANT | TESSERA_MODEL_WITHOUT_CACHE;
  check_flags("options", c.flags, kKnown);
  check_reserved("options", c.reserved);
  return c;
}

LoadOptions load_options(const tessera_model_options& c) {
  LoadOptions options;
  if (c.backend != nullptr) options.backend = c.backend;
  if ((c.flags & TESSERA_MODEL_HAS_DEVICE) != 0) options.device = device_of(c.device);
  options.activation_dtype = optional_dtype(c.activation_dtype, "options.activation_dtype");
  if (c.on_progress != nullptr) {
    options.on_progress = [call = c.on_progress, user_data = c.user_data](const Progress& progress) {
      const std::int32_t stage =
          progress.stage == Progress::Stage::kLoad ? TESSERA_PROGRESS_LOAD : TESSERA_PROGRESS_PREFILL;
      if (call(user_data, stage, progress.done, progress.total) != 0) {
        throw Cancelled{"on_progress ended it"};
      }
    };
  }
  return options;
}

ModelOptions model_options(const tessera_model_options& c) {
  LoadOptions load = load_options(c);
  ModelOptions options;
  options.backend = std::move(load.backend);
  options.device = load.device;
  options.activation_dtype = load.activation_dtype;
  options.on_progress = std::move(load.on_progress);
  options.kv_dtype = optional_dtype(c.kv_dtype, "options.kv_dtype");
  options.batch_invariant = (c.flags & TESSERA_MODEL_BATCH_INVARIANT) != 0;
  options.max_seq_len = c.max_seq_len;
  options.max_kv_tokens = c.max_kv_tokens;
  if (c.max_batch != 0) options.max_batch = c.max_batch;
  if (c.page_size != 0) options.page_size = c.page_size;
  options.prefill_chunk = c.prefill_chunk;
  return options;
}

/// Throws Error{kInvalidArgument} if options of a model without a cache speak of one.
void check_no_cache(const tessera_model_options& c) {
  if (c.max_seq_len != 0 || c.max_kv_tokens != 0 || c.max_batch != 0 || c.page_size != 0 ||
      c.prefill_chunk != 0 || c.kv_dtype != TESSERA_DTYPE_NONE ||
      (c.flags & TESSERA_MODEL_BATCH_INVARIANT) != 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "options have TESSERA_MODEL_WITHOUT_CACHE and speak of a cache or a batch; expected max_seq_len, "
        "max_kv_tokens, max_batch, page_size, prefill_chunk and kv_dtype to be 0, and no "
        "TESSERA_MODEL_BATCH_INVARIANT: they are options of an engine");
  }
}

/// Makes a model by Model's or LanguageModel's static function that `call` calls:
/// call.operator()<Type>(options).
template <class Call>
tessera_status make_model(const tessera_model_options* given, tessera_model** model, Call&& call) {
  return guarded([&] {
    tessera_model*& out = required(model, "model");
    out = nullptr;
    const tessera_model_options options = read_model_options(given);
    if ((options.flags & TESSERA_MODEL_WITHOUT_CACHE) != 0) {
      check_no_cache(options);
      out = new tessera_model(call.template operator()<Model>(load_options(options)));
    } else {
      out = new tessera_model(call.template operator()<LanguageModel>(model_options(options)));
    }
  });
}

std::vector<ChatMessage> messages_of(const tessera_chat_message* messages, std::size_t count) {
  std::vector<ChatMessage> all;
  for (const tessera_chat_message& m : array(messages, count, "messages")) {
    const std::span<const char> content = array(m.content, m.content_bytes, "messages[].content");
    all.push_back({&required(m.role, "messages[].role"), {content.begin(), content.end()}});
  }
  return all;
}

ChatOptions chat_options(const tessera_chat_options* given) {
  const tessera_chat_options c = read_optional_struct(given, "options");
  check_reserved("options", c.reserved);
  ChatOptions options;
  options.add_generation_prompt = c.no_generation_prompt == 0;
  if (c.template_name != nullptr) options.template_name = c.template_name;
  if (c.tools != nullptr) options.tools = c.tools;
  if (c.variables != nullptr) options.variables = c.variables;
  return options;
}

/// std::filesystem takes UTF-8 as it is on the systems that the library is for.
std::filesystem::path path_of(const char* path) { return &required(path, "path"); }

}  // namespace
}  // namespace tessera::c_api

using namespace tessera::c_api;

extern "C" {

tessera_status tessera_model_load(const char* path, const tessera_model_options* options,
                                  tessera_model** model) {
  return make_model(options, model,
                    [&]<class Type>(const auto& cpp) { return Type::load(path_of(path), cpp); });
}

tessera_status tessera_model_create_random(const char* shape, tessera_dtype weight_dtype,
                                           const tessera_model_options* options, tessera_model** model) {
  return make_model(options, model, [&]<class Type>(const auto& cpp) {
    return Type::random(tessera::random_model_shape(&required(shape, "shape")),
                        dtype_of(weight_dtype, "weight_dtype"), cpp);
  });
}

void tessera_model_free(tessera_model* model) { delete model; }

tessera_status tessera_model_get_info(const tessera_model* model, tessera_model_info* info) {
  return guarded([&] {
    const tessera::ModelInfo& m = required(model, "model").info();
    tessera_model_info out{};
    out.architecture = m.architecture.c_str();
    out.backend = m.backend.c_str();
    out.device = c_device(m.device);
    out.num_parameters = m.num_parameters;
    out.weight_bytes = m.weight_bytes;
    out.decode_bytes = m.decode_bytes;
    out.kv_cache_bytes = m.kv_cache_bytes;
    out.weight_dtype = c_dtype(m.weight_dtype);
    out.activation_dtype = c_dtype(m.activation_dtype);
    out.vocab_size = m.vocab_size;
    out.hidden_size = m.hidden_size;
    out.intermediate_size = m.intermediate_size;
    out.max_seq_len = m.max_seq_len;
    out.num_layers = m.num_layers;
    out.num_heads = m.num_heads;
    out.num_kv_heads = m.num_kv_heads;
    out.head_dim = m.head_dim;
    out.has_tokenizer = m.has_tokenizer ? 1 : 0;
    out.has_chat_template = m.has_chat_template ? 1 : 0;
    out.kv_dtype = c_dtype(m.kv_dtype);
    out.quantization = m.quantization.c_str();
    write_struct(info, out, "info");
  });
}

tessera_status tessera_model_encode(const tessera_model* model, const char* text, size_t text_bytes,
                                    int32_t add_special_tokens, tessera_tokens* tokens) {
  return guarded([&] {
    const std::span<const char> bytes = array(text, text_bytes, "text");
    give(required(tokens, "tokens"),
         required(model, "model").model().encode({bytes.data(), bytes.size()}, add_special_tokens != 0));
  });
}

tessera_status tessera_model_decode(const tessera_model* model, const int32_t* tokens, size_t num_tokens,
                                    int32_t skip_special_tokens, tessera_text* text) {
  return guarded([&] {
    give(required(text, "text"), required(model, "model")
                                     .model()
                                     .decode(array(tokens, num_tokens, "tokens"), skip_special_tokens != 0));
  });
}

tessera_status tessera_model_render_chat(const tessera_model* model, const tessera_chat_message* messages,
                                         size_t num_messages, const tessera_chat_options* options,
                                         tessera_text* text) {
  return guarded([&] {
    give(required(text, "text"),
         required(model, "model")
             .model()
             .render_chat(messages_of(messages, num_messages), chat_options(options)));
  });
}

tessera_status tessera_model_encode_chat(const tessera_model* model, const tessera_chat_message* messages,
                                         size_t num_messages, const tessera_chat_options* options,
                                         tessera_tokens* tokens) {
  return guarded([&] {
    give(required(tokens, "tokens"),
         required(model, "model")
             .model()
             .encode_chat(messages_of(messages, num_messages), chat_options(options)));
  });
}

tessera_status tessera_model_render_chat_json(const tessera_model* model, const char* messages,
                                              const tessera_chat_options* options, tessera_text* text) {
  return guarded([&] {
    give(required(text, "text"),
         required(model, "model")
             .model()
             .render_chat_json(&required(messages, "messages"), chat_options(options)));
  });
}

tessera_status tessera_model_encode_chat_json(const tessera_model* model, const char* messages,
                                              const tessera_chat_options* options, tessera_tokens* tokens) {
  return guarded([&] {
    give(required(tokens, "tokens"),
         required(model, "model")
             .model()
             .encode_chat_json(&required(messages, "messages"), chat_options(options)));
  });
}

tessera_status tessera_model_logits(tessera_model* model, const int32_t* tokens, size_t num_tokens,
                                    int32_t all, tessera_floats* logits) {
  return guarded([&] {
    tessera_floats& out = required(logits, "logits");
    const std::vector<float> values =
        required(model, "model").language_model().logits(array(tokens, num_tokens, "tokens"), all != 0);
    give(out, values);
  });
}

}  // extern "C"
