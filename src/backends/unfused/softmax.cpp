// Row softmax, with SIMD chosen at run time: a baseline whose exponentials were scalar would flatter the
// others.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "backends/unfused/kernels.h"

// Highway compiles this file once a target: the order of its headers matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/unfused/softmax.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tessera::unfused::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The largest of n numbers; -inf if there are none, NaN if one of them is.
float row_max(const float* row, std::size_t n) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  float largest = -std::numeric_limits<float>::infinity();
  bool has_nan = false;
  std::size_t j = 0;
  if (n >= lanes) {
    auto largest_v = hn::LoadU(d, row);
    auto nan = hn::IsNaN(largest_v);
    for (; j + lanes <= n; j += lanes) {
      const auto x = hn::LoadU(d, row + j);
      nan = hn::Or(nan, hn::IsNaN(x));
      largest_v = hn::Max(largest_v, x);
    }
    has_nan = !hn::AllFalse(d, nan);
    largest = hn::GetLane(hn::MaxOfLanes(d, largest_v));
  }
  for (; j < n; ++j) {
    has_nan |= std::isnan(row[j]);
    largest = std::max(largest, row[j]);
  }
  return has_nan ? std::numeric_limits<float>::quiet_NaN() : largest;
}

/// row = exp(row - largest), with -0 for what is too small for a float, so that +0 means hidden; returns the
/// sum.
float exponentiate_row(float* row, std::size_t n, float largest) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto largest_v = hn::Set(d, largest), hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto sum_v = hn::Zero(d);
  std::size_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const auto x = hn::LoadU(d, row + j);
    const auto e = hn::Exp(d, hn::Sub(x, largest_v));
    const auto is_lost = hn::And(hn::Eq(e, hn::Zero(d)), hn::Ne(x, hidden));
    hn::StoreU(hn::IfThenElse(is_lost, hn::Set(d, -0.0f), e), d, row + j);
    sum_v = hn::Add(sum_v, e);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sum_v));
  for (; j < n; ++j) {
    const float e = std::exp(row[j] - largest);
    row[j] = e == 0 && std::isfinite(row[j]) ? -0.0f : e;
    sum += e;
  }
  return sum;
}

}  // namespace tessera::unfused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::unfused {

HWY_EXPORT(row_max);
HWY_EXPORT(exponentiate_row);

void softmax_rows(const ScoreTile& scores, std::optional<float> sink, float* lse, std::int64_t lse_stride) {
  const std::size_t n = static_cast<std::size_t>(scores.cols);
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    float* row = scores.data + i * scores.stride;
    float largest = HWY_DYNAMIC_DISPATCH(row_max)(row, n);
    float row_lse = -kInfinity;
    if (std::isnan(largest) || largest == kInfinity) {
      row_lse = std::numeric_limits<float>::quiet_NaN();
      std::fill(row, row + n, row_lse);
    } else if (largest == -kInfinity) {
      std::fill(row, row + n, 0.0f);
    } else {
      if (sink) largest = std::max(largest, *sink);
      float sum = HWY_DYNAMIC_DISPATCH(exponentiate_row)(row, n, largest);
      if (sink) sum += std::exp(*sink - largest);
      const float factor = 1 / sum;
      for (std::size_t j = 0; j < n; ++j) {
        const float weight = row[j] * factor;
        row[j] = weight == 0 && row[j] != 0 ? -0.0f : weight;
      }
      row_lse = largest + std::log(sum);
    }
    if (lse != nullptr) lse[i * lse_stride] = row_lse;
  }
}

}  // namespace tessera::unfused
#endif
