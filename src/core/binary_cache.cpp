#include "core/binary_cache.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <system_error>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEntrySuffix = ".kernel";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::size_t kKeyDigits = 32;
constexpr std::string_view kMagic = "TSRCACH2";
constexpr std::size_t kVersion = 7;  ///< where the magic says which version of the format this is

/// Larger files are not read: no module of kernels comes near.
constexpr std::uint64_t kMaxEntryBytes = std::uint64_t{1} << 28;

/// The start of an entry's file; the key, the description and the payload follow.
struct Header {
  std::array<char, kMagic.size()> magic;
  std::uint64_t checksum = 0;  ///< of everything after it
  std::uint32_t key_size = 0;
  std::uint32_t description_size = 0;
  std::uint64_t payload_size = 0;
};
constexpr std::size_t kChecksumEnd = offsetof(Header, checksum) + sizeof(Header::checksum);

std::uint64_t checksum_of(std::string_view file) {
  return XXH3_64bits(file.data() + kChecksumEnd, file.size() - kChecksumEnd);
}

bool is_key(std::string_view text) {
  return text.size() == kKeyDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool is_entry_name(std::string_view name) {
  if (!name.ends_with(kEntrySuffix)) return false;
  return is_key(name.substr(0, name.size() - kEntrySuffix.size()));
}

/// KEY.PROCESS.COUNT.tmp
bool is_temporary_name(std::string_view name) {
  if (!name.ends_with(kTemporarySuffix) || !is_key(name.substr(0, kKeyDigits))) return false;
  std::string_view rest = name.substr(kKeyDigits, name.size() - kKeyDigits - kTemporarySuffix.size());
  for (int number = 0; number < 2; ++number) {
    if (!rest.starts_with('.')) return false;
    rest.remove_prefix(1);
    const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (digits == 0) return false;
    rest.remove_prefix(digits);
  }
  return rest.empty();
}

struct Content {
  std::string key;
  std::string description;
  std::vector<std::byte> payload;
  std::uint64_t size_bytes = 0;  ///< of the file
  std::string damage;
  bool is_ours = false;  ///< starts like an entry of some version, as far as it goes
};

/// The bytes of an open file of at most `size_bytes`; none if it can't be read.
std::optional<std::string> read_whole(int fd, std::size_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  std::size_t done = 0;
  while (done < size_bytes) {
    const ssize_t count = ::read(fd, bytes.data() + done, size_bytes - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

/// Why a file's owner and mode forbid to run what is in it; empty if they don't.
std::string distrust(const struct stat& status) {
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return fmt::format("it belongs to another user, {}", status.st_uid);
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "other users may write to it";
  return {};
}

/// Takes an entry's file apart; says in content.damage what is wrong with it.
void parse_entry(std::string_view bytes, Content& content) {
  const std::size_t known = std::min(bytes.size(), kVersion);
  content.is_ours = bytes.substr(0, known) == kMagic.substr(0, known);
  if (bytes.size() < sizeof(Header)) {
    content.damage = fmt::format("it has {} bytes, fewer than its header", bytes.size());
    return;
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  const std::uint64_t rest = bytes.size() - sizeof(Header);
  const std::uint64_t names = std::uint64_t{header.key_size} + header.description_size;
  if (!bytes.starts_with(kMagic)) {
    content.damage =
        content.is_ours ? "it was written by another version" : "it does not start like an entry";
  } else if (header.payload_size > rest || rest - header.payload_size != names) {
    content.damage =
        fmt::format("its header speaks of {} + {} bytes and it has {}", names, header.payload_size, rest);
  } else if (checksum_of(bytes) != header.checksum) {
    content.damage = "its checksum is wrong";
  }
  if (!content.damage.empty()) return;
  const char* at = bytes.data() + sizeof(Header);
  content.key.assign(at, header.key_size);
  content.description.assign(at + header.key_size, header.description_size);
  const auto* payload = reinterpret_cast<const std::byte*>(at + names);
  content.payload.assign(payload, payload + header.payload_size);
}

/// Reads a regular file; never waits for a device or a pipe, never follows a link.
Content read_entry(const fs::path& path) {
  Content content;
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    content.damage = errno == ELOOP ? "it is no regular file" : "it can't be read";
    return content;
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    content.damage = "it is no regular file";
  } else {
    content.size_bytes = static_cast<std::uint64_t>(status.st_size);
    const bool too_large = content.size_bytes > kMaxEntryBytes;
    const auto bytes = read_whole(fd, too_large ? sizeof(Header) : content.size_bytes);
    if (!bytes) {
      content.damage = "it can't be read";
    } else {
      parse_entry(*bytes, content);
      if (too_large) {
        content.damage = fmt::format("it has {} bytes, more than any kernel", content.size_bytes);
      } else if (content.damage.empty()) {
        content.damage = distrust(status);
      }
    }
  }
  ::close(fd);
  return content;
}

/// Writes and flushes to the disk; false with errno set if that fails.
bool write_whole(const fs::path& path, std::span<const char> bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  bool ok = true;
  for (std::size_t done = 0; ok && done < bytes.size();) {
    const ssize_t written = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    ok = written > 0;
    if (ok) done += static_cast<std::size_t>(written);
  }
  ok = ok && ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  errno = error;
  return ok;
}

bool is_old(const fs::path& path) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  return !error && fs::file_time_type::clock::now() - written > std::chrono::hours(1);
}

/// Files whose names are the cache's.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (is_entry_name(name) || is_temporary_name(name)) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

fs::path BinaryCache::default_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value != nullptr ? value : "");
  };
  if (const fs::path own = variable("TESSERA_CACHE_DIR"); !own.empty()) return own;
  // The XDG Base Directory Specification has relative paths ignored: the cache would be another in each
  // folder.
  if (const fs::path xdg = variable("XDG_CACHE_HOME"); xdg.is_absolute()) return xdg / "tessera";
  if (const fs::path home = variable("HOME"); !home.empty()) return home / ".cache" / "tessera";
  return {};
}

std::string BinaryCache::make_key(std::span<const std::string_view> parts) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  for (const std::string_view part : parts) {
    const std::uint64_t size = part.size();
    XXH3_128bits_update(state, &size, sizeof(size));
    XXH3_128bits_update(state, part.data(), part.size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::optional<std::vector<std::byte>> BinaryCache::load(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  const fs::path path = folder_ / (key + std::string(kEntrySuffix));
  Content content = read_entry(path);
  if (content.damage.empty() && content.key == key) return std::move(content.payload);
  std::error_code error;
  if (content.is_ours) fs::remove(path, error);
  return std::nullopt;
}

bool BinaryCache::store(const std::string& key, const std::string& description,
                        std::span<const std::byte> payload) {
  if (folder_.empty()) {
    write_problem_ = "no cache folder: none of TESSERA_CACHE_DIR, XDG_CACHE_HOME and HOME is set";
    return false;
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  std::vector<char> bytes(sizeof(Header));
  bytes.insert(bytes.end(), key.begin(), key.end());
  bytes.insert(bytes.end(), description.begin(), description.end());
  const auto* data = reinterpret_cast<const char*>(payload.data());
  bytes.insert(bytes.end(), data, data + payload.size());
  Header header{};
  std::copy(kMagic.begin(), kMagic.end(), header.magic.begin());
  header.key_size = static_cast<std::uint32_t>(key.size());
  header.description_size = static_cast<std::uint32_t>(description.size());
  header.payload_size = payload.size();
  std::memcpy(bytes.data(), &header, sizeof(Header));
  header.checksum = checksum_of({bytes.data(), bytes.size()});
  std::memcpy(bytes.data() + offsetof(Header, checksum), &header.checksum, sizeof(header.checksum));

  static std::atomic<unsigned> counter{0};
  const fs::path temporary =
      folder_ / fmt::format("{}.{}.{}{}", key, ::getpid(), counter.fetch_add(1), kTemporarySuffix);
  if (!write_whole(temporary, bytes)) {
    write_problem_ = fmt::format("cannot write '{}': {}", temporary.string(), std::strerror(errno));
    fs::remove(temporary, error);
    return false;
  }
  fs::rename(temporary, folder_ / (key + std::string(kEntrySuffix)), error);
  if (error) {
    write_problem_ = fmt::format("cannot rename '{}': {}", temporary.string(), error.message());
    fs::remove(temporary, error);
    return false;
  }
  return true;
}

BinaryCache::Lock::Lock(const BinaryCache& cache) {
  std::error_code error;
  if (!cache.folder_.empty()) fs::create_directories(cache.folder_, error);
  folder_ = ::open(cache.folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  while (folder_ >= 0 && ::flock(folder_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

BinaryCache::Lock::~Lock() {
  if (folder_ >= 0) ::close(folder_);
}

std::vector<BinaryCache::Entry> BinaryCache::list() const {
  std::vector<Entry> entries;
  for (const fs::path& path : files_of(folder_)) {
    const bool is_temporary = is_temporary_name(path.filename().string());
    if (is_temporary && !is_old(path)) continue;  // somebody may still be writing it
    Content content = read_entry(path);
    if (is_temporary) {
      content.damage = "it was never finished";
    } else if (content.damage.empty() && path.filename() != content.key + std::string(kEntrySuffix)) {
      content.damage = "its name is not its key";
    }
    entries.push_back({path, std::move(content.description), content.size_bytes, std::move(content.damage),
                       content.is_ours});
  }
  return entries;
}

int BinaryCache::clear() {
  int removed = 0;
  for (const fs::path& path : files_of(folder_)) {
    std::error_code error;
    if (read_entry(path).is_ours && fs::remove(path, error)) ++removed;
  }
  return removed;
}

}  // namespace tessera
