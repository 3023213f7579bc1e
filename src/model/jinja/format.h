#pragma once

#include "model/jinja/value.h"

namespace tessera::jinja {

/// format % arguments: %s, %r, %d, %i, %u, %f, %e, %g, %x, %X, %o, %c and %%, with flags, width and
/// precision.
Value format_percent(Heap& heap, Value format, Value arguments);
/// format.format(*arguments): {}, {0}, {name}, {0[key]}, !s, !r and format specifications.
Value format_braces(Interpreter& interpreter, Value format, const Arguments& arguments);

}  // namespace tessera::jinja
