#include "engine/sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

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

/// Makes room for `count` elements, unless there is.
template <class T>
T* reserve(DeviceBuffer& buffer, std::size_t count, std::string_view what, OpsBackend& ops) {
  const std::size_t size_bytes = std::max<std::size_t>(count, 1) * sizeof(T);
  if (buffer.size_bytes < size_bytes) buffer = ops.allocate(size_bytes, what);
  return buffer.as<T>();
}

/// Adds what is added to a sequence's logits to `biases`, each token below token_limit once.
void append_biases(const SampleRequest& request, std::int64_t token_limit, std::vector<LogitBias>& biases) {
  const SamplingOptions& options = *request.options;
  const std::span<const DrawnToken> drawn =
      has_penalties(options) ? request.drawn : std::span<const DrawnToken>();
  auto given = options.logit_bias.begin();
  auto next = drawn.begin();
  while (given != options.logit_bias.end() || next != drawn.end()) {
    const bool is_given =
        given != options.logit_bias.end() && (next == drawn.end() || given->first <= next->token);
    const bool is_drawn = next != drawn.end() && (!is_given || next->token == given->first);
    const std::int32_t token = is_given ? given->first : next->token;
    double bias = is_given ? static_cast<double>(given++->second) : 0;
    if (is_drawn) {
      bias -= static_cast<double>(options.presence_penalty) +
              static_cast<double>(options.frequency_penalty) * next++->count;
    }
    if (token < token_limit) biases.push_back({token, static_cast<float>(bias)});
  }
}

bool same(const SamplingParameters& a, const SamplingParameters& b) {
  return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p && a.min_p == b.min_p &&
         a.repetition_penalty == b.repetition_penalty && a.seed == b.seed;
}

}  // namespace

void DrawnTokens::add(std::int32_t token) {
  const auto place = std::ranges::lower_bound(tokens_, token, {}, &DrawnToken::token);
  if (place != tokens_.end() && place->token == token) {
    ++place->count;
  } else {
    tokens_.insert(place, {token, 1});
  }
}

bool has_penalties(const SamplingOptions& options) {
  return options.presence_penalty != 0 || options.frequency_penalty != 0;
}

void validate(const SamplingOptions& options) {
  require(std::isfinite(options.temperature) && options.temperature >= 0, "temperature", options.temperature,
          "0 (greedy) or a positive number");
  require(options.top_k >= 0, "top_k", options.top_k, "0 (all) or more");
  require(options.top_p > 0 && options.top_p <= 1, "top_p", options.top_p, "a number above 0 and at most 1");
  require(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "a number from 0 to 1");
  require(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0, "repetition_penalty",
          options.repetition_penalty, "a positive number, 1 for none");
  require(std::isfinite(options.presence_penalty), "presence_penalty", options.presence_penalty, "a number");
  require(std::isfinite(options.frequency_penalty), "frequency_penalty", options.frequency_penalty,
          "a number");
  for (const auto& [token, bias] : options.logit_bias) {
    require(token >= 0, "logit_bias has a token that", token, "0 or more");
    require(std::isfinite(bias), "logit_bias", bias, "numbers");
  }
}

Sampler::Sampler(std::int64_t max_batch, std::int64_t max_seq_len, std::int64_t token_limit,
                 std::int64_t num_drawable, OpsBackend& ops)
    : max_batch_(max_batch),
      max_seq_len_(max_seq_len),
      token_limit_(token_limit),
      num_drawable_(num_drawable),
      ops_(ops) {
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

bool Sampler::adjusts(const SampleRequest& request) {
  const SamplingOptions& options = *request.options;
  return !request.mask.empty() || !options.logit_bias.empty() || has_penalties(options);
}

Matrix Sampler::adjust(const Matrix& logits, std::span<const SampleRequest> requests) {
  const std::size_t batch = requests.size();
  const std::size_t words = static_cast<std::size_t>((token_limit_ + 31) / 32);
  std::vector<std::uint32_t> masks;
  std::vector<std::int32_t> mask_rows, offsets = {0};
  std::vector<LogitBias> biases;
  for (const SampleRequest& request : requests) {
    mask_rows.push_back(request.mask.empty() ? -1 : static_cast<std::int32_t>(masks.size() / words));
    if (!request.mask.empty())
      masks.insert(masks.end(), request.mask.begin(),
                   request.mask.begin() + static_cast<std::ptrdiff_t>(words));
    append_biases(request, token_limit_, biases);
    offsets.push_back(static_cast<std::int32_t>(biases.size()));
  }
  const auto upload = [&]<class T>(DeviceBuffer& buffer, const std::vector<T>& from, std::size_t room,
                                   std::string_view what) {
    T* const to = reserve<T>(buffer, std::max(from.size(), room), what, ops_);
    if (!from.empty()) ops_.upload(to, from.data(), from.size() * sizeof(T), ops_.stream());
    return to;
  };
  const std::size_t most = static_cast<std::size_t>(max_batch_);
  AdjustLogitsArguments arguments;
  arguments.logits = logits;
  arguments.logits.columns = token_limit_;
  arguments.out = {
      reserve<float>(adjusted_, most * static_cast<std::size_t>(token_limit_), "logits for sampling", ops_),
      DType::kF32, static_cast<std::int64_t>(batch), token_limit_, token_limit_};
  arguments.masks = upload(masks_, masks, most * words, "token masks");
  arguments.mask_rows = upload(mask_rows_, mask_rows, most, "rows of token masks");
  arguments.mask_stride = static_cast<std::int64_t>(words);
  arguments.biases = upload(biases_, biases, 1024, "logit biases");
  arguments.bias_offsets = upload(bias_offsets_, offsets, most + 1, "logit biases");
  ops_.adjust_logits(arguments, ops_.stream());
  return arguments.out;
}

SampledLogprobs Sampler::logprobs(const Matrix& logits, const std::int32_t* tokens, int num_top) {
  const std::size_t batch = static_cast<std::size_t>(logits.rows);
  LogprobsArguments arguments;
  arguments.logits = logits;
  arguments.logits.columns = token_limit_;
  arguments.tokens = tokens;
  arguments.num_top = static_cast<int>(std::min<std::int64_t>(num_top, num_drawable_));
  const std::size_t top = static_cast<std::size_t>(arguments.num_top);
  arguments.logprobs = reserve<float>(logprobs_, batch, "log probabilities", ops_);
  arguments.top_tokens = reserve<std::int32_t>(top_tokens_, batch * top, "likeliest tokens", ops_);
  arguments.top_logprobs = reserve<float>(top_logprobs_, batch * top, "likeliest tokens", ops_);
  ops_.logprobs(arguments, ops_.stream());
  SampledLogprobs result{std::vector<float>(batch), std::vector<std::vector<TokenLogprob>>(batch)};
  std::vector<std::int32_t> ids(batch * top);
  std::vector<float> values(batch * top);
  ops_.download(result.logprobs.data(), arguments.logprobs, batch * sizeof(float), ops_.stream());
  if (top > 0) {
    ops_.download(ids.data(), arguments.top_tokens, ids.size() * sizeof(std::int32_t), ops_.stream());
    ops_.download(values.data(), arguments.top_logprobs, values.size() * sizeof(float), ops_.stream());
  }
  for (std::size_t i = 0; i < ids.size(); ++i) result.top[i / top].push_back({ids[i], values[i]});
  return result;
}

SampledLogprobs Sampler::logprobs(const Matrix& logits, std::span<const std::int32_t> tokens, int num_top) {
  std::vector<std::int32_t> drawable(tokens.begin(), tokens.end());
  for (std::int32_t& token : drawable)
    if (token >= token_limit_) token = 0;
  std::int32_t* const given =
      reserve<std::int32_t>(given_tokens_, drawable.size(), "tokens of prompts", ops_);
  ops_.upload(given, drawable.data(), drawable.size() * sizeof(std::int32_t), ops_.stream());
  SampledLogprobs result = logprobs(logits, given, num_top);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] >= token_limit_) result.logprobs[i] = -std::numeric_limits<float>::infinity();
  return result;
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
