#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace tessera {

/// A whole file mapped read-only into memory; unmapped when destroyed.
class MappedFile {
 public:
  /// Throws Error{kIo}, naming the path, if it can't be opened, is not a regular file or can't be mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tessera
