#pragma once

#include <memory>
#include <string_view>

#include "attention/backend.h"

namespace tessera::simt {

/// The GPU's generic attention kernel, attention_combine and merge_states on the host; `name` must outlive
/// it. num_splits: parts that the keys are divided into if there are enough and the bits may depend on it; 1:
/// never.
std::unique_ptr<AttentionBackend> make_simt_attention(std::string_view name, int num_splits);

}  // namespace tessera::simt
