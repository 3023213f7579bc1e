#pragma once

#include <string>
#include <string_view>

#include "model/config.h"

namespace tessera {

/// The name in Checkpoint's terms of a tensor of a Hugging Face folder: without what stands before the
/// layers, and norms by what they do where the architecture's class calls them otherwise.
std::string hf_checkpoint_name(std::string_view name, Architecture architecture);

}  // namespace tessera
