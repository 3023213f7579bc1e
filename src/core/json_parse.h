#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tessera {

/// Parses `text`, which may come from anyone. Throws Error{kCorruptFile} with `source`, the byte offset and
/// the reason for invalid JSON or UTF-8, a key that stands twice in one object, a number beyond fp64's range,
/// or values nested deeper than max_depth (the destructor of a nlohmann::json recurses).
nlohmann::json parse_json_bounded(std::string_view text, const std::string& source, int max_depth = 64);

/// One member of the outermost object; `offset` is the byte just behind its key.
using JsonMemberCallback =
    std::function<void(const std::string& key, const nlohmann::json& value, std::size_t offset)>;

/// Calls on_member for each member of the object that `text` must hold, in order, keeping only one of them in
/// memory. Throws like parse_json_bounded, also if a member holds more than max_values values; only keys of
/// the outermost object may repeat.
void parse_json_members(std::string_view text, const std::string& source, const JsonMemberCallback& on_member,
                        int max_depth = 64, std::size_t max_values = std::size_t{1} << 20);

}  // namespace tessera
