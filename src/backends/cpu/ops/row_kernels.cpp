// rms_norm, layer_norm, softmax, gated activations, scale and softcap. Each works on pieces of a row that
// stay in the first-level cache: to fp32, compute, round back; so one loop serves every dtype and memory is
// read and written once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/ops/row_kernels.cpp"
#include "backends/cpu/highway_targets.h"
// After the list of targets.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>

#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/select_kernels.h"
#include "backends/cpu/ops/sigmoid-inl.h"
#include "backends/cpu/ops/vector_io-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr std::size_t kPiece = 512;  // elements; a few pieces fit in the first-level cache
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Calls body(first, count) for the pieces of a row.
template <class Body>
HWY_INLINE void for_pieces(std::int64_t columns, Body body) {
  for (std::int64_t c = 0; c < columns; c += static_cast<std::int64_t>(kPiece)) {
    body(c, static_cast<std::size_t>(std::min<std::int64_t>(kPiece, columns - c)));
  }
}

/// Sum of squares in fp64: neither overflow nor the number of columns matters.
HWY_INLINE double sum_of_squares(const float* row, std::size_t padded) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < padded; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(df, row + i));
    const auto b = hn::PromoteTo(d, hn::LoadU(df, row + i + lanes));
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

/// What is normed: columns of x from `offset` on, to fp32 or, where there is a residual, its row with them
/// added, as the residual's type has the sum.
HWY_INLINE void load_normed_row(const Matrix& x, std::int64_t offset, const std::optional<Matrix>& residual,
                                std::int64_t token, float* row) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  alignas(64) float piece[kPiece];
  for_pieces(x.columns, [&](std::int64_t c, std::size_t n) HWY_ATTR {
    load_as_f32(x.data, x.dtype, offset + c, n, row + c);
    if (!residual) return;
    const std::int64_t begin = token * residual->row_stride + c;
    load_as_f32(residual->data, residual->dtype, begin, n, piece);
    for (std::size_t i = 0; i < n; i += lanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, row + c + i), hn::Load(d, piece + i)), d, row + c + i);
    }
    store_from_f32(row + c, n, residual->data, residual->dtype, begin);
    load_as_f32(residual->data, residual->dtype, begin, n, row + c);
  });
}

/// out = row norm weight (+ bias), these from `first` of their elements on, out from `offset` on.
HWY_INLINE void store_normed_row(const float* row, float norm, const Weight& weight,
                                 const std::optional<Weight>& bias, std::int64_t first, const Matrix& out,
                                 std::int64_t offset) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const VecF32 factor = hn::Set(d, norm);
  alignas(64) float piece[kPiece];
  alignas(64) float added[kPiece];
  for_pieces(out.columns, [&](std::int64_t c, std::size_t n) HWY_ATTR {
    load_as_f32(weight.data, weight.dtype, first + c, n, piece);
    if (bias) load_as_f32(bias->data, bias->dtype, first + c, n, added);
    for (std::size_t i = 0; i < n; i += lanes) {
      VecF32 y = hn::Mul(hn::Mul(hn::LoadU(d, row + c + i), factor), hn::Load(d, piece + i));
      if (bias) y = hn::Add(y, hn::Load(d, added + i));
      hn::Store(y, d, piece + i);
    }
    store_from_f32(piece, n, out.data, out.dtype, offset + c);
  });
}

void rms_norm(const RmsNormArguments& a, std::int64_t begin, std::int64_t end, float* row) {
  const std::int64_t columns = a.x.columns;
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t token = r / a.heads;
    const std::int64_t head = r % a.heads * a.head_stride;
    load_normed_row(a.x, token * a.x.row_stride + head, a.residual, token, row);
    const double mean = sum_of_squares(row, padded_row(columns)) / static_cast<double>(columns);
    const float norm = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(a.eps)));
    store_normed_row(row, norm, a.weight, std::nullopt, 0, a.out, token * a.out.row_stride + head);
  }
}

/// Sum in fp64.
HWY_INLINE double sum_of(const float* row, std::size_t padded) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    sum = hn::Add(sum, hn::PromoteTo(d, hn::LoadU(df, row + i)));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void layer_norm(const LayerNormArguments& a, std::int64_t begin, std::int64_t end, float* row) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t columns = static_cast<std::size_t>(a.x.columns);
  const std::size_t padded = padded_row(a.x.columns);
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t token = r / a.heads;
    const std::int64_t head = r % a.heads * a.head_stride;
    load_normed_row(a.x, token * a.x.row_stride + head, a.residual, token, row);
    const double mean = sum_of(row, padded) / static_cast<double>(columns);
    const VecF32 center = hn::Set(d, static_cast<float>(mean));
    for (std::size_t i = 0; i < padded; i += lanes) {
      hn::StoreU(hn::Sub(hn::LoadU(d, row + i), center), d, row + i);
    }
    std::fill(row + columns, row + padded, 0.0f);
    const double variance = sum_of_squares(row, padded) / static_cast<double>(columns);
    const float norm = static_cast<float>(1 / std::sqrt(variance + static_cast<double>(a.eps)));
    store_normed_row(row, norm, a.weight, a.bias, r % a.heads * a.x.columns, a.out,
                     token * a.out.row_stride + head);
  }
}

/// exp that keeps NaN.
HWY_INLINE VecF32 exp_or_nan(F32 d, VecF32 x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x)); }

void softmax(const SoftmaxArguments& a, std::int64_t begin, std::int64_t end, float* row) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t columns = static_cast<std::size_t>(a.x.columns);
  const std::size_t padded = padded_row(a.x.columns);
  for (std::int64_t r = begin; r < end; ++r) {
    load_as_f32(a.x.data, a.x.dtype, r * a.x.row_stride, columns, row);
    std::fill(row + columns, row + padded, -kInfinity);
    VecF32 max_lanes = hn::Set(d, -kInfinity);
    auto nan_lanes = hn::IsNaN(max_lanes);
    for (std::size_t i = 0; i < padded; i += lanes) {
      const VecF32 x = hn::LoadU(d, row + i);
      nan_lanes = hn::Or(nan_lanes, hn::IsNaN(x));
      max_lanes = hn::Max(max_lanes, x);
    }
    const bool has_nan = !hn::AllFalse(d, nan_lanes);
    const float maximum = hn::GetLane(hn::MaxOfLanes(d, max_lanes));
    if (maximum == -kInfinity && !has_nan) {  // every element is hidden
      std::fill(row, row + columns, 0.0f);
    } else {
      const VecF32 shift = hn::Set(d, has_nan ? std::numeric_limits<float>::quiet_NaN() : maximum);
      VecF32 sums = hn::Zero(d);
      for (std::size_t i = 0; i < padded; i += lanes) {
        const VecF32 e = exp_or_nan(d, hn::Sub(hn::LoadU(d, row + i), shift));
        sums = hn::Add(sums, e);
        hn::StoreU(e, d, row + i);
      }
      const VecF32 inverse = hn::Set(d, 1 / hn::GetLane(hn::SumOfLanes(d, sums)));
      for (std::size_t i = 0; i < padded; i += lanes) {
        hn::StoreU(hn::Mul(hn::LoadU(d, row + i), inverse), d, row + i);
      }
    }
    store_from_f32(row, columns, a.out.data, a.out.dtype, r * a.out.row_stride);
  }
}

/// Probability that a standard normal variable is below x, (1 + erf(x / sqrt 2)) / 2.
/// erfc(z) = t exp(-z^2 + P(t)), t = 1 / (1 + z / 2) for z >= 0; P interpolates at Chebyshev nodes of t in
/// [1/5, 1], which leaves a relative error of 4e-8 there.
HWY_INLINE VecF32 normal_cdf(F32 d, VecF32 x) {
  constexpr float kP[] = {-1.26536655034f,  0.997053297012f,  0.399673925781f,  -0.0255774390846f,
                          0.173041446865f,  -0.395447833658f, -0.323510394345f, 0.881987072863f,
                          -0.566005489225f, 0.124151997483f};
  const VecF32 one = hn::Set(d, 1.0f);
  const VecF32 half = hn::Set(d, 0.5f);
  const VecF32 z = hn::Mul(hn::Abs(x), hn::Set(d, static_cast<float>(1 / std::numbers::sqrt2)));
  const VecF32 t = hn::Div(one, hn::MulAdd(z, half, one));
  VecF32 p = hn::Set(d, kP[9]);
  for (int i = 8; i >= 0; --i) p = hn::MulAdd(p, t, hn::Set(d, kP[i]));
  const VecF32 tail = hn::Mul(hn::Mul(half, t), hn::Exp(d, hn::NegMulAdd(z, z, p)));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
}

template <GatedActivation kKind>
HWY_INLINE VecF32 activation(F32 d, VecF32 x) {
  if constexpr (kKind == GatedActivation::kSwiGlu) {
    return hn::Mul(x, sigmoid(d, x));
  } else if constexpr (kKind == GatedActivation::kGeGlu) {
    return hn::Mul(x, normal_cdf(d, x));
  } else if constexpr (kKind == GatedActivation::kSigmoid) {
    return sigmoid(d, x);
  } else if constexpr (kKind == GatedActivation::kReluSquared) {
    // A comparison, since what Max makes of a NaN depends on the target.
    return hn::Mul(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x), x);
  } else {
    // 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    const VecF32 cube = hn::Mul(hn::Mul(x, x), x);
    const VecF32 sum = hn::MulAdd(cube, hn::Set(d, 0.044715f), x);
    return hn::Mul(x, sigmoid(d, hn::Mul(hn::Set(d, 1.5957691216057308f), sum)));
  }
}

/// activation(gate) * up.
template <GatedActivation kKind>
HWY_INLINE VecF32 gated(F32 d, VecF32 gate, VecF32 up) {
  if constexpr (kKind == GatedActivation::kClampedSwiGlu) {
    // Comparisons, since what Min makes of a NaN depends on the target.
    const VecF32 limit = hn::Set(d, kClampedSwiGluLimit), least = hn::Neg(limit);
    const VecF32 g = hn::IfThenElse(hn::Gt(gate, limit), limit, gate);
    const VecF32 below = hn::IfThenElse(hn::Gt(up, limit), limit, up);
    const VecF32 u = hn::IfThenElse(hn::Lt(below, least), least, below);
    const VecF32 weight = hn::Mul(g, sigmoid(d, hn::Mul(hn::Set(d, kClampedSwiGluAlpha), g)));
    return hn::MulAdd(weight, u, weight);
  } else {
    return hn::Mul(activation<kKind>(d, gate), up);
  }
}

template <GatedActivation kKind>
void gated_rows(const GatedActivationArguments& a, std::int64_t begin, std::int64_t end) {
  const F32 d;
  alignas(64) float gate[kPiece];
  alignas(64) float up[kPiece];
  if (!a.up) std::fill(up, up + kPiece, 1.0f);
  for (std::int64_t r = begin; r < end; ++r) {
    for_pieces(a.out.columns, [&](std::int64_t c, std::size_t n) {
      load_as_f32(a.gate.data, a.gate.dtype, r * a.gate.row_stride + c, n, gate);
      if (a.up) load_as_f32(a.up->data, a.up->dtype, r * a.up->row_stride + c, n, up);
      for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
        hn::Store(gated<kKind>(d, hn::Load(d, gate + i), hn::Load(d, up + i)), d, gate + i);
      }
      store_from_f32(gate, n, a.out.data, a.out.dtype, r * a.out.row_stride + c);
    });
  }
}

void gated_activation(const GatedActivationArguments& a, std::int64_t begin, std::int64_t end) {
  switch (a.activation) {
    case GatedActivation::kSwiGlu:
      return gated_rows<GatedActivation::kSwiGlu>(a, begin, end);
    case GatedActivation::kGeGlu:
      return gated_rows<GatedActivation::kGeGlu>(a, begin, end);
    case GatedActivation::kGeGluTanh:
      return gated_rows<GatedActivation::kGeGluTanh>(a, begin, end);
    case GatedActivation::kClampedSwiGlu:
      return gated_rows<GatedActivation::kClampedSwiGlu>(a, begin, end);
    case GatedActivation::kReluSquared:
      return gated_rows<GatedActivation::kReluSquared>(a, begin, end);
    case GatedActivation::kSigmoid:
      return gated_rows<GatedActivation::kSigmoid>(a, begin, end);
  }
}

/// x = function(x) of a part of the rows, in place.
template <class Function>
HWY_INLINE void transform_rows(const Matrix& x, std::int64_t begin, std::int64_t end, Function function) {
  const F32 d;
  alignas(64) float piece[kPiece];
  for (std::int64_t r = begin; r < end; ++r) {
    for_pieces(x.columns, [&](std::int64_t c, std::size_t n) HWY_ATTR {
      const std::int64_t offset = r * x.row_stride + c;
      load_as_f32(x.data, x.dtype, offset, n, piece);
      for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
        hn::Store(function(hn::Load(d, piece + i)), d, piece + i);
      }
      store_from_f32(piece, n, x.data, x.dtype, offset);
    });
  }
}

void scale(const ScaleArguments& a, std::int64_t begin, std::int64_t end) {
  const VecF32 factor = hn::Set(F32(), a.factor);
  transform_rows(a.x, begin, end, [&](VecF32 x) HWY_ATTR { return hn::Mul(x, factor); });
}

void softcap(const SoftcapArguments& a, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const VecF32 cap = hn::Set(d, a.cap);
  transform_rows(a.x, begin, end, [&](VecF32 x) HWY_ATTR {
    const auto stays = hn::Or(hn::IsNaN(x), hn::Eq(x, hn::Set(d, -kInfinity)));
    return hn::IfThenElse(stays, x, hn::Mul(cap, hn::Tanh(d, hn::Div(x, cap))));
  });
}

float largest(const float* row, std::size_t n) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  VecF32 max_lanes = hn::Set(d, -kInfinity);
  auto nan_lanes = hn::IsNaN(max_lanes);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const VecF32 x = hn::LoadU(d, row + i);
    nan_lanes = hn::Or(nan_lanes, hn::IsNaN(x));
    max_lanes = hn::Max(max_lanes, x);
  }
  bool has_nan = !hn::AllFalse(d, nan_lanes);
  float result = hn::GetLane(hn::MaxOfLanes(d, max_lanes));
  for (; i < n; ++i) {
    has_nan |= std::isnan(row[i]);
    result = std::max(result, row[i]);
  }
  return has_nan ? std::numeric_limits<float>::quiet_NaN() : result;
}

double exp_weights(const float* row, std::size_t n, double temperature, double top, double* out) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  auto sums = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto logit = hn::Div(hn::PromoteTo(d, hn::LoadU(df, row + i)), hn::Set(d, temperature));
    const auto weights = hn::Exp(d, hn::Sub(logit, hn::Set(d, top)));
    sums = hn::Add(sums, weights);
    hn::StoreU(weights, d, out + i);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < n; ++i) sum += out[i] = std::exp(static_cast<double>(row[i]) / temperature - top);
  return sum;
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {load_as_f32,      store_from_f32, rms_norm, layer_norm, softmax,
                                gated_activation, scale,          softcap,  largest,    exp_weights};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

const RowKernels& row_kernels() { return TESSERA_SELECT_KERNELS(kRowKernels); }

}  // namespace tessera::cpu
#endif
