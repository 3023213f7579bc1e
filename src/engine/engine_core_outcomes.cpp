// What becomes of a step's outcomes: tokens, hidden states and attention as events, and the ends of requests.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "engine/attention_view.h"
#include "engine/engine_core.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using Clock = Sequence::Clock;

GenerationStats stats_of(const Sequence& sequence) {
  GenerationStats stats;
  stats.prompt_tokens = sequence.num_prompt_tokens;
  stats.cached_tokens = sequence.num_cached;
  stats.generated_tokens = sequence.num_drawn;
  if (sequence.first_step && sequence.first_token) {
    stats.prefill_ms = milliseconds_between(*sequence.first_step, *sequence.first_token);
    stats.decode_ms = milliseconds_between(*sequence.first_token, Clock::now());
  }
  return stats;
}

void normalize(std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
  for (float& value : values) value = static_cast<float>(value * scale);
}

}  // namespace

void EngineCore::accept_step(const std::vector<Scheduled>& scheduled, std::vector<StepOutcome>& outcomes) {
  for (const Scheduled& s : scheduled) {
    s.sequence->num_computed += s.num_tokens;
    s.sequence->last_step = stats_.steps;
    stats_.computed_tokens += static_cast<std::uint64_t>(s.num_tokens);
  }
  report_prefill(scheduled, 0, /*is_within_step=*/false);
  for (std::size_t i = 0; i < scheduled.size(); ++i) {
    Sequence& sequence = *scheduled[i].sequence;
    if (outcomes[i].error) {
      fail(sequence, *outcomes[i].error);
      continue;
    }
    if (uses_prefix_cache(sequence)) {
      prefix_cache_->add(sequence.tokens, sequence.num_computed / cache_.shape().page_size, sequence.pages,
                         sequence.chain);
    }
    if (sequence.embedding) {
      accept_hidden_states(sequence, scheduled[i].num_tokens, outcomes[i]);
    } else if (sequence.attention) {
      accept_queries(sequence, outcomes[i]);
    } else {
      std::ranges::move(outcomes[i].follower_logprobs, std::back_inserter(sequence.prompt_logprobs));
      if (outcomes[i].token >= 0) accept(sequence, outcomes[i]);
      if (sequence.request.max_tokens == 0 && sequence.num_pending() == 0) {
        finish(sequence, StopReason::kMaxTokens);
      }
    }
  }
}

void EngineCore::accept(Sequence& sequence, StepOutcome& outcome) {
  if (!sequence.first_token) sequence.first_token = Clock::now();
  sequence.tokens.push_back(outcome.token);
  ++sequence.num_drawn;
  if (has_penalties(sequence.request.sampling)) sequence.drawn.add(outcome.token);
  ++stats_.generated_tokens;
  try {
    if (sequence.request.constraint) sequence.request.constraint->accept(outcome.token);
  } catch (const Error& error) {
    fail(sequence, error);
    return;
  } catch (const std::exception& error) {
    fail(sequence, Error(ErrorCode::kInvalidArgument, error.what()));
    return;
  }
  if (sequence.request.stop_at_eos && std::ranges::binary_search(options_.end_tokens, outcome.token)) {
    finish(sequence, StopReason::kEndOfText, sequence.text.finish());
    events_.back().token = outcome.token;
  } else {
    accept_token(sequence, outcome);
  }
}

void EngineCore::accept_token(Sequence& sequence, StepOutcome& outcome) {
  std::optional<StopReason> reason;
  if (sequence.num_drawn >= sequence.request.max_tokens) {
    reason = StopReason::kMaxTokens;
  } else if (sequence.num_tokens() > options_.max_seq_len) {
    reason = StopReason::kContextFull;
  }
  Event event;
  event.id = sequence.id;
  event.token = outcome.token;
  event.text = sequence.text.push(outcome.token, reason.has_value());
  event.logprob = outcome.logprob;
  event.top_logprobs = std::move(outcome.top_logprobs);
  give_prompt_logprobs(sequence, event);
  events_.push_back(std::move(event));
  if (sequence.text.stopped()) reason = StopReason::kStopString;
  if (reason) finish(sequence, *reason);
}

void EngineCore::accept_hidden_states(Sequence& sequence, std::int64_t num_tokens,
                                      const StepOutcome& outcome) {
  const std::vector<float>& states = outcome.hidden_states;
  const bool is_whole = sequence.num_pending() == 0;
  std::vector<float> embedding;
  if (sequence.embedding->pooling == Pooling::kMean) {
    const std::size_t size = states.size() / static_cast<std::size_t>(num_tokens);
    sequence.hidden_sum.resize(size);
    for (std::size_t i = 0; i < states.size(); ++i) sequence.hidden_sum[i % size] += states[i];
    for (const double sum : sequence.hidden_sum) {
      embedding.push_back(static_cast<float>(sum / static_cast<double>(sequence.num_prompt_tokens)));
    }
  } else if (is_whole) {
    const std::size_t size = states.size() / static_cast<std::size_t>(num_tokens);
    embedding.assign(states.end() - static_cast<std::ptrdiff_t>(size), states.end());
  }
  if (!is_whole) return;
  if (!std::ranges::all_of(embedding, [](float value) { return std::isfinite(value); })) {
    fail(sequence, Error(ErrorCode::kInvalidArgument,
                         "the hidden states hold a NaN or an infinity; the model's weights or the activation "
                         "dtype's range are the cause"));
    return;
  }
  if (sequence.embedding->normalize) normalize(embedding);
  finish(sequence, StopReason::kEndOfText, {}, std::move(embedding));
}

void EngineCore::accept_queries(Sequence& sequence, const StepOutcome& outcome) {
  const std::size_t layers = sequence.attention->layers.size();
  sequence.layer_queries.resize(layers);
  for (std::size_t i = 0; i < outcome.queries.size(); ++i) {
    const std::vector<float>& read = outcome.queries[i];
    sequence.layer_queries[i].insert(sequence.layer_queries[i].end(), read.begin(), read.end());
  }
}

void EngineCore::weigh_layer(Sequence& sequence) {
  const AttentionRequest& request = *sequence.attention;
  try {
    const std::size_t i = sequence.num_weighed;
    AttentionViewLayer view;
    view.layer = request.layers[i];
    view.queries = sequence.layer_queries[i];
    view.positions = request.positions;
    view.num_tokens = sequence.num_tokens();
    view.block_table = sequence.pages.block_table();
    view.sliding_window = plan_.sliding_window(view.layer);
    view.softmax_scale = plan_.softmax_scale();
    view.softcap = plan_.attention_softcap();
    view.sinks = plan_.sinks(view.layer);
    const std::vector<float> weights = attention_weights(view, cache_, ops_);
    sequence.attention_weights.insert(sequence.attention_weights.end(), weights.begin(), weights.end());
  } catch (const Error& error) {
    fail(sequence, error);
    return;
  }
  if (++sequence.num_weighed < request.layers.size()) return;
  finish(sequence, StopReason::kEndOfText);
  events_.back().attention = std::move(sequence.attention_weights);
}

void EngineCore::give_prompt_logprobs(Sequence& sequence, Event& event) {
  event.prompt_logprobs = std::exchange(sequence.prompt_logprobs, {});
  sequence.gave_prompt_logprobs = true;
}

// ---- Ends

void EngineCore::finish(Sequence& sequence, StopReason reason, std::string text,
                        std::vector<float> embedding) {
  Event event;
  event.id = sequence.id;
  event.type = Event::Type::kFinished;
  event.text = std::move(text);
  event.stop_reason = reason;
  event.stats = stats_of(sequence);
  event.embedding = std::move(embedding);
  if (reason != StopReason::kCancelled) give_prompt_logprobs(sequence, event);
  events_.push_back(std::move(event));
  ++stats_.requests_finished;
  if (reason == StopReason::kCancelled) ++stats_.requests_cancelled;
  sequence.has_ended = true;
  if (sequence.keeps_cache) keep(sequence);
}

void EngineCore::keep(Sequence& sequence) {
  // The step that the device is busy with, if it is of this sequence, takes one token more.
  const std::int64_t ahead = std::ranges::count(started_, sequence.id);
  const std::int64_t num_kept = std::min(sequence.num_computed + ahead, sequence.num_tokens());
  sequence.tokens.resize(static_cast<std::size_t>(num_kept));
  kept_.emplace(Kept{std::move(sequence.tokens), std::move(sequence.pages), std::move(sequence.state)});
}

void EngineCore::fail(Sequence& sequence, const Error& error) {
  Event event;
  event.id = sequence.id;
  event.type = Event::Type::kError;
  event.error_code = error.code();
  event.error_message = error.message();
  events_.push_back(std::move(event));
  ++stats_.requests_failed;
  sequence.has_ended = true;
}

}  // namespace tessera
