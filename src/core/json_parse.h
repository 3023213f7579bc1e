#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Takes one entry of a container. `key` is empty in an array; `offset` is the byte just behind the key, or
/// behind what was read of the entry.
using JsonEntryCallback =
    std::function<void(const std::string& key, const nlohmann::json& value, std::size_t offset)>;

/// A container whose entries are handed on one by one instead of being kept: where it stood there is an empty
/// one in the end. Keys may repeat in it.
struct JsonStream {
  std::vector<std::string> path;  ///< the keys that lead to it; empty: the outermost one
  JsonEntryCallback on_entry;     ///< in the order of the text; may throw
};

struct JsonLimits {
  int max_depth = 64;  ///< of nesting: the destructor of a nlohmann::json recurses
  /// Values in memory at once. One takes up to about 100 bytes beside its text.
  std::size_t max_values = std::size_t{1} << 22;
};

/// Parses `text`, which may come from anyone. Throws Error{kCorruptFile} with `source`, the byte offset and
/// the reason for what is no JSON (a byte order mark or a zero byte included) or no UTF-8, a key that stands
/// twice in one object, a number beyond fp64's range, or a text beyond the limits.
nlohmann::json parse_json_bounded(std::string_view text, const std::string& source,
                                  const JsonLimits& limits = {}, std::span<const JsonStream> streams = {});

}  // namespace tessera
