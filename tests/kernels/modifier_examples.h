#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tessera/attention.h"

namespace tessera {

/// Modifiers that models have, with tensors and scalars for up to kMaxLength queries and keys, kMaxHeads
/// heads and two sequences.
class ModifierExamples {
 public:
  static constexpr std::int64_t kMaxLength = 2048;
  static constexpr int kMaxHeads = 8;

  struct Example {
    std::string name;
    ScoreModifier modifier;
  };

  ModifierExamples() {
    std::mt19937 random(3);
    // Documents of 20 to 299 tokens; two thirds of the way there are some in no order.
    std::int32_t document = 0;
    while (static_cast<std::int64_t>(doc_.size()) < kMaxLength) {
      doc_.insert(doc_.end(), 20 + random() % 280, document);
      document = doc_.size() > kMaxLength * 2 / 3 ? static_cast<std::int32_t>(random() % 4) : document + 1;
    }
    doc_.resize(kMaxLength);
    prefix_ = {50, 3};
    for (int h = 0; h < kMaxHeads; ++h) slope_.push_back(std::exp2f(-static_cast<float>(h + 1)));
    for (std::size_t i = 0; i < kMaxHeads * 32; ++i)
      bias_.push_back(static_cast<float>(random() % 1000) / 500.0f - 1);
    // Each node of a draft tree sees itself and its parents.
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t i = 0; i < kMaxLength; ++i) {
        const std::size_t begin = b * kMaxLength;
        std::uint32_t word = i < 32 ? 1u << i : 0;
        if (i > 0 && i < 32) word |= static_cast<std::uint32_t>(tree_[begin + random() % i]);
        tree_.push_back(static_cast<std::int32_t>(word));
      }
    }
    keep_.resize(kMaxLength);
    for (std::size_t j = 0; j < keep_.size(); ++j) keep_[j] = j / 100 % 3 != 1;
  }
  ModifierExamples(const ModifierExamples&) = delete;
  ModifierExamples& operator=(const ModifierExamples&) = delete;

  std::vector<Example> all() const {
    return {
        {"causal", visible("kv_idx <= q_idx + shift")},
        {"window", visible("abs(q_idx + shift - kv_idx) <= w")},
        {"documents", visible("doc[q_idx] == doc[kv_idx]")},
        {"prefix-LM", visible("kv_idx <= q_idx || kv_idx < prefix[b]")},
        {"sinks and window", visible("kv_idx <= q_idx && (q_idx - kv_idx < w || kv_idx < 4)")},
        {"dilated", visible("kv_idx <= q_idx && (q_idx - kv_idx) % 4 == 0")},
        {"NATTEN", visible("abs(q_idx%W-kv_idx%W)<=r && abs(q_idx/W-kv_idx/W)<=r")},
        {"chunks", visible("q_idx/c == kv_idx/c && kv_idx <= q_idx")},
        {"draft tree", visible("kv_idx < shift || bit(tree[b,q_idx], kv_idx - shift) == 1")},
        {"padding", visible("keep[kv_idx] && kv_idx <= q_idx + shift")},
        {"ALiBi", score("score - slope[h]*float(abs(q_idx + shift - kv_idx))")},
        {"T5", score("let d=max(q_idx+shift-kv_idx,0); score + bias[h, d<16 ? d : min(31, "
                     "int(16.0+16.0*log(float(d)/16.0)/log(8.0)))]")},
        {"softcap", score("cap*tanh(score/cap)")},
        {"ALiBi in a causal window", score("score - slope[h]*float(abs(q_idx + shift - kv_idx))",
                                           "let d = q_idx + shift - kv_idx; d >= 0 && d < w")},
    };
  }

  ScoreModifier score(std::string text, std::string visible_text = "") const {
    ScoreModifier m;
    m.score = std::move(text);
    m.visible = std::move(visible_text);
    const auto tensor = [&](const char* name, const auto& data, DType dtype,
                            std::vector<std::int64_t> sizes) {
      std::vector<std::int64_t> strides(sizes.size(), 1);
      for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
      m.tensors.push_back({name, data.data(), dtype, std::move(sizes), std::move(strides)});
    };
    tensor("doc", doc_, DType::kI32, {kMaxLength});
    tensor("prefix", prefix_, DType::kI32, {2});
    tensor("slope", slope_, DType::kF32, {kMaxHeads});
    tensor("bias", bias_, DType::kF32, {kMaxHeads, 32});
    tensor("tree", tree_, DType::kI32, {2, kMaxLength});
    tensor("keep", keep_, DType::kBool, {kMaxLength});
    m.scalars = {{"w", 96}, {"W", 16}, {"r", 3}, {"c", 64}, {"cap", 5.5}};
    return m;
  }
  ScoreModifier visible(std::string text) const { return score("", std::move(text)); }

 private:
  std::vector<std::int32_t> doc_, prefix_, tree_;
  std::vector<float> slope_, bias_;
  std::vector<std::uint8_t> keep_;
};

}  // namespace tessera
