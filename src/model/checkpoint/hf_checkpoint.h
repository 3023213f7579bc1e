#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "model/checkpoint/checkpoint.h"
#include "model/tokenizer/tokenizer_config.h"

namespace tessera {

/// The tokenizer's file in a Hugging Face folder.
inline constexpr const char* kTokenizerJson = "tokenizer.json";

/// open_checkpoint for a Hugging Face folder.
Checkpoint open_hf_checkpoint(const std::filesystem::path& folder, const CheckpointOptions& options);

/// What the files beside a folder's tokenizer.json say; none if there are none.
std::optional<TokenizerConfig> read_tokenizer_config(const std::filesystem::path& folder);

/// The tokenizer of a folder's tokenizer.json and what the files beside it say; null without a
/// tokenizer.json.
std::shared_ptr<const Tokenizer> load_folder_tokenizer(const std::filesystem::path& folder);
std::shared_ptr<const Tokenizer> load_folder_tokenizer(const std::filesystem::path& folder,
                                                       const std::optional<TokenizerConfig>& config);

}  // namespace tessera
