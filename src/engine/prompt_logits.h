#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/runtime.h"

namespace tessera {

/// Logits after each of `tokens` (all) or after the last: (tokens or 1) * vocab_size. Takes pages for all of
/// them while it runs. on_progress, unless empty, is told of the tokens that are done and whether their step
/// still runs, as EngineCoreOptions::on_prefill is. Throws Error{kInvalidArgument} for tokens that are no
/// prompt, Error{kOutOfMemory} if they don't fit.
std::vector<float> prompt_logits(
    Runtime& runtime, std::span<const std::int32_t> tokens, bool all,
    const std::function<void(std::int64_t tokens_done, bool is_within_step)>& on_progress);

}  // namespace tessera
