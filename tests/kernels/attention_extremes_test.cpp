// Numbers at and beyond fp32's edges: NaN scores, infinite keys and values, values and scales near the
// largest float. Every backend on the CPU, and each SIMD target of "cpu", must give what the fp64 reference
// gives.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/simd_target.h"
#include "sanitized.h"
#include "tessera/attention.h"
#include "verify/attention_check.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A backend, and for "cpu" the SIMD target to run it with.
struct Subject {
  std::string backend;
  std::optional<SimdTarget> simd_target;

  std::string name() const {
    return simd_target ? backend + "_" + std::string(simd_target_name(*simd_target)) : backend;
  }
};

std::vector<Subject> subjects() {
  std::vector<Subject> all{{"unfused", std::nullopt}};
  for (const SimdTarget target : attainable_simd_targets()) all.push_back({"cpu", target});
  return all;
}

class AttentionExtremes : public testing::TestWithParam<Subject> {
 protected:
  static constexpr int kDim = 32;
  static constexpr int kKvHeads = 2;

  void SetUp() override { set_simd_target(GetParam().simd_target); }
  void TearDown() override { set_simd_target(std::nullopt); }

  /// Calls `change` on data of every shape that takes another path through a backend, and compares.
  void check(const std::vector<DType>& dtypes, const std::function<void(AttentionCase&)>& describe,
             const std::function<void(AttentionData&)>& change) const {
    for (const DType dtype : some_if_sanitized(dtypes, dtypes.size())) {
      // Decode in one part, in several parts, and prefill.
      for (const auto& [len_q, len_kv] :
           {std::pair{1, 90}, std::pair{2, 700}, std::pair{40, 90}, std::pair{40, 1100}}) {
        AttentionCase c;
        c.dtype = dtype;
        c.batch = 1;
        c.seq_len_q = len_q;
        c.seq_len_kv = len_kv;
        c.num_heads = c.num_kv_heads = kKvHeads;
        c.head_dim_qk = c.head_dim_v = kDim;
        describe(c);
        AttentionData data = make_attention_data(c);
        change(data);
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + std::to_string(len_q) + " queries, " +
                     std::to_string(len_kv) + " keys");
        expect_as_reference(data);
      }
    }
  }

  /// The results must be infinite and NaN where the reference's are, and near them elsewhere.
  void expect_as_reference(const AttentionData& data) const {
    const AttentionRun actual = run_attention(data, GetParam().backend, VerifyMemory::cpu());
    const AttentionRun expected = run_attention(data, "reference", VerifyMemory::cpu());
    EXPECT_EQ(actual.violation, "");
    // Weights and o are rounded to the dtype; scores, which are of the order of 1 wherever this matters, are
    // sums of kDim products in fp32, and a score's error is its weight's relative one.
    const double tolerance =
        4 * unit_roundoff(data.description.dtype) + (kDim + 8) * unit_roundoff(DType::kF32);
    compare(actual.rows.o, expected.rows.o, tolerance, "o");
    compare(actual.rows.lse, expected.rows.lse, (kDim + 8) * unit_roundoff(DType::kF32), "lse");
  }

  static void compare(const std::vector<double>& actual, const std::vector<double>& expected,
                      double tolerance, const char* what) {
    ASSERT_EQ(actual.size(), expected.size());
    double largest = 1;
    for (const double x : expected) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(actual[i])) << what << " " << i << " is " << actual[i];
      } else if (std::isinf(expected[i])) {
        ASSERT_EQ(actual[i], expected[i]) << what << " " << i;
      } else {
        ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << what << " " << i;
      }
    }
  }

  static double& key(AttentionData& data, std::int64_t token, int d) {
    return data.sequences[0].k[static_cast<std::size_t>(token * kKvHeads * kDim + d)];
  }
  static double& value(AttentionData& data, std::int64_t token, int d) {
    return data.sequences[0].v[static_cast<std::size_t>(token * kKvHeads * kDim + d)];
  }
  static void fill(std::vector<double>& numbers, double x) { std::fill(numbers.begin(), numbers.end(), x); }
};

const std::vector<DType> kAllDTypes{DType::kF32, DType::kF16, DType::kBF16};
const std::vector<DType> kWideDTypes{DType::kF32, DType::kBF16};
const auto kAsIs = [](AttentionCase&) {};

TEST_P(AttentionExtremes, ARowWhoseVisibleScoresAreNanIsNanAndNotEmpty) {
  const auto causal = [](AttentionCase& c) { c.diagonal = DiagonalMask::causal(); };
  const auto masked = [](AttentionCase& c) {
    c.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.5, 1};
  };
  for (const auto& describe : {std::function<void(AttentionCase&)>(causal), std::function(masked)}) {
    check(kAllDTypes, describe, [](AttentionData& data) {
      // The first query, and every query's view of all but the last keys.
      for (int d = 0; d < kDim; ++d) data.sequences[0].q[static_cast<std::size_t>(d)] = kNan;
    });
    check(kAllDTypes, describe, [](AttentionData& data) { fill(data.sequences[0].k, kNan); });
    check(kAllDTypes, describe, [](AttentionData& data) { key(data, 3, 5) = kNan; });
  }
}

TEST_P(AttentionExtremes, AKeyAtMinusInfinityIsHiddenWithItsValue) {
  check(kAllDTypes, kAsIs, [](AttentionData& data) {
    for (double& x : data.sequences[0].q) x = std::abs(x) + 1;
    for (const int token : {0, 17, 64, 89}) {
      for (int d = 0; d < kDim; ++d) {
        key(data, token, d) = -kInfinity;
        value(data, token, d) = d % 3 == 0 ? kInfinity : d % 3 == 1 ? -kInfinity : kNan;
      }
    }
  });
}

TEST_P(AttentionExtremes, AKeyAtPlusInfinityMakesItsRowsNan) {
  check(kAllDTypes, kAsIs, [](AttentionData& data) {
    for (double& x : data.sequences[0].q) x = std::abs(x) + 1;
    for (int d = 0; d < kDim; ++d) key(data, 17, d) = kInfinity;
  });
}

TEST_P(AttentionExtremes, AVisibleInfinityOrNanInVCountsHoweverSmallItsWeight) {
  for (const double score : {-1.0, -300.0, -3000.0}) {
    for (const bool masked : {false, true}) {
      check(
          kAllDTypes,
          [&](AttentionCase& c) {
            c.softmax_scale = 1.0f;
            if (masked) c.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.3, 1};
          },
          [&](AttentionData& data) {
            fill(data.sequences[0].q, 1);
            for (const int token : {2, 70}) {
              for (int d = 0; d < kDim; ++d) key(data, token, d) = score / kDim;
              value(data, token, 1) = kInfinity;
              value(data, token, 2) = -kInfinity;
              value(data, token, 3) = kNan;
            }
            // Opposite infinities cancel to NaN.
            value(data, 2, 4) = kInfinity;
            value(data, 70, 4) = -kInfinity;
          });
    }
  }
}

TEST_P(AttentionExtremes, ValuesNearTheLargestFloatDoNotOverflow) {
  check(kWideDTypes, kAsIs, [](AttentionData& data) {
    for (double& x : data.sequences[0].v) x = x < 0 ? -0x1.fp127 : 0x1.fp127;
    for (std::int64_t token = 0; token < data.sequences[0].len_kv; ++token) value(data, token, 7) = 0x1.fp127;
  });
}

TEST_P(AttentionExtremes, ScoresBeyondTheLargestFloatDecideAsExactOnesDo) {
  for (const float scale : {3.4e38f, -3.4e38f, 1e30f}) {
    check(
        kAllDTypes, [&](AttentionCase& c) { c.softmax_scale = scale; }, [](AttentionData&) {});
    check(
        kAllDTypes, [&](AttentionCase& c) { c.softmax_scale = scale; },
        [](AttentionData& data) {
          for (double& x : data.sequences[0].k) x /= 64;
        });
  }
  check(kWideDTypes, kAsIs, [](AttentionData& data) {
    for (double& x : data.sequences[0].q) x *= 0x1p70;
    for (double& x : data.sequences[0].k) x *= 0x1p60;
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionExtremes, testing::ValuesIn(subjects()),
                         [](const auto& info) { return info.param.name(); });

class MergeStatesExtremes : public testing::TestWithParam<std::string> {};

TEST_P(MergeStatesExtremes, NanIsNotDroppedForAPartWithoutKeys) {
  constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  for (const auto& [lse_a, lse_b] :
       {std::pair{kNanF, kEmpty}, {kEmpty, kNanF}, {kNanF, 1.0f}, {1.0f, kNanF}}) {
    std::vector<float> a(4, 1.0f), b(4, 2.0f), o(4), la{lse_a}, lb{lse_b}, lse(1);
    MergeStatesProblem p;
    p.batch = p.seq_len_q = 1;
    p.num_heads = 1;
    p.head_dim = 4;
    p.o_a = attention_input(AttentionLayout::kBatchSeqHeads, a.data(), DType::kF32, 1, 1, 4);
    p.o_b = attention_input(AttentionLayout::kBatchSeqHeads, b.data(), DType::kF32, 1, 1, 4);
    p.o = attention_output(AttentionLayout::kBatchSeqHeads, o.data(), DType::kF32, 1, 1, 4);
    p.lse_a = lse_output(la.data(), 1, 1);
    p.lse_b = lse_output(lb.data(), 1, 1);
    p.lse = lse_output(lse.data(), 1, 1);
    merge_states(p, GetParam());
    EXPECT_TRUE(std::isnan(lse[0])) << lse_a << " and " << lse_b;
    for (const float x : o) EXPECT_TRUE(std::isnan(x)) << lse_a << " and " << lse_b;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MergeStatesExtremes, testing::Values("cpu", "reference"));

}  // namespace
}  // namespace tessera
