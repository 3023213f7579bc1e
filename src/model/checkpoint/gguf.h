#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint/stored_tensor.h"

namespace tessera {

/// Types of metadata values, numbered as in the file.
enum class GgufType : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

/// A metadata value, checked and left where it lies in the file.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  ///< of an array
  std::uint64_t count = 0;                   ///< elements of an array
  std::size_t offset = 0;                    ///< of the value (an array's first element) in the file
  std::span<const std::byte> bytes;          ///< the value; a string without its length; an array's elements
};

/// The metadata and the tensor directory of a GGUF file, version 2 or 3, little-endian. Views the file's
/// bytes, which must outlive it.
class GgufFile {
 public:
  /// Throws Error{kCorruptFile} naming `source`, the key or tensor and the byte, or Error{kUnsupported} for
  /// other versions, byte orders and tensor types.
  GgufFile(std::span<const std::byte> file, std::string source);

  const StoredTensors& tensors() const noexcept { return tensors_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const noexcept { return metadata_; }
  const std::string& source() const noexcept { return source_; }

  /// The value of a key as the asked type, none if the file has no such key. All throw Error{kCorruptFile} if
  /// it is of another kind; any width of integer will do, as does an integer where a number is asked for.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<bool>> booleans(std::string_view key) const;
  std::optional<std::vector<float>> floats(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;

  /// Throws Error{kCorruptFile} about a key: what is wrong and, if the file has it, where it stands.
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  const GgufValue* find(std::string_view key) const;
  const GgufValue* find_array(std::string_view key) const;

  std::string source_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  StoredTensors tensors_;
};

/// GGUF's number of the type that stores weights of `dtype`, one of weight_dtypes().
std::uint32_t gguf_tensor_type(DType dtype);

/// Whether a file opens with "GGUF".
bool has_gguf_magic(std::span<const std::byte> file) noexcept;

}  // namespace tessera
