#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "model/jinja/value.h"

/// What templates find ready-made.
namespace tessera::jinja {

using NamedFunction = std::pair<std::string_view, NativeFunction>;

/// Each gets the value that it is applied to as `self`. Null: there is none of this name.
NativeFunction find_filter(std::string_view name);
NativeFunction find_test(std::string_view name);

std::span<const NamedFunction> global_functions();

/// A method of `object`, or one of a loop's or namespace's attributes.
bool find_attribute(Interpreter& interpreter, Value object, std::string_view name, Value& found);

// The tables that these are made of.
std::span<const NamedFunction> text_filters();
std::span<const NamedFunction> sequence_filters();
NativeFunction find_string_method(std::string_view name);
NativeFunction find_list_method(std::string_view name);
NativeFunction find_dict_method(std::string_view name);

/// The function called `name` of a table; null if there is none.
NativeFunction find_function(std::span<const NamedFunction> table, std::string_view name);

}  // namespace tessera::jinja
