#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace tessera {

/// Throws Error{kIo} if there is something of this name already: nobody's file is overwritten.
void require_new_file(const std::filesystem::path& path);

/// A file that is there under its name once it is whole, and is taken away again otherwise. Until then it has
/// a name of its own, so that it destroys no other file and two that are written at once don't mix.
class NewFile {
 public:
  /// Throws Error{kIo} as require_new_file does, and where nothing can be written.
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Throws Error{kIo} if the disk is full, say.
  void write(const void* data, std::size_t size_bytes);
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  /// Gives it its name. Throws Error{kIo} if another has come to it meanwhile.
  void finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  [[noreturn]] void fail() const;

  std::filesystem::path path_, partial_;
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t size_bytes_ = 0;
  bool is_whole_ = false;
};

}  // namespace tessera
