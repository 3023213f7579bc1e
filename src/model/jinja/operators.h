#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <string_view>

#include "model/jinja/value.h"

/// What Python's operators do with values. All throw Failure where Python raises.
namespace tessera::jinja {

/// "str", "int", …: Python's name of a value's type.
std::string_view type_name(Value value);
/// Why an undefined value can't be used: "'name' is undefined".
std::string undefined_reason(Value value);
/// Throws Failure if `value` is undefined.
void require_defined(Value value);

/// Of values within values.
inline constexpr int kMaxNesting = 200;
/// Throws Failure beyond that.
void require_nesting(int depth);

bool truth(Value value);
std::size_t hash_text(std::string_view text);
// Each counts all that it looks at, which values that share parts multiply.
std::size_t hash(Heap& heap, Value value);
bool equal(Heap& heap, Value a, Value b);
/// <, <=, > and >= of numbers, strings, lists and tuples. Unordered: a NaN is among them.
std::partial_ordering compare(Heap& heap, Value a, Value b, std::string_view operation);
bool contains(Heap& heap, Value container, Value item);
/// len(). Throws for what has none.
std::int64_t length(Value value);

enum class Operation { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
Value apply(Heap& heap, Operation operation, Value a, Value b);
Value negate(Value value);

/// value[index], if it is there: an index outside or a key of a wrong type is no error here.
bool find_item(Heap& heap, Value value, Value index, Value& item);
/// value[start:stop:step]; none: left out.
Value slice(Heap& heap, Value value, Value start, Value stop, Value step);

/// What iterating over `value` gives. Throws for what can't be iterated over. An iterator is used up by it.
std::vector<Value> items_of(Heap& heap, Value value);

/// `text` with &, <, >, ' and " written as HTML does.
MarkedText escape_html(const MarkedText& text);

}  // namespace tessera::jinja
