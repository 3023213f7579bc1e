#include "core/binary_cache.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEntrySuffix = ".kernel";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::array<char, 8> kMagic = {'T', 'S', 'R', 'C', 'A', 'C', 'H', '1'};

/// Larger files are not read: no module of kernels comes near.
constexpr std::uintmax_t kMaxEntryBytes = std::uintmax_t{1} << 28;

/// The start of an entry's file; the key, the description and the payload follow.
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint64_t checksum = 0;  ///< of everything after the header
  std::uint32_t key_size = 0;
  std::uint32_t description_size = 0;
  std::uint64_t payload_size = 0;
};

struct Content {
  std::string key;
  std::string description;
  std::vector<std::byte> payload;
  std::string damage;
};

Content read_entry(const fs::path& path) {
  Content content;
  std::error_code error;
  if (const auto size = fs::file_size(path, error); error || size > kMaxEntryBytes) {
    content.damage = error ? "it can't be read" : fmt::format("it has {} bytes, more than any kernel", size);
    return content;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Header header;
  if (!file.good() && !file.eof()) {
    content.damage = "it can't be read";
  } else if (bytes.size() < sizeof(Header)) {
    content.damage = fmt::format("it has {} bytes, fewer than its header", bytes.size());
  } else {
    std::memcpy(&header, bytes.data(), sizeof(Header));
    const std::uint64_t rest = bytes.size() - sizeof(Header);
    if (header.magic != kMagic) {
      content.damage = "it does not start like an entry";
    } else if (header.payload_size > rest ||
               rest - header.payload_size != std::uint64_t{header.key_size} + header.description_size) {
      content.damage = fmt::format("its header speaks of {} bytes and it has {}",
                                   header.payload_size + header.key_size + header.description_size, rest);
    } else if (XXH3_64bits(bytes.data() + sizeof(Header), rest) != header.checksum) {
      content.damage = "its checksum is wrong";
    }
  }
  if (!content.damage.empty()) return content;
  const char* at = bytes.data() + sizeof(Header);
  content.key.assign(at, header.key_size);
  content.description.assign(at + header.key_size, header.description_size);
  const auto* payload = reinterpret_cast<const std::byte*>(at + header.key_size + header.description_size);
  content.payload.assign(payload, payload + header.payload_size);
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

bool ends_with(const fs::path& path, std::string_view suffix) {
  return path.filename().string().ends_with(suffix);
}

bool is_old(const fs::path& path) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  return !error && fs::file_time_type::clock::now() - written > std::chrono::hours(1);
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (ends_with(it->path(), kEntrySuffix) || ends_with(it->path(), kTemporarySuffix))
      files.push_back(it->path());
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
  if (const fs::path xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg / "tessera";
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
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  Content content = read_entry(path);
  if (content.damage.empty() && content.key == key) return std::move(content.payload);
  fs::remove(path, error);
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
  Header header;
  header.key_size = static_cast<std::uint32_t>(key.size());
  header.description_size = static_cast<std::uint32_t>(description.size());
  header.payload_size = payload.size();
  header.checksum = XXH3_64bits(bytes.data() + sizeof(Header), bytes.size() - sizeof(Header));
  std::memcpy(bytes.data(), &header, sizeof(Header));

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

std::vector<BinaryCache::Entry> BinaryCache::list() const {
  std::vector<Entry> entries;
  for (const fs::path& path : files_of(folder_)) {
    Entry entry{path, "", 0, ""};
    std::error_code error;
    entry.size_bytes = static_cast<std::size_t>(fs::file_size(path, error));
    if (ends_with(path, kTemporarySuffix)) {
      if (!is_old(path)) continue;  // somebody may still be writing it
      entry.damage = "it was never finished";
    } else {
      const Content content = read_entry(path);
      entry.description = content.description;
      entry.damage = content.damage;
      if (entry.damage.empty() && path.filename() != content.key + std::string(kEntrySuffix)) {
        entry.damage = "its name is not its key";
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

int BinaryCache::clear() {
  int removed = 0;
  for (const fs::path& path : files_of(folder_)) {
    std::error_code error;
    if (fs::remove(path, error)) ++removed;
  }
  return removed;
}

}  // namespace tessera
