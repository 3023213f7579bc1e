#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/fetch_ahead.h"
#include "backends/cpu/unroll.h"

namespace tessera::cpu {

/// Rows of one head among rows of several: row n begins at rows[n] + offset.
struct HeadRows {
  const std::byte* const* rows = nullptr;
  std::int64_t count = 0;
  std::int64_t offset = 0;

  const std::byte* operator[](std::int64_t n) const { return rows[n] + offset; }
};

// How far ahead of their use keys and values are loaded, and how far ahead of that they are asked for.
// Together about what memory delivers within its latency, and small beside the first-level cache.
inline constexpr std::int64_t kBytesLoadedAhead = 8 << 10;
inline constexpr std::int64_t kBytesAskedAhead = 8 << 10;
// Of shorter rows the ones to ask for aren't looked up, but taken to be as far apart as the first.
inline constexpr std::int64_t kLeastBytesFollowed = 1 << 9;

/// Rows that readers go over.
struct StreamedRows {
  StreamedRows(const std::byte* const* rows, std::int64_t count, std::int64_t row_bytes)
      : first(rows),
        last(rows + count - 1),
        row_bytes(row_bytes),
        rows_asked(std::max<std::int64_t>(kBytesAskedAhead / row_bytes, 1)),
        asked_ahead(rows_asked * (count > 1 ? rows[1] - rows[0] : row_bytes)) {}

  const std::byte* const* first;
  const std::byte* const* last;
  std::int64_t row_bytes;
  std::int64_t rows_asked;
  std::ptrdiff_t asked_ahead;  // bytes to the row that many further, where rows are as far apart as the first
  bool asks_second_level = fetch_ahead_distances().far != 0;
};

/// Brings rows into a cache ahead of their use, line by line in the order of their addresses,
/// whatever the order of use: memory that is read in another order comes at less than half of its rate. The
/// processor drops prefetches when too many are under way, so each line is loaded as well, before its use,
/// where it is to be in the first-level cache; asked for it is into the second-level cache where that waits
/// for more lines at a time. Small, as it is copied for every few keys.
/// kLevel: where it brings what it reads. What is used at once and no more than some KiB after it was asked
/// for belongs into the first-level cache, which more would thrash.
template <CacheLevel kLevel>
class BasicStreamReader {
 public:
  /// rows: live as long as the reader.
  explicit BasicStreamReader(const StreamedRows& rows)
      : rows_(&rows),
        row_(rows.first),
        line_(*rows.first),
        row_end_(line_ + rows.row_bytes),
        asked_ahead_(rows.asked_ahead) {}

  /// The next kLines lines; after the last row, that row again.
  template <int kLines>
  void advance() {
    if (row_end_ - line_ > 64 * (kLines - 1)) {
      TESSERA_UNROLL
      for (int i = 0; i < kLines; ++i) read(line_ + 64 * i);
      line_ += 64 * kLines;
      if (line_ >= row_end_) next_row();
      return;
    }
    for (int i = 0; i < kLines; ++i) {
      read(line_);
      line_ += 64;
      if (line_ >= row_end_) next_row();
    }
  }

 private:
  void read(const std::byte* line) const {
    if constexpr (kLevel == CacheLevel::kSecond) return prefetch_line<CacheLevel::kSecond>(line);
    static_cast<void>(*reinterpret_cast<const volatile std::uint8_t*>(line));
    // As a number, since a guess may lie in no array.
    const auto* asked = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(line) +
                                                      static_cast<std::uintptr_t>(asked_ahead_));
    if (rows_->asks_second_level) {
      prefetch_line<CacheLevel::kSecond>(asked);
    } else {
      prefetch_line<CacheLevel::kFirst>(asked);
    }
  }

  void next_row() {
    if (row_ < rows_->last) ++row_;
    line_ = *row_;
    row_end_ = line_ + rows_->row_bytes;
    if (kLevel == CacheLevel::kFirst && rows_->row_bytes >= kLeastBytesFollowed) {
      const bool is_known = rows_->last - row_ >= rows_->rows_asked;
      asked_ahead_ = is_known ? row_[rows_->rows_asked] - line_ : rows_->asked_ahead;
    }
  }

  const StreamedRows* rows_;
  const std::byte* const* row_;
  const std::byte* line_;
  const std::byte* row_end_;
  std::ptrdiff_t asked_ahead_;  // bytes from a line to the one that is asked for with it
};

using StreamReader = BasicStreamReader<CacheLevel::kFirst>;
using FarStreamReader = BasicStreamReader<CacheLevel::kSecond>;

}  // namespace tessera::cpu
