#include "verify/modifier_example.h"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

struct Texts {
  const char* name;
  const char* score;
  const char* visible;
};

constexpr std::array<Texts, kNumModifierExamples> kTexts = {{
    {"none", "", ""},
    {"causal", "", "kv_idx <= q_idx + shift"},
    {"window", "", "abs(q_idx + shift - kv_idx) <= w"},
    {"documents", "", "doc[q_idx] == doc[kv_idx]"},
    {"prefix_lm", "", "kv_idx <= q_idx || kv_idx < prefix[b]"},
    {"sinks_and_window", "", "kv_idx <= q_idx && (q_idx - kv_idx < w || kv_idx < 4)"},
    {"dilated", "", "kv_idx <= q_idx && (q_idx - kv_idx) % 4 == 0"},
    {"natten", "", "abs(q_idx%W-kv_idx%W)<=r && abs(q_idx/W-kv_idx/W)<=r"},
    {"chunks", "", "q_idx/c == kv_idx/c && kv_idx <= q_idx"},
    {"draft_tree", "", "kv_idx < shift || bit(tree[b,q_idx], kv_idx - shift) == 1"},
    {"alibi", "score - slope[h]*float(abs(q_idx + shift - kv_idx))", ""},
    {"t5",
     "let d=max(q_idx+shift-kv_idx,0); score + bias[h, d<16 ? d : min(31, "
     "int(16.0+16.0*log(float(d)/16.0)/log(8.0)))]",
     ""},
    {"softcap", "cap*tanh(score/cap)", ""},
}};

const Texts& texts_of(ModifierExample example) { return kTexts[static_cast<std::size_t>(example)]; }

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

std::string_view modifier_example_name(ModifierExample example) { return texts_of(example).name; }

ScoreModifier modifier_example_text(ModifierExample example) {
  ScoreModifier modifier;
  modifier.score = texts_of(example).score;
  modifier.visible = texts_of(example).visible;
  modifier.scalars = {{"w", static_cast<double>(kExampleWindow)},
                      {"W", static_cast<double>(kExampleWidth)},
                      {"r", static_cast<double>(kExampleRadius)},
                      {"c", static_cast<double>(kExampleChunk)},
                      {"cap", static_cast<double>(kExampleCap)}};
  return modifier;
}

std::int64_t t5_bucket(std::int64_t distance) {
  const std::int64_t d = std::max<std::int64_t>(distance, 0);
  if (d < 16) return d;
  // Half of the 32 buckets grow by the power of 8 between 16 and 128.
  return std::min<std::int64_t>(
      31, static_cast<std::int64_t>(16 + 16 * std::log(static_cast<double>(d) / 16) / std::log(8.0)));
}

bool modifier_example_sees(ModifierExample example, const ModifierPoint& at) {
  const std::int64_t i = at.i, j = at.j;
  switch (example) {
    case ModifierExample::kCausal:
      return j - i <= at.shift;
    case ModifierExample::kWindow:
      return j - i - at.shift <= kExampleWindow && i + at.shift - j <= kExampleWindow;
    case ModifierExample::kDocuments:
      return document_of(i) == document_of(j);
    case ModifierExample::kPrefixLm:
      return j < std::max<std::int64_t>(i + 1, prefix_of(at.b));
    case ModifierExample::kSinksAndWindow:
      return j <= i && (j < 4 || j > i - kExampleWindow);
    case ModifierExample::kDilated:
      return j <= i && (i - j) % 4 == 0;
    case ModifierExample::kNatten: {
      const std::int64_t columns = i % kExampleWidth - j % kExampleWidth;
      const std::int64_t rows = floor_quotient(i, kExampleWidth) - floor_quotient(j, kExampleWidth);
      return std::max(std::abs(columns), std::abs(rows)) <= kExampleRadius;
    }
    case ModifierExample::kChunks:
      return j <= i && j >= i - i % kExampleChunk;
    case ModifierExample::kDraftTree: {
      const std::int64_t node = j - at.shift;
      if (node < 0) return true;
      return node < 32 && (static_cast<std::uint32_t>(tree_word(at.b, i)) >> node & 1u) == 1;
    }
    default:
      return true;
  }
}

}  // namespace tessera
