// Score modifiers as they are computed: every backend of CPU memory beside the fp64 reference, whose
// interpreter is held to a walk over expression trees that shares nothing with it.

#include "attention/modifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "backends/cpu/simd_target.h"
#include "core/element.h"
#include "kernels/modifier_examples.h"
#include "kernels/modifier_trees.h"
#include "modifier/evaluate.h"
#include "modifier/parse.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

TEST(ModifierEvaluator, ComputesWhatAWalkOverTheTreeDoes) {
  int compared = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    Trees trees(seed);
    const Tree score = trees.real(3), visible = trees.condition(3);
    const ScoreModifier m = trees.modifier(score, visible);
    modifier::Program program;
    try {
      program = modifier::parse(m).program;
    } catch (const Error& error) {
      // Only for its size.
      ASSERT_NE(error.message().find("more than"), std::string::npos) << error.message();
      continue;
    }
    modifier::Evaluator<double> evaluator(program, m);
    std::mt19937 random(seed);
    for (int n = 0; n < 40; ++n) {
      const Tree::Point p{static_cast<int>(random() % 50), static_cast<int>(random() % 70),
                          static_cast<int>(random() % 4), static_cast<double>(random() % 4096) / 256 - 8};
      modifier::Variables variables = {};
      variables[static_cast<std::size_t>(modifier::Variable::kQuery)] = static_cast<std::int32_t>(p.q);
      variables[static_cast<std::size_t>(modifier::Variable::kHead)] = static_cast<std::int32_t>(p.h);
      evaluator.begin_query(variables);
      EXPECT_EQ(evaluator.is_visible(static_cast<std::int32_t>(p.k)), visible.compute(p).i != 0)
          << visible.text;
      EXPECT_EQ(evaluator.score(p.score), score.compute(p).f) << score.text;
      ++compared;
    }
  }
  EXPECT_GT(compared, 20000);
}

/// A dense problem with its numbers; the keys and values that nobody sees may be NaN.
struct Batch {
  AttentionProblem p;
  std::vector<std::byte> q, k, v, o;
  std::vector<float> lse;
  double largest_v = 0;

  Batch(DType dtype, std::int64_t len_q, std::int64_t len_kv, int heads, int kv_heads, int head_dim) {
    p.batch = 2;
    p.seq_len_q = len_q;
    p.seq_len_kv = len_kv;
    p.num_heads = heads;
    p.num_kv_heads = kv_heads;
    p.head_dim_qk = p.head_dim_v = head_dim;
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<std::byte>& data, std::int64_t len, int of_heads) {
      const std::int64_t count = 2 * len * of_heads * head_dim;
      data.resize(dtype_bytes(dtype, static_cast<std::size_t>(count)));
      for (std::int64_t i = 0; i < count; ++i) {
        const double x = normal(random);
        store_element(data.data(), dtype, i, x);
        largest_v = std::max(largest_v, std::abs(x));
      }
    };
    fill(q, len_q, heads);
    fill(k, len_kv, kv_heads);
    fill(v, len_kv, kv_heads);
    o.resize(q.size());
    lse.resize(static_cast<std::size_t>(2 * len_q * heads));
    constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
    p.q = attention_input(kLayout, q.data(), dtype, len_q, heads, head_dim);
    p.k = attention_input(kLayout, k.data(), dtype, len_kv, kv_heads, head_dim);
    p.v = attention_input(kLayout, v.data(), dtype, len_kv, kv_heads, head_dim);
    p.o = attention_output(kLayout, o.data(), dtype, len_q, heads, head_dim);
    p.lse = lse_output(lse.data(), heads, len_q);
  }

  /// NaN in keys and values that no query of any head sees.
  void poison() {
    const modifier::Program program = *modifier_program(p);
    modifier::Evaluator<double> evaluator(program, *p.scores.modifier);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t j = 0; j < p.seq_len_kv; ++j) {
        bool seen = false;
        for (std::int64_t i = 0; i < p.seq_len_q && !seen; ++i) {
          for (int h = 0; h < p.num_heads && !seen; ++h) {
            evaluator.begin_query(modifier_variables(p, b, {0, p.seq_len_q, 0, p.seq_len_kv}, i, h));
            seen = evaluator.is_visible(static_cast<std::int32_t>(j));
          }
        }
        const std::int64_t row = std::int64_t{p.num_kv_heads} * p.head_dim_qk;
        for (std::int64_t d = 0; d < row && !seen; ++d) {
          store_element(k.data(), p.k.dtype, (b * p.seq_len_kv + j) * row + d, std::nan(""));
          store_element(v.data(), p.v.dtype, (b * p.seq_len_kv + j) * row + d, std::nan(""));
        }
      }
    }
  }

  std::vector<double> run(const std::string& backend) {
    std::fill(o.begin(), o.end(), std::byte{0xff});
    std::fill(lse.begin(), lse.end(), 77.0f);
    attention_forward(p, {.backend = backend, .config = {}});
    std::vector<double> result;
    const auto count = static_cast<std::int64_t>(o.size() / dtype_bytes(p.o.dtype, 1));
    for (std::int64_t i = 0; i < count; ++i) result.push_back(load_element(o.data(), p.o.dtype, i));
    for (const float x : lse) result.push_back(x);
    return result;
  }

  /// Of o and lse. Scores are sums of fp32 of numbers up to some tens; weights, values and results are
  /// rounded to the dtype.
  double tolerance() const {
    const double dtype_part = p.q.dtype == DType::kF32 ? 0 : 3 * unit_roundoff(p.q.dtype) * largest_v;
    return dtype_part + 64 * unit_roundoff(DType::kF32) * (p.head_dim_qk + 32) * 0.25 * largest_v;
  }
};

void expect_near(const std::vector<double>& found, const std::vector<double>& exact, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(found.size(), exact.size());
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = found[i] == exact[i] ? 0 : std::abs(found[i] - exact[i]);
    if (!(error <= worst)) {
      worst = error;
      where = i;
    }
    if (std::isnan(error)) break;
  }
  EXPECT_LE(worst, tolerance) << what << ": " << found[where] << " beside " << exact[where] << " at "
                              << where;
}

/// The targets that this machine has, and back to its own.
class EachTarget {
 public:
  template <class F>
  explicit EachTarget(const F& f) {
    for (const SimdTarget target : attainable_simd_targets()) {
      set_simd_target(target);
      f(std::string(simd_target_name(target)));
    }
    set_simd_target(std::nullopt);
  }
};

struct Shape {
  DType dtype;
  std::int64_t len_q, len_kv;
  int heads, kv_heads, head_dim;
};

TEST(ModifierExamples, AreRightInEveryBackend) {
  const ModifierExamples examples;
  for (const Shape& s : {Shape{DType::kF32, 130, 330, 4, 2, 24}, Shape{DType::kBF16, 150, 600, 4, 2, 32},
                         Shape{DType::kF16, 70, 300, 2, 2, 40}, Shape{DType::kF32, 1, 400, 8, 2, 32},
                         Shape{DType::kBF16, 1, 400, 2, 2, 64}}) {
    for (const ModifierExamples::Example& example : examples.all()) {
      const std::string& name = example.name;
      Batch batch(s.dtype, s.len_q, s.len_kv, s.heads, s.kv_heads, s.head_dim);
      batch.p.scores.modifier = example.modifier;
      batch.poison();
      const std::vector<double> exact = batch.run("reference");
      expect_near(batch.run("unfused"), exact, batch.tolerance(), name + " on unfused");
      EachTarget([&](const std::string& target) {
        expect_near(batch.run("cpu"), exact, batch.tolerance(),
                    name + " on cpu " + target + " " + std::string(dtype_name(s.dtype)));
      });
    }
  }
}

TEST(ModifierBackends, ComputeRandomTextsAsTheReferenceDoes) {
  Batch batch(DType::kF32, 60, 90, 4, 2, 16);
  for (unsigned seed = 1000; seed < 1120; ++seed) {
    Trees trees(seed);
    const Tree score = trees.real(3), visible = trees.condition(3);
    batch.p.scores.modifier = trees.modifier(score, visible);
    batch.p.scores.diagonal.reset();
    if (seed % 3 == 0) batch.p.scores.diagonal = DiagonalMask::causal();
    std::vector<double> exact;
    try {
      exact = batch.run("reference");
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument);
      continue;
    }
    // Scores reach hundreds: fp32's rounding of them is what tells the backends apart.
    const double tolerance = 2e-3 * batch.largest_v;
    expect_near(batch.run("unfused"), exact, tolerance, score.text + " | " + visible.text);
    EachTarget([&](const std::string& target) {
      expect_near(batch.run("cpu"), exact, tolerance, target + ": " + score.text + " | " + visible.text);
    });
  }
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  ADD_FAILURE() << "expected an Error";
  return {};
}

TEST(ModifierPlans, TakeOtherScalarsAndPointersAndNothingElse) {
  for (const char* backend : {"cpu", "unfused", "reference"}) {
    Batch batch(DType::kF32, 20, 40, 2, 2, 16);
    const ModifierExamples examples, elsewhere;
    batch.p.scores.modifier = examples.visible("kv_idx % w == q_idx % w && doc[kv_idx] >= 0");
    const AttentionPlan plan = plan_attention(batch.p, {.backend = backend, .config = {}});
    std::vector<std::byte> memory(plan.workspace_bytes + 64);
    const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    const std::span<std::byte> workspace(memory.data() + (64 - misaligned) % 64, plan.workspace_bytes);
    const auto run = [&] { attention_forward(batch.p, plan, workspace); };
    run();

    // The scalar's new value counts, and is checked.
    AttentionProblem& p = batch.p;
    p.scores.modifier = elsewhere.visible("kv_idx % w == q_idx % w && doc[kv_idx] >= 0");
    p.scores.modifier->scalars[0].second = 2;
    const std::vector<double> expected = batch.run(backend);
    std::fill(batch.o.begin(), batch.o.end(), std::byte{0});
    run();
    for (std::size_t i = 0; i < batch.o.size() / 4; ++i)
      ASSERT_EQ(load_element(batch.o.data(), DType::kF32, static_cast<std::int64_t>(i)), expected[i])
          << backend;
    p.scores.modifier->scalars[0].second = 0;
    EXPECT_NE(refusal(run).find("the divisor is 0"), std::string::npos);
    p.scores.modifier->scalars[0].second = 2.5;
    EXPECT_NE(refusal(run).find("its value is 2.5"), std::string::npos);
    p.scores.modifier->scalars[0].second = 96;

    const auto refuses = [&](const auto& change) {
      const AttentionProblem before = p;
      change(*p.scores.modifier);
      EXPECT_NE(refusal(run).find("is not what the plan was made with"), std::string::npos);
      p = before;
    };
    refuses([](ScoreModifier& m) { m.visible = "kv_idx < 3"; });
    refuses([](ScoreModifier& m) { m.score = "score"; });
    refuses([](ScoreModifier& m) { m.tensors[0].sizes[0] -= 1; });
    refuses([](ScoreModifier& m) { m.tensors[0].strides[0] = 2; });
    refuses([](ScoreModifier& m) { m.tensors[0].name = "documents"; });
    refuses([](ScoreModifier& m) { m.tensors.pop_back(); });
    refuses([](ScoreModifier& m) { m.scalars[1].first = "other"; });
    p.scores.modifier->tensors[0].data = nullptr;
    EXPECT_NE(refusal(run).find("(doc).data is null"), std::string::npos);
    p.scores.modifier.reset();
    EXPECT_NE(refusal(run).find("scores.modifier is not what the plan was made with"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
