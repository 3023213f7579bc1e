#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/device.h"
#include "tessera/dtype.h"

namespace tessera {

/// Loading is reported in bytes of weights, prefilling in tokens of the prompt.
struct Progress {
  enum class Stage { kLoad, kPrefill } stage = Stage::kLoad;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};

struct ModelOptions {
  /// "cuda", "cpu", "reference", …: for attention and the other kernels; "auto": a GPU if there is one.
  std::string backend = "auto";
  /// One of the backend's devices, which then must be of its kind; with "auto" any. None: the first.
  std::optional<Device> device = {};
  std::int64_t max_seq_len = 0;    ///< tokens of KV cache a sequence may take; 0: the model's context length
  int max_batch = 1;               ///< sequences that run at the same time
  int page_size = 16;              ///< tokens in a KV page
  std::int64_t max_kv_tokens = 0;  ///< tokens of KV cache in all; 0: max_batch * max_seq_len
  /// And that of the KV cache unless kv_dtype says another; none: the 16-bit type that all matrices of the
  /// layers have, kF32 if they differ or are kF32. Of blocks: kBF16 on a GPU, or a CPU with AMX or (but
  /// Intel's) AVX-512-BF16, unless another matrix is kF32; else kF32.
  std::optional<DType> activation_dtype = {};
  /// Of the KV cache: kF8E4M3, which takes half of a 16-bit cache's memory and reading, each number rounded
  /// to 4 bits (scale 1: numbers beyond 448 become 448); none: that of the activations.
  std::optional<DType> kv_dtype = {};
  /// A sequence's tokens don't depend on what else is in the batch or how it was prefilled.
  bool batch_invariant = false;
  /// Most prompt tokens that go through the model at once; 0: 512 on a CPU, 2048 on a GPU.
  int prefill_chunk = 0;
  std::function<void(const Progress&)> on_progress = {};  ///< may throw to cancel
};

/// How the next token is drawn; the order is logit bias, presence and frequency penalty, repetition penalty,
/// temperature, top-k, top-p, min-p.
struct SamplingOptions {
  float temperature = 0;                          ///< 0: greedy; >= 0
  int top_k = 0;                                  ///< 0: all
  float top_p = 1;                                ///< in (0, 1]
  float min_p = 0;                                ///< in [0, 1]
  float repetition_penalty = 1;                   ///< > 0
  std::uint64_t seed = 0;                         ///< the same seed gives the same tokens
  float presence_penalty = 0;                     ///< taken from the logits of tokens that were drawn before
  float frequency_penalty = 0;                    ///< the same, times how often they were
  std::map<std::int32_t, float> logit_bias = {};  ///< added to tokens' logits
};

class TokenConstraint;  // engine.h

/// A token's probability before biases, temperature and filters, among those that may be drawn: ids without a
/// token of the tokenizer, which pad many vocabularies, have none and are never among the likeliest.
struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;  ///< natural logarithm
};

struct GenerateOptions {
  std::int64_t max_tokens = 256;
  SamplingOptions sampling = {};
  bool stop_at_eos = true;
  /// Text that ends the generation, and is left out of the text that on_token gets (not of the tokens).
  std::vector<std::string> stop = {};
  /// Keeps the keys and values afterwards for the next call with this option, which then computes only what
  /// its prompt does not share with this sequence's beginning. For one prompt at a time; calls without it
  /// forget what was kept.
  bool keep_cache = false;
  /// Decides what may come (structured_output.h makes some); for one call. Null: any token.
  std::shared_ptr<TokenConstraint> constraint = nullptr;
  /// Log probabilities: none without, else of each token and of that many likeliest (0 to 64; fewer where
  /// fewer tokens can be drawn).
  std::optional<int> top_logprobs = std::nullopt;
};

enum class StopReason { kEndOfText, kMaxTokens, kContextFull, kCancelled, kStopString };

struct GenerationStats {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;     ///< of these, taken from the call before (keep_cache)
  std::int64_t generated_tokens = 0;  ///< drawn ones, the end-of-text token included
  double prefill_ms = 0;  ///< from the first prompt token in to the first token out (the last prompt's)
  double decode_ms = 0;   ///< all tokens after the first
};

struct Generation {
  std::vector<std::int32_t> tokens;  ///< the new ones, without the end-of-text token
  StopReason stop_reason = StopReason::kMaxTokens;
  GenerationStats stats;
  std::vector<float> logprobs = {};                          ///< of each token, with top_logprobs
  std::vector<std::vector<TokenLogprob>> top_logprobs = {};  ///< the likeliest first, of each token
};

struct ModelInfo {
  std::string architecture;
  std::int64_t num_parameters = 0;
  std::int64_t weight_bytes = 0;  ///< of all weights as stored
  /// Of the weights that one decode step reads: all but an untied embedding table.
  std::int64_t decode_bytes = 0;
  DType weight_dtype = DType::kF32;
  DType activation_dtype = DType::kF32;
  DType kv_dtype = DType::kF32;  ///< of the KV cache
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  std::int64_t max_seq_len = 0;  ///< tokens that a sequence may take here
  int num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool has_tokenizer = false;
  bool has_chat_template = false;
  std::string backend;
  Device device;
  std::int64_t kv_cache_bytes = 0;
  /// How a Hugging Face folder stores matrices as codes and scales, which are widened when it is loaded
  /// ("fp8", "gptq, 4 bits"); empty: it doesn't.
  std::string quantization;
};

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", "tool", or another that the model's template knows
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;  ///< end where the assistant's next message begins
  std::string template_name = {};     ///< one of several that the model has; empty: the default
  std::string tools = {};      ///< JSON list of tools the model may call, as in OpenAI's API; empty: none
  std::string variables = {};  ///< JSON object with further variables of the template; empty: none
};

/// Sizes of a model that is filled with random weights, for benchmarks.
struct RandomModelShape {
  std::string name;
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, max_seq_len = 0;
  int num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool tied_embeddings = false;
  int num_experts = 0;  ///< 0: none; else all layers are mixtures of so many MLPs of intermediate_size
  int num_experts_per_token = 0;
};

/// The shapes known by name: "llama-1b", "llama-8b", … Throws Error{kInvalidArgument} that lists them.
RandomModelShape random_model_shape(std::string_view name);

/// How a model is loaded.
struct LoadOptions {
  std::string backend = "auto";                           ///< as in ModelOptions
  std::optional<Device> device = {};                      ///< as in ModelOptions
  std::optional<DType> activation_dtype = {};             ///< as in ModelOptions
  std::function<void(const Progress&)> on_progress = {};  ///< of loading; may throw to cancel
};

class LoadedModel;

/// A model's weights on one device, its tokenizer and chat template, without a KV cache: an Engine or
/// LanguageModel brings that. Copies share everything; all calls may come from several threads at once.
class Model {
 public:
  /// Opens a Hugging Face folder or a .gguf file. Files of weights are mapped, and stay so as long as the
  /// model lives: if another process makes one shorter meanwhile, the system ends this one with SIGBUS.
  /// (Writing a new file and renaming it does no harm.) Throws Error (see ErrorCode) if the files are wrong
  /// or memory is short.
  static Model load(const std::filesystem::path& path, const LoadOptions& options = {});

  /// A model of the Llama architecture with random weights of `weight_dtype` (kF32, kF16, kBF16 or a format
  /// of blocks) and no tokenizer.
  static Model random(const RandomModelShape& shape, DType weight_dtype, const LoadOptions& options = {});
  /// The same with matrices of the types that `tessera quantize --type` gives them: "q4_k_m", ...
  static Model random(const RandomModelShape& shape, std::string_view mix, const LoadOptions& options = {});
  /// The same of the model that a Hugging Face config.json describes (its path, or its folder's): `type` is
  /// that of `tessera quantize --type`, or else a dtype's name. Throws as load() does for what the file says.
  static Model random_like(const std::filesystem::path& config_json, std::string_view type,
                           const LoadOptions& options = {});

  /// max_seq_len is the model's context length, kv_cache_bytes 0.
  const ModelInfo& info() const;

  /// As in LanguageModel.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  std::string decode(std::span<const std::int32_t> tokens, bool skip_special_tokens = true) const;
  std::string render_chat(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;
  std::vector<std::int32_t> encode_chat(std::span<const ChatMessage> messages,
                                        const ChatOptions& options = {}) const;
  /// The same for a JSON list of messages, which may have whatever else the template knows: "tool_calls",
  /// content in parts, "reasoning_content". Throws also Error{kInvalidArgument} if it is no such list.
  std::string render_chat_json(std::string_view messages, const ChatOptions& options = {}) const;
  std::vector<std::int32_t> encode_chat_json(std::string_view messages,
                                             const ChatOptions& options = {}) const;

  /// The bytes that a token adds to a text that has begun, which need not be whole characters; a control
  /// token adds none, and neither does an id that pads the vocabulary. Throws like decode.
  std::string token_bytes(std::int32_t token) const;
  /// Ids that end a text, ascending.
  std::span<const std::int32_t> end_tokens() const;

  /// For the library's own use.
  const std::shared_ptr<LoadedModel>& loaded() const { return loaded_; }

 private:
  explicit Model(std::shared_ptr<LoadedModel> loaded) : loaded_(std::move(loaded)) {}
  std::shared_ptr<LoadedModel> loaded_;
};

/// A language model with its KV cache, ready to run on one backend. Calls must not overlap.
class LanguageModel {
 public:
  /// Opens a Hugging Face folder or a .gguf file. Files of weights are mapped, and stay so as long as the
  /// model lives: if another process makes one shorter meanwhile, the system ends this one with SIGBUS.
  /// (Writing a new file and renaming it does no harm.) Throws Error (see ErrorCode) if the files are wrong,
  /// the model has a part that the backend can't run, or memory is short.
  static LanguageModel load(const std::filesystem::path& path, const ModelOptions& options = {});

  /// A model of the Llama architecture with random weights of `weight_dtype` (kF32, kF16, kBF16 or a format
  /// of blocks) and no tokenizer.
  static LanguageModel random(const RandomModelShape& shape, DType weight_dtype,
                              const ModelOptions& options = {});
  /// The same with matrices of the types that `tessera quantize --type` gives them: "q4_k_m", ...
  static LanguageModel random(const RandomModelShape& shape, std::string_view mix,
                              const ModelOptions& options = {});
  /// The same of the model that a Hugging Face config.json describes (Model::random_like).
  static LanguageModel random_like(const std::filesystem::path& config_json, std::string_view type,
                                   const ModelOptions& options = {});

  /// Over a model that is loaded already, so that the cache can be sized by what the tokenizer makes of the
  /// prompts. backend, device and activation_dtype are the model's; options' are not looked at.
  explicit LanguageModel(Model model, const ModelOptions& options = {});

  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;
  ~LanguageModel();

  const ModelInfo& info() const;
  /// What it runs: weights and tokenizer.
  const Model& model() const;

  /// Throws Error{kUnsupported} if the model has no tokenizer.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  /// Ids that pad the model's vocabulary beyond its tokenizer's are no text; generate never draws them.
  /// Throws like encode, and Error{kInvalidArgument} for an id that is not in the vocabulary.
  std::string decode(std::span<const std::int32_t> tokens, bool skip_special_tokens = true) const;

  /// A conversation as text, as the model's own chat template writes it. Bytes that are no UTF-8 become
  /// U+FFFD. Throws Error{kUnsupported} if the model has no such template or the template needs what the
  /// renderer lacks, and Error{kInvalidArgument} with the template's line if it refuses the conversation or
  /// fails.
  std::string render_chat(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;
  /// The same as tokens, for generate. Text of the messages never makes control tokens: a user who writes
  /// "<|im_end|>" ends nothing.
  std::vector<std::int32_t> encode_chat(std::span<const ChatMessage> messages,
                                        const ChatOptions& options = {}) const;

  /// Logits after each of `tokens` (all), or after the last one: (tokens or 1) * vocab_size, fp32. Uses an
  /// empty KV cache. Throws Error{kInvalidArgument} for no tokens, a token outside the vocabulary, or more
  /// than max_seq_len.
  std::vector<float> logits(std::span<const std::int32_t> tokens, bool all = false);

  /// Continues `prompt`. on_token gets each new token and the text that it completes (never half a character;
  /// empty without a tokenizer) and returns false to stop. If the text ends inside a character, a last call
  /// with the end-of-text token brings U+FFFD.
  Generation generate(std::span<const std::int32_t> prompt, const GenerateOptions& options = {},
                      const std::function<bool(std::int32_t token, std::string_view text)>& on_token = {});

  /// Continues several prompts side by side; at most max_batch. options: one for all, or one a prompt. stats
  /// are of the whole batch, the same in every result.
  std::vector<Generation> generate_batch(std::span<const std::vector<std::int32_t>> prompts,
                                         std::span<const GenerateOptions> options);

 private:
  class Implementation;
  explicit LanguageModel(std::unique_ptr<Implementation> implementation);
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera
