#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tessera {

/// A whole file mapped read-only into memory; unmapped when destroyed.
///
/// If another process makes the file shorter meanwhile, the system answers a read of what is gone with
/// SIGBUS: see path_of_mapped_address. (One that writes a new file and renames it does no harm.)
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
  friend const char* path_of_mapped_address(const void* address) noexcept;
  struct Record;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Record* record_ = nullptr;  // where path_of_mapped_address finds the mapping
};

/// The path of the MappedFile that `address` lies in, null if it lies in none. For a handler of SIGBUS: it
/// may be called in one, whatever the thread was doing. The pointer is valid as long as the mapping.
const char* path_of_mapped_address(const void* address) noexcept;

/// The content of a file of at most max_bytes, read at once, so that nothing happens to it later. Throws like
/// MappedFile, and Error{kCorruptFile} for a longer file.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace tessera
