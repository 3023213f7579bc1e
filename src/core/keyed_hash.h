#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

/// A hash of texts that come from files, for tables: XXH3 under a secret that is drawn at random once a
/// process, so that nobody can write a file whose texts collide. It differs from run to run; nothing but
/// look-ups may depend on it.
struct KeyedHash {
  std::size_t operator()(std::string_view text) const noexcept;
};

}  // namespace tessera
