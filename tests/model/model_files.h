#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/error.h"

// Model files that tests write themselves, right or wrong.
namespace tessera::testing_files {

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

/// A .safetensors file with this header and this data.
inline std::string safetensors(const std::string& header, const std::string& data = "") {
  return raw(std::uint64_t{header.size()}) + header + data;
}

/// A string as GGUF stores it.
inline std::string gguf_string(std::string_view text) {
  return raw(std::uint64_t{text.size()}) + std::string(text);
}

/// Metadata types by the number that GGUF gives them.
enum GgufTypeId : std::uint32_t {
  kIdU8 = 0,
  kIdI8 = 1,
  kIdU16 = 2,
  kIdI16 = 3,
  kIdU32 = 4,
  kIdI32 = 5,
  kIdF32 = 6,
  kIdBool = 7,
  kIdString = 8,
  kIdArray = 9,
  kIdU64 = 10,
  kIdI64 = 11,
  kIdF64 = 12,
};

/// Puts a GGUF file together piece by piece; nothing is checked.
class GgufBuilder {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;

  GgufBuilder& entry(std::string_view key, std::uint32_t type, const std::string& value) {
    metadata_ += gguf_string(key) + raw(type) + value;
    ++num_metadata_;
    return *this;
  }
  GgufBuilder& u32(std::string_view key, std::uint32_t value) { return entry(key, kIdU32, raw(value)); }
  GgufBuilder& f32(std::string_view key, float value) { return entry(key, kIdF32, raw(value)); }
  GgufBuilder& text(std::string_view key, std::string_view value) {
    return entry(key, kIdString, gguf_string(value));
  }
  GgufBuilder& array(std::string_view key, std::uint32_t element_type, std::uint64_t count,
                     const std::string& elements) {
    return entry(key, kIdArray, raw(element_type) + raw(count) + elements);
  }

  /// `dims` innermost first, as in the file; the data goes behind that of the tensors before it.
  GgufBuilder& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                      const std::string& data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    return tensor_at(name, dims, type, data_.size(), data);
  }
  GgufBuilder& tensor_at(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                         std::uint64_t offset, const std::string& data = "") {
    tensors_ += gguf_string(name) + raw(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) tensors_ += raw(dim);
    tensors_ += raw(type) + raw(offset);
    ++num_tensors_;
    data_ += data;
    return *this;
  }

  /// The directory alone, then with the data behind its padding.
  std::string head() const {
    return "GGUF" + raw(version) + raw(num_tensors_) + raw(num_metadata_) + metadata_ + tensors_;
  }
  std::string build() const {
    std::string file = head();
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

 private:
  std::string metadata_, tensors_, data_;
  std::uint64_t num_metadata_ = 0, num_tensors_ = 0;
};

/// The message of the Error that `run` throws, which must have this code.
template <class F>
std::string error_of(ErrorCode code, F&& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error_code_name(error.code()), error_code_name(code)) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A folder that goes away with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::path(::testing::TempDir()) / "tessera_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view content) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    EXPECT_TRUE(file.good()) << name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::testing_files
