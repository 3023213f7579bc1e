#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "model/checkpoint/checkpoint.h"

namespace tessera {

/// The checkpoint in the bytes of a GGUF file, which its tensors point into. Throws like open_checkpoint;
/// `source` names the file.
Checkpoint parse_gguf_checkpoint(std::span<const std::byte> file, const std::string& source,
                                 const CheckpointOptions& options);

/// The tokenizer that a GGUF file holds, null if it holds none; the file needs no tensors.
std::shared_ptr<const Tokenizer> parse_gguf_tokenizer(std::span<const std::byte> file,
                                                      const std::string& source);

/// open_checkpoint for a GGUF file, or the first of the parts of a model (NAME-00001-of-00003.gguf), which
/// lie beside it.
Checkpoint open_gguf_checkpoint(std::shared_ptr<const MappedFile> file, const CheckpointOptions& options);

}  // namespace tessera
