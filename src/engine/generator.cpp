#include "engine/generator.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "engine/stop_strings.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

/// How often on_progress is called within a step: as often as people see, seldom enough to cost nothing.
constexpr std::chrono::milliseconds kProgressInterval{50};

/// Merges rows that follow one another, so that a decode step's head is one call.
void append_row(std::vector<RowRange>& ranges, std::int64_t row) {
  if (!ranges.empty() && ranges.back().begin + ranges.back().count == row) {
    ++ranges.back().count;
  } else {
    ranges.push_back({row, 1});
  }
}

}  // namespace

/// One prompt and what has become of it.
struct Generator::Sequence {
  Sequence(const GenerationRequest& sequence_request, KvCache& cache, const Tokenizer* tokenizer)
      : request(sequence_request),
        tokens(sequence_request.prompt.begin(), sequence_request.prompt.end()),
        pages(cache),
        stop(sequence_request.options.stop) {
    if (tokenizer == nullptr && !stop.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "stop strings need a tokenizer, which the model does not have");
    }
    if (tokenizer != nullptr && (sequence_request.on_token || !stop.empty())) decoder.emplace(*tokenizer);
  }

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_prompt_tokens() const { return static_cast<std::int64_t>(request.prompt.size()); }
  std::int64_t num_pending() const { return num_tokens() - num_computed; }

  void finish(StopReason reason) {
    result.stop_reason = reason;
    finished = true;
    if (!request.options.keep_cache) pages.release();
  }

  const GenerationRequest& request;
  std::vector<std::int32_t> tokens;  // the prompt and what was drawn
  KvSequence pages;
  std::optional<StreamDecoder> decoder;
  StopStrings stop;
  Generation result;
  std::int64_t num_computed = 0;         // tokens whose keys and values are in the cache
  std::int64_t num_prompt_reported = 0;  // most prompt tokens that ever were
  std::int64_t num_drawn = 0;
  std::int64_t num_cached = 0;  // tokens of the prompt that were there before
  bool finished = false;
};

struct Generator::Batch {
  std::vector<Sequence> sequences;
  std::vector<const Sequence*> last_sampled;  // whose tokens stand in the plan's first rows, in this order
  std::int64_t prompt_tokens_reported = 0;
};

/// Tokens of a sequence that go into a step.
struct Generator::Scheduled {
  Sequence* sequence = nullptr;
  std::int64_t num_tokens = 0;

  bool draws() const { return num_tokens == sequence->num_pending(); }
};

Generator::Generator(ExecutionPlan& plan, KvCache& cache, OpsBackend& ops, GeneratorOptions options)
    : plan_(plan),
      cache_(cache),
      ops_(ops),
      options_(std::move(options)),
      sampler_(plan.options().max_batch, options_.max_seq_len, options_.token_limit, ops),
      recorder_(ops) {
  std::ranges::sort(options_.eos_token_ids);
}

void Generator::check_prompt(std::span<const std::int32_t> prompt) const {
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

void Generator::take_kept(Sequence& sequence) {
  std::optional<Kept> kept = std::exchange(kept_, std::nullopt);
  if (!kept || !sequence.request.options.keep_cache) return;
  const auto differs = std::ranges::mismatch(kept->tokens, sequence.tokens);
  // At least one token is computed again, whose logits the first drawn one comes from.
  const auto shared = std::min<std::int64_t>(differs.in1 - kept->tokens.begin(), sequence.num_tokens() - 1);
  kept->pages.truncate(shared);
  sequence.pages = std::move(kept->pages);
  sequence.num_computed = sequence.num_cached = shared;
}

bool Generator::make_room(Batch& batch, std::size_t index, bool others_run) const {
  Sequence& sequence = batch.sequences[index];
  for (std::size_t victim = batch.sequences.size();;) {
    if (sequence.pages.try_reserve(sequence.num_tokens())) return true;
    do {
      --victim;
    } while (victim > index && batch.sequences[victim].pages.block_table().empty());
    if (victim == index) break;
    batch.sequences[victim].pages.release();
    batch.sequences[victim].num_computed = 0;
  }
  if (!others_run) sequence.pages.reserve(sequence.num_tokens());  // throws
  return false;
}

std::vector<Generator::Scheduled> Generator::schedule(Batch& batch) const {
  std::vector<Scheduled> scheduled;
  std::int64_t prompt_tokens_left = options_.prefill_chunk;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    Sequence& sequence = batch.sequences[i];
    if (sequence.finished) continue;
    if (!make_room(batch, i, !scheduled.empty())) break;  // those that came later wait, too
    if (sequence.num_pending() == 1) {
      scheduled.push_back({&sequence, 1});
    } else if (prompt_tokens_left > 0) {
      scheduled.push_back({&sequence, std::min(sequence.num_pending(), prompt_tokens_left)});
      prompt_tokens_left -= scheduled.back().num_tokens;
    }
  }
  return scheduled;
}

std::vector<Generator::Sequence*> Generator::run_step(Batch& batch, const std::vector<Scheduled>& scheduled) {
  std::vector<SequenceSlice> slices;
  std::vector<Sequence*> drawing;
  std::vector<SampleRequest> samples;
  std::vector<RowRange> rows;
  std::int64_t num_rows = 0;
  for (const Scheduled& s : scheduled) {
    Sequence& sequence = *s.sequence;
    slices.push_back({std::span(sequence.tokens)
                          .subspan(static_cast<std::size_t>(sequence.num_computed),
                                   static_cast<std::size_t>(s.num_tokens)),
                      sequence.num_computed, sequence.pages.block_table()});
    num_rows += s.num_tokens;
    if (!s.draws()) continue;
    drawing.push_back(&sequence);
    samples.push_back({&sequence.request.options.sampling, sequence.tokens, sequence.num_drawn});
    append_row(rows, num_rows - 1);
  }

  const bool is_decode = num_rows == static_cast<std::int64_t>(drawing.size());
  const bool tokens_on_device = is_decode && std::ranges::equal(drawing, batch.last_sampled);
  const StepShape shape = plan_.begin_step(slices, tokens_on_device);
  std::function<void(double)> after_step;  // decode steps are short, and may be recorded
  if (!is_decode) {
    after_step = step_progress([&](double share) { report_prefill(batch, scheduled, share); });
  }
  if (drawing.empty()) {
    plan_.run_layers(shape, after_step);
  } else {
    const bool uses_history = sampler_.begin_step(samples);
    const auto work = [this, shape, rows, uses_history, after_step] {
      plan_.run_layers(shape, after_step);
      plan_.run_head(rows, /*for_sampling=*/true);
      std::int64_t num_sampled = 0;
      for (const RowRange& range : rows) num_sampled += range.count;
      sampler_.run(plan_.logits(num_sampled), uses_history, plan_.tokens());
    };
    if (is_decode) {
      recorder_.run({shape, uses_history}, plan_.address_generation(), work);
    } else {
      work();
    }
  }
  for (const Scheduled& s : scheduled) s.sequence->num_computed += s.num_tokens;
  batch.last_sampled.assign(drawing.begin(), drawing.end());
  return drawing;
}

void Generator::accept(Sequence& sequence, std::int32_t token) const {
  const GenerateOptions& options = sequence.request.options;
  const TokenCallback& on_token = sequence.request.on_token;
  sequence.tokens.push_back(token);
  ++sequence.num_drawn;
  if (options.stop_at_eos && std::ranges::binary_search(options_.eos_token_ids, token)) {
    std::string rest = sequence.decoder ? sequence.stop.push(sequence.decoder->finish()) : std::string();
    if (!sequence.stop.stopped()) rest += sequence.stop.finish();
    if (!rest.empty() && on_token) on_token(token, rest);
    sequence.finish(StopReason::kEndOfText);
    return;
  }
  sequence.result.tokens.push_back(token);
  std::optional<StopReason> reason;
  if (sequence.num_drawn >= options.max_tokens) {
    reason = StopReason::kMaxTokens;
  } else if (sequence.num_tokens() > options_.max_seq_len) {
    reason = StopReason::kContextFull;
  }
  std::string text;
  if (sequence.decoder) {
    if (options_.tokenizer->contains(token)) text = sequence.decoder->push(token);
    if (reason) text += sequence.decoder->finish();
    if (!sequence.stop.empty()) {
      text = sequence.stop.push(text);
      if (sequence.stop.stopped()) reason = StopReason::kStopString;
      if (reason) text += sequence.stop.finish();
    }
  }
  if (on_token && !on_token(token, text)) reason = StopReason::kCancelled;
  if (reason) sequence.finish(*reason);
}

std::function<void(double)> Generator::step_progress(std::function<void(double)> report) const {
  if (!options_.on_progress || ops_.device().kind != DeviceKind::kCpu) return {};
  return [report = std::move(report), last = Clock::now()](double share) mutable {
    const Clock::time_point now = Clock::now();
    if (share >= 1 || now - last < kProgressInterval) return;
    last = now;
    report(share);
  };
}

void Generator::report_prefill(Batch& batch, std::span<const Scheduled> running, double share) const {
  if (!options_.on_progress) return;
  const auto note = [](Sequence& sequence, std::int64_t computed) {
    const std::int64_t done = std::min(computed, sequence.num_prompt_tokens());
    sequence.num_prompt_reported = std::max(sequence.num_prompt_reported, done);
  };
  for (Sequence& sequence : batch.sequences) note(sequence, sequence.num_computed);
  for (const Scheduled& s : running) {
    const auto within = static_cast<std::int64_t>(share * static_cast<double>(s.num_tokens));
    note(*s.sequence, s.sequence->num_computed + within);
  }
  Progress progress{Progress::Stage::kPrefill, 0, 0};
  for (const Sequence& sequence : batch.sequences) {
    progress.done += static_cast<std::uint64_t>(sequence.num_prompt_reported);
    progress.total += static_cast<std::uint64_t>(sequence.num_prompt_tokens());
  }
  const bool is_news = static_cast<std::int64_t>(progress.done) != batch.prompt_tokens_reported;
  if (!is_news && running.empty()) return;
  batch.prompt_tokens_reported = static_cast<std::int64_t>(progress.done);
  options_.on_progress(progress);
}

std::vector<Generation> Generator::generate(std::span<const GenerationRequest> requests) {
  if (static_cast<std::int64_t>(requests.size()) > plan_.options().max_batch) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} prompts are to run side by side; expected at most max_batch, {}",
                            requests.size(), plan_.options().max_batch));
  }
  Batch batch;
  batch.sequences.reserve(requests.size());
  for (const GenerationRequest& request : requests) {
    if (request.options.keep_cache && requests.size() > 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("keep_cache is for one prompt at a time; {} were given", requests.size()));
    }
    check_prompt(request.prompt);
    validate(request.options.sampling);
    if (request.options.max_tokens < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("max_tokens is {}; expected 0 or more", request.options.max_tokens));
    }
    batch.sequences.emplace_back(request, cache_, options_.tokenizer);
    if (request.options.max_tokens == 0) batch.sequences.back().finish(StopReason::kMaxTokens);
  }

  for (Sequence& sequence : batch.sequences) take_kept(sequence);

  GenerationStats stats;
  const Clock::time_point begin = Clock::now();
  Clock::time_point prefilled = begin;
  std::vector<std::int32_t> drawn;
  for (std::vector<Scheduled> scheduled = schedule(batch); !scheduled.empty(); scheduled = schedule(batch)) {
    const std::vector<Sequence*> drawing = run_step(batch, scheduled);
    drawn.resize(drawing.size());
    if (!drawing.empty()) sampler_.download(plan_.tokens(), drawn);
    report_prefill(batch);
    const bool first_tokens =
        std::ranges::any_of(drawing, [](const Sequence* s) { return s->num_drawn == 0; });
    if (first_tokens) prefilled = Clock::now();
    for (std::size_t i = 0; i < drawing.size(); ++i) accept(*drawing[i], drawn[i]);
  }
  stats.prefill_ms = milliseconds_between(begin, prefilled);
  stats.decode_ms = milliseconds_between(prefilled, Clock::now());

  std::vector<Generation> results;
  for (Sequence& sequence : batch.sequences) {
    stats.prompt_tokens += sequence.num_prompt_tokens();
    stats.cached_tokens += sequence.num_cached;
    stats.generated_tokens += sequence.num_drawn;
    if (sequence.request.options.keep_cache) {
      sequence.tokens.resize(static_cast<std::size_t>(sequence.num_computed));
      kept_.emplace(Kept{std::move(sequence.tokens), std::move(sequence.pages)});
    }
    results.push_back(std::move(sequence.result));
  }
  for (Generation& result : results) result.stats = stats;
  return results;
}

std::vector<float> Generator::logits(std::span<const std::int32_t> tokens, bool all) {
  check_prompt(tokens);
  kept_.reset();
  const std::int64_t num_tokens = static_cast<std::int64_t>(tokens.size());
  const std::int64_t vocab_size = options_.vocab_size;
  std::vector<float> result(static_cast<std::size_t>((all ? num_tokens : 1) * vocab_size));
  KvSequence pages(cache_);
  pages.reserve(num_tokens);
  for (std::int64_t begin = 0; begin < num_tokens;) {
    const std::int64_t count = std::min(options_.prefill_chunk, num_tokens - begin);
    const SequenceSlice slice{
        tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)), begin,
        pages.block_table()};
    plan_.run_layers(
        plan_.begin_step({&slice, 1}), step_progress([&](double share) {
          const auto done = begin + static_cast<std::int64_t>(share * static_cast<double>(count));
          options_.on_progress({Progress::Stage::kPrefill, static_cast<std::uint64_t>(done), tokens.size()});
        }));
    const bool is_last = begin + count == num_tokens;
    for (std::int64_t row = all ? 0 : is_last ? count - 1 : count; row < count;) {
      const RowRange range{row, std::min(plan_.options().max_logits_rows, count - row)};
      plan_.run_head({&range, 1});
      const std::int64_t position = all ? begin + row : 0;
      ops_.download(result.data() + position * vocab_size, plan_.logits(range.count).data,
                    static_cast<std::size_t>(range.count * vocab_size) * sizeof(float), ops_.stream());
      row += range.count;
    }
    begin += count;
    if (options_.on_progress) {
      options_.on_progress({Progress::Stage::kPrefill, static_cast<std::uint64_t>(begin), tokens.size()});
    }
  }
  return result;
}

}  // namespace tessera
