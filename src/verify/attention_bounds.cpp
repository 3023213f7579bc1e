// Bounds for the errors of attention, each from the sums of its own row.
//
// A rounding of x is off by at most u |x|, and independent roundings by u |x| / sqrt(3) in the root mean
// square. They add up as the root of the sum of their squares; kDeviations times that is what the largest of
// all numbers that are ever compared stays below. u_s is the unit round-off of the arithmetic (fp32), u_w
// that of the softmax's weights and u_o that of the result (both the tensors' dtype).
//
// Score s_j = f(x_j) + bias, x_j = scale q.k_j, f the softcap (or nothing), c_j = f'(x_j):
//   D products' sum. In whatever order, the partial sums lie around a line from 0 to S = q.k, with a spread
//   of B, the root of the sum of the squares of the products. D roundings of partial sums, of S^2/3 + B^2/6
//   in the mean square: at most D (S^2 + B^2) / 3 u_s^2 / 3, times (scale c_j)^2.
//   Three roundings of c_j x_j (scale, conversions); softcap: its tanh to 8 units; ALiBi: product and sum;
//   mask: sum. Keys of 8 bits: the product with the scale, of q.k or of each element; so queries of 8 bits.
// Weight p_j = exp(s_j - m) / sum, with m the largest of the row's scores and its sink: two more roundings,
//   of s_j and s_j - m, and 4 units of exp. sigma_j is all of this together.
// Output o_d = sum_j p_j v_jd: an error e of s_j moves it by p_j (v_jd - o_d) e, the denominator included. So
// the mean square of its error is the sum of
//   p_j^2 (v_jd - o_d)^2 sigma_j^2 over j      the scores, each by itself
//   u_w^2 / 3 W^2, W^2 = sum_j p_j^2 v_jd^2    the weights are rounded
//   u_s^2 / 3 W^2                              values of 8 bits: the product with the scale
//   u_s^2 / 3 N ((o_d^2 + W^2) / 3 + o_d^2 / 3)    N sums of products, as above, and the denominator's
// To kDeviations roots of this are added what all keys have in common and what is no rounding:
//   2 u_s |sum_j p_j (v_jd - o_d) c_j x_j|, the same with s_j    constants that scores are multiplied by
//   C u_s (|o_d| + W)    tensor cores cut off up to two units where they add 16 products: C = N / 16 for
//                        16-bit types; 3 / 2 for fp32, which is three products whose sums leave them; for
//                        weights of 8 bits below
//   sum of p_j |v_jd| over p_j below f, and f (sum v_jd^2)^1/2    f: the least weight that its type holds
//   A u_s |o_d|          A: the most keys whose weights are the same to a unit of their sum. The roundings of
//                        sums of such go the same way; likewise (N/2) if all p_j v_jd are alike
//   u_o |o_d| + the least that the result's type holds    the result is stored
// With large sigma_j a key may weigh exp(kDeviations sigma_j) times what it should; p_j is taken as that.
//
// Kernels whose weights are of 8 bits multiply q and k as stored, too. Where tensor cores add 32 products of
// 8 bits to a sum, they keep 13 bits behind the sum's first one, and cut off the rest: up to two units of
// 2^-13, as above. In o that is C u_s = N / 32 2^-12. A score is off by up to cut_j = |scale c_j| D / 32
// 2^-12 (|S| + B); these cuts all go one way, towards 0, so that what they add is sum_j p_j |v_jd - o_d|
// cut_j, and to lse sum_j p_j cut_j, p_j being the most that the key may weigh.
//
// lse = m + log(sum): the roots of sum_j p_j^2 sigma_j^2 (equal keys err alike: their p_j sigma_j add up) and
// of u_s^2 N / 9; A u_s; the common part as for o, with v - o replaced by 1; roundings of m (three), of the
// logarithm (two units) and of the result, which is fp32.

#include "verify/attention_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/block_format.h"
#include "core/infinity.h"
#include "core/parallel.h"
#include "verify/naive_attention.h"

namespace tessera {
namespace {

constexpr double kDeviations = 6;
constexpr double kMostSwallowed = 0x1p90;  // of what is added to kLeastSwallowing or more
constexpr double kMostProduct = 0x1p125;   // beyond, sums of products may overflow fp32

/// What numbers are kept in.
struct Precision {
  double u_sum;         // arithmetic
  double u_weight;      // the softmax's weights
  double u_out;         // o
  double weight_floor;  // weights below may become 0
  double out_floor;     // results below may lose everything
  double cuts;          // of sums by tensor cores: for each key, or if negative in all
  double score_cuts;    // relative, of scores' sums: for each element
};

/// narrow_weights: 8 bits for the product with v, for which kernels scale weights by at least 2^5 first.
Precision precision_of(DType dtype, bool narrow_weights) {
  if (narrow_weights) {
    Precision precision = precision_of(dtype, false);
    precision.u_weight = unit_roundoff(DType::kF8E4M3);
    precision.weight_floor = 0x1p-9 / 0x1p5;
    constexpr double kCut = 0x1p-12 / 32;
    precision.cuts = kCut / precision.u_sum;
    precision.score_cuts = kCut;
    return precision;
  }
  const double u = unit_roundoff(dtype), u_32 = unit_roundoff(DType::kF32);
  switch (dtype) {
    case DType::kF64:
      return {u, u, u, 0x1p-1022, 0x1p-1022, 0, 0};
    case DType::kF16:
      return {u_32, u, u, 0x1p-24, 0x1p-25, 1.0 / 16, 0};
    case DType::kBF16:
      return {u_32, u, u, 0x1p-126, 0x1p-126, 1.0 / 16, 0};
    case DType::kF32:
      return {u_32, u_32, u, 0x1p-126, 0x1p-126, -1.5, 0};
    default:
      throw_no_activation_dtype(dtype);
  }
}

/// The most terms of a sum of 1 that differ by less than its unit: the roundings of all these may go the same
/// way.
double most_alike(std::vector<double>& terms, double unit) {
  std::sort(terms.begin(), terms.end());
  std::size_t most = 0;
  for (std::size_t first = 0, last = 0; last < terms.size(); ++last) {
    while (terms[last] - terms[first] > unit) ++first;
    most = std::max(most, last + 1 - first);
  }
  return static_cast<double>(most);
}

/// Of what is rounded, which infinity is not: a softcap can make a finite score of it.
template <class Real>
double square(Real x) {
  return std::isfinite(x) ? static_cast<double>(x * x) : 0.0;
}

/// A key that a row sees.
template <class Real>
struct VisibleKey {
  std::size_t j = 0;
  Real score = 0;      // s
  double product = 0;  // c x
  double variance = 0;
  double cut = 0;
  bool is_swallowed = false;  // all that is added to a mask's element so far down is lost: nothing is rounded
  Real weight = 0;            // p
  double error = 0;           // sigma times the most that the key may weigh
  double cut_by = 0;          // cut times that

  /// The score, as far as its errors are proportional to it.
  double rounded_score() const { return is_swallowed ? 0 : static_cast<double>(score); }
};

/// One head of one sequence.
template <class Real>
class Head {
 public:
  Head(const AttentionData& data, bool narrow_weights, std::int64_t b, int h, BoundedRows& out)
      : data_(data),
        c_(data.description),
        s_(data.sequences[static_cast<std::size_t>(b)]),
        b_(b),
        h_(h),
        kv_head_(h / (c_.num_heads / c_.num_kv_heads)),
        precision_(precision_of(c_.dtype, narrow_weights)),
        scale_(c_.softmax_scale ? Real(*c_.softmax_scale) : Real(1) / std::sqrt(Real(c_.head_dim_qk))),
        out_(out),
        dim_v_(static_cast<std::size_t>(c_.head_dim_v)),
        squares_(dim_v_),
        moved_(dim_v_),
        common_x_(dim_v_),
        common_s_(dim_v_),
        lost_(dim_v_),
        v_squares_(dim_v_),
        cut_(dim_v_),
        o_(dim_v_) {}

  void run() {
    for (std::int64_t i = 0; i < s_.len_q; ++i) {
      const std::int64_t row = data_.first_row(b_) + i * c_.num_heads + h_;
      row_ = static_cast<std::size_t>(row);
      find_keys(i);
      if (is_nan_) {
        fill(kNan, 0, kNan, 0);
      } else if (keys_.empty()) {
        fill(0, 0, -kInfinity, 0);
      } else {
        finish_row();
      }
      if (is_unspecified_) fill(kNan, kInfinity, kNan, kInfinity);
    }
  }

 private:
  void fill(double o, double o_bound, double lse, double lse_bound) {
    std::fill_n(&out_.rows.o[row_ * dim_v_], dim_v_, o);
    std::fill_n(&out_.o_bound[row_ * dim_v_], dim_v_, o_bound);
    out_.rows.lse[row_] = lse;
    out_.lse_bound[row_] = lse_bound;
  }

  void find_keys(std::int64_t i) {
    keys_.clear();
    is_nan_ = is_unspecified_ = false;
    for (std::int64_t j = 0; j < s_.len_kv; ++j) {
      if (!data_.visible(b_, h_, i, j)) continue;
      const VisibleKey<Real> key = score(i, j);
      if (key.score == -std::numeric_limits<Real>::infinity()) continue;  // weighs nothing
      if (!std::isfinite(key.score)) is_nan_ = true;
      keys_.push_back(key);
    }
  }

  VisibleKey<Real> score(std::int64_t i, std::int64_t j) {
    const auto dim = static_cast<std::size_t>(c_.head_dim_qk);
    const double* q = &s_.q[static_cast<std::size_t>(i * c_.num_heads + h_) * dim];
    const double* k = &s_.k[static_cast<std::size_t>(j * c_.num_kv_heads + kv_head_) * dim];
    Real product = 0;
    double squares = 0, largest = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      const Real term = Real(q[d]) * Real(k[d]);
      product += term;
      squares += static_cast<double>(term * term);
      largest += std::abs(static_cast<double>(term));
    }
    const Real x = product * scale_;
    if (c_.dtype != DType::kF64 && std::isfinite(largest) &&
        (largest > kMostProduct || std::abs(x) > kMostProduct))
      is_unspecified_ = true;
    VisibleKey<Real> key;
    key.j = static_cast<std::size_t>(j);
    Real s = x;
    double slope = 1, roundings = 0;  // roundings: the sum of the squares of what is rounded
    if (c_.softcap) {
      const Real cap = Real(*c_.softcap), t = std::tanh(x / cap);
      s = cap * t;
      slope = static_cast<double>(1 - t * t);
      roundings += 64 * square(s);
    }
    if (c_.alibi) {
      const std::size_t set = c_.alibi_per_batch ? static_cast<std::size_t>(b_) : 0;
      const Real bias = Real(data_.alibi_slopes[set * static_cast<std::size_t>(c_.num_heads) +
                                                static_cast<std::size_t>(h_)]) *
                        Real(std::abs(data_.diagonal_key(b_, i) - j));
      s -= bias;
      roundings += 2 * square(bias) + square(s);
    }
    if (c_.additive_mask) {
      const double element = data_.additive_mask.at(b_, h_, i, j);
      if (std::isfinite(x) && element < -kLeastSwallowing) {
        if (std::abs(x) > kMostSwallowed) is_unspecified_ = true;
        key.score = Real(element);
        key.is_swallowed = true;
        return key;
      }
      s += Real(element);
      roundings += square(s);
    }
    if (c_.modifier == ModifierExample::kAlibi || c_.modifier == ModifierExample::kT5) {
      const Real bias = Real(modifier_example_bias(c_.modifier, data_.modifier_point(b_, h_, i, j)));
      s += bias;
      roundings += 2 * square(bias) + square(s);
    }
    if (c_.modifier == ModifierExample::kSoftcap) {
      const Real cap = Real(kExampleCap), t = std::tanh(s / cap);
      s = cap * t;
      slope *= static_cast<double>(1 - t * t);
      roundings += 64 * square(s);
    }
    key.score = s;
    if (std::isfinite(x)) {
      const double per_product = static_cast<double>(scale_) * slope;
      key.product = slope * static_cast<double>(x);
      roundings += 3 * key.product * key.product + per_product * per_product * static_cast<double>(dim) *
                                                       (static_cast<double>(product * product) + squares) / 3;
      const double by_scale = key.product * key.product + per_product * per_product * squares;
      if (c_.kv_dtype) roundings += by_scale;
      if (c_.narrow_q) roundings += by_scale;
      if (precision_.score_cuts > 0) {
        key.cut = precision_.score_cuts * static_cast<double>(dim) * std::abs(per_product) *
                  (std::abs(static_cast<double>(product)) + std::sqrt(squares));
      }
    }
    key.variance = precision_.u_sum * precision_.u_sum / 3 * roundings;
    return key;
  }

  void finish_row() {
    Real top = keys_.front().score;
    double top_cut = keys_.front().cut;
    for (const VisibleKey<Real>& key : keys_) {
      if (key.score > top) top_cut = key.cut;
      top = std::max(top, key.score);
    }
    const Real largest_score = top;
    const Real sink = c_.sinks ? Real(data_.sinks[static_cast<std::size_t>(h_)]) : Real(0);
    if (c_.sinks) top = std::max(top, sink);
    Real sum = c_.sinks ? std::exp(sink - top) : Real(0);
    for (VisibleKey<Real>& key : keys_) sum += key.weight = std::exp(key.score - top);
    const double u2 = precision_.u_sum * precision_.u_sum / 3;
    double lse_squares = 0, lse_errors = 0, lse_x = 0, lse_s = 0, lse_cut = 0;
    bool has_equal_products = true;
    std::vector<double> weights;
    for (VisibleKey<Real>& key : keys_) {
      const double s = key.rounded_score(), below = static_cast<double>(key.score - top);
      key.weight /= sum;
      const double rounded_below = key.is_swallowed ? 0 : below;
      const double sigma = std::sqrt(key.variance + u2 * (s * s + rounded_below * rounded_below + 48));
      const auto weight = static_cast<double>(key.weight);
      // Not by `weight`, which may be 0 where the errors of large scores are larger than their difference.
      const double exponent = below + kDeviations * sigma + key.cut + top_cut;
      const double most =
          std::max(weight, std::min(1.0, std::exp(std::min(700.0, exponent)) / static_cast<double>(sum)));
      key.error = most * sigma;
      key.cut_by = most * key.cut;
      lse_cut += key.cut_by;
      lse_squares += key.error * key.error;
      lse_errors += key.error;
      has_equal_products = has_equal_products && key.product == keys_.front().product;
      weights.push_back(weight);
      lse_x += weight * key.product;
      lse_s += weight * s;
    }
    const auto lse = static_cast<double>(top + std::log(sum)), keys = static_cast<double>(keys_.size());
    sum_bias_ = precision_.u_sum * most_alike(weights, precision_.u_sum);
    const auto size = static_cast<double>(std::max(std::abs(top), std::abs(largest_score)));
    out_.rows.lse[row_] = lse;
    out_.lse_bound[row_] =
        kDeviations *
            std::sqrt((has_equal_products ? lse_errors * lse_errors : lse_squares) + u2 * keys / 3) +
        sum_bias_ + lse_cut +
        precision_.u_sum * (2 * std::abs(lse_x) + 2 * std::abs(lse_s) + 3 * size +
                            2 * std::abs(static_cast<double>(std::log(sum))) + 4) +
        unit_roundoff(DType::kF32) * std::abs(lse);
    finish_o();
  }

  const double* v_of(const VisibleKey<Real>& key) const {
    return &s_.v[(key.j * static_cast<std::size_t>(c_.num_kv_heads) + static_cast<std::size_t>(kv_head_)) *
                 dim_v_];
  }

  void finish_o() {
    std::fill(o_.begin(), o_.end(), Real(0));
    for (const VisibleKey<Real>& key : keys_) {
      const double* v = v_of(key);
      for (std::size_t d = 0; d < dim_v_; ++d) o_[d] += key.weight * Real(v[d]);
    }
    for (std::vector<Real>* sums : {&squares_, &moved_}) std::fill(sums->begin(), sums->end(), Real(0));
    for (std::vector<double>* sums : {&common_x_, &common_s_, &lost_, &v_squares_, &cut_})
      std::fill(sums->begin(), sums->end(), 0.0);
    bool may_lose_infinity = false;
    for (const VisibleKey<Real>& key : keys_) {
      const double* v = v_of(key);
      const double weight = static_cast<double>(key.weight), s = key.rounded_score();
      const bool is_lost = weight <= 2 * precision_.weight_floor;
      for (std::size_t d = 0; d < dim_v_; ++d) {
        const double away = weight * (v[d] - static_cast<double>(o_[d]));
        const Real moved = Real(key.error) * Real(v[d] - static_cast<double>(o_[d]));
        const Real part = key.weight * Real(v[d]);
        squares_[d] += part * part;
        if (key.cut_by > 0) cut_[d] += key.cut_by * std::abs(v[d] - static_cast<double>(o_[d]));
        moved_[d] += moved * moved;
        common_x_[d] += away * key.product;
        common_s_[d] += away * s;
        lost_[d] += is_lost ? std::abs(static_cast<double>(part)) : 0.0;
        v_squares_[d] += v[d] * v[d];
        may_lose_infinity = may_lose_infinity || (is_lost && std::isinf(v[d]));
      }
    }
    const double u_s = precision_.u_sum, keys = static_cast<double>(keys_.size());
    const double cuts = precision_.cuts < 0 ? -precision_.cuts : precision_.cuts * keys;
    for (std::size_t d = 0; d < dim_v_; ++d) {
      const auto o = static_cast<double>(o_[d]);
      out_.rows.o[row_ * dim_v_ + d] = o;
      double& bound = out_.o_bound[row_ * dim_v_ + d];
      if (!std::isfinite(o)) {
        bound = may_lose_infinity ? kNan : 0;
        continue;
      }
      const auto w = static_cast<double>(std::sqrt(squares_[d]));
      // Relative variance of the terms p v.
      const bool is_alike = keys * std::pow(w / o, 2) - 1 < std::pow(4 * u_s * keys, 2);
      const double u_v = c_.kv_dtype ? u_s : 0.0;
      const Real mean_square =
          moved_[d] + Real((precision_.u_weight * precision_.u_weight + u_v * u_v) / 3) * squares_[d] +
          Real(u_s * u_s / 9 * keys) * (2 * o_[d] * o_[d] + squares_[d]);
      bound = kDeviations * static_cast<double>(std::sqrt(mean_square)) +
              2 * u_s * (std::abs(common_x_[d]) + std::abs(common_s_[d])) + u_s * cuts * (std::abs(o) + w) +
              cut_[d] + lost_[d] + precision_.weight_floor * std::sqrt(v_squares_[d]) +
              precision_.u_out * std::abs(o) + (sum_bias_ + (is_alike ? u_s * keys / 2 : 0.0)) * std::abs(o) +
              precision_.out_floor * (2 + keys);
    }
  }

  const AttentionData& data_;
  const AttentionCase& c_;
  const SequenceData& s_;
  std::int64_t b_;
  int h_;
  int kv_head_;
  Precision precision_;
  Real scale_;
  BoundedRows& out_;
  std::size_t dim_v_;
  std::size_t row_ = 0;
  bool is_nan_ = false;          // of the row: some score is NaN or infinite
  bool is_unspecified_ = false;  // of the row: fp32 may overflow
  double sum_bias_ = 0;          // of the row's denominator, relative
  std::vector<VisibleKey<Real>> keys_;
  std::vector<Real> squares_, moved_;  // whose squares fp64 couldn't hold if o is below 2^-511
  std::vector<double> common_x_, common_s_, lost_, v_squares_, cut_;
  std::vector<Real> o_;
};

}  // namespace

BoundedRows bounded_attention(const AttentionData& data, bool narrow_weights) {
  const auto rows = static_cast<std::size_t>(data.num_rows());
  const auto heads = static_cast<std::size_t>(data.description.num_heads);
  const std::size_t elements = rows * static_cast<std::size_t>(data.description.head_dim_v);
  BoundedRows out;
  out.rows.o.resize(elements);
  out.rows.lse.resize(rows);
  out.o_bound.resize(elements);
  out.lse_bound.resize(rows);
  parallel_for(data.sequences.size() * heads, [&](std::size_t task) {
    const auto b = static_cast<std::int64_t>(task / heads);
    const auto h = static_cast<int>(task % heads);
    if (data.description.dtype == DType::kF64) {
      Head<long double>(data, narrow_weights, b, h, out).run();
    } else {
      Head<double>(data, narrow_weights, b, h, out).run();
    }
  });
  return out;
}

}  // namespace tessera
