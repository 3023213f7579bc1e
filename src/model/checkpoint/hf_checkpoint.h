#pragma once

#include <filesystem>

#include "model/checkpoint/checkpoint.h"

namespace tessera {

/// The tokenizer's file in a Hugging Face folder.
inline constexpr const char* kTokenizerJson = "tokenizer.json";

/// open_checkpoint for a Hugging Face folder.
Checkpoint open_hf_checkpoint(const std::filesystem::path& folder, const CheckpointOptions& options);

}  // namespace tessera
