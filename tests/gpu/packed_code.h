#pragma once

#include <gtest/gtest.h>
#include <lzma.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::gpu {

using PackedMember = std::pair<std::string, std::string>;  // name, bytes

/// A tar archive (POSIX's ustar format).
inline std::string tar_of(const std::vector<PackedMember>& members) {
  std::string archive;
  for (const auto& [name, bytes] : members) {
    std::string header(512, '\0');
    name.copy(header.data(), 100);
    std::snprintf(header.data() + 124, 12, "%011o", static_cast<unsigned>(bytes.size()));
    header[156] = '0';
    std::memcpy(header.data() + 257, "ustar", 5);
    archive += header + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
  }
  return archive + std::string(1024, '\0');
}

inline std::vector<std::byte> xz_of(const std::string& bytes) {
  std::vector<std::byte> packed(lzma_stream_buffer_bound(bytes.size()));
  std::size_t size_bytes = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(
                6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(bytes.data()),
                bytes.size(), reinterpret_cast<std::uint8_t*>(packed.data()), &size_bytes, packed.size()),
            LZMA_OK);
  packed.resize(size_bytes);
  return packed;
}

}  // namespace tessera::gpu
