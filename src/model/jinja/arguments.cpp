#include "model/jinja/arguments.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/text.h"
#include "model/jinja/operators.h"

namespace tessera::jinja {

Bound::Bound(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> parameters, std::size_t required)
    : function_(function), values_(parameters.size()), given_(parameters.size()) {
  if (arguments.positional.size() > parameters.size()) {
    throw Failure{fmt::format("{} takes at most {} arguments, {} were given", function, parameters.size(),
                              arguments.positional.size())};
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = arguments.positional[i];
    given_[i] = true;
  }
  for (const auto& [name, value] : arguments.named) {
    const auto at = static_cast<std::size_t>(std::ranges::find(parameters, name) - parameters.begin());
    if (at == parameters.size()) {
      throw Failure{fmt::format("{} got an unexpected keyword argument '{}'", function, printable(name))};
    }
    if (given_[at]) throw Failure{fmt::format("{} got multiple values for argument '{}'", function, name)};
    values_[at] = value;
    given_[at] = true;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!given_[i])
      throw Failure{fmt::format("{} misses the argument '{}'", function, parameters.begin()[i])};
  }
}

bool Bound::truth(std::size_t index, bool otherwise) const {
  return given_[index] ? jinja::truth(values_[index]) : otherwise;
}

std::int64_t Bound::integer(std::size_t index, std::int64_t otherwise) const {
  if (!given_[index]) return otherwise;
  require_defined(values_[index]);
  if (!values_[index].is_integral()) {
    throw Failure{fmt::format("{}: '{}' object cannot be interpreted as an integer", function_,
                              type_name(values_[index]))};
  }
  return values_[index].as_integer();
}

const MarkedText& Bound::text(std::size_t index) const {
  require_defined(values_[index]);
  if (!values_[index].is(Kind::kString)) {
    throw Failure{fmt::format("{}: expected str, got {}", function_, type_name(values_[index]))};
  }
  return *values_[index].text;
}

}  // namespace tessera::jinja
