#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "model/checkpoint/stored_tensor.h"

namespace tessera {

/// Reads the directory of a .safetensors file: 8 bytes of header length (little-endian), the header as JSON,
/// then the tensors' bytes. As the format demands, the tensors cover those bytes without gap or overlap.
/// Throws Error{kCorruptFile} naming `source`, the tensor and the byte, or Error{kUnsupported} for a dtype of
/// a newer revision.
StoredTensors parse_safetensors(std::span<const std::byte> file, const std::string& source);

}  // namespace tessera
