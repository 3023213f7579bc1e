#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::gpu {

/// The machine code that the build made for one architecture: a tar archive in xz, because modules have so
/// much in common that together they take a seventh of their size. It is unpacked when a member is first
/// asked for (50 ms for 2 MB), and kept: drivers may read code later. Safe to use from several threads.
class CodeArchive {
 public:
  /// `packed` outlives the archive.
  explicit CodeArchive(std::span<const std::byte> packed) : packed_(packed) {}

  /// The member of this name; a zero follows it, since drivers take texts that end so. Throws
  /// Error{kCorruptFile} if there is none, or the archive is damaged: the binary that it is part of is.
  std::span<const std::byte> find(std::string_view name) const;

 private:
  void unpack() const;

  std::span<const std::byte> packed_;
  mutable std::once_flag unpacked_once_;
  mutable std::vector<std::byte> unpacked_;
  mutable std::map<std::string, std::span<const std::byte>, std::less<>> members_;
};

}  // namespace tessera::gpu
