// Functions that templates can call, and the search through the tables of filters.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "core/text.h"
#include "model/jinja/arguments.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"

namespace tessera::jinja {
namespace {

// As jinja2's sandbox has it.
constexpr std::int64_t kMaxRange = 100'000;

Value range(Interpreter& interpreter, Value, const Arguments& arguments) {
  const Bound bound("range()", arguments, {"start", "stop", "step"}, 1);
  const bool only_stop = !bound.has(1);
  const std::int64_t start = only_stop ? 0 : bound.integer(0, 0);
  const std::int64_t stop = only_stop ? bound.integer(0, 0) : bound.integer(1, 0);
  const std::int64_t step = bound.integer(2, 1);
  if (step == 0) throw Failure{"range() arg 3 must not be zero"};
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange) {
      throw Failure{fmt::format("range() has more than {} items", kMaxRange)};
    }
    items.push_back(Value::of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  const Value result = interpreter.heap().sequence(Kind::kRange, std::move(items));
  result.sequence->start = start;
  result.sequence->stop = stop;
  result.sequence->step = step;
  return result;
}

Value make_dict(Interpreter& interpreter, Value, const Arguments& arguments) {
  const Value dict = interpreter.heap().dict();
  find_dict_method("update")(interpreter, dict, arguments);
  return dict;
}

Value make_namespace(Interpreter& interpreter, Value, const Arguments& arguments) {
  Value result = make_dict(interpreter, {}, arguments);
  for (const auto& [name, value] : result.dict->entries) {
    if (name.is(Kind::kString) && name.view().starts_with('_')) {
      throw Failure{fmt::format("a namespace's attribute can't be called '{}'", printable(name.view()))};
    }
  }
  result.kind = Kind::kNamespace;
  return result;
}

Value raise_exception(Interpreter& interpreter, Value, const Arguments& arguments) {
  const Bound bound("raise_exception()", arguments, {"message"}, 1);
  throw Failure{
      fmt::format("the template refuses: {}", printable(to_text(interpreter.heap(), bound[0]).view(), 1000))};
}

Value strftime_now(Interpreter& interpreter, Value, const Arguments& arguments) {
  const Bound bound("strftime_now()", arguments, {"format"}, 1);
  const std::string format(bound.text(0).view());
  if (format.size() > 1000) throw Failure{"strftime_now(): the format has more than 1000 bytes"};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 16384> buffer{};
  // A format that gives no text (%p in some languages) is told apart from one that gives too much by the
  // space.
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), (format + ' ').c_str(), &local);
  if (size == 0) throw Failure{"strftime_now(): the text gets too long"};
  const std::string_view text(buffer.data(), size - 1);
  if (!is_valid_utf8(text)) throw Failure{"strftime_now(): the result is not UTF-8"};
  return interpreter.heap().string(text);
}

constexpr NamedFunction kGlobals[] = {
    {"dict", make_dict}, {"namespace", make_namespace},  {"raise_exception", raise_exception},
    {"range", range},    {"strftime_now", strftime_now},
};

}  // namespace

std::span<const NamedFunction> global_functions() { return kGlobals; }

NativeFunction find_function(std::span<const NamedFunction> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &NamedFunction::first);
  return found == table.end() ? nullptr : found->second;
}

NativeFunction find_filter(std::string_view name) {
  const NativeFunction filter = find_function(text_filters(), name);
  return filter != nullptr ? filter : find_function(sequence_filters(), name);
}

}  // namespace tessera::jinja
