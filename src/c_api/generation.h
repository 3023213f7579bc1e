#pragma once

#include <span>
#include <vector>

#include "c_api/model.h"
#include "tessera/model.h"
#include "tessera/tessera.h"

namespace tessera::c_api {

/// What `given`, which may be null, asks for; `model` makes the form that the text is held to. Throws
/// Error{kInvalidArgument} for what the struct itself forbids, among it flags other than `own_flags`, and
/// what StructuredOutput throws.
GenerateOptions generate_options(const tessera_generate_options* given, std::uint64_t own_flags,
                                 SharedModel& model);

/// Flags that every way of generating takes.
inline constexpr std::uint64_t kGenerateFlags =
    TESSERA_GENERATE_HAS_MAX_TOKENS | TESSERA_GENERATE_HAS_TOP_P | TESSERA_GENERATE_HAS_REPETITION_PENALTY |
    TESSERA_GENERATE_IGNORE_EOS | TESSERA_GENERATE_HAS_LOGPROBS | TESSERA_GENERATE_JSON_OBJECT;

/// Flags that an engine's requests take besides.
inline constexpr std::uint64_t kEngineFlags =
    TESSERA_GENERATE_NO_PREFIX_CACHE | TESSERA_GENERATE_PROMPT_LOGPROBS;

tessera_stop_reason c_stop_reason(StopReason reason);

/// Appends `logprobs` to an array for the caller.
void append(std::vector<tessera_token_logprob>& to, std::span<const TokenLogprob> logprobs);

}  // namespace tessera::c_api
