#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

/// Which elements of a head form the pairs that RoPE rotates.
enum class RopePairing {
  kHalves,       ///< (i, i + rotary_dim/2): Hugging Face's Llama, Qwen, GPT-NeoX
  kInterleaved,  ///< (2i, 2i + 1): the paper, and GGUF files of the llama architecture
};

/// Positions divided by a factor.  Chen et al., "Extending Context Window ... Positional Interpolation"
/// (2023).
struct RopeLinearScaling {
  float factor = 1;
};

/// Llama 3.1's scaling: low frequencies divided by factor, high ones kept, a linear ramp between.
struct RopeLlama3Scaling {
  float factor = 8;
  float low_freq_factor = 1;
  float high_freq_factor = 4;
  std::int64_t original_max_seq_len = 8192;
};

/// Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models" (2023), section 3.
struct RopeYarnScaling {
  float factor = 1;
  float beta_fast = 32;
  float beta_slow = 1;
  std::int64_t original_max_seq_len = 0;
  std::optional<float> attention_factor;  ///< multiplies cos and sin; none: 0.1 ln(factor) + 1
  bool truncate = true;                   ///< round the correction range outwards to whole dimensions
};

/// Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens" (2024): each pair's
/// frequency divided by a number of its own, of one list or, for sequences longer than those that the model
/// was first trained on, of another. Keys that were rotated by one don't fit queries rotated by the other, so
/// that the length that sequences may reach decides for all of their positions.
struct RopeLongScaling {
  std::vector<float> short_divisors, long_divisors;  ///< (rotary_dim / 2)
  std::int64_t original_max_seq_len = 0;             ///< up to which short_divisors count
  float attention_factor = 1;                        ///< multiplies cos and sin, whichever list counts
};

/// Rotary position embedding.  Su et al., "RoFormer" (2021), section 3.2.
/// At most one of the scalings is set.
struct RopeConfig {
  RopePairing pairing = RopePairing::kHalves;
  float theta = 10000;
  int rotary_dim = 0;  ///< leading elements of a head that are rotated; even, 0 means all of head_dim
  /// The first so many pairs are turned, by frequencies as if all were; 0: all are. Gemma 4's "proportional".
  int num_turned_pairs = 0;
  std::optional<RopeLinearScaling> linear;
  std::optional<RopeLlama3Scaling> llama3;
  std::optional<RopeYarnScaling> yarn;
  std::optional<RopeLongScaling> longrope;
  /// Divisors of each pair's frequency, (rotary_dim / 2), as GGUF's rope_freqs.weight stores them; empty:
  /// all 1.
  std::vector<float> frequency_divisors;
};

/// What a RopeConfig comes to for a head_dim: the angle of pair i at position p is p *
/// inverse_frequencies[i].
struct RopeFrequencies {
  std::vector<float> inverse_frequencies;  ///< (rotary_dim / 2), radians per token
  float attention_factor = 1;              ///< multiplies cos and sin
};

/// For sequences of up to max_seq_len tokens, which only LongRoPE asks for.
/// Throws Error{kInvalidArgument} if rotary_dim is odd, negative or above head_dim, num_turned_pairs is
/// negative or above rotary_dim / 2, theta, a factor or a
/// divisor is not positive and finite, more than one scaling is set, or a list of divisors has the wrong
/// length.
RopeFrequencies rope_frequencies(const RopeConfig& config, int head_dim, std::int64_t max_seq_len = 1);

}  // namespace tessera
