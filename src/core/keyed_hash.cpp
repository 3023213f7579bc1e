#include "core/keyed_hash.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

using Secret = std::array<unsigned char, XXH3_SECRET_DEFAULT_SIZE>;

Secret draw_secret() {
  std::random_device source;
  Secret secret;
  for (std::size_t i = 0; i < secret.size(); i += sizeof(std::uint32_t)) {
    const std::uint32_t bits = source();
    std::memcpy(secret.data() + i, &bits, sizeof(bits));
  }
  return secret;
}

}  // namespace

std::size_t KeyedHash::operator()(std::string_view text) const noexcept {
  static const Secret secret = draw_secret();
  return XXH3_64bits_withSecret(text.data(), text.size(), secret.data(), secret.size());
}

}  // namespace tessera
