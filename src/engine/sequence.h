#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/state_cache.h"
#include "engine/text_output.h"
#include "tessera/engine.h"

namespace tessera {

/// A request and what has become of it.
struct Sequence {
  Sequence(RequestId sequence_id, Request&& sequence_request, KvCache& cache, StateCache& states,
           const Tokenizer* tokenizer)
      : id(sequence_id),
        request(std::move(sequence_request)),
        tokens(std::move(request.prompt)),
        num_prompt_tokens(static_cast<std::int64_t>(tokens.size())),
        pages(cache),
        state(states),
        // A constraint counts a leading space, so that its text has it in any case.
        text(tokenizer, request.stop, !request.constraint && opens_text(tokenizer, tokens)) {}

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  /// Tokens that are not in the cache yet.
  std::int64_t num_pending() const { return num_tokens() - num_computed; }
  /// Tokens at the beginning of which nothing but keys and values is wanted. A mean is of all tokens' hidden
  /// states, and the last token's logits are wanted in any case.
  std::int64_t num_skippable() const {
    if (embedding && embedding->pooling == Pooling::kMean) return 0;
    if (attention) return attention->positions.front();
    return num_tokens() - 1;
  }
  bool wants_prompt_logprobs() const { return request.prompt_logprobs && !gave_prompt_logprobs; }
  bool is_decoding() const { return num_pending() == 1 && num_drawn > 0; }

  RequestId id;
  Request request;                   // without its prompt
  std::vector<std::int32_t> tokens;  // the prompt and what was drawn
  std::int64_t num_prompt_tokens;
  KvSequence pages;
  StateSlot state;    // while it runs
  PrefixChain chain;  // of its pages, as far as the prefix cache knows them
  TextOutput text;
  std::int64_t num_computed = 0;  // tokens whose keys and values are in the cache
  std::int64_t num_drawn = 0;
  DrawnTokens drawn;            // with penalties
  std::int64_t num_cached = 0;  // tokens of the prompt that were in the cache before
  bool keeps_cache = false;     // its pages are kept when it ends
  bool has_ended = false;
  std::uint64_t last_step = 0;  // in which it took part

  std::vector<PromptLogprob> prompt_logprobs;  // of the prompt's tokens so far
  bool gave_prompt_logprobs = false;           // an event had them

  std::optional<EmbeddingRequest> embedding;  // without its prompt
  std::vector<double> hidden_sum;             // of the prompt's tokens so far, for kMean

  std::optional<AttentionRequest> attention;      // without its tokens
  std::vector<std::vector<float>> layer_queries;  // (layers): (positions so far, num_heads * head_dim)
  std::vector<float> attention_weights;           // of the layers so far
  std::size_t num_weighed = 0;                    // layers so far

  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> first_step;   // when its first token went in
  std::optional<Clock::time_point> first_token;  // when its first token came out
};

inline double milliseconds_between(Sequence::Clock::time_point begin, Sequence::Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

}  // namespace tessera
