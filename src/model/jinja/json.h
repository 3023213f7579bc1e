#pragma once

#include <string>
#include <string_view>

#include "model/jinja/value.h"

namespace tessera::jinja {

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  bool pretty = false;  ///< each entry on a line of its own, behind `indent`
  std::string indent;
  std::string item_separator = ", ", key_separator = ": ";
};

/// As Python's json.dumps writes `value`.
MarkedText dump_json(Heap& heap, Value value, const JsonStyle& style);

/// The value that a JSON text describes, objects in the text's order. `foreign`: its strings are marked so.
/// Throws Failure for what is no JSON, has a key twice in an object or nests more than 200 deep.
Value parse_json(Heap& heap, std::string_view text, bool foreign);

}  // namespace tessera::jinja
