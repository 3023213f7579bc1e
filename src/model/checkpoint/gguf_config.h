#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "model/checkpoint/gguf.h"
#include "model/checkpoint/weights.h"
#include "model/config.h"

namespace tessera {

/// One of the files of a model.
struct GgufPart {
  GgufFile file;
  std::span<const std::byte> bytes;

  GgufPart(std::span<const std::byte> content, const std::string& source)
      : file(content, source), bytes(content) {}
};

/// Whether what a key of the metadata says is a token of the vocabulary.
bool is_token(const std::optional<std::int64_t>& id, std::int64_t vocab_size);

/// Throws Error{kUnsupported} that lists those which load.
Architecture read_gguf_architecture(const GgufFile& file);

/// What a model's metadata says. Of the parts' that of the first counts; `weights` has the tensors of all.
/// Throws Error{kCorruptFile} naming file, key, value and what was expected, or Error{kUnsupported}.
ModelConfig read_gguf_config(std::span<const GgufPart> parts, const WeightCollector& weights,
                             Architecture architecture);

}  // namespace tessera
