#include "engine/engine_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "engine/share_budget.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using Clock = Sequence::Clock;

/// How often on_prefill is called within a step: as often as people see, seldom enough to cost nothing.
constexpr std::chrono::milliseconds kProgressInterval{50};

constexpr int kMaxTopLogprobs = 64;

constexpr double kMaxAttentionWeights = 1 << 24;

/// Fewest tokens of a prompt in a step that others share, if it has as many: GPUs' tiles are of 64 to 128
/// rows.
constexpr std::int64_t kLeastShare = 128;

}  // namespace

EngineCore::EngineCore(ExecutionPlan& plan, KvCache& cache, StateCache& states, OpsBackend& ops,
                       EngineCoreOptions options)
    : plan_(plan),
      cache_(cache),
      states_(states),
      ops_(ops),
      options_(std::move(options)),
      max_batch_(plan.options().max_batch),
      runner_(plan, ops, options_.token_limit) {
  if (options_.prefix_cache && !plan_.has_states()) prefix_cache_.emplace(cache);
}

// ---- Requests come and go

void EngineCore::check_prompt(std::span<const std::int32_t> prompt) const {
  if (prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the prompt has no tokens; expected at least one, e.g. the beginning-of-text token");
  }
  if (static_cast<std::int64_t>(prompt.size()) > options_.max_seq_len) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the prompt has {} tokens, but the context holds {}; shorten the prompt or raise "
                            "max_seq_len if the model allows it",
                            prompt.size(), options_.max_seq_len));
  }
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= options_.vocab_size) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("token {} of the prompt is {}; expected 0 to {}",
                                                           i, prompt[i], options_.vocab_size - 1));
    }
  }
}

void EngineCore::check(const Request& request) const {
  check_prompt(request.prompt);
  validate(request.sampling);
  if (request.max_tokens < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("max_tokens is {}; expected 0 or more", request.max_tokens));
  }
  if (request.top_logprobs && (*request.top_logprobs < 0 || *request.top_logprobs > kMaxTopLogprobs)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("top_logprobs is {}; expected 0 to {}", *request.top_logprobs, kMaxTopLogprobs));
  }
  if (request.prompt_logprobs && !request.top_logprobs) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "prompt_logprobs is set, but top_logprobs is not; expected how many of the likeliest are wanted, "
        "which may be 0");
  }
  TextOutput(options_.tokenizer, request.stop, /*opens_text=*/true);
}

void EngineCore::check(const AttentionRequest& request) const {
  check_prompt(request.tokens);
  const auto check_ascending = [](const auto& numbers, const char* name, std::int64_t end) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] >= 0 && numbers[i] < end && (i == 0 || numbers[i] > numbers[i - 1])) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}[{}] is {}; expected 0 to {}, ascending", name, i, numbers[i], end - 1));
    }
  };
  const int num_layers = cache_.shape().num_layers;
  if (request.positions.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "positions is empty; expected at least one");
  }
  check_ascending(request.positions, "positions", std::ssize(request.tokens));
  check_ascending(request.layers, "layers", num_layers);
  for (const int layer : request.layers) {
    if (plan_.attends(layer)) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("layer {} has no attention to look at; expected one of the layers that have", layer));
  }
  const std::int64_t layers = request.layers.empty() ? num_layers : std::ssize(request.layers);
  const double weights = static_cast<double>(layers) * static_cast<double>(request.positions.size()) *
                         static_cast<double>(request.tokens.size()) * plan_.num_heads();
  if (weights > kMaxAttentionWeights) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the attention asked for has {:.0f} weights; expected at most {:.0f}: ask for fewer "
                    "positions or layers",
                    weights, kMaxAttentionWeights));
  }
}

void EngineCore::add(RequestId id, Request request, bool keep_cache) {
  auto sequence = std::make_unique<Sequence>(id, std::move(request), cache_, states_, options_.tokenizer);
  sequence->keeps_cache = keep_cache;
  take_kept(*sequence);
  waiting_.push_back(std::move(sequence));
}

void EngineCore::add(RequestId id, EmbeddingRequest request) {
  Request prompt;
  prompt.prompt = std::move(request.prompt);
  add(id, std::move(prompt));
  waiting_.back()->embedding = std::move(request);
}

void EngineCore::add(RequestId id, AttentionRequest request) {
  Request text;
  text.prompt = std::move(request.tokens);
  if (request.layers.empty()) {
    for (int layer = 0; layer < cache_.shape().num_layers; ++layer) {
      if (plan_.attends(layer)) request.layers.push_back(layer);
    }
  }
  add(id, std::move(text));
  waiting_.back()->attention = std::move(request);
}

void EngineCore::take_kept(Sequence& sequence) {
  std::optional<Kept> kept = std::exchange(kept_, std::nullopt);
  if (!kept || !sequence.keeps_cache || sequence.wants_prompt_logprobs()) return;
  const auto differs = std::ranges::mismatch(kept->tokens, sequence.tokens);
  // At least one token is computed again, whose logits the first drawn one comes from.
  auto shared = std::min<std::int64_t>(differs.in1 - kept->tokens.begin(), sequence.num_tokens() - 1);
  if (plan_.has_states() && shared < std::ssize(kept->tokens)) shared = 0;  // which has no way back
  kept->pages.truncate(shared);
  sequence.pages = std::move(kept->pages);
  if (shared > 0) sequence.state = std::move(kept->state);
  sequence.num_computed = sequence.num_cached = shared;
}

bool EngineCore::cancel(RequestId id) {
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->id != id) continue;
    finish(*sequence, StopReason::kCancelled);
    remove_ended();
    return true;
  }
  const auto waiting = std::ranges::find(waiting_, id, [](const auto& sequence) { return sequence->id; });
  if (waiting == waiting_.end()) return false;
  finish(**waiting, StopReason::kCancelled);
  waiting_.erase(waiting);
  return true;
}

void EngineCore::clear() {
  forget_started();
  running_.clear();
  waiting_.clear();
  events_.clear();
  kept_.reset();
}

// ---- A step

std::vector<Event> EngineCore::step() {
  if (started_.empty()) {
    make_room_for_decodes();
    admit();
    const std::vector<Scheduled> scheduled = schedule();
    if (!scheduled.empty()) {
      ++stats_.steps;
      run(scheduled);
    }
  }
  if (!started_.empty()) finish_started();
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->attention && sequence->num_pending() == 0 && !sequence->has_ended) weigh_layer(*sequence);
  }
  remove_ended();
  return std::exchange(events_, {});
}

void EngineCore::put_back(std::unique_ptr<Sequence> sequence) {
  sequence->pages.release();
  sequence->state.release();
  sequence->chain = {};
  sequence->num_computed = 0;
  sequence->hidden_sum.clear();
  sequence->prompt_logprobs.clear();
  sequence->layer_queries.clear();
  sequence->attention_weights.clear();
  sequence->num_weighed = 0;
  const auto place =
      std::ranges::lower_bound(waiting_, sequence->id, {}, [](const auto& s) { return s->id; });
  waiting_.insert(place, std::move(sequence));
}

void EngineCore::make_room_for_decodes() {
  for (std::size_t i = 0; i < running_.size();) {
    Sequence& sequence = *running_[i];
    if (sequence.pages.try_reserve(sequence.num_tokens())) {
      ++i;
    } else if (running_.size() > 1) {
      put_back(std::move(running_.back()));
      running_.pop_back();
      ++stats_.preemptions;
    } else {
      try {
        sequence.pages.reserve(sequence.num_tokens());
      } catch (const Error& error) {
        fail(sequence, error);
      }
      remove_ended();
    }
  }
}

bool EngineCore::uses_prefix_cache(const Sequence& sequence) const {
  return prefix_cache_ && sequence.request.use_prefix_cache && !sequence.keeps_cache &&
         !sequence.request.prompt_logprobs;
}

bool EngineCore::is_being_computed(const Sequence& sequence) const {
  const std::int64_t page = sequence.chain.num_pages;
  const std::int64_t end = (page + 1) * cache_.shape().page_size;
  if (end > sequence.num_skippable()) return false;
  return std::ranges::any_of(running_, [&](const std::unique_ptr<Sequence>& other) {
    return uses_prefix_cache(*other) && other->chain.num_pages == page &&
           other->chain.last == sequence.chain.last && end <= other->num_tokens() &&
           std::ranges::equal(prefix_cache_->page_tokens(sequence.tokens, page),
                              prefix_cache_->page_tokens(other->tokens, page));
  });
}

bool EngineCore::take_pages(Sequence& sequence) {
  // Those that run may each need a page in the next step: who has none left then would have to leave again.
  const std::int64_t spare = std::ssize(running_);
  const std::int64_t missing =
      cache_.pages_for(sequence.num_tokens()) - std::ssize(sequence.pages.block_table());
  return (spare == 0 || missing + spare <= cache_.pages().num_free()) &&
         sequence.pages.try_reserve(sequence.num_tokens());
}

void EngineCore::admit() {
  for (std::size_t i = 0; i < waiting_.size() && std::ssize(running_) < max_batch_;) {
    const auto place = waiting_.begin() + static_cast<std::ptrdiff_t>(i);
    Sequence& sequence = **place;
    if (sequence.request.max_tokens == 0 && !sequence.wants_prompt_logprobs()) {
      finish(sequence, StopReason::kMaxTokens);
      waiting_.erase(place);
      continue;
    }
    if (uses_prefix_cache(sequence)) {
      const std::vector<std::int32_t> known = prefix_cache_->find(
          sequence.tokens, sequence.num_skippable() / cache_.shape().page_size, sequence.chain);
      if (is_being_computed(sequence)) {
        ++i;
        continue;
      }
      sequence.pages.append_shared(known);
      sequence.num_computed = std::ssize(known) * cache_.shape().page_size;
    }
    if (!take_pages(sequence)) {
      if (running_.empty()) {
        try {
          sequence.pages.reserve(sequence.num_tokens());
        } catch (const Error& error) {
          fail(sequence, error);
        }
        waiting_.erase(place);
        continue;
      }
      if (uses_prefix_cache(sequence)) {
        sequence.pages.release();
        sequence.chain = {};
        sequence.num_computed = 0;
      }
      return;  // those that came later wait, too
    }
    if (!sequence.first_step) {
      sequence.first_step = Clock::now();
      sequence.num_cached = sequence.num_computed;
      stats_.prompt_tokens += static_cast<std::uint64_t>(sequence.num_prompt_tokens);
      stats_.cached_tokens += static_cast<std::uint64_t>(sequence.num_cached);
    }
    sequence.state.take();
    running_.push_back(std::move(*place));
    waiting_.erase(place);
  }
}

std::vector<EngineCore::Scheduled> EngineCore::schedule() const {
  std::vector<Scheduled> scheduled;
  std::vector<Sequence*> prompts;
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->is_decoding()) {
      scheduled.push_back({sequence.get(), 1});
    } else if (sequence->num_pending() > 0) {
      prompts.push_back(sequence.get());
    }
  }
  // Those that had no share last time come first.
  std::ranges::stable_sort(prompts, {}, &Sequence::last_step);
  std::vector<std::int64_t> pending;
  for (const Sequence* sequence : prompts) pending.push_back(sequence->num_pending());
  const std::vector<std::int64_t> shares = share_budget(options_.prefill_chunk, kLeastShare, pending);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (shares[i] > 0) scheduled.push_back({prompts[i], shares[i]});
  }
  return scheduled;
}

StepEntry EngineCore::entry_of(const Scheduled& scheduled) const {
  const Sequence& sequence = *scheduled.sequence;
  StepEntry entry;
  entry.sequence = sequence.id;
  entry.tokens = sequence.tokens;
  entry.num_computed = sequence.num_computed;
  entry.num_new = scheduled.num_tokens;
  entry.block_table = sequence.pages.block_table();
  entry.state_slot = sequence.state.index();
  const bool is_whole = scheduled.num_tokens == sequence.num_pending();
  if (sequence.embedding) {
    entry.wants_hidden_states = is_whole || sequence.embedding->pooling == Pooling::kMean;
    return entry;
  }
  if (sequence.attention) {
    const std::vector<std::int64_t>& positions = sequence.attention->positions;
    const auto begin = std::ranges::lower_bound(positions, sequence.num_computed);
    const auto end = std::ranges::lower_bound(positions, sequence.num_computed + scheduled.num_tokens);
    entry.query_positions = std::span(begin, end);
    entry.query_layers = sequence.attention->layers;
    return entry;
  }
  if (sequence.wants_prompt_logprobs()) {
    const std::int64_t begin = sequence.num_computed + 1;
    const std::int64_t end = std::min(begin + scheduled.num_tokens, sequence.num_prompt_tokens);
    if (begin < end) {
      entry.followers =
          entry.tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    }
  }
  entry.draws = is_whole && sequence.request.max_tokens > 0;
  entry.sampling = &sequence.request.sampling;
  entry.num_drawn = sequence.num_drawn;
  entry.drawn = sequence.drawn.all();
  entry.constraint = sequence.request.constraint.get();
  entry.top_logprobs = sequence.request.top_logprobs;
  return entry;
}

template <class Function>
bool EngineCore::try_step(const std::vector<Scheduled>& scheduled, Function f) {
  std::optional<Error> failure;
  try {
    f();
    return true;
  } catch (const Error& error) {
    failure = error;
  } catch (const std::bad_alloc&) {
    failure = Error(ErrorCode::kOutOfMemory, "a step of the model ran out of memory; run fewer sequences");
  }
  for (const Scheduled& s : scheduled) fail(*s.sequence, *failure);
  return false;
}

void EngineCore::run(const std::vector<Scheduled>& scheduled) {
  std::vector<StepEntry> entries;
  for (const Scheduled& s : scheduled) entries.push_back(entry_of(s));
  if (runner_.can_start(entries)) {
    try_step(scheduled, [&] { start(entries); });
    return;
  }
  std::function<void(double)> after_step;
  if (options_.on_prefill) {
    after_step = within_step([&](double share) { report_prefill(scheduled, share, true); });
  }
  std::vector<StepOutcome> outcomes;
  if (try_step(scheduled, [&] { outcomes = runner_.run(entries, after_step); }))
    accept_step(scheduled, outcomes);
}

void EngineCore::start(std::span<const StepEntry> entries) {
  runner_.start(entries);
  for (const StepEntry& entry : entries) started_.push_back(entry.sequence);
}

bool EngineCore::can_start_next() const {
  if (!waiting_.empty() && std::ssize(running_) < max_batch_) return false;
  return std::ranges::equal(running_, started_, {}, [](const auto& sequence) { return sequence->id; }) &&
         std::ranges::all_of(running_, [&](const std::unique_ptr<Sequence>& sequence) {
           return sequence->num_drawn + 1 < sequence->request.max_tokens &&
                  sequence->num_tokens() < options_.max_seq_len;
         });
}

void EngineCore::start_next() {
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    if (!sequence->pages.try_reserve(sequence->num_tokens() + 1)) return;
  }
  std::vector<StepEntry> entries;
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    StepEntry& entry = entries.emplace_back(entry_of({sequence.get(), 1}));
    ++entry.num_computed;
    ++entry.num_drawn;
  }
  try {
    start(entries);
  } catch (const Error&) {
    return;  // it is tried again when it is due
  } catch (const std::bad_alloc&) {
    return;
  }
  ++stats_.steps;
}

Sequence* EngineCore::find_running(RequestId id) {
  const auto found = std::ranges::find(running_, id, [](const auto& sequence) { return sequence->id; });
  return found == running_.end() ? nullptr : found->get();
}

void EngineCore::finish_started() {
  const bool is_followed = can_start_next();
  const std::vector<RequestId> ids = std::exchange(started_, {});
  if (is_followed) start_next();
  std::vector<Scheduled> scheduled;  // those that were cancelled meanwhile want nothing
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Sequence* const sequence = find_running(ids[i]);
    if (sequence == nullptr) continue;
    scheduled.push_back({sequence, 1});
    rows.push_back(i);
  }
  std::vector<StepOutcome> outcomes;
  const bool is_done = try_step(scheduled, [&] {
    std::vector<StepOutcome> of_all = runner_.finish();
    for (const std::size_t row : rows) outcomes.push_back(std::move(of_all[row]));
  });
  if (!is_done) return forget_started();
  accept_step(scheduled, outcomes);
}

void EngineCore::forget_started() {
  if (started_.empty()) return;
  runner_.forget_started();
  started_.clear();
}

void EngineCore::remove_ended() {
  std::erase_if(running_, [](const std::unique_ptr<Sequence>& sequence) { return sequence->has_ended; });
  if (running_.empty()) forget_started();
}

// ---- What others see of it

std::function<void(double)> EngineCore::within_step(std::function<void(double)> report) const {
  if (ops_.device().kind != DeviceKind::kCpu) return {};
  return [report = std::move(report), last = Clock::now()](double share) mutable {
    const Clock::time_point now = Clock::now();
    if (share >= 1 || now - last < kProgressInterval) return;
    last = now;
    report(share);
  };
}

void EngineCore::report_prefill(const std::vector<Scheduled>& scheduled, double share,
                                bool is_within_step) const {
  if (!options_.on_prefill) return;
  std::vector<PrefillProgress> progress;
  for (const Scheduled& s : scheduled) {
    const auto within = static_cast<std::int64_t>(share * static_cast<double>(s.num_tokens));
    progress.push_back(
        {s.sequence->id, std::min(s.sequence->num_computed + within, s.sequence->num_prompt_tokens)});
  }
  options_.on_prefill(progress, is_within_step);
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.running = static_cast<std::int64_t>(running_.size());
  stats.waiting = static_cast<std::int64_t>(waiting_.size());
  stats.kv_pages = cache_.pages().num_pages();
  stats.kv_pages_used = cache_.pages().num_pages() - cache_.pages().num_free();
  stats.kv_pages_cached = cache_.pages().num_idle();
  stats.kv_cache_bytes = cache_.size_bytes() + states_.size_bytes();
  return stats;
}

}  // namespace tessera
