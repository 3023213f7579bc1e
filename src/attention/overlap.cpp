#include "attention/overlap.h"

#include <algorithm>
#include <optional>

namespace tessera {
namespace {

using Address = std::uintptr_t;
using Dimensions = std::array<StridedRows::Dimension, 3>;

constexpr int kMostBlocks = 2048;  // to look at, some microseconds

/// The dimensions with the largest stride first; those that lead nowhere (one element, broadcast) have
/// extent 1.
Dimensions outermost_first(Dimensions dimensions) {
  for (StridedRows::Dimension& d : dimensions) {
    if (d.extent <= 1 || d.stride_bytes == 0) d = {1, 0};
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](const auto& a, const auto& b) { return a.stride_bytes > b.stride_bytes; });
  return dimensions;
}

class OverlapSearch {
 public:
  OverlapSearch(const StridedRows& out, const StridedRows& in)
      : out_(outermost_first(out.dimensions)),
        in_(outermost_first(in.dimensions)),
        out_begin_(reinterpret_cast<Address>(out.data)),
        in_begin_(reinterpret_cast<Address>(in.data)),
        out_row_(static_cast<Address>(out.row_bytes)),
        in_row_(static_cast<Address>(in.row_bytes)) {
    in_span_[3] = in_row_;
    for (std::size_t i = 3; i-- > 0;)
      in_span_[i] = in_span_[i + 1] + static_cast<Address>((in_[i].extent - 1) * in_[i].stride_bytes);
  }

  bool overlap() { return meets(0, in_begin_); }

 private:
  /// The first byte of out at or after `from`, within the block of dimensions [level, 3) at `begin`.
  std::optional<Address> first_of_out(std::size_t level, Address begin, Address from) const {
    if (from <= begin) return begin;
    if (level == 3) return from < begin + out_row_ ? std::optional(from) : std::nullopt;
    const auto& [extent, signed_stride] = out_[level];
    const auto stride = static_cast<Address>(signed_stride);
    const Address last = static_cast<Address>(extent - 1);
    const Address index = stride == 0 ? 0 : std::min((from - begin) / stride, last);
    if (const auto found = first_of_out(level + 1, begin + index * stride, from)) return found;
    return index < last ? std::optional(begin + (index + 1) * stride) : std::nullopt;
  }

  /// Whether the block of in's dimensions [level, 3) at `begin` has a byte of out.
  bool meets(std::size_t level, Address begin) {
    if (++blocks_ > kMostBlocks) return false;
    std::optional<Address> byte = first_of_out(0, out_begin_, begin);
    if (!byte || *byte >= begin + in_span_[level]) return false;
    if (level == 3) return true;
    const auto stride = static_cast<Address>(in_[level].stride_bytes);
    const auto extent = static_cast<Address>(in_[level].extent);
    Address index = 0;
    while (index < extent && blocks_ <= kMostBlocks) {
      // The first of the smaller blocks that ends after the byte.
      const Address end = begin + in_span_[level + 1];
      if (stride > 0 && *byte >= end) index = std::max(index, (*byte - end) / stride + 1);
      if (index >= extent) return false;
      if (meets(level + 1, begin + index * stride)) return true;
      ++index;
      byte = first_of_out(0, out_begin_, begin + index * stride);
      if (!byte) return false;
    }
    return false;
  }

  Dimensions out_, in_;
  Address out_begin_, in_begin_;
  Address out_row_, in_row_;
  std::array<Address, 4> in_span_;  // bytes from the first to the last of dimensions [i, 3)
  int blocks_ = 0;
};

}  // namespace

bool overlap(const StridedRows& out, const StridedRows& in) { return OverlapSearch(out, in).overlap(); }

}  // namespace tessera
