#include "core/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "tessera/error.h"

namespace tessera {
namespace {

struct Descriptor {
  int fd;
  explicit Descriptor(int descriptor) : fd(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void throw_io(const std::filesystem::path& path, const char* what) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {} '{}': {}", what, path.string(), std::strerror(errno)));
}

Descriptor open_regular_file(const std::filesystem::path& path, std::size_t& size) {
  // Without O_NONBLOCK a named pipe would wait here for a writer.
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw_io(path, "open");
  struct stat status = {};
  if (::fstat(file.fd, &status) != 0) throw_io(path, "examine");
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo, fmt::format("'{}' is not a regular file", path.string()));
  }
  size = static_cast<std::size_t>(status.st_size);
  return file;
}

}  // namespace

/// One mapping in a list that a signal handler can walk: records are added in front and used again, but never
/// freed.
struct MappedFile::Record {
  std::atomic<std::uintptr_t> begin{0};  // 0: unused
  std::atomic<std::size_t> size{0};
  std::atomic<const char*> path{nullptr};
  Record* next = nullptr;

  static inline std::atomic<Record*> first{nullptr};
  static inline std::mutex mutex;  // held by those who add and remove

  static Record* add(const std::byte* data, std::size_t size, const std::filesystem::path& path) {
    char* const copied_path = ::strdup(path.c_str());
    if (copied_path == nullptr) throw Error(ErrorCode::kOutOfMemory, "no memory is left for a file's path");
    const std::lock_guard lock(mutex);
    Record* record = first;
    while (record != nullptr && record->begin != 0) record = record->next;
    if (record == nullptr) {
      record = new Record;
      record->next = first;
      first = record;
    }
    record->size = size;
    record->path = copied_path;
    record->begin = reinterpret_cast<std::uintptr_t>(data);
    return record;
  }

  void remove() noexcept {
    const std::lock_guard lock(mutex);
    begin = 0;
    std::free(const_cast<char*>(path.exchange(nullptr)));
  }
};

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file = open_regular_file(path, size_);
  if (size_ == 0) return;  // an empty mapping is not allowed, an empty file is
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) throw_io(path, "map");
  // Where a file's pages may be large ones, weights are then read 2 MB at a time, and streams of them look up
  // fewer addresses. Elsewhere this fails, and nothing is lost.
  ::madvise(address, size_, MADV_HUGEPAGE);
  data_ = static_cast<const std::byte*>(address);
  try {
    record_ = Record::add(data_, size_, path);
  } catch (...) {
    ::munmap(address, size_);
    throw;
  }
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  record_->remove();
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      record_(std::exchange(other.record_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(record_, other.record_);
  return *this;
}

const char* path_of_mapped_address(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const MappedFile::Record* record = MappedFile::Record::first; record != nullptr;
       record = record->next) {
    const std::uintptr_t begin = record->begin;
    if (begin != 0 && at >= begin && at - begin < record->size) return record->path;
  }
  return nullptr;
}

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::size_t size = 0;
  const Descriptor file = open_regular_file(path, size);
  const auto check_size = [&](std::size_t bytes) {
    if (bytes <= max_bytes) return;
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the file has {} bytes; at most {} were expected",
                                                     path.string(), bytes, max_bytes));
  };
  check_size(size);
  std::string content(size + 1, '\0');  // one more, to see the end
  for (std::size_t done = 0;;) {
    const ssize_t count = ::read(file.fd, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_io(path, "read");
    done += static_cast<std::size_t>(count);
    check_size(done);
    if (count == 0) {
      content.resize(done);
      return content;
    }
    if (done == content.size()) content.resize(2 * done);
  }
}

}  // namespace tessera
