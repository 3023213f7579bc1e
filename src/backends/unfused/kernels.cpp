#include "backends/unfused/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "backends/unfused/sgemm.h"
#include "core/element.h"

namespace tessera::unfused {
namespace {

/// Calls f(score, row, col) for each score.
template <class F>
void for_each_score(const ScoreTile& scores, F&& f) {
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    float* row = scores.data + i * scores.stride;
    for (std::int64_t j = 0; j < scores.cols; ++j) f(row[j], i, j);
  }
}

}  // namespace

void multiply_q_k(const float* q, const float* k, int head_dim, const ScoreTile& scores) {
  sgemm_nt(scores.rows, scores.cols, head_dim, {q, head_dim}, {k, head_dim}, {scores.data, scores.stride});
}

void scale(const ScoreTile& scores, float factor) {
  for_each_score(scores, [=](float& s, std::int64_t, std::int64_t) { s *= factor; });
}

void apply_softcap(const ScoreTile& scores, float cap) {
  for_each_score(scores, [=](float& s, std::int64_t, std::int64_t) { s = cap * std::tanh(s / cap); });
}

void add_alibi(const ScoreTile& scores, float slope, std::int64_t shift) {
  for_each_score(scores, [&](float& s, std::int64_t i, std::int64_t j) {
    s -= slope * static_cast<float>(std::abs(scores.first_query + i + shift - j));
  });
}

void add_mask(const ScoreTile& scores, const MaskTile& mask) {
  dispatch_float(mask.dtype, [&]<class T>() {
    const T* data = static_cast<const T*>(mask.data);
    for_each_score(scores, [&](float& s, std::int64_t i, std::int64_t j) {
      const float bias = static_cast<float>(data[i * mask.q_stride + j * mask.kv_stride]);
      s = bias == -kInfinity ? -kInfinity : s + bias;
    });
  });
}

void hide_masked(const ScoreTile& scores, const MaskTile& mask) {
  const auto* visible = static_cast<const std::uint8_t*>(mask.data);
  for_each_score(scores, [&](float& s, std::int64_t i, std::int64_t j) {
    if (visible[i * mask.q_stride + j * mask.kv_stride] == 0) s = -kInfinity;
  });
}

void hide_off_diagonal(const ScoreTile& scores, const Diagonal& diagonal) {
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    float* row = scores.data + i * scores.stride;
    const KeyRange keys = diagonal.keys_of_query(scores.first_query + i);
    if (keys.empty()) {
      std::fill(row, row + scores.cols, -kInfinity);
    } else {
      std::fill(row, row + keys.begin, -kInfinity);
      std::fill(row + keys.end, row + scores.cols, -kInfinity);
    }
  }
}

void multiply_p_v(const ScoreTile& weights, const float* v, int head_dim, float* o) {
  if (weights.cols == 0) {
    std::fill(o, o + weights.rows * head_dim, 0.0f);
    return;
  }
  sgemm_nn(weights.rows, head_dim, weights.cols, {weights.data, weights.stride}, {v, head_dim},
           {o, head_dim});
}

void multiply_p_v_of_visible(const ScoreTile& weights, const float* v, int head_dim, float* o) {
  std::fill(o, o + weights.rows * head_dim, 0.0f);
  for_each_score(weights, [&](float& weight, std::int64_t i, std::int64_t j) {
    if (weight == 0 && !std::signbit(weight)) return;
    for (int d = 0; d < head_dim; ++d) o[i * head_dim + d] += weight * v[j * head_dim + d];
  });
}

bool convert_row_to_f32(const void* source, DType dtype, int elements, float* destination, float factor) {
  dispatch_stored(dtype, [&]<class T>() {
    const T* s = static_cast<const T*>(source);
    for (int d = 0; d < elements; ++d) destination[d] = static_cast<float>(s[d]) * factor;
  });
  float zero_if_finite = 0;
  for (int d = 0; d < elements; ++d) zero_if_finite += destination[d] * 0.0f;
  return zero_if_finite == 0;
}

void convert_row_from_f32(const float* source, int elements, DType dtype, void* destination) {
  dispatch_float(dtype, [&]<class T>() {
    T* out = static_cast<T*>(destination);
    for (int d = 0; d < elements; ++d) out[d] = T(source[d]);
  });
}

}  // namespace tessera::unfused
