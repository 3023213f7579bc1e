// Mixtures of experts against the fp64 reference, and the reference against what is written out here.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "backends/factories.h"
#include "kernels/ops_testing.h"
#include "kernels/products_testing.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The memory of a routing, filled with what no routing has.
struct RoutingMemory {
  std::vector<std::int32_t> experts, order, offsets;
  std::vector<float> weights;
  int num_slots;

  RoutingMemory(std::int64_t rows, int num_experts, int slots)
      : experts(static_cast<std::size_t>(rows * slots), -7),
        order(experts),
        offsets(static_cast<std::size_t>(num_experts) + 1, -7),
        weights(experts.size(), -7),
        num_slots(slots) {}

  ExpertRouting view() {
    return {static_cast<int>(offsets.size()) - 1,
            num_slots,
            experts.data(),
            weights.data(),
            order.data(),
            offsets.data()};
  }

  /// Puts `order` and `offsets` right for other experts.
  void group() {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return experts[static_cast<std::size_t>(a)] < experts[static_cast<std::size_t>(b)];
    });
    for (std::size_t e = 0; e < offsets.size(); ++e) {
      offsets[e] = static_cast<std::int32_t>(std::ranges::count_if(
          experts, [&](std::int32_t expert) { return expert < static_cast<std::int32_t>(e); }));
    }
  }

  /// Of random experts, distinct within a row, of which the last gets none.
  static RoutingMemory random(std::int64_t rows, int num_experts, int slots, std::uint32_t seed) {
    RoutingMemory routing(rows, num_experts, slots);
    std::mt19937 generator(seed);
    std::vector<std::int32_t> all(static_cast<std::size_t>(std::max(slots, num_experts - 1)));
    std::iota(all.begin(), all.end(), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::ranges::shuffle(all, generator);
      std::copy_n(all.begin(), slots, routing.experts.begin() + row * slots);
    }
    routing.group();
    return routing;
  }
};

class OpsExperts : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype = GetParam();
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();

  /// What an expert's score is, written out.
  static double score_of(const Values& logits, std::size_t first, std::size_t expert,
                         const RouteExpertsArguments& a) {
    const double logit = logits[first + expert];
    if (a.scoring == ExpertScoring::kSigmoid) return 1 / (1 + std::exp(-logit));
    double sum = 0;
    for (int e = 0; e < a.routing.num_experts; ++e)
      sum += std::exp(logits[first + static_cast<std::size_t>(e)] - logit);
    return 1 / sum;
  }

  static void check_choice(const Values& logits, const RouteExpertsArguments& a, const Values& bias,
                           const RoutingMemory& expected, const RoutingMemory& routing) {
    const auto slots = static_cast<std::size_t>(a.routing.num_slots),
               num_experts = static_cast<std::size_t>(a.routing.num_experts);
    for (std::size_t first = 0; first < routing.experts.size(); first += slots) {
      const std::size_t row = first / slots * num_experts;
      const auto score = [&](std::int32_t expert) {
        return score_of(logits, row, static_cast<std::size_t>(expert), a);
      };
      const auto key = [&](std::int32_t expert) {
        return score(expert) + (a.score_bias == nullptr ? 0 : bias[static_cast<std::size_t>(expert)]);
      };
      double sum = 0;
      std::set<std::int32_t> distinct;
      for (std::size_t i = first; i < first + slots; ++i) {
        ASSERT_TRUE(routing.experts[i] >= 0 && routing.experts[i] < a.routing.num_experts) << i;
        ASSERT_TRUE(distinct.insert(routing.experts[i]).second) << i;
        ASSERT_NEAR(key(routing.experts[i]), key(expected.experts[i]), 1e-6) << i;
        sum += score(routing.experts[i]);
      }
      for (std::size_t i = first; i < first + slots; ++i) {
        const float own = a.expert_scales == nullptr ? 1 : a.expert_scales[routing.experts[i]];
        const double weight = double{a.weight_scale} * static_cast<double>(own) * score(routing.experts[i]) /
                              (a.normalized ? sum : 1);
        ASSERT_NEAR(routing.weights[i], weight, 1e-5 * weight) << i;
        ASSERT_NEAR(expected.weights[i], weight, 1e-5 * weight) << i;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsExperts, ::testing::ValuesIn(kActivationDTypes),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_P(OpsExperts, RowsGoToTheLargestLogits) {
  const std::vector<std::tuple<std::int64_t, int, int>> shapes = {
      {1, 1, 1}, {3, 3, 2}, {1, 8, 2}, {70, 8, 8}, {5, 33, 4}, {2, 128, 8}, {300, 128, 8}, {4, 513, 70}};
  for (const auto& [rows, num_experts, slots] : some_if_sanitized(shapes)) {
    SCOPED_TRACE(::testing::Message() << rows << " rows, " << num_experts << " experts, " << slots);
    for (const bool normalized : {false, true}) {
      // Multiples of 1/4: rows have equal logits.
      Values values = random_values(static_cast<std::size_t>(rows * num_experts), 3, 2);
      for (double& v : values) v = std::round(4 * v) / 4;
      FencedMatrix logits(dtype, rows, num_experts, values, num_experts + 3);
      RoutingMemory expected(rows, num_experts, slots), routing(rows, num_experts, slots);
      reference->route_experts({logits.view(), expected.view(), normalized}, {});
      tested->route_experts({logits.view(), routing.view(), normalized}, {});
      EXPECT_EQ(routing.experts, expected.experts);
      EXPECT_EQ(routing.order, expected.order);
      EXPECT_EQ(routing.offsets, expected.offsets);
      for (std::size_t i = 0; i < routing.weights.size(); ++i)
        EXPECT_NEAR(routing.weights[i], expected.weights[i], 4e-6 * expected.weights[i]) << i;
    }
  }
}

/// A way of choosing experts that is not by their logits, or by logits if nothing else is asked for.
struct Choice {
  ExpertScoring scoring;
  bool has_bias;
  int num_groups, num_groups_used;
  int num_experts_of_group = 2;
  bool has_scales = false;
};

// Sums of scores and biases that are equal but for rounding may be ranked either way: a slot's expert has to
// be as good as the reference's, and its weight that of its own score.
TEST_P(OpsExperts, RowsGoToTheBestScores) {
  const std::vector<std::tuple<std::int64_t, int, int>> shapes = {
      {3, 4, 2}, {1, 8, 3}, {70, 8, 4}, {2, 64, 6}, {300, 64, 6}, {2, 256, 8}, {40, 256, 8}, {5, 2048, 12}};
  const std::vector<Choice> choices = {
      {ExpertScoring::kSigmoid, false, 1, 1},         {ExpertScoring::kSoftmax, true, 1, 1},
      {ExpertScoring::kSigmoid, true, 4, 2},          {ExpertScoring::kSoftmax, false, 2, 1},
      {ExpertScoring::kSoftmax, false, 4, 2, 1},      {ExpertScoring::kSigmoid, true, 1, 1, 2, true},
      {ExpertScoring::kSoftmax, false, 1, 1, 2, true}};
  for (const auto& [rows, num_experts, slots] : some_if_sanitized(shapes)) {
    const Values bias_f64 =
        rounded(random_values(static_cast<std::size_t>(num_experts), 4, 0.2), DType::kF32);
    const std::vector<float> bias(bias_f64.begin(), bias_f64.end());
    std::vector<float> scales;
    for (const float value : bias) scales.push_back(1.5f + value);
    FencedMatrix logits(dtype, rows, num_experts,
                        random_values(static_cast<std::size_t>(rows * num_experts), 3, 2), num_experts + 3);
    for (const Choice& choice : choices) {
      if (choice.num_groups_used * num_experts / choice.num_groups < slots) continue;
      for (const bool normalized : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << rows << " rows, " << num_experts << " experts, " << slots << ", " << choice.num_groups
                     << " groups, bias " << choice.has_bias << ", " << normalized);
        RoutingMemory expected(rows, num_experts, slots), routing(rows, num_experts, slots);
        RouteExpertsArguments a{logits.view(), expected.view(), normalized, choice.scoring};
        a.score_bias = choice.has_bias ? bias.data() : nullptr;
        a.expert_scales = choice.has_scales ? scales.data() : nullptr;
        a.num_groups = choice.num_groups;
        a.num_groups_used = choice.num_groups_used;
        a.num_experts_of_group = choice.num_experts_of_group;
        a.weight_scale = 2.5f;
        reference->route_experts(a, {});
        a.routing = routing.view();
        tested->route_experts(a, {});
        check_choice(logits.values(), a, bias_f64, expected, routing);
        RoutingMemory grouped = routing;
        grouped.group();
        EXPECT_EQ(routing.order, grouped.order);
        EXPECT_EQ(routing.offsets, grouped.offsets);
      }
    }
  }
}

TEST_P(OpsExperts, LogitsThatAreNoNumbersGoLast) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr int kExperts = 5, kSlots = 3;
  const Values values = {
      nan, 1,   nan,       2,          -kInfinity,  // two numbers, then the lowest of the rest
      nan, nan, nan,       nan,        nan,         // the first ones
      1,   1,   1,         1,          1,           // likewise
      0,   nan, kInfinity, -kInfinity, 1};
  FencedMatrix logits(dtype, 4, kExperts, values);
  for (OpsBackend* ops : {reference.get(), tested.get()}) {
    RoutingMemory routing(4, kExperts, kSlots);
    ops->route_experts({logits.view(), routing.view(), true}, {});
    EXPECT_EQ(routing.experts, (std::vector<std::int32_t>{3, 1, 0, 0, 1, 2, 0, 1, 2, 2, 4, 0}));
    EXPECT_TRUE(std::isnan(routing.weights[0]) && std::isnan(routing.weights[3]));
    EXPECT_FLOAT_EQ(routing.weights[6], 1.0f / 3);
    EXPECT_EQ(routing.offsets, (std::vector<std::int32_t>{0, 4, 7, 10, 11, 12}));
    EXPECT_EQ(routing.order, (std::vector<std::int32_t>{2, 3, 6, 11, 1, 4, 7, 5, 8, 9, 0, 10}));
  }
}

TEST(OpsReferenceExperts, WeightsAreSoftmaxOverAllOrOverTheChosen) {
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  FencedMatrix logits(DType::kF64, 1, 3, {std::log(1.0), std::log(5.0), std::log(2.0)});
  RoutingMemory routing(1, 3, 2);
  reference->route_experts({logits.view(), routing.view(), false}, {});
  EXPECT_EQ(routing.experts, (std::vector<std::int32_t>{1, 2}));
  EXPECT_FLOAT_EQ(routing.weights[0], 0.625f);
  EXPECT_FLOAT_EQ(routing.weights[1], 0.25f);
  reference->route_experts({logits.view(), routing.view(), true}, {});
  EXPECT_FLOAT_EQ(routing.weights[0], 5.0f / 7);
}

TEST(OpsReferenceExperts, GroupsAreAsGoodAsTheirTwoBestExperts) {
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  const auto logit = [](double score) { return std::log(score / (1 - score)); };
  FencedMatrix logits(DType::kF64, 1, 6,
                      {logit(0.5), logit(0.75), logit(0.875), logit(0.125), logit(0.25), logit(0.625)});
  const std::vector<float> bias = {0, 0, 0, 0, 0.4375f, 0};
  RoutingMemory routing(1, 6, 3);
  RouteExpertsArguments a{logits.view(), routing.view(), false, ExpertScoring::kSigmoid, nullptr, 3, 2, 4};
  reference->route_experts(a, {});
  EXPECT_EQ(routing.experts, (std::vector<std::int32_t>{2, 1, 0})) << "1.25, 1 and 0.875";
  EXPECT_FLOAT_EQ(routing.weights[0], 3.5f);
  EXPECT_FLOAT_EQ(routing.weights[2], 2.0f);
  a.score_bias = bias.data();
  a.normalized = true;
  reference->route_experts(a, {});
  EXPECT_EQ(routing.experts, (std::vector<std::int32_t>{1, 4, 5})) << "1.25, 1 and 1.3125";
  const double sum = 0.75 + 0.25 + 0.625;
  EXPECT_FLOAT_EQ(routing.weights[0], static_cast<float>(4 * 0.75 / sum));
  EXPECT_FLOAT_EQ(routing.weights[1], static_cast<float>(4 * 0.25 / sum)) << "of scores without the bias";
}

TEST_P(OpsExperts, CombineAddsUpWhatSlotsGave) {
  for (const std::int64_t columns :
       {std::int64_t{1}, std::int64_t{33}, std::int64_t{512}, std::int64_t{4099}}) {
    for (const bool accumulate : {false, true}) {
      constexpr std::int64_t kRows = 5;
      constexpr int kSlots = 4;
      FencedMatrix x(dtype, kRows * kSlots, columns,
                     random_values(static_cast<std::size_t>(kRows * kSlots * columns), 1), columns + 8);
      const Values weights_f64 = rounded(random_values(kRows * kSlots, 2), DType::kF32);
      const std::vector<float> weights(weights_f64.begin(), weights_f64.end());
      const DType out_dtype = accumulate ? DType::kF32 : dtype;
      const Values start =
          rounded(random_values(static_cast<std::size_t>(kRows * columns), 3, accumulate ? 1 : 0), out_dtype);
      FencedMatrix exact(DType::kF64, kRows, columns, start);
      reference->combine_experts({x.view(), weights.data(), exact.view(), kSlots, accumulate}, {});
      const Values x_values = x.values();
      Values naive = start, expected = start;
      for (std::size_t i = 0; i < naive.size(); ++i) {
        const std::size_t row = i / static_cast<std::size_t>(columns),
                          c = i % static_cast<std::size_t>(columns);
        float sum = static_cast<float>(start[i]);
        for (std::size_t s = row * kSlots; s < (row + 1) * kSlots; ++s) {
          const double value = x_values[s * static_cast<std::size_t>(columns) + c];
          sum += weights[s] * static_cast<float>(value);
          expected[i] += weights_f64[s] * value;
        }
        naive[i] = sum;
      }
      EXPECT_LE(max_error(exact.values(), expected), 1e-14 * max_abs(expected));
      FencedMatrix out(out_dtype, kRows, columns, start, columns + 4);
      tested->combine_experts({x.view(), weights.data(), out.view(), kSlots, accumulate}, {});
      expect_at_most_twice_naive(out.values(), naive, exact.values(), out_dtype);
      out.expect_fences_intact();
    }
  }
}

// As rows are multiplied by numbers of their own.
TEST_P(OpsExperts, CombineOfASingleSlotIsDoneInPlace) {
  for (const std::int64_t columns : {std::int64_t{33}, std::int64_t{512}}) {
    constexpr std::int64_t kRows = 7;
    FencedMatrix x(dtype, kRows, columns, random_values(static_cast<std::size_t>(kRows * columns), 1),
                   columns + 8);
    const Values before = x.values();
    const std::vector<float> weights = {1, 1.0625f, 0, -2, 1.5f, 0.25f, 3};
    FencedMatrix exact(DType::kF64, kRows, columns);
    Values naive = before;
    for (std::size_t i = 0; i < naive.size(); ++i)
      naive[i] = static_cast<float>(naive[i]) * weights[i / static_cast<std::size_t>(columns)];
    reference->combine_experts({x.view(), weights.data(), exact.view(), 1, false}, {});
    tested->combine_experts({x.view(), weights.data(), x.view(), 1, false}, {});
    expect_at_most_twice_naive(x.values(), naive, exact.values(), dtype);
    x.expect_fences_intact();
  }
}

/// A mixture's products and what they are by gemm, slot by slot.
struct ExpertProducts {
  std::int64_t rows;
  int num_experts, num_slots;
  std::int64_t n, k;
  bool shares_x;
};

class OpsExpertGemm : public ::testing::TestWithParam<std::tuple<DType, DType>> {
 protected:
  const DType x_dtype = std::get<0>(GetParam());
  const DType w_dtype = std::get<1>(GetParam());
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();

  void SetUp() override { skip_some_pairs_if_sanitized(); }

  bool is_tuned() const { return std::ranges::find(kTunedWeightDTypes, w_dtype) != kTunedWeightDTypes.end(); }

  void check(ExpertProducts s, std::int64_t gap) {
    s.k = whole_blocks(w_dtype, s.k);
    SCOPED_TRACE(::testing::Message() << s.rows << " rows, " << s.num_experts << " experts, " << s.num_slots
                                      << ", " << s.n << " x " << s.k << (s.shares_x ? ", shared" : ""));
    const std::int64_t slots = s.rows * s.num_slots, x_rows = s.shares_x ? s.rows : slots;
    const TestWeight w(w_dtype, s.num_experts * s.n, s.k,
                       random_values(static_cast<std::size_t>(s.num_experts * s.n * s.k), 1));
    const TestWeight bias(DType::kF32, s.num_experts, s.n,
                          random_values(static_cast<std::size_t>(s.num_experts * s.n), 2));
    FencedMatrix x(x_dtype, x_rows, s.k, random_values(static_cast<std::size_t>(x_rows * s.k), 3), s.k + gap);
    RoutingMemory routing = RoutingMemory::random(s.rows, s.num_experts, s.num_slots, 4);
    const Values x_values = x.values(), w_values = w.values();
    for (const bool use_bias : {false, true}) {
      const std::optional<Weight> b = use_bias ? std::optional(bias.weight()) : std::nullopt;
      FencedMatrix exact(DType::kF64, slots, s.n);
      reference->expert_gemm({x.view(), w.weight(), b, exact.view(), routing.view()}, {});
      const Values naive =
          naive_products(s, x_values, w_values, use_bias ? bias.values() : Values(), routing);
      EXPECT_LE(max_error(naive, exact.values()), 1e-3 * (1 + max_abs(exact.values())));
      for (const bool batch_invariant : {false, true}) {
        if (backend_is_slow() && use_bias != batch_invariant) continue;
        for_each_simd_target([&] {
          FencedMatrix out(x_dtype, slots, s.n, s.n + (gap % 8 == 0 ? gap : 3));
          tested->expert_gemm({x.view(), w.weight(), b, out.view(), routing.view(), batch_invariant}, {});
          expect_at_most_twice_naive(out.values(), naive, exact.values(), x_dtype);
          out.expect_fences_intact();
          if (batch_invariant) expect_the_same_alone(s, x, w, b, routing, out.values());
        });
      }
    }
  }

  /// Of weights made once: each activation's columns, of twice as many rows of w, and the sums of a row's
  /// slots.
  void check_fused(ExpertProducts s) {
    s.k = whole_blocks(w_dtype, s.k);
    const TestWeight w(w_dtype, s.num_experts * s.n, s.k,
                       random_values(static_cast<std::size_t>(s.num_experts * s.n * s.k), 1, 0.1));
    const Values w_values = w.values();
    for (const bool use_bias : {false, true}) {
      check_fused(s, w, w_values, GatedActivation::kSwiGlu, use_bias);
      check_fused(s, w, w_values, GatedActivation::kClampedSwiGlu, use_bias);
      check_fused(s, w, w_values, std::nullopt, use_bias);
    }
  }

 private:
  void check_fused(ExpertProducts s, const TestWeight& w, const Values& w_values,
                   std::optional<GatedActivation> activation, bool use_bias) {
    SCOPED_TRACE(::testing::Message()
                 << s.rows << " rows, " << s.n << " x " << s.k << ", bias " << use_bias << ", activation "
                 << (activation ? static_cast<int>(*activation) : -1));
    s.shares_x = activation.has_value();
    const std::int64_t slots = s.rows * s.num_slots, columns = activation ? s.n / 2 : s.n;
    const TestWeight bias(DType::kF32, s.num_experts, s.n,
                          random_values(static_cast<std::size_t>(s.num_experts * s.n), 2));
    const std::int64_t x_rows = s.shares_x ? s.rows : slots, out_rows = activation ? slots : s.rows;
    FencedMatrix x(x_dtype, x_rows, s.k, random_values(static_cast<std::size_t>(x_rows * s.k), 3), s.k + 16);
    RoutingMemory routing = RoutingMemory::random(s.rows, s.num_experts, s.num_slots, 4);
    for (std::size_t i = 0; i < routing.weights.size(); ++i)
      routing.weights[i] = 1 / static_cast<float>(2 + i % 5);
    const std::optional<Weight> b = use_bias ? std::optional(bias.weight()) : std::nullopt;
    const DType out_dtype = activation ? x_dtype : DType::kF32;
    const Values start = rounded(
        random_values(static_cast<std::size_t>(out_rows * columns), 5, activation ? 0 : 1), out_dtype);
    FencedMatrix out(out_dtype, out_rows, columns, start, columns + 3);
    ExpertGemmArguments a{x.view(), w.weight(), b, out.view(), routing.view()};
    a.activation = activation;
    a.combines = a.accumulate = !activation;
    const bool is_typed = w_dtype == x_dtype || w_dtype == DType::kQ4_K || w_dtype == DType::kQ8_0 ||
                          (x_dtype == DType::kF32 && block_format(w_dtype).elements == 1);
    if (!tested->takes_fused_expert_gemm(a)) {
      EXPECT_FALSE(is_typed && !tested_ops_are_the_cpus()) << "a kernel was expected";
      return expect_error([&] { tested->expert_gemm(a, {}); }, ErrorCode::kUnsupported,
                          "takes_fused_expert_gemm");
    }
    FencedMatrix products(DType::kF64, slots, s.n), exact(DType::kF64, out_rows, columns, start);
    reference->expert_gemm({x.view(), w.weight(), b, products.view(), routing.view()}, {});
    Values naive = naive_products(s, x.values(), w_values, use_bias ? bias.values() : Values(), routing);
    if (activation) {
      reference->gated_activation({*activation, columns_of(products.view(), 0, columns),
                                   columns_of(products.view(), columns, columns), exact.view()},
                                  {});
      naive = naive_activations(naive, slots, columns, *activation);
    } else {
      reference->combine_experts({products.view(), routing.weights.data(), exact.view(), s.num_slots, true},
                                 {});
      naive = naive_sums_of_slots(naive, s, routing, start);
    }
    tested->expert_gemm(a, {});
    expect_at_most_twice_naive(out.values(), naive, exact.values(), out_dtype);
    out.expect_fences_intact();
  }

  static Values naive_activations(const Values& products, std::int64_t slots, std::int64_t columns,
                                  GatedActivation activation) {
    Values out;
    for (std::int64_t i = 0; i < slots * columns; ++i) {
      const std::int64_t at = i / columns * 2 * columns + i % columns;
      const auto gate = static_cast<float>(products[static_cast<std::size_t>(at)]);
      const auto up = static_cast<float>(products[static_cast<std::size_t>(at + columns)]);
      if (activation == GatedActivation::kSwiGlu) {
        out.push_back(gate / (1 + std::exp(-gate)) * up);
      } else {
        const float g = std::min(gate, 7.0f);
        out.push_back((std::clamp(up, -7.0f, 7.0f) + 1) * (g / (1 + std::exp(-1.702f * g))));
      }
    }
    return out;
  }

  static Values naive_sums_of_slots(const Values& products, const ExpertProducts& s,
                                    const RoutingMemory& routing, const Values& start) {
    Values out = start;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t n = static_cast<std::size_t>(s.n), slots = static_cast<std::size_t>(s.num_slots);
      auto sum = static_cast<float>(out[i]);
      for (std::size_t t = i / n * slots; t < (i / n + 1) * slots; ++t)
        sum += routing.weights[t] * static_cast<float>(products[t * n + i % n]);
      out[i] = sum;
    }
    return out;
  }

  static Values naive_products(const ExpertProducts& s, const Values& x, const Values& w, const Values& bias,
                               const RoutingMemory& routing) {
    Values out;
    for (std::int64_t t = 0; t < s.rows * s.num_slots; ++t) {
      const std::int64_t row = s.shares_x ? t / s.num_slots : t;
      const std::int64_t expert = routing.experts[static_cast<std::size_t>(t)];
      const auto part = [](const Values& values, std::int64_t begin, std::int64_t count) {
        return Values(values.begin() + begin, values.begin() + begin + count);
      };
      const Values of_slot =
          naive_gemm(part(x, row * s.k, s.k), part(w, expert * s.n * s.k, s.n * s.k), {1, s.n, s.k},
                     bias.empty() ? Values() : part(bias, expert * s.n, s.n), {});
      out.insert(out.end(), of_slot.begin(), of_slot.end());
    }
    return out;
  }

  /// The last row's slots without those of the others.
  void expect_the_same_alone(const ExpertProducts& s, FencedMatrix& x, const TestWeight& w,
                             const std::optional<Weight>& bias, const RoutingMemory& routing,
                             const Values& all) {
    RoutingMemory alone(1, s.num_experts, s.num_slots);
    std::copy(routing.experts.end() - s.num_slots, routing.experts.end(), alone.experts.begin());
    alone.group();
    const std::int64_t x_rows = s.shares_x ? 1 : s.num_slots;
    FencedMatrix out(x_dtype, s.num_slots, s.n);
    tested->expert_gemm(
        {rows_of(x.view(), x.view().rows - x_rows, x_rows), w.weight(), bias, out.view(), alone.view(),
         /*batch_invariant=*/true},
        {});
    const Values values = out.values();
    EXPECT_EQ(values, Values(all.end() - static_cast<std::ptrdiff_t>(values.size()), all.end()));
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsExpertGemm,
                         ::testing::Combine(::testing::ValuesIn(kActivationDTypes),
                                            ::testing::ValuesIn(kWeightDTypes)),
                         [](const auto& info) {
                           return std::string(dtype_name(std::get<0>(info.param))) + "_" +
                                  std::string(dtype_name(std::get<1>(info.param)));
                         });

TEST_P(OpsExpertGemm, ErrsAtMostTwiceAsMuchAsANaiveSum) {
  const std::vector<ExpertProducts> shapes = {{1, 3, 2, 37, 70, true},   {2, 5, 2, 33, 40, false},
                                              {4, 4, 4, 29, 96, true},   {21, 3, 2, 20, 64, true},
                                              {40, 6, 1, 15, 33, false}, {90, 2, 2, 66, 32, false}};
  for (const ExpertProducts& s : backend_is_slow() ? std::vector(shapes.begin(), shapes.begin() + 4) : shapes)
    check(s, 5);
}

TEST_P(OpsExpertGemm, OfAlignedRowsErrsAtMostTwiceAsMuchAsANaiveSum) {
  // Of the first's experts each begins at a multiple of 16 bytes, but not each row of Q8_0.
  const std::vector<ExpertProducts> shapes = {{2, 3, 2, 24, 96, false},  {1, 2, 2, 8, 2304, false},
                                              {3, 8, 2, 17, 512, false}, {1, 8, 2, 32, 256, true},
                                              {30, 4, 2, 40, 256, true}, {150, 4, 2, 130, 512, true}};
  const std::ptrdiff_t num_shapes = !is_tuned() ? 3 : backend_is_slow() ? 4 : 6;
  for (const ExpertProducts& s : std::vector(shapes.begin(), shapes.begin() + num_shapes)) check(s, 16);
}

// Rows that are no whole pieces of 256 columns, and experts with no, few and some 20 slots.
TEST_P(OpsExpertGemm, OfSomeSlotsErrsAtMostTwiceAsMuchAsANaiveSum) {
  if (backend_is_slow()) GTEST_SKIP() << "plain kernels have seen all that they ask for";
  for (const ExpertProducts& s :
       {ExpertProducts{20, 4, 2, 72, 288, true}, ExpertProducts{4, 9, 2, 136, 1024, false},
        ExpertProducts{45, 5, 2, 272, 544, true}})
    check(s, 16);
}

// Some 200, 20 and 370 slots an expert: tiles that are nearly full, or nearly empty, and several of one.
TEST_P(OpsExpertGemm, OfManySlotsErrsAtMostTwiceAsMuchAsANaiveSum) {
  if (!is_tuned() || backend_is_slow()) GTEST_SKIP() << "plain kernels have seen all that they ask for";
  for (const ExpertProducts& s :
       {ExpertProducts{300, 3, 2, 136, 512, true}, ExpertProducts{40, 4, 2, 264, 256, false},
        ExpertProducts{1100, 3, 1, 72, 288, true}})
    check(s, 16);
}

TEST_P(OpsExpertGemm, FusedWithWhatFollowsErrsAtMostTwiceAsMuchAsTheNaiveOnes) {
  check_fused({1, 8, 2, 32, 256, true});
  if (!backend_is_slow() || is_tuned()) check_fused({3, 4, 3, 40, 1280, true});
}

}  // namespace
}  // namespace tessera::testing
