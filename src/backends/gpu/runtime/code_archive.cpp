#include "backends/gpu/runtime/code_archive.h"

#include <fmt/core.h>
#include <lzma.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

// A header of POSIX's ustar format, which a member's bytes follow, filled up to whole blocks.
constexpr std::size_t kBlockBytes = 512;
constexpr std::size_t kNameBytes = 100;
constexpr std::size_t kSizeAt = 124;
constexpr std::size_t kSizeDigits = 11;  // octal
constexpr std::size_t kTypeAt = 156;
constexpr char kFile = '0';

[[noreturn]] void throw_damaged(std::string_view how) {
  throw Error(ErrorCode::kCorruptFile,
              fmt::format("the machine code in this binary is damaged ({}): install it again", how));
}

/// What `xz` made of some bytes.
std::vector<std::byte> unpack_xz(std::span<const std::byte> packed) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, std::numeric_limits<std::uint64_t>::max(), 0) != LZMA_OK)
    throw Error(ErrorCode::kOutOfMemory, "there is no memory to unpack machine code with");
  stream.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::vector<std::byte> bytes;
  lzma_ret result = LZMA_OK;
  while (result == LZMA_OK) {
    const std::size_t size_bytes = bytes.size();
    try {
      bytes.resize(size_bytes + std::max(8 * packed.size(), kBlockBytes));
    } catch (...) {
      lzma_end(&stream);
      throw;
    }
    stream.next_out = reinterpret_cast<std::uint8_t*>(bytes.data() + size_bytes);
    stream.avail_out = bytes.size() - size_bytes;
    result = lzma_code(&stream, LZMA_FINISH);
    bytes.resize(bytes.size() - stream.avail_out);
  }
  lzma_end(&stream);
  if (result != LZMA_STREAM_END) throw_damaged(fmt::format("xz error {}", static_cast<int>(result)));
  return bytes;
}

}  // namespace

void CodeArchive::unpack() const {
  std::vector<std::byte> bytes = unpack_xz(packed_);
  std::map<std::string, std::span<const std::byte>, std::less<>> members;
  std::size_t at = 0;
  while (at + kBlockBytes <= bytes.size() && bytes[at] != std::byte{0}) {
    const char* header = reinterpret_cast<const char*>(&bytes[at]);
    const std::string name(header, strnlen(header, kNameBytes));
    std::size_t size_bytes = 0;
    const char* digits_end = header + kSizeAt + kSizeDigits;
    if (std::from_chars(header + kSizeAt, digits_end, size_bytes, 8).ptr != digits_end ||
        size_bytes >= bytes.size() - at - kBlockBytes || header[kTypeAt] != kFile)
      throw_damaged(fmt::format("at {}", name));
    at += kBlockBytes;
    // The zero after it takes the place of a header that is read below, if the member fills its last block.
    members[name] = {&bytes[at], size_bytes};
    at += round_up(size_bytes, kBlockBytes);
  }
  for (const auto& [name, member] : members)
    bytes[member.data() + member.size() - bytes.data()] = std::byte{0};
  members_ = std::move(members);
  unpacked_ = std::move(bytes);  // members still point into it
}

std::span<const std::byte> CodeArchive::find(std::string_view name) const {
  std::call_once(unpacked_once_, [this] { unpack(); });
  const auto found = members_.find(name);
  if (found == members_.end()) throw_damaged(fmt::format("{} is missing", name));
  return found->second;
}

}  // namespace tessera::gpu
