#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/gguf.h"
#include "tessera/dtype.h"

namespace tessera {

/// The metadata of a GGUF file to be. A value set again replaces the one before.
class GgufMetadata {
 public:
  void set_uint32(const std::string& key, std::int64_t value);  ///< throws Error{kUnsupported} beyond 32 bits
  void set_float(const std::string& key, float value);
  void set_bool(const std::string& key, bool value);
  void set_text(const std::string& key, std::string_view value);
  void set_integers(const std::string& key, std::span<const std::int32_t> values);
  void set_bools(const std::string& key, const std::vector<bool>& values);
  void set_floats(const std::string& key, std::span<const float> values);
  void set_texts(const std::string& key, std::span<const std::string> values);
  /// A value as another file has it.
  void set_value(const std::string& key, const GgufValue& value);

  std::size_t size() const { return values_.size(); }
  /// Entries as the file has them, by key.
  std::string encoded() const;

 private:
  std::map<std::string, std::string> values_;  // type and value
};

/// A tensor of a GGUF file to be, and where its numbers are.
struct GgufTensor {
  std::string name;
  CheckpointTensor source;
  DType dtype = DType::kF32;  ///< what is written
  /// If not 0, the rows of so many heads of equal size are written in another order: rows that RopePairing
  /// kHalves pairs come to lie side by side. Only for numbers, not for blocks.
  int interleaved_heads = 0;

  std::size_t size_bytes() const;  ///< of what is written
};

/// Writes a GGUF file, which appears under its name when it is whole. on_progress gets the bytes of tensors
/// read and of all, and may throw to cancel, which leaves no file. Throws Error{kIo} if there is a file
/// `path` already or it can't be written, Error{kInvalidArgument} for a number that a dtype can't hold.
void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                std::span<const GgufTensor> tensors,
                const std::function<void(std::uint64_t, std::uint64_t)>& on_progress = {});

}  // namespace tessera
