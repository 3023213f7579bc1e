#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/ops/elements.h"

// Layers that carry a state along, token by token in fp64. The state is fp32 after each token, whether or not
// a call ends there: results don't depend on where.

namespace tessera::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

/// Calls body(first row, rows, whether it begins, slot) for each sequence with rows.
template <class Body>
void for_sequences(const SequenceRows& s, Body body) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int64_t first = s.cu_seqlens[b], rows = s.cu_seqlens[b + 1] - first;
    if (rows > 0) body(first, rows, s.seq_lens[b] == rows, std::int64_t{s.slots[b]});
  }
}

std::vector<double> unit_head(const Matrix& m, std::int64_t row, std::int64_t first, int head_dim) {
  std::vector<double> head(static_cast<std::size_t>(head_dim));
  double squares = 0;
  for (std::size_t i = 0; i < head.size(); ++i) {
    head[i] = load(m, row, first + static_cast<std::int64_t>(i));
    squares += head[i] * head[i];
  }
  for (double& x : head) x /= std::sqrt(squares + double{kDeltaLengthEps});
  return head;
}

}  // namespace

void causal_conv(const CausalConvArguments& a) {
  const std::int64_t channels = a.x.columns, taps = a.weight.rows;
  for_sequences(a.sequences, [&](std::int64_t first, std::int64_t rows, bool begins, std::int64_t slot) {
    float* const state = a.state + slot * (taps - 1) * channels;
    for (std::int64_t c = 0; c < channels; ++c) {
      std::vector<float> u;  // those of the state, then the rows'
      for (std::int64_t j = 0; j + 1 < taps; ++j) u.push_back(begins ? 0 : state[j * channels + c]);
      for (std::int64_t row = first; row < first + rows; ++row)
        u.push_back(static_cast<float>(load(a.x, row, c) * (a.x_gate ? load(*a.x_gate, row, c) : 1)));
      for (std::int64_t t = 0; t < rows; ++t) {
        double sum = a.bias ? load(*a.bias, 0, c) : 0;
        for (std::int64_t j = 0; j < taps; ++j)
          sum += load(a.weight, j, c) * static_cast<double>(u[static_cast<std::size_t>(t + j)]);
        if (a.is_activated) sum *= sigmoid(sum);
        store(a.out, first + t, c, a.out_gate ? sum * load(*a.out_gate, first + t, c) : sum);
      }
      for (std::int64_t j = 0; j + 1 < taps; ++j)
        state[j * channels + c] = u[static_cast<std::size_t>(rows + j)];
    }
  });
}

void gated_delta(const GatedDeltaArguments& a) {
  const auto keys = static_cast<std::size_t>(a.key_dim), values = static_cast<std::size_t>(a.value_dim);
  for_sequences(a.sequences, [&](std::int64_t first, std::int64_t rows, bool begins, std::int64_t slot) {
    for (int head = 0; head < a.num_value_heads; ++head) {
      float* const stored =
          a.state + (slot * a.num_value_heads + head) * static_cast<std::int64_t>(values * keys);
      if (begins) std::fill_n(stored, values * keys, 0.0f);
      const std::int64_t key_column = std::int64_t{key_head_of(a, head)} * a.key_dim;
      for (std::int64_t row = first; row < first + rows; ++row) {
        const std::vector<double> q = unit_head(a.q, row, key_column, a.key_dim);
        const std::vector<double> k = unit_head(a.k, row, key_column, a.key_dim);
        const double decay = std::exp(-std::exp(load(a.a_log, 0, head)) *
                                      softplus(load(a.a, row, head) + load(a.dt_bias, 0, head)));
        const double beta = sigmoid(load(a.b, row, head));
        for (std::size_t i = 0; i < values; ++i) {
          float* const state = stored + i * keys;
          const std::int64_t column = std::int64_t{head} * a.value_dim + static_cast<std::int64_t>(i);
          double known = 0, out = 0;
          for (std::size_t j = 0; j < keys; ++j) known += decay * static_cast<double>(state[j]) * k[j];
          const double change = beta * (load(a.v, row, column) - known);
          for (std::size_t j = 0; j < keys; ++j) {
            const double updated = decay * static_cast<double>(state[j]) + change * k[j];
            out += updated * q[j];
            state[j] = static_cast<float>(updated);
          }
          store(a.out, row, column, out / std::sqrt(static_cast<double>(a.key_dim)));
        }
      }
    }
  });
}

}  // namespace tessera::reference
