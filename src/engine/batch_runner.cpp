#include "engine/batch_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>

#include "engine/floats.h"

namespace tessera {
namespace {

/// Merges rows that follow one another, so that a decode step's head is one call.
void append_row(std::vector<RowRange>& ranges, std::int64_t row) {
  if (!ranges.empty() && ranges.back().begin + ranges.back().count == row) {
    ++ranges.back().count;
  } else {
    ranges.push_back({row, 1});
  }
}

Error bad_logits() {
  return {ErrorCode::kInvalidArgument,
          "the logits hold a NaN or +inf, or nothing but -inf; the model's weights or the activation dtype's "
          "range are the cause"};
}

/// What was drawn for a row, -1 for bad logits.
void take_drawn(std::int32_t token, StepOutcome& outcome) {
  if (token < 0) {
    outcome.error = bad_logits();
  } else {
    outcome.token = token;
  }
}

/// The tokens that the constraint allows, or nothing where it allows any. Throws what the constraint throws,
/// and Error{kInvalidArgument} if no token below token_limit is left.
std::vector<std::uint32_t> allowed_tokens(TokenConstraint& constraint, std::int64_t vocab_size,
                                          std::int64_t token_limit) {
  std::vector<std::uint32_t> mask(static_cast<std::size_t>((vocab_size + 31) / 32));
  if (!constraint.allowed_tokens(mask)) return {};
  bool any = std::ranges::any_of(std::span(mask).first(static_cast<std::size_t>(token_limit / 32)),
                                 [](std::uint32_t word) { return word != 0; });
  if (token_limit % 32 != 0)
    any |= (mask[static_cast<std::size_t>(token_limit / 32)] << (32 - token_limit % 32)) != 0;
  if (!any) {
    throw Error(ErrorCode::kInvalidArgument,
                "the constraint allows no token at all; expected at least one, if only one that ends the "
                "text");
  }
  return mask;
}

}  // namespace

BatchRunner::BatchRunner(ExecutionPlan& plan, OpsBackend& ops, std::int64_t token_limit)
    : plan_(plan),
      ops_(ops),
      token_limit_(token_limit),
      sampler_(plan.options().max_batch, plan.options().max_seq_len, token_limit,
               token_limit - std::ssize(plan.options().absent_tokens), ops),
      recorder_(ops) {
  for (std::unique_ptr<Readback>& readback : readbacks_) {
    readback = ops.make_readback(static_cast<std::size_t>(plan.options().max_batch) * sizeof(std::int32_t));
  }
}

std::vector<StepOutcome> BatchRunner::run(std::span<const StepEntry> entries,
                                          const std::function<void(double)>& after_step) {
  std::vector<StepOutcome> outcomes(entries.size());
  std::vector<SequenceSlice> slices;
  Drawing drawing;
  std::int64_t num_rows = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StepEntry& entry = entries[i];
    slices.push_back({entry.tokens.subspan(static_cast<std::size_t>(entry.num_computed),
                                           static_cast<std::size_t>(entry.num_new)),
                      entry.num_computed, entry.block_table, entry.state_slot});
    num_rows += entry.num_new;
    if (!entry.draws) continue;
    drawing.entries.push_back(i);
    drawing.sequences.push_back(entry.sequence);
    drawing.samples.push_back({entry.sampling, entry.tokens, entry.num_drawn, entry.drawn});
    append_row(drawing.rows, num_rows - 1);
  }

  const bool is_decode = num_rows == std::ssize(drawing.entries);
  const bool tokens_on_device =
      is_decode && drawing.sequences == last_sampled_ &&
      std::ranges::all_of(entries, [](const StepEntry& entry) { return entry.num_drawn > 0; });
  last_sampled_.clear();
  const StepShape shape = plan_.begin_step(slices, tokens_on_device);
  std::function<void()> run_layers = [this, shape,
                                      on_kernel = is_decode ? std::function<void(double)>() : after_step] {
    plan_.run_layers(shape, on_kernel);
  };
  if (std::ranges::any_of(entries, [](const StepEntry& entry) { return !entry.query_positions.empty(); })) {
    run_layers = [&] { run_layers_reading_queries(shape, entries, outcomes); };
  }
  if (drawing.entries.empty()) {
    run_layers();
  } else {
    const bool draws_at_once = std::ranges::none_of(drawing.samples, Sampler::adjusts) &&
                               std::ranges::none_of(drawing.entries, [&](std::size_t i) {
                                 return entries[i].constraint != nullptr;
                               });
    const bool uses_history = draws_at_once && sampler_.begin_step(drawing.samples);
    run_to_logits(shape, is_decode, drawing.rows, draws_at_once, uses_history, run_layers);
    // Masks are made while the device works on the layers, and come between the logits and the drawing.
    const auto masks = constrain(entries, drawing, outcomes);
    if (!is_drawn_) draw(drawing.samples);
    take_tokens(entries, drawing.entries, outcomes);
    last_sampled_ = std::move(drawing.sequences);
  }

  std::int64_t first_row = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].wants_hidden_states) {
      outcomes[i].hidden_states = hidden_states(first_row, entries[i].num_new);
    }
    if (!entries[i].followers.empty()) {
      outcomes[i].follower_logprobs =
          follower_logprobs(first_row, entries[i].followers, entries[i].top_logprobs.value_or(0));
    }
    first_row += entries[i].num_new;
  }
  return outcomes;
}

std::vector<std::vector<std::uint32_t>> BatchRunner::constrain(std::span<const StepEntry> entries,
                                                               Drawing& drawing,
                                                               std::span<StepOutcome> outcomes) {
  std::vector<std::vector<std::uint32_t>> masks(drawing.entries.size());
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const StepEntry& entry = entries[drawing.entries[i]];
    if (entry.constraint == nullptr) continue;
    std::optional<Error>& failure = outcomes[drawing.entries[i]].error;
    try {
      masks[i] = allowed_tokens(*entry.constraint, plan_.logits(1).columns, token_limit_);
      drawing.samples[i].mask = masks[i];
    } catch (const Error& error) {
      failure = error;
    } catch (const std::exception& error) {  // the constraint's own
      failure = Error(ErrorCode::kInvalidArgument, error.what());
    }
  }
  return masks;
}

void BatchRunner::take_tokens(std::span<const StepEntry> entries, std::span<const std::size_t> drawing,
                              std::span<StepOutcome> outcomes) {
  std::optional<int> num_top;
  for (const std::size_t i : drawing) {
    if (entries[i].top_logprobs) num_top = std::max(num_top.value_or(0), *entries[i].top_logprobs);
  }
  SampledLogprobs logprobs;
  if (num_top) logprobs = sampler_.logprobs(plan_.logits(std::ssize(drawing)), plan_.tokens(), *num_top);
  std::vector<std::int32_t> tokens(drawing.size());
  sampler_.download(plan_.tokens(), tokens);
  for (std::size_t i = 0; i < drawing.size(); ++i) {
    StepOutcome& outcome = outcomes[drawing[i]];
    if (!outcome.error) take_drawn(tokens[i], outcome);
    if (outcome.error) continue;
    if (const std::optional<int> wanted = entries[drawing[i]].top_logprobs) {
      outcome.logprob = logprobs.logprobs[i];
      outcome.top_logprobs = std::move(logprobs.top[i]);
      outcome.top_logprobs.resize(std::min(outcome.top_logprobs.size(), static_cast<std::size_t>(*wanted)));
    }
  }
}

void BatchRunner::run_to_logits(const StepShape& shape, bool is_decode, const std::vector<RowRange>& rows,
                                bool draws_at_once, bool uses_history,
                                const std::function<void()>& run_layers) {
  std::int64_t num_drawing = 0;
  for (const RowRange& range : rows) num_drawing += range.count;
  const auto work = [this, rows, uses_history, draws_at_once, num_drawing, run_layers] {
    run_layers();
    plan_.run_head(rows, /*for_sampling=*/true);
    is_drawn_ = draws_at_once && try_draw(plan_.logits(num_drawing), uses_history, plan_.tokens());
  };
  is_drawn_ = draws_at_once;  // what a recording draws it draws always
  if (is_decode) {
    recorder_.run({shape, draws_at_once, uses_history}, plan_.address_generation(), work);
  } else {
    work();
  }
}

bool BatchRunner::can_start(std::span<const StepEntry> entries) const {
  return readbacks_[0] != nullptr && std::ranges::all_of(entries, [](const StepEntry& entry) {
           return entry.draws && entry.num_new == 1 && entry.num_drawn > 0 && entry.constraint == nullptr &&
                  !entry.top_logprobs && entry.followers.empty() && entry.sampling->repetition_penalty == 1 &&
                  !Sampler::adjusts({entry.sampling, entry.tokens, entry.num_drawn});
         });
}

void BatchRunner::start(std::span<const StepEntry> entries) {
  static constexpr std::int32_t kOnDevice[] = {0};
  std::vector<SequenceSlice> slices;
  std::vector<SampleRequest> samples;
  std::vector<std::uint64_t> sequences;
  for (const StepEntry& entry : entries) {
    const auto pending = entry.tokens.subspan(static_cast<std::size_t>(entry.num_computed));
    slices.push_back({pending.empty() ? std::span(kOnDevice) : pending.first(1), entry.num_computed,
                      entry.block_table, entry.state_slot});
    samples.push_back({entry.sampling, entry.tokens, entry.num_drawn});
    sequences.push_back(entry.sequence);
  }
  const bool tokens_on_device = sequences == last_sampled_;
  last_sampled_.clear();
  const StepShape shape = plan_.begin_step(slices, tokens_on_device);
  const bool uses_history = sampler_.begin_step(samples);
  run_to_logits(shape, /*is_decode=*/true, {{0, std::ssize(entries)}}, /*draws_at_once=*/true, uses_history,
                [this, shape] { plan_.run_layers(shape); });
  if (!is_drawn_) draw(samples);
  readbacks_[num_started_ % readbacks_.size()]->start(plan_.tokens(), entries.size() * sizeof(std::int32_t),
                                                      ops_.stream());
  ++num_started_;
  last_sampled_ = std::move(sequences);
}

std::vector<StepOutcome> BatchRunner::finish() {
  const std::span<const std::byte> tokens = readbacks_[num_finished_++ % readbacks_.size()]->wait();
  std::vector<StepOutcome> outcomes(tokens.size() / sizeof(std::int32_t));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    std::int32_t token = 0;
    std::memcpy(&token, tokens.data() + i * sizeof token, sizeof token);
    take_drawn(token, outcomes[i]);
  }
  return outcomes;
}

void BatchRunner::forget_started() {
  num_finished_ = num_started_;
  last_sampled_.clear();
}

bool BatchRunner::try_draw(const Matrix& logits, bool uses_history, std::int32_t* tokens) {
  try {
    sampler_.run(logits, uses_history, tokens);
    return true;
  } catch (const Error& error) {
    // On the CPU bad logits are an error, on a GPU token -1.
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return false;
  }
}

void BatchRunner::draw(std::span<const SampleRequest> requests) {
  Matrix logits = plan_.logits(std::ssize(requests));
  if (std::ranges::any_of(requests, Sampler::adjusts)) logits = sampler_.adjust(logits, requests);
  if (try_draw(logits, sampler_.begin_step(requests), plan_.tokens())) return;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Matrix row = rows_of(logits, static_cast<std::int64_t>(i), 1);
    std::int32_t* const token = plan_.tokens() + i;
    if (try_draw(row, sampler_.begin_step(requests.subspan(i, 1)), token)) continue;
    constexpr std::int32_t kBad = -1;
    ops_.upload(token, &kBad, sizeof kBad, ops_.stream());
  }
}

void BatchRunner::run_layers_reading_queries(const StepShape& shape, std::span<const StepEntry> entries,
                                             std::vector<StepOutcome>& outcomes) {
  for (const PlanStep& step : plan_.steps(shape)) {
    if (step.name == kAttentionStep) {
      std::int64_t first_row = 0;
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const StepEntry& entry = entries[i];
        if (std::ranges::binary_search(entry.query_layers, step.layer)) {
          std::vector<float>& queries = outcomes[i].queries.emplace_back();
          for (const std::int64_t position : entry.query_positions) {
            const Matrix row =
                rows_of(plan_.queries(step.layer), first_row + position - entry.num_computed, 1);
            const std::vector<float> query = read(row);
            queries.insert(queries.end(), query.begin(), query.end());
          }
        }
        first_row += entry.num_new;
      }
    }
    step.run(shape);
  }
}

std::vector<float> BatchRunner::read(const Matrix& rows) {
  std::vector<float> result(static_cast<std::size_t>(rows.rows * rows.columns));
  std::vector<std::byte> row(dtype_bytes(rows.dtype, static_cast<std::size_t>(rows.columns)));
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    ops_.download(row.data(), rows_of(rows, i, 1).data, row.size(), ops_.stream());
    convert_to_floats(row.data(), rows.dtype,
                      std::span(result).subspan(static_cast<std::size_t>(i * rows.columns),
                                                static_cast<std::size_t>(rows.columns)));
  }
  return result;
}

std::vector<float> BatchRunner::hidden_states(std::int64_t first_row, std::int64_t count) {
  std::vector<float> result;
  for (std::int64_t row = 0; row < count;) {
    const RowRange range{first_row + row, std::min(plan_.options().max_logits_rows, count - row)};
    const std::vector<float> states = read(plan_.run_final_norm({&range, 1}));
    result.insert(result.end(), states.begin(), states.end());
    row += range.count;
  }
  return result;
}

std::vector<PromptLogprob> BatchRunner::follower_logprobs(std::int64_t first_row,
                                                          std::span<const std::int32_t> followers,
                                                          int num_top) {
  std::vector<PromptLogprob> result;
  for (std::size_t row = 0; row < followers.size();) {
    const std::size_t count =
        std::min(static_cast<std::size_t>(plan_.options().max_logits_rows), followers.size() - row);
    const RowRange range{first_row + static_cast<std::int64_t>(row), static_cast<std::int64_t>(count)};
    plan_.run_head({&range, 1}, /*for_sampling=*/true);
    SampledLogprobs logprobs =
        sampler_.logprobs(plan_.logits(range.count), followers.subspan(row, count), num_top);
    for (std::size_t i = 0; i < count; ++i)
      result.push_back({logprobs.logprobs[i], std::move(logprobs.top[i])});
    row += count;
  }
  return result;
}

}  // namespace tessera
