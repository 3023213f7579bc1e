#include "backends/cpu/ops/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/scratch.h"
#include "core/parallel.h"

namespace tessera::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// -inf where the mask has no bit, a word at a time: nearly all of them have all bits or none.
void hide(const std::uint32_t* mask, float* row, std::int64_t n) {
  for (std::int64_t begin = 0; begin < n; begin += 32) {
    const std::uint32_t word = mask[begin / 32];
    const std::int64_t count = std::min<std::int64_t>(32, n - begin);
    if (word == 0) {
      std::fill_n(row + begin, count, -kInfinity);
    } else if (word != ~0u) {
      for (std::int64_t i = 0; i < count; ++i) row[begin + i] = word >> i & 1u ? row[begin + i] : -kInfinity;
    }
  }
}

void adjust_row(const AdjustLogitsArguments& a, std::int64_t s, float* scratch) {
  const std::size_t n = static_cast<std::size_t>(a.logits.columns);
  float* out = static_cast<float*>(a.out.data) + s * a.out.row_stride;
  if (a.logits.data != a.out.data) {  // rows are read with padding, which out has no room for
    row_kernels().load_as_f32(a.logits.data, a.logits.dtype, s * a.logits.row_stride, n, scratch);
    std::copy_n(scratch, n, out);
  }
  if (a.bias_offsets != nullptr) {
    for (std::int32_t i = a.bias_offsets[s]; i < a.bias_offsets[s + 1]; ++i) {
      out[a.biases[i].token] += a.biases[i].bias;
    }
  }
  if (a.mask_rows != nullptr && a.mask_rows[s] >= 0) {
    hide(a.masks + a.mask_rows[s] * a.mask_stride, out, a.logits.columns);
  }
}

/// The num_top likeliest of a row without NaN, in order. A heap of the likeliest so far, the least likely on
/// top: most of the vocabulary is one comparison each.
std::vector<std::int32_t> likeliest(const float* row, std::int64_t n, int num_top) {
  const auto likelier = [row](std::int32_t a, std::int32_t b) {
    return row[a] != row[b] ? row[a] > row[b] : a < b;
  };
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < n; ++id) {
    if (static_cast<int>(ids.size()) < num_top) {
      ids.push_back(id);
      std::ranges::push_heap(ids, likelier);
    } else if (num_top > 0 && row[id] > row[ids.front()]) {
      std::ranges::pop_heap(ids, likelier);
      ids.back() = id;
      std::ranges::push_heap(ids, likelier);
    }
  }
  std::ranges::sort_heap(ids, likelier);
  return ids;
}

void logprobs_of_row(const LogprobsArguments& a, std::int64_t s) {
  const std::size_t n = static_cast<std::size_t>(a.logits.columns);
  const Scratch copy =
      scratch_floats(1, static_cast<std::int64_t>(padded_row(a.logits.columns)), "a row of logits");
  row_kernels().load_as_f32(a.logits.data, a.logits.dtype, s * a.logits.row_stride, n, copy.floats());
  const float* row = copy.floats();
  std::int32_t* top_tokens = a.top_tokens + s * a.num_top;
  float* top_logprobs = a.top_logprobs + s * a.num_top;
  const float largest = row_kernels().largest(row, n);
  if (!std::isfinite(largest)) {
    a.logprobs[s] = kNan;
    std::fill_n(top_tokens, a.num_top, -1);
    std::fill_n(top_logprobs, a.num_top, kNan);
    return;
  }
  const Scratch memory(n * sizeof(double), "the weights of all tokens");
  double* weights = static_cast<double*>(memory.data());
  const double top = static_cast<double>(largest);
  const double log_sum = std::log(row_kernels().exp_weights(row, n, 1, top, weights));
  const auto logprob = [&](std::int32_t token) {
    return static_cast<float>(static_cast<double>(row[token]) - top - log_sum);
  };
  a.logprobs[s] = a.tokens[s] >= 0 && a.tokens[s] < a.logits.columns ? logprob(a.tokens[s]) : kNan;
  const std::vector<std::int32_t> ids = likeliest(row, a.logits.columns, a.num_top);
  std::ranges::copy(ids, top_tokens);
  std::ranges::transform(ids, top_logprobs, logprob);
}

}  // namespace

void adjust_logits(const AdjustLogitsArguments& a) {
  parallel_for(static_cast<std::size_t>(a.logits.rows), [&](std::size_t task) {
    const Scratch scratch =
        scratch_floats(1, static_cast<std::int64_t>(padded_row(a.logits.columns)), "a row of logits");
    adjust_row(a, static_cast<std::int64_t>(task), scratch.floats());
  });
}

void logprobs(const LogprobsArguments& a) {
  parallel_for(static_cast<std::size_t>(a.logits.rows),
               [&](std::size_t task) { logprobs_of_row(a, static_cast<std::int64_t>(task)); });
}

}  // namespace tessera::cpu
