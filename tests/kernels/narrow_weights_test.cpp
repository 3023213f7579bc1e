#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/formats/numbers.h"
#include "verify/attention_bounds.h"
#include "verify/attention_case.h"
#include "verify/attention_data.h"

// The bounds of results whose weights are of 8 bits, beside a host's imitation of a kernel that computes so.

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kProducts = 32;  // that tensor cores add to a sum at once

/// What of a sum its first bit and the 13 behind it say.
double cut(double sum) {
  if (sum == 0 || !std::isfinite(sum)) return sum;
  return std::ldexp(std::trunc(std::ldexp(sum, 13 - std::ilogb(sum))), std::ilogb(sum) - 13);
}

double as_e4m3(double weight) {
  return static_cast<double>(formats::float_of_e4m3(formats::e4m3_of_float(static_cast<float>(weight))));
}

struct Row {
  std::vector<double> o;
  double lse = -kInfinity;
};

/// Row i of head h of sequence b, by tiles of keys from the last to the first, as sm90/attention_e4m3.cu.
Row imitate(const AttentionData& data, std::int64_t b, int h, std::int64_t i) {
  constexpr std::int64_t kTile = 96;
  constexpr double kBaseBelow = 5, kMostRise = 8;
  const AttentionCase& c = data.description;
  const SequenceData& s = data.sequences[static_cast<std::size_t>(b)];
  const int kv_head = h / (c.num_heads / c.num_kv_heads);
  const auto dim = static_cast<std::size_t>(c.head_dim_qk), dim_v = static_cast<std::size_t>(c.head_dim_v);
  const double scale =
      (c.softmax_scale ? static_cast<double>(*c.softmax_scale) : 1 / std::sqrt(static_cast<double>(dim))) /
      std::log(2.0);
  const auto key_row = [&](std::int64_t j) { return static_cast<std::size_t>(j * c.num_kv_heads + kv_head); };
  const auto score_of = [&](std::int64_t j) {
    if (j >= s.len_kv || !data.visible(b, h, i, j)) return -kInfinity;
    const double* q = &s.q[static_cast<std::size_t>(i * c.num_heads + h) * dim];
    const double* k = &s.k[key_row(j) * dim];
    double sum = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      sum += q[d] * k[d];
      if (d % kProducts == kProducts - 1) sum = cut(sum);
    }
    return sum * scale;
  };

  Row row{std::vector<double>(dim_v), -kInfinity};
  double base = -kInfinity, sum = 0;
  for (std::int64_t tile = (s.len_kv - 1) / kTile * kTile; tile >= 0; tile -= kTile) {
    std::vector<double> scores;
    for (std::int64_t j = tile; j < tile + kTile; ++j) scores.push_back(score_of(j));
    const double top = *std::ranges::max_element(scores);
    if (top > base + kMostRise) {
      const double shrink = std::exp2(base - (top - kBaseBelow));
      base = top - kBaseBelow;
      sum *= shrink;
      for (double& o : row.o) o *= shrink;
    }
    if (base == -kInfinity) continue;
    for (double& score : scores) sum += score = std::exp2(score - base);
    for (std::size_t first = 0; first < scores.size(); first += kProducts) {
      for (std::size_t d = 0; d < dim_v; ++d) {
        for (std::size_t n = first; n < first + kProducts; ++n) {
          const std::int64_t j = tile + static_cast<std::int64_t>(n);
          if (j < s.len_kv) row.o[d] += as_e4m3(scores[n]) * s.v[key_row(j) * dim_v + d];
        }
        row.o[d] = cut(row.o[d]);
      }
    }
  }
  if (sum == 0) return row;
  for (double& o : row.o) o /= sum;
  row.lse = (base + std::log2(sum)) * std::log(2.0);
  return row;
}

/// The largest errors of all rows, as shares of their bounds.
struct Shares {
  double o = 0, lse = 0;
};

Shares shares(const AttentionData& data, const BoundedRows& bounds) {
  const AttentionCase& c = data.description;
  const auto dim_v = static_cast<std::size_t>(c.head_dim_v);
  Shares most;
  std::size_t n = 0;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t i = 0; i < data.sequences[static_cast<std::size_t>(b)].len_q; ++i) {
      for (int h = 0; h < c.num_heads; ++h, ++n) {
        const Row row = imitate(data, b, h, i);
        for (std::size_t d = 0; d < dim_v; ++d) {
          const double error = std::abs(row.o[d] - bounds.rows.o[n * dim_v + d]);
          if (error > 0) most.o = std::max(most.o, error / bounds.o_bound[n * dim_v + d]);
        }
        if (std::isinf(bounds.rows.lse[n])) {
          EXPECT_EQ(row.lse, bounds.rows.lse[n]);
          continue;
        }
        const double error = std::abs(row.lse - bounds.rows.lse[n]);
        if (error > 0) most.lse = std::max(most.lse, error / bounds.lse_bound[n]);
      }
    }
  }
  return most;
}

AttentionCase prompt(int head_dim, double logit_spread) {
  AttentionCase c;
  c.dtype = DType::kBF16;
  c.kv_dtype = DType::kF8E4M3;
  c.narrow_q = true;
  c.batch = 1;
  c.seq_len_q = 24;
  c.seq_len_kv = 700;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim_qk = c.head_dim_v = head_dim;
  c.logit_spread = logit_spread;
  return c;
}

TEST(NarrowWeights, AKernelsResultsAreWithinTheirBoundsAndBeyondThoseOfWiderWeights) {
  for (const int head_dim : {64, 128, 256}) {
    for (const double logit_spread : {0.1, 1.0, 4.0, 30.0}) {
      for (const Content content : {Content::kNormal, Content::kConstantValue}) {
        SCOPED_TRACE(fmt::format("head_dim {}, spread {}, content {}", head_dim, logit_spread,
                                 static_cast<int>(content)));
        AttentionCase c = prompt(head_dim, logit_spread);
        c.content = content;
        c.diagonal = DiagonalMask::causal();
        const AttentionData data = make_attention_data(c);
        const Shares narrow = shares(data, bounded_attention(data, true));
        EXPECT_LT(narrow.o, 1);
        EXPECT_LT(narrow.lse, 1);
        EXPECT_GT(narrow.o, 1.0 / 32) << "a bound that says little";
        if (logit_spread < 1 || content != Content::kNormal) continue;
        const Shares wide = shares(data, bounded_attention(data));
        EXPECT_GT(wide.o, 1) << "as if weights had 16 bits";
        EXPECT_GT(wide.lse, 1) << "as if sums had fp32's";
      }
    }
  }
}

}  // namespace
}  // namespace tessera
