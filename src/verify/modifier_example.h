#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tessera/attention.h"

// Score modifiers that models have, as text and, apart from the library's language, as C++.

namespace tessera {

enum class ModifierExample {
  kNone,
  kCausal,
  kWindow,
  kDocuments,
  kPrefixLm,
  kSinksAndWindow,
  kDilated,
  kNatten,
  kChunks,
  kDraftTree,
  kAlibi,
  kT5,
  kSoftcap,
};
inline constexpr int kNumModifierExamples = 13;

/// "causal", "sinks_and_window", …; the same as in the lines that random cases are printed as.
std::string_view modifier_example_name(ModifierExample example);

/// The texts and scalars; not the tensors, which modifier_tensor() has.
ScoreModifier modifier_example_text(ModifierExample example);

/// What a query and key are within their batch.
struct ModifierPoint {
  std::int64_t b = 0, i = 0, j = 0, shift = 0;
  int h = 0;
};

/// Numbers of the tensors, whatever their size: the document of a token, the length of a sequence's prefix, a
/// word of nodes that a draft's token sees, a head's slope and T5's bias of a bucket.
inline std::int32_t document_of(std::int64_t token) { return static_cast<std::int32_t>(token / 23); }
inline std::int32_t prefix_of(std::int64_t b) { return static_cast<std::int32_t>(5 + 11 * b); }
inline std::int32_t tree_word(std::int64_t b, std::int64_t i) {
  std::uint32_t word = 0;
  // Nodes 2 n + 1 and 2 n + 2 follow node n; the root of odd sequences is hidden.
  for (std::int64_t node = i; node < 32; node = (node - 1) / 2) {
    word |= 1u << node;
    if (node == 0) break;
  }
  return static_cast<std::int32_t>(b % 2 == 0 ? word : word & ~1u);
}
inline float slope_of(int h) { return std::ldexp(1.0f, -(h % 8) - 1); }
inline float bias_of(int h, std::int64_t bucket) {
  return static_cast<float>((h * 37 + bucket * 11) % 32) / 16.0f - 1.0f;
}

inline constexpr std::int64_t kExampleWindow = 24, kExampleWidth = 8, kExampleRadius = 2, kExampleChunk = 16;
inline constexpr float kExampleCap = 2.5f;

/// Whether the example's mask lets a query see a key.
bool modifier_example_sees(ModifierExample example, const ModifierPoint& at);

/// T5's bucket of a distance.
std::int64_t t5_bucket(std::int64_t distance);

/// What the example adds to a score; 0 for those that do something else.
inline double modifier_example_bias(ModifierExample example, const ModifierPoint& at) {
  const std::int64_t distance = at.i + at.shift - at.j;
  if (example == ModifierExample::kAlibi)
    return -static_cast<double>(slope_of(at.h)) * static_cast<double>(std::abs(distance));
  if (example == ModifierExample::kT5) return static_cast<double>(bias_of(at.h, t5_bucket(distance)));
  return 0;
}

}  // namespace tessera
