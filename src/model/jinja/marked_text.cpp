#include "model/jinja/marked_text.h"

#include <algorithm>
#include <utility>

namespace tessera::jinja {

MarkedText::MarkedText(std::string bytes, bool foreign) : bytes_(std::move(bytes)) {
  if (foreign) mark(0, bytes_.size());
}

bool MarkedText::is_foreign(std::size_t position) const {
  const auto range = std::ranges::upper_bound(foreign_, position, {}, &TextRange::begin);
  return range != foreign_.begin() && position < std::prev(range)->end;
}

void MarkedText::mark(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  if (!foreign_.empty() && foreign_.back().end == begin) {
    foreign_.back().end = end;
  } else {
    foreign_.push_back({begin, end});
  }
}

void MarkedText::append(std::string_view text, bool foreign) {
  const std::size_t begin = bytes_.size();
  bytes_.append(text);
  if (foreign) mark(begin, bytes_.size());
}

void MarkedText::append(const MarkedText& text, std::size_t begin, std::size_t end) {
  end = std::min(end, text.size());
  if (begin >= end) return;
  const std::size_t offset = bytes_.size();
  bytes_.append(text.bytes_, begin, end - begin);
  auto range = std::ranges::upper_bound(text.foreign_, begin, {}, &TextRange::end);
  for (; range != text.foreign_.end() && range->begin < end; ++range) {
    mark(offset + std::max(range->begin, begin) - begin, offset + std::min(range->end, end) - begin);
  }
}

MarkedText MarkedText::part(std::size_t begin, std::size_t end) const {
  MarkedText result;
  result.append(*this, begin, end);
  return result;
}

}  // namespace tessera::jinja
