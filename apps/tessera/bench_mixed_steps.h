#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/model.h"

namespace tessera::cli {

/// Steps of an engine whose sequences each decode one token, steps that read a part of a prompt, and steps
/// that do both: milliseconds a step, means of several.
struct MixedSteps {
  double decode_ms = 0;
  double chunk_ms = 0;
  double both_ms = 0;

  /// What a step that does both takes of the two apart.
  double share_of_both() const { return both_ms / (decode_ms + chunk_ms); }
};

/// prompts: of the sequences that decode. The prompt that is read, alone and beside them, comes in eight
/// parts of chunk_tokens. Throws Error{kInvalidArgument} if the model's context is too short for it.
MixedSteps time_mixed_steps(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                            int chunk_tokens);

}  // namespace tessera::cli
