#include "model/checkpoint/gguf_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tessera {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;  // in GGUF files, in Checkpoint

constexpr std::array<NamePair, 3> kOuter = {{
    {"token_embd", "embed_tokens"},
    {"output_norm", "norm"},
    {"output", "lm_head"},
}};
constexpr std::array<NamePair, 11> kInner = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};
constexpr std::string_view kBlock = "blk.", kLayer = "layers.";

// A name that stands there twice is written as the first says.
constexpr std::array<std::pair<std::string_view, Architecture>, 4> kArchitectureNames = {{
    {"llama", Architecture::kLlama},
    {"qwen2", Architecture::kQwen2},
    {"qwen3", Architecture::kQwen3},
    {"llama", Architecture::kMistral},
}};

/// `stem` as `to` of the entry whose `from` it is, else itself.
template <class Table>
std::string_view renamed(const Table& table, std::string_view NamePair::*from, std::string_view NamePair::*to,
                         std::string_view stem) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const NamePair& entry) { return entry.*from == stem; });
  return found == table.end() ? stem : (*found).*to;
}

/// "PREFIXn.STEM.ENDING" or "STEM.ENDING" with another prefix and stem.
std::string rename(std::string_view name, std::string_view NamePair::*from, std::string_view NamePair::*to,
                   std::string_view from_prefix, std::string_view to_prefix) {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos) return std::string(name);
  const std::string_view stem = name.substr(0, dot), ending = name.substr(dot);
  if (!stem.starts_with(from_prefix)) return fmt::format("{}{}", renamed(kOuter, from, to, stem), ending);
  const std::size_t number_end = stem.find('.', from_prefix.size());
  if (number_end == stem.npos) return std::string(name);
  // What the table doesn't know keeps its name within the layer, so that it is found left over there.
  return fmt::format("{}{}.{}{}", to_prefix, stem.substr(from_prefix.size(), number_end - from_prefix.size()),
                     renamed(kInner, from, to, stem.substr(number_end + 1)), ending);
}

}  // namespace

std::optional<Architecture> gguf_architecture(std::string_view name) noexcept {
  const auto found = std::find_if(kArchitectureNames.begin(), kArchitectureNames.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == kArchitectureNames.end()) return std::nullopt;
  return found->second;
}

std::string_view gguf_architecture_name(Architecture architecture) noexcept {
  const auto found = std::find_if(kArchitectureNames.begin(), kArchitectureNames.end(),
                                  [&](const auto& entry) { return entry.second == architecture; });
  return found->first;
}

RopePairing gguf_rope_pairing(Architecture architecture) noexcept {
  return gguf_architecture_name(architecture) == "llama" ? RopePairing::kInterleaved : RopePairing::kHalves;
}

float gguf_yarn_attention_factor(float factor) noexcept {
  return factor <= 1 ? 1.0f : static_cast<float>(0.1 * std::log(static_cast<double>(factor)) + 1.0);
}

std::string gguf_checkpoint_name(std::string_view name) {
  return rename(name, &NamePair::first, &NamePair::second, kBlock, kLayer);
}

std::string gguf_tensor_name(std::string_view name) {
  return rename(name, &NamePair::second, &NamePair::first, kLayer, kBlock);
}

}  // namespace tessera
