#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/model.h"
#include "timing.h"

namespace tessera::cli {

/// Steps of an engine whose sequences each decode one token, steps that read a part of a prompt, and steps
/// that do both.
struct MixedSteps {
  Timing decode;
  Timing chunk;
  Timing both;

  /// What a step that does both takes of the two apart.
  double share_of_both() const { return both.median_ms / (decode.median_ms + chunk.median_ms); }
};

/// prompts: of the sequences that decode. The prompt that is read beside them comes in parts of chunk_tokens,
/// whose n-th follows n others in all measurements. Throws Error{kInvalidArgument} if the model's context is
/// too short for eleven of them.
MixedSteps time_mixed_steps(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                            int chunk_tokens);

}  // namespace tessera::cli
