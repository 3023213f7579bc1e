#include "core/new_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "tessera/error.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void exists_already(const fs::path& path) {
  throw Error(ErrorCode::kIo,
              fmt::format("'{}' exists already; remove it first, or give another name", path.string()));
}

}  // namespace

void require_new_file(const fs::path& path) {
  std::error_code ignored;
  if (fs::symlink_status(path, ignored).type() != fs::file_type::not_found) exists_already(path);
}

NewFile::NewFile(const fs::path& path) : path_(path) {
  require_new_file(path_);
  for (int number = 0; !file_; ++number) {
    partial_ = fmt::format("{}.{}-{}.partial", path_.string(), ::getpid(), number);
    file_.reset(std::fopen(partial_.c_str(), "wbxe"));
    if (!file_ && errno != EEXIST) fail();
  }
}

NewFile::~NewFile() {
  file_.reset();
  std::error_code ignored;
  if (!is_whole_) fs::remove(partial_, ignored);
}

void NewFile::write(const void* data, std::size_t size_bytes) {
  if (std::fwrite(data, 1, size_bytes, file_.get()) != size_bytes) fail();
  size_bytes_ += size_bytes;
}

void NewFile::finish() {
  if (std::fclose(file_.release()) != 0) fail();
  // What came under this name meanwhile is somebody's. Some file systems can't look and rename at once.
  int failed = ::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE);
  if (failed != 0 && errno == EEXIST) exists_already(path_);
  if (failed != 0 && (errno == EINVAL || errno == ENOSYS))
    failed = std::rename(partial_.c_str(), path_.c_str());
  if (failed != 0) fail();
  is_whole_ = true;
}

void NewFile::fail() const {
  throw Error(ErrorCode::kIo, fmt::format("cannot write '{}': {}", path_.string(),
                                          std::error_code(errno, std::generic_category()).message()));
}

}  // namespace tessera
