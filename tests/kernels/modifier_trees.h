#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tessera/attention.h"

namespace tessera {

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
    if (choice == 3) {
      const Tree a = condition(depth - 1), b = condition(depth - 1);
      const bool is_equal = pick(2) == 0;
      return make('b', "(" + a.text + (is_equal ? " == " : " != ") + b.text + ")", [=](const auto& p) {
        return whole((a.compute(p).i == b.compute(p).i) == is_equal);
      });
    }
    if (choice == 4) {
      const Tree a = condition(depth - 1), b = condition(depth - 1), c = condition(depth - 1);
      return make('b', "(" + a.text + " ? " + b.text + " : " + c.text + ")",
                  [=](const auto& p) { return (a.compute(p).i != 0 ? b : c).compute(p); });
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

}  // namespace tessera
