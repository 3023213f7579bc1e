#pragma once

#include <string>

#include "model/jinja/value.h"

namespace tessera::jinja {

/// str(value).
MarkedText to_text(Heap& heap, Value value);
/// Appends repr(value).
void append_repr(Heap& heap, Value value, MarkedText& out);

/// As repr prints it: the fewest digits that read back as the same number.
std::string float_repr(double value);

}  // namespace tessera::jinja
