#include <fmt/core.h>

#include <string>

#include "core/mapped_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_checkpoint.h"
#include "model/checkpoint/hf_checkpoint.h"
#include "tessera/error.h"

namespace tessera {

namespace fs = std::filesystem;

Checkpoint open_checkpoint(const fs::path& path, const CheckpointOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found || status.type() == fs::file_type::none) {
    throw Error(ErrorCode::kIo, fmt::format("cannot open '{}': {}", path.string(), error.message()));
  }
  if (status.type() == fs::file_type::directory) return open_hf_checkpoint(path, options);

  auto file = std::make_shared<const MappedFile>(path);
  if (has_gguf_magic(file->bytes())) return open_gguf_checkpoint(std::move(file), options);
  const std::string extension = path.extension().string();
  if (extension == ".gguf") {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: the file does not begin with the bytes 'GGUF' at byte 0", path.string()));
  }
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("'{}' is neither a folder in the Hugging Face format nor a .gguf file{}", path.string(),
                  extension == ".safetensors" || extension == ".json"
                      ? "; give the folder that holds it and its config.json"
                      : ""));
}

}  // namespace tessera
