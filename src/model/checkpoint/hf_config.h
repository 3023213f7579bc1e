#pragma once

#include <string>
#include <string_view>

#include "model/config.h"

namespace tessera {

/// Reads config.json as transformers 4 and 5 write it, with transformers' defaults for what it leaves out,
/// and adds the eos_token_id of generation_config.json (empty text: there is none). Token ids outside the
/// vocabulary are dropped: no model can produce them. Throws Error{kCorruptFile} naming `source` or
/// `generation_source`, the field, its value and what was expected, or Error{kUnsupported} for architectures
/// and settings that this library does not run.
ModelConfig parse_hf_config(std::string_view config_json, const std::string& source,
                            std::string_view generation_config_json = {},
                            const std::string& generation_source = {});

}  // namespace tessera
