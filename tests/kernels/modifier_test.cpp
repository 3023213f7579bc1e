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
#include "modifier/evaluate.h"
#include "modifier/parse.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// A random expression, as text and as a tree that computes itself.
struct Tree {
  std::string text;
  char kind;  ///< of the value: 'i', 'f', 'b'
  struct Value {
    std::int64_t i = 0;
    double f = 0;
  };
  struct Point {
    std::int64_t q, k, h;
    double score;
  };
  std::function<Value(const Point&)> compute;
};

/// Draws trees whose int32 stays far below 2^31 and whose conditions are of int32, so that no rounding
/// decides one.
class Trees {
 public:
  explicit Trees(unsigned seed) : random_(seed) {
    for (int i = 0; i < 40; ++i) table_.push_back(static_cast<std::int32_t>(random_() % 50) - 20);
    for (int i = 0; i < 40; ++i) weights_.push_back(static_cast<float>(random_() % 64) / 8.0f - 4);
  }

  ScoreModifier modifier(const Tree& score, const Tree& visible) const {
    ScoreModifier m;
    m.score = score.text;
    m.visible = visible.text;
    m.tensors = {{"t", table_.data(), DType::kI32, {40}, {1}},
                 {"x", weights_.data(), DType::kF32, {8, 5}, {5, 1}}};
    m.scalars = {{"n", 7}};
    return m;
  }

  Tree condition(int depth) {
    const int choice = depth == 0 ? 9 : pick(10);
    if (choice < 2) {
      const Tree a = condition(depth - 1), b = condition(depth - 1);
      const bool is_and = pick(2) == 0;
      return make('b', "(" + a.text + (is_and ? " && " : " || ") + b.text + ")", [=](const auto& p) {
        const bool x = a.compute(p).i != 0, y = b.compute(p).i != 0;
        return whole(is_and ? x && y : x || y);
      });
    }
    if (choice == 2) {
      const Tree a = condition(depth - 1);
      return make('b', "!(" + a.text + ")", [=](const auto& p) { return whole(a.compute(p).i == 0); });
    }
    const Tree a = integer(depth), b = integer(depth);
    const int op = pick(6);
    static const char* const kSigns[] = {"<", "<=", ">", ">=", "==", "!="};
    return make('b', "(" + a.text + kSigns[op] + b.text + ")", [=](const auto& p) {
      const std::int64_t x = a.compute(p).i, y = b.compute(p).i;
      const bool results[] = {x<y, x <= y, x> y, x >= y, x == y, x != y};
      return whole(results[op]);
    });
  }

  Tree integer(int depth) {
    if (depth == 0 || pick(4) == 0) {
      switch (pick(5)) {
        case 0:
          return make('i', "q_idx", [](const auto& p) { return whole(p.q); });
        case 1:
          return make('i', "kv_idx", [](const auto& p) { return whole(p.k); });
        case 2:
          return make('i', "h", [](const auto& p) { return whole(p.h); });
        case 3:
          return make('i', "(n + h)", [](const auto& p) { return whole(7 + p.h); });
        default: {
          const int c = pick(20);
          // A number alone has no type of its own.
          return make('i', "(" + std::to_string(c) + " + 0*h)", [=](const auto&) { return whole(c); });
        }
      }
    }
    const int choice = pick(10);
    if (choice < 4) {
      const Tree a = integer(depth - 1), b = integer(depth - 1);
      const bool is_sum = pick(2) == 0;
      return make('i', "(" + a.text + (is_sum ? " + " : " - ") + b.text + ")", [=](const auto& p) {
        return whole(is_sum ? a.compute(p).i + b.compute(p).i : a.compute(p).i - b.compute(p).i);
      });
    }
    const Tree a = integer(depth - 1);
    if (choice == 4) {
      const int c = 1 + pick(5);
      return make('i', "(" + a.text + " * " + std::to_string(c) + ")",
                  [=](const auto& p) { return whole(a.compute(p).i * c); });
    }
    if (choice == 5) {
      const int c = 1 + pick(16);
      const bool is_quotient = pick(2) == 0;
      const int divisor = pick(4) == 0 ? -c : c;
      return make('i', "(" + a.text + (is_quotient ? " / (" : " % (") + std::to_string(divisor) + "))",
                  [=](const auto& p) {
                    const double x = static_cast<double>(a.compute(p).i);
                    const auto quotient = static_cast<std::int64_t>(std::floor(x / divisor));
                    return whole(is_quotient ? quotient : a.compute(p).i - divisor * quotient);
                  });
    }
    if (choice == 6)
      return make('i', "abs(" + a.text + ")", [=](const auto& p) { return whole(std::abs(a.compute(p).i)); });
    if (choice == 7) {
      const Tree b = integer(depth - 1);
      const bool is_min = pick(2) == 0;
      return make('i', (is_min ? "min(" : "max(") + a.text + ", " + b.text + ")", [=](const auto& p) {
        const std::int64_t x = a.compute(p).i, y = b.compute(p).i;
        return whole(is_min ? std::min(x, y) : std::max(x, y));
      });
    }
    if (choice == 8) {
      const std::vector<std::int32_t> table = table_;
      return make('i', "t[" + a.text + "]", [=](const auto& p) {
        return whole(table[static_cast<std::size_t>(std::clamp<std::int64_t>(a.compute(p).i, 0, 39))]);
      });
    }
    const Tree c = condition(depth - 1), b = integer(depth - 1);
    if (pick(2) == 0)
      return make('i', "(" + c.text + " ? " + a.text + " : " + b.text + ")", [=](const auto& p) {
        return whole(c.compute(p).i != 0 ? a.compute(p).i : b.compute(p).i);
      });
    return make('i', "bit(" + a.text + ", " + b.text + ")", [=](const auto& p) {
      const std::int64_t word = a.compute(p).i, place = b.compute(p).i;
      return whole(place < 0 || place > 31 ? 0 : (word & 0xffffffff) >> place & 1);
    });
  }

  Tree real(int depth) {
    if (depth == 0 || pick(5) == 0) {
      if (pick(3) != 0) return make('f', "score", [](const auto& p) { return fraction(p.score); });
      const Tree a = integer(1);
      return make('f', "float(" + a.text + ")",
                  [=](const auto& p) { return fraction(static_cast<double>(a.compute(p).i)); });
    }
    const Tree a = real(depth - 1);
    switch (pick(9)) {
      case 0: {
        const Tree b = real(depth - 1);
        return make('f', "(" + a.text + " + " + b.text + ")",
                    [=](const auto& p) { return fraction(a.compute(p).f + b.compute(p).f); });
      }
      case 1: {
        const Tree b = real(depth - 1);
        return make('f', "(" + a.text + " - 0.25*" + b.text + ")",
                    [=](const auto& p) { return fraction(a.compute(p).f - 0.25 * b.compute(p).f); });
      }
      case 2:
        return make('f', "3.5*tanh(" + a.text + "/3.5)",
                    [=](const auto& p) { return fraction(3.5 * std::tanh(a.compute(p).f / 3.5)); });
      case 3:
        return make('f', "exp(-abs(" + a.text + "))",
                    [=](const auto& p) { return fraction(std::exp(-std::abs(a.compute(p).f))); });
      case 4:
        return make('f', "log2(1.0 + abs(" + a.text + "))",
                    [=](const auto& p) { return fraction(std::log2(1 + std::abs(a.compute(p).f))); });
      case 5:
        return make('f', "sqrt(abs(" + a.text + ") + 1)",
                    [=](const auto& p) { return fraction(std::sqrt(std::abs(a.compute(p).f) + 1)); });
      case 6:
        return make('f', "clamp(" + a.text + ", -6, 6.5)",
                    [=](const auto& p) { return fraction(std::min(std::max(a.compute(p).f, -6.0), 6.5)); });
      case 7: {
        const Tree i = integer(depth - 1), j = integer(1);
        const std::vector<float> weights = weights_;
        return make('f', "(" + a.text + " + x[" + i.text + ", " + j.text + "])", [=](const auto& p) {
          const auto row = static_cast<std::size_t>(std::clamp<std::int64_t>(i.compute(p).i, 0, 7));
          const auto column = static_cast<std::size_t>(std::clamp<std::int64_t>(j.compute(p).i, 0, 4));
          return fraction(a.compute(p).f + static_cast<double>(weights[row * 5 + column]));
        });
      }
      default: {
        const Tree c = condition(depth - 1), b = real(depth - 1);
        return make('f', "(" + c.text + " ? " + a.text + " : " + b.text + ")", [=](const auto& p) {
          return fraction(c.compute(p).i != 0 ? a.compute(p).f : b.compute(p).f);
        });
      }
    }
  }

 private:
  static Tree::Value whole(std::int64_t i) { return {i, 0}; }
  static Tree::Value fraction(double f) { return {0, f}; }
  template <class F>
  static Tree make(char kind, std::string text, F&& f) {
    return {std::move(text), kind, std::forward<F>(f)};
  }
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  std::mt19937 random_;
  std::vector<std::int32_t> table_;
  std::vector<float> weights_;
};

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
    const modifier::Program program = modifier_program(p);
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
    for (const auto& [name, modifier] : examples.all()) {
      Batch batch(s.dtype, s.len_q, s.len_kv, s.heads, s.kv_heads, s.head_dim);
      batch.p.scores.modifier = modifier;
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

}  // namespace
}  // namespace tessera
