#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "model/jinja/value.h"

namespace tessera::jinja {

/// The arguments of a call by the names of a function's parameters.
class Bound {
 public:
  /// Throws Failure for more arguments than parameters, an unknown name, or fewer than `required`.
  Bound(std::string_view function, const Arguments& arguments,
        std::initializer_list<std::string_view> parameters, std::size_t required = 0);

  bool has(std::size_t index) const { return given_[index]; }
  /// Given, and not none.
  bool is_set(std::size_t index) const { return given_[index] && !values_[index].is(Kind::kNone); }
  Value operator[](std::size_t index) const { return values_[index]; }
  Value value_or(std::size_t index, Value otherwise) const {
    return given_[index] ? values_[index] : otherwise;
  }
  bool truth(std::size_t index, bool otherwise) const;
  /// These throw Failure for another type.
  std::int64_t integer(std::size_t index, std::int64_t otherwise) const;
  const MarkedText& text(std::size_t index) const;

 private:
  std::string_view function_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

}  // namespace tessera::jinja
