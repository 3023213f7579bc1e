// Short convolutions and the gated delta rule over one sequence's rows, to fp32 and back.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/ops/recurrent_kernels.cpp"
#include "backends/cpu/highway_targets.h"
// After the list of targets.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "backends/cpu/ops/recurrent.h"
#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/select_kernels.h"
#include "backends/cpu/ops/sigmoid-inl.h"
#include "backends/cpu/ops/vector_io-inl.h"
#include "core/element.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace {

/// Columns [begin, begin + n) of a row as fp32, zeros up to a multiple of kRowPadding.
HWY_INLINE void load_columns(const Matrix& m, std::int64_t row, std::int64_t begin, std::size_t n,
                             float* out) {
  load_as_f32(m.data, m.dtype, row * m.row_stride + begin, n, out);
}

/// a *= columns of m, if there is one.
HWY_INLINE void multiply(const std::optional<Matrix>& m, std::int64_t row, std::int64_t begin, std::size_t n,
                         float* a) {
  if (!m) return;
  const F32 d;
  alignas(64) float factors[kConvChannels];
  load_columns(*m, row, begin, n, factors);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, a + i), hn::Load(d, factors + i)), d, a + i);
}

void causal_conv(const CausalConvArguments& a, std::int64_t sequence, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d), n = static_cast<std::size_t>(end - begin);
  const std::int64_t first = a.sequences.cu_seqlens[sequence];
  const std::int64_t rows = a.sequences.cu_seqlens[sequence + 1] - first;
  if (rows == 0) return;
  const std::int64_t taps = a.weight.rows, channels = a.x.columns;
  float* const state = a.state + a.sequences.slots[sequence] * (taps - 1) * channels + begin;
  const float* const weight = static_cast<const float*>(a.weight.data) + begin;
  // Row t's u stands at (t + taps - 1) % taps, those before row 0 likewise.
  alignas(64) float u[kMostConvTaps][kConvChannels] = {};
  alignas(64) float weights[kMostConvTaps][kConvChannels] = {};
  alignas(64) float bias[kConvChannels] = {};
  alignas(64) float y[kConvChannels];
  for (std::int64_t j = 0; j < taps; ++j) std::copy_n(weight + j * channels, n, weights[j]);
  if (a.bias) std::copy_n(static_cast<const float*>(a.bias->data) + begin, n, bias);
  if (a.sequences.seq_lens[sequence] != rows)
    for (std::int64_t j = 0; j + 1 < taps; ++j) std::copy_n(state + j * channels, n, u[j]);
  for (std::int64_t t = 0; t < rows; ++t) {
    float* const own = u[(t + taps - 1) % taps];
    load_columns(a.x, first + t, begin, n, own);
    multiply(a.x_gate, first + t, begin, n, own);
    for (std::size_t i = 0; i < n; i += lanes) {
      auto sum = hn::Load(d, bias + i);
      for (std::int64_t j = 0; j < taps; ++j)
        sum = hn::MulAdd(hn::Load(d, weights[j] + i), hn::Load(d, u[(t + j) % taps] + i), sum);
      hn::Store(a.is_activated ? hn::Mul(sum, sigmoid(d, sum)) : sum, d, y + i);
    }
    multiply(a.out_gate, first + t, begin, n, y);
    store_from_f32(y, n, a.out.data, a.out.dtype, (first + t) * a.out.row_stride + begin);
  }
  for (std::int64_t j = 0; j + 1 < taps; ++j) std::copy_n(u[(rows + j) % taps], n, state + j * channels);
}

HWY_INLINE float dot(const float* a, const float* b, std::size_t n) {
  const F32 d;
  auto even = hn::Zero(d), odd = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += 2 * hn::Lanes(d)) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + hn::Lanes(d)), hn::LoadU(d, b + i + hn::Lanes(d)), odd);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

/// A head of keys or queries, divided by its length and `divisor`; padded by zeros.
HWY_INLINE void load_unit_head(const Matrix& m, std::int64_t row, std::int64_t begin, std::size_t n,
                               float divisor, float* head) {
  const F32 d;
  load_columns(m, row, begin, n, head);
  const float factor =
      1 / (std::sqrt(dot(head, head, padded_row(static_cast<std::int64_t>(n))) + kDeltaLengthEps) * divisor);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, head + i), hn::Set(d, factor)), d, head + i);
}

HWY_INLINE float element(const Matrix& m, std::int64_t row, std::int64_t column) {
  return static_cast<float>(load_element(m.data, m.dtype, row * m.row_stride + column));
}

/// state = decay state + change k, whose product with q it returns; n numbers of each, k and q padded.
HWY_INLINE float update(float* state, const float* k, const float* q, std::size_t n, float decay,
                        float change) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  auto sums = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto s = hn::MulAdd(hn::Set(d, change), hn::Load(d, k + i),
                              hn::Mul(hn::Set(d, decay), hn::LoadU(d, state + i)));
    hn::StoreU(s, d, state + i);
    sums = hn::MulAdd(s, hn::Load(d, q + i), sums);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < n; ++i) {
    state[i] = change * k[i] + decay * state[i];
    sum += state[i] * q[i];
  }
  return sum;
}

/// The product of n numbers.
HWY_INLINE float product(const float* state, const float* k, std::size_t n) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  auto sums = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) sums = hn::MulAdd(hn::LoadU(d, state + i), hn::Load(d, k + i), sums);
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < n; ++i) sum += state[i] * k[i];
  return sum;
}

void gated_delta(const GatedDeltaArguments& a, std::int64_t sequence, int head) {
  const std::int64_t first = a.sequences.cu_seqlens[sequence];
  const std::int64_t rows = a.sequences.cu_seqlens[sequence + 1] - first;
  if (rows == 0) return;
  const auto keys = static_cast<std::size_t>(a.key_dim);
  const std::int64_t state_size = std::int64_t{a.value_dim} * a.key_dim;
  float* const state =
      a.state + (a.sequences.slots[sequence] * std::int64_t{a.num_value_heads} + head) * state_size;
  if (a.sequences.seq_lens[sequence] == rows) std::fill_n(state, state_size, 0.0f);
  const std::int64_t key_column = std::int64_t{key_head_of(a, head)} * a.key_dim;
  const std::int64_t value_column = std::int64_t{head} * a.value_dim;
  const float rate = std::exp(static_cast<const float*>(a.a_log.data)[head]);
  const float dt_bias = static_cast<const float*>(a.dt_bias.data)[head];
  alignas(64) float q[kMostDeltaKeyDim];
  alignas(64) float k[kMostDeltaKeyDim];
  for (std::int64_t row = first; row < first + rows; ++row) {
    load_unit_head(a.q, row, key_column, keys, std::sqrt(static_cast<float>(a.key_dim)), q);
    load_unit_head(a.k, row, key_column, keys, 1, k);
    const float dt = element(a.a, row, head) + dt_bias;
    const float softplus = std::max(dt, 0.0f) + std::log1p(std::exp(-std::abs(dt)));
    const float decay = std::exp(-rate * softplus);
    const float beta = 1 / (1 + std::exp(-element(a.b, row, head)));
    for (std::int64_t i = 0; i < a.value_dim; ++i) {
      float* const s = state + i * a.key_dim;
      const float change = beta * (element(a.v, row, value_column + i) - decay * product(s, k, keys));
      store_element(a.out.data, a.out.dtype, row * a.out.row_stride + value_column + i,
                    static_cast<double>(update(s, k, q, keys, decay, change)));
    }
  }
}

}  // namespace

extern const RecurrentKernels kRecurrentKernels;
const RecurrentKernels kRecurrentKernels = {causal_conv, gated_delta};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

const RecurrentKernels& recurrent_kernels() { return TESSERA_SELECT_KERNELS(kRecurrentKernels); }

}  // namespace tessera::cpu
#endif
