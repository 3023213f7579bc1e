#include <fmt/core.h>

#include <string>

#include "core/mapped_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_checkpoint.h"
#include "model/checkpoint/hf_checkpoint.h"
#include "model/tokenizer/tokenizer.h"
#include "tessera/error.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// Throws Error{kIo} if there is nothing at `path`.
fs::file_type type_of(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::not_found || type == fs::file_type::none) {
    // Other programs take the name of a model in a public store here, and download it.
    const char* const expected = type == fs::file_type::not_found
                                     ? "; expected a folder in the Hugging Face format or a .gguf file "
                                       "on this machine (nothing is downloaded)"
                                     : "";
    throw Error(ErrorCode::kIo,
                fmt::format("cannot open '{}': {}{}", path.string(), error.message(), expected));
  }
  return type;
}

/// Throws unless `file` begins as a GGUF file does.
void require_gguf(const MappedFile& file) {
  if (has_gguf_magic(file.bytes())) return;
  const fs::path& path = file.path();
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

}  // namespace

Checkpoint open_checkpoint(const fs::path& path, const CheckpointOptions& options) {
  if (type_of(path) == fs::file_type::directory) return open_hf_checkpoint(path, options);
  auto file = std::make_shared<const MappedFile>(path);
  require_gguf(*file);
  return open_gguf_checkpoint(std::move(file), options);
}

std::shared_ptr<const Tokenizer> open_tokenizer(const fs::path& path) {
  const fs::file_type type = type_of(path);
  if (type != fs::file_type::directory && path.extension() == ".json") return load_tokenizer_json(path);
  std::shared_ptr<const Tokenizer> tokenizer;
  if (type == fs::file_type::directory) {
    tokenizer = load_folder_tokenizer(path);
  } else {
    const MappedFile file(path);
    require_gguf(file);
    tokenizer = parse_gguf_tokenizer(file.bytes(), path.string());
  }
  if (tokenizer == nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{} has no tokenizer; expected a tokenizer.json beside the weights", path.string()));
  }
  return tokenizer;
}

}  // namespace tessera
