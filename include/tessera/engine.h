#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {

/// What Engine::submit throws if max_waiting requests wait, with the code kOutOfMemory: the same call may be
/// accepted later.
class QueueFull : public Error {
 public:
  using Error::Error;
};

/// Names a request of one Engine; never 0, never used twice.
using RequestId = std::uint64_t;

/// Decides, token by token, what a request may continue with (a grammar, a schema, a choice). One object
/// belongs to one request. The engine calls it within step(), never two calls at once. What it throws ends
/// its request with that error, and no other.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Sets the bits of the ids that may come next: id i is bit i % 32 of mask[i / 32]. `mask` comes with
  /// ceil(vocab_size / 32) words that are zero. Ids that end the text have bits like all others. Returns
  /// false if any token may come; then `mask` is not looked at. No bit at all is an error of the request.
  virtual bool allowed_tokens(std::span<std::uint32_t> mask) = 0;

  /// Told of each token that was drawn, in order, an end-of-text token included.
  virtual void accept(std::int32_t token) = 0;
};

/// A prompt to continue.
struct Request {
  std::vector<std::int32_t> prompt = {};  ///< at least one token
  std::int64_t max_tokens = 256;
  SamplingOptions sampling = {};
  bool stop_at_eos = true;
  std::vector<std::string> stop = {};  ///< text that ends the generation and is left out of the events' text
  /// Log probabilities: none without, else of each token drawn and of that many likeliest (0 to 64).
  std::optional<int> top_logprobs = {};
  /// The same of the prompt's tokens but the first; needs top_logprobs. The whole prompt is computed then,
  /// and with max_tokens 0 nothing but it.
  bool prompt_logprobs = false;
  std::shared_ptr<TokenConstraint> constraint = {};  ///< null: any token
  bool use_prefix_cache = true;  ///< takes keys and values of earlier requests with the same beginning
};

/// The request that LanguageModel::generate makes of its arguments. keep_cache, which an Engine does not
/// need, is not looked at.
Request make_request(std::span<const std::int32_t> prompt, const GenerateOptions& options);

/// How the hidden states of a prompt become one vector.
enum class Pooling { kMean, kLast };

/// A prompt whose hidden states, after the last norm, are wanted instead of a continuation.
struct EmbeddingRequest {
  std::vector<std::int32_t> prompt = {};  ///< at least one token
  Pooling pooling = Pooling::kMean;
  bool normalize = true;  ///< to Euclidean length 1
};

/// A text whose attention is wanted: which earlier tokens some of its tokens look at.
struct AttentionRequest {
  std::vector<std::int32_t> tokens = {};     ///< at least one
  std::vector<std::int64_t> positions = {};  ///< of the tokens that look, ascending, at least one
  std::vector<int> layers = {};              ///< ascending; empty: all
};

/// A token of a prompt as the model expected it after those before it.
struct PromptLogprob {
  float logprob = 0;                       ///< -inf for one that is never drawn
  std::vector<TokenLogprob> top_logprobs;  ///< the likeliest first
};

/// Something that became of a request. Each request to continue a prompt gets events of kToken, and each
/// request of any kind then one of kFinished or kError, which is its last.
struct Event {
  enum class Type { kToken, kFinished, kError };

  RequestId id = 0;
  Type type = Type::kToken;
  /// Text that is now certain: never half a character, never what may become a stop string. Also with
  /// kFinished, where the end of the text brings what was held back. Empty without a tokenizer. It goes on
  /// from the prompt's text, with a space that SentencePiece's first token has, but behind a control token
  /// begins anew.
  std::string text;

  /// (prompt tokens - 1): of the second and following; in a request's first event, with prompt_logprobs.
  std::vector<PromptLogprob> prompt_logprobs;

  // ---- kToken: tokens drawn, without one that ends the text (which kFinished has)

  std::int32_t token = 0;
  float logprob = 0;                       ///< with top_logprobs
  std::vector<TokenLogprob> top_logprobs;  ///< the likeliest first

  // ---- kFinished

  StopReason stop_reason = StopReason::kMaxTokens;
  GenerationStats stats;         ///< this request's own
  std::vector<float> embedding;  ///< (hidden_size), of an EmbeddingRequest
  /// (layers, num_heads, positions, tokens), of an AttentionRequest: weights, whose sum over the tokens is 1;
  /// 0 for tokens that a position does not see.
  std::vector<float> attention;

  // ---- kError

  ErrorCode error_code = ErrorCode::kInvalidArgument;
  std::string error_message;
};

struct EngineOptions {
  std::int64_t max_seq_len = 0;    ///< tokens of KV cache a sequence may take; 0: the model's context length
  int max_batch = 16;              ///< sequences that run at the same time
  int max_waiting = 256;           ///< requests that wait for their turn; submit refuses more
  int page_size = 16;              ///< tokens in a KV page
  std::int64_t max_kv_tokens = 0;  ///< tokens of KV cache in all; 0: max_batch * max_seq_len
  /// Tokens that go through the model in a step beside one of each decoding sequence; 0: 512 on a CPU, 2048
  /// on a GPU.
  int prefill_chunk = 0;
  std::optional<DType> kv_dtype = {};  ///< as in ModelOptions
  /// Keeps full pages of ended sequences, until room is needed, for prompts that begin the same.
  bool prefix_cache = true;
  /// A request's logits, to the bit, don't depend on what else runs, on how its prompt was cut, on
  /// preemption, or on the prefix cache.
  bool batch_invariant = false;
};

/// What an engine does and has done. Counters only grow.
struct EngineStats {
  std::int64_t running = 0;          ///< requests that have pages
  std::int64_t waiting = 0;          ///< requests that have none yet, or have lost them
  std::int64_t kv_pages = 0;         ///< in all
  std::int64_t kv_pages_used = 0;    ///< by running requests
  std::int64_t kv_pages_cached = 0;  ///< by nobody, kept for prompts that begin the same
  std::int64_t kv_cache_bytes = 0;   ///< memory of all pages

  std::uint64_t requests_submitted = 0;
  std::uint64_t requests_finished = 0;   ///< with kFinished, the cancelled ones included
  std::uint64_t requests_cancelled = 0;  ///< of these
  std::uint64_t requests_failed = 0;     ///< with kError
  std::uint64_t requests_refused = 0;    ///< by submit, because the queue was full
  std::uint64_t prompt_tokens = 0;       ///< of requests that have begun
  std::uint64_t cached_tokens = 0;       ///< of these, found in the prefix cache
  std::uint64_t computed_tokens = 0;     ///< that went through the model, again after preemption
  std::uint64_t generated_tokens = 0;    ///< drawn
  std::uint64_t preemptions = 0;         ///< sequences that gave their pages to others
  std::uint64_t steps = 0;
};

/// Runs any number of requests over one model: a KV cache and a scheduler. Every step takes one token of each
/// sequence that is decoding, and prompt tokens of the others, shared out evenly, up to prefill_chunk. When
/// pages run out the sequence that came last gives its own back and is computed again later.
///
/// submit, cancel, stats, wake and wait may be called from any thread, while another is within step. step()
/// is for one thread at a time.
class Engine {
 public:
  /// The model is shared, not copied. Steps of engines that share one wait for each other. Throws
  /// Error{kInvalidArgument} for options out of range, Error{kOutOfMemory} if the cache doesn't fit, and
  /// Error{kUnsupported} if the backend can't run the model.
  explicit Engine(Model model, const EngineOptions& options = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  const Model& model() const;
  /// With max_seq_len, batch, page and chunk sizes, and kv_dtype, as they are used here.
  const EngineOptions& options() const;

  /// Takes a request into the queue and wakes a waiting thread. Throws QueueFull if max_waiting requests
  /// wait, Error{kInvalidArgument} for a prompt that is empty, longer than max_seq_len or has a token outside
  /// the vocabulary, and for options out of range.
  RequestId submit(Request request);
  RequestId submit(EmbeddingRequest request);
  /// Also throws Error{kInvalidArgument} for positions or layers that are not there or not ascending, and if
  /// the weights would be more than 2^24.
  RequestId submit(AttentionRequest request);

  /// Ends a request: it has no part in steps that begin afterwards, and the next step gives its pages back
  /// and reports kFinished with kCancelled. Returns false if it had ended, or never was.
  bool cancel(RequestId id);

  /// Runs one step and returns what became of requests in it. Returns no events, at once, if there is nothing
  /// to do. Errors end the requests that they belong to; one of the device itself ends all that took part.
  std::vector<Event> step();

  /// Whether step() has something to do.
  bool has_work() const;
  /// Sleeps until there is work, wake() is called, or the time is over. Returns has_work().
  bool wait(std::chrono::milliseconds timeout);
  /// Ends one wait(), the next one if none is on.
  void wake();

  EngineStats stats() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera
