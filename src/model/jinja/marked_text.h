#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"

namespace tessera::jinja {

/// UTF-8 that knows which of its bytes came from outside (foreign), and keeps knowing it through slices and
/// concatenations: what a user wrote must not be read as one of the template's control tokens.
class MarkedText {
 public:
  static constexpr std::size_t kEnd = static_cast<std::size_t>(-1);

  MarkedText() = default;
  explicit MarkedText(std::string bytes, bool foreign = false);

  std::string_view view() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  /// Ascending, not empty, with something between each two.
  const std::vector<TextRange>& foreign() const { return foreign_; }
  bool is_foreign(std::size_t position) const;

  void append(std::string_view text, bool foreign = false);
  void append(const MarkedText& text, std::size_t begin = 0, std::size_t end = kEnd);
  MarkedText part(std::size_t begin, std::size_t end = kEnd) const;

 private:
  void mark(std::size_t begin, std::size_t end);

  std::string bytes_;
  std::vector<TextRange> foreign_;
};

}  // namespace tessera::jinja
