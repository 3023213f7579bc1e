#pragma once

#include <utility>
#include <vector>

#include "kernels/modifier_examples.h"

namespace tessera {

/// The examples of models, and texts that have what these lack: every operation, all dtypes of tensors,
/// numbers that wrap around and divisors of either sign.
class ModifierTexts {
 public:
  using Example = ModifierExamples::Example;

  ModifierTexts() {
    for (std::uint32_t i = 0; i < 30; ++i) {
      words_.push_back(static_cast<std::int32_t>(i * 377123719u));
      bytes_.push_back(static_cast<std::uint8_t>(i * 37));
      halves_.push_back(static_cast<std::uint16_t>(0x3c00 + 17 * i));
    }
  }
  ModifierTexts(const ModifierTexts&) = delete;
  ModifierTexts& operator=(const ModifierTexts&) = delete;

  std::vector<Example> all() const {
    std::vector<Example> list = examples_.all();
    const auto add = [&](const char* name, const char* score, const char* visible) {
      list.push_back({name, {score, visible, {}, {{"n", 7}, {"x", 2.5}}}});
      auto& tensors = list.back().modifier.tensors;
      tensors.push_back({"words", words_.data(), DType::kI32, {30}, {1}});
      tensors.push_back({"bytes", bytes_.data(), DType::kU8, {5, 6}, {6, 1}});
      tensors.push_back({"flags", bytes_.data(), DType::kBool, {30}, {1}});
      tensors.push_back({"brain", halves_.data(), DType::kBF16, {30}, {1}});
      tensors.push_back({"half", halves_.data(), DType::kF16, {3, 2, 5}, {10, 5, 1}});
      tensors.push_back({"one", words_.data(), DType::kI32, {}, {}});
    };
    add("wrapping", "score + float((words[q_idx] * words[kv_idx] - words[h]) % 1000) * 0.001",
        "words[q_idx] + words[kv_idx] > -words[h] || abs(words[q_idx]) - one < words[kv_idx]");
    add("quotients", "score", "(q_idx - kv_idx) / (-3) + (q_idx - 2*kv_idx) % (-5) <= (kv_idx - q_idx) / n");
    add("tables", "score + brain[kv_idx] * half[h, q_idx % 2, kv_idx / 3]",
        "bytes[q_idx / 6, kv_idx % 6] < 200 && flags[kv_idx] == flags[q_idx]");
    add("functions",
        "exp2(min(score, x)) + sqrt(abs(score)) - log2(1.0 + score*score) + floor(score / x) * "
        "exp(-abs(score)) + "
        "log(x + abs(float(q_idx - kv_idx)) / float(kv_idx + 1))",
        "!(int(float(q_idx) / 3.0) == kv_idx % n) && float(q_idx) < x * float(kv_idx + 3)");
    add("choices",
        "q_idx % 2 == 0 ? (h < 2 ? score : -score) : max(score, float(min(q_idx, kv_idx) - max(h, b)))",
        "q_idx < 20 ? kv_idx < 40 : bit(q_idx, kv_idx - 3*q_idx) == int(kv_idx > 50) && q_idx != kv_idx");
    add("linear in the key",
        "score + x*0.01*float(kv_idx - q_idx) - brain[q_idx]*float(2 - kv_idx - kv_idx)*0.01",
        "float(n - kv_idx) < x * float(abs(q_idx - kv_idx) - kv_idx)");
    add("tanh of sums", "x*tanh(score/x) + tanh(tanh(score) * 0.3) - tanh(score * x) + tanh(0.2 + score)",
        "");
    return list;
  }

 private:
  ModifierExamples examples_;
  std::vector<std::int32_t> words_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint16_t> halves_;
};

}  // namespace tessera
