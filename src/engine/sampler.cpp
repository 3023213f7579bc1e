#include "engine/sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tessera/error.h"

namespace tessera {
namespace {

template <class Value>
void require(bool ok, const char* field, Value value, const char* expected) {
  if (!ok) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("sampling.{} is {}; expected {}", field, value, expected));
  }
}

bool same(const SamplingParameters& a, const SamplingParameters& b) {
  return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p && a.min_p == b.min_p &&
         a.repetition_penalty == b.repetition_penalty && a.seed == b.seed;
}

}  // namespace

void validate(const SamplingOptions& options) {
  require(std::isfinite(options.temperature) && options.temperature >= 0, "temperature", options.temperature,
          "0 (greedy) or a positive number");
  require(options.top_k >= 0, "top_k", options.top_k, "0 (all) or more");
  require(options.top_p > 0 && options.top_p <= 1, "top_p", options.top_p, "a number above 0 and at most 1");
  require(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "a number from 0 to 1");
  require(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0, "repetition_penalty",
          options.repetition_penalty, "a positive number, 1 for none");
}

Sampler::Sampler(std::int64_t max_batch, std::int64_t max_seq_len, std::int64_t token_limit, OpsBackend& ops)
    : max_batch_(max_batch), max_seq_len_(max_seq_len), token_limit_(token_limit), ops_(ops) {
  const std::size_t batch = static_cast<std::size_t>(max_batch);
  parameters_ = ops.allocate(batch * sizeof(SamplingParameters), "sampling parameters");
  steps_ = ops.allocate(batch * sizeof(std::int64_t), "sampling steps");
}

bool Sampler::begin_step(std::span<const SampleRequest> requests) {
  bool uses_history = false;
  std::vector<SamplingParameters> parameters;
  host_steps_.clear();
  for (const SampleRequest& request : requests) {
    const SamplingOptions& options = *request.options;
    parameters.push_back({options.temperature, options.top_k, options.top_p, options.min_p,
                          options.repetition_penalty, options.seed});
    host_steps_.push_back(request.num_drawn);
    uses_history |= options.repetition_penalty != 1;
  }
  if (!std::ranges::equal(parameters, host_parameters_, same)) {
    ops_.upload(parameters_.data.get(), parameters.data(), parameters.size() * sizeof(SamplingParameters),
                ops_.stream());
    host_parameters_ = std::move(parameters);
  }
  ops_.upload(steps_.data.get(), host_steps_.data(), host_steps_.size() * sizeof(std::int64_t),
              ops_.stream());
  if (uses_history) upload_histories(requests);
  return uses_history;
}

void Sampler::upload_histories(std::span<const SampleRequest> requests) {
  if (!history_.data) {
    const std::size_t batch = static_cast<std::size_t>(max_batch_);
    history_ = ops_.allocate(batch * static_cast<std::size_t>(max_seq_len_) * sizeof(std::int32_t),
                             "token history for the repetition penalty");
    history_lens_ = ops_.allocate(batch * sizeof(std::int32_t), "token history lengths");
  }
  std::vector<std::int32_t> lens, drawable;
  const auto is_drawable = [this](std::int32_t token) { return token < token_limit_; };
  for (const SampleRequest& request : requests) {
    const std::int64_t row = static_cast<std::int64_t>(lens.size());
    std::span<const std::int32_t> history = request.history;
    if (!std::ranges::all_of(history, is_drawable)) {  // a prompt may hold ids that have no token
      drawable.clear();
      std::ranges::copy_if(history, std::back_inserter(drawable), is_drawable);
      history = drawable;
    }
    ops_.upload(history_.as<std::int32_t>() + row * max_seq_len_, history.data(), history.size_bytes(),
                ops_.stream());
    lens.push_back(static_cast<std::int32_t>(history.size()));
  }
  ops_.upload(history_lens_.data.get(), lens.data(), lens.size() * sizeof(std::int32_t), ops_.stream());
}

void Sampler::run(const Matrix& logits, bool uses_history, std::int32_t* tokens) {
  SampleArguments arguments;
  arguments.logits = logits;
  arguments.logits.columns = token_limit_;
  arguments.parameters = parameters_.as<SamplingParameters>();
  arguments.steps = steps_.as<std::int64_t>();
  if (uses_history) {
    arguments.history = history_.as<std::int32_t>();
    arguments.history_lens = history_lens_.as<std::int32_t>();
    arguments.history_stride = max_seq_len_;
  }
  arguments.tokens = tokens;
  ops_.sample(arguments, ops_.stream());
}

void Sampler::download(const std::int32_t* tokens, std::span<std::int32_t> out) {
  ops_.download(out.data(), tokens, out.size_bytes(), ops_.stream());
}

}  // namespace tessera
