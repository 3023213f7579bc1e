#pragma once

#include "common/attention_params.h"
#include "common/platform.cuh"

// How a warp that copies pages looks them up.

namespace tessera::kernels {

/// A sequence's row of the block table, 64 entries of it in a warp's registers: those in use and the next,
/// which have been asked for.
class PageWindow {
 public:
  TESSERA_DEVICE PageWindow(const AttentionParams& p, int b, int len_kv, int first_page)
      : table_(p.block_table + b * p.block_table_stride),
        last_((len_kv - 1) / p.page_size),
        begin_(first_page),
        entry_(load(first_page)),
        next_(load(first_page + 32)) {}

  /// Of pages that don't become less; each lane asks for its own, at most 32 from the least of them on.
  TESSERA_DEVICE int at(int least, int page) {
    if (least >= begin_ + 32) {
      begin_ += 32;
      entry_ = next_;
      next_ = load(begin_ + 32);
    }
    return __shfl_sync(0xffffffffu, entry_, page - begin_ & 31);
  }

  /// Before at(page, …) where many pages before it are left out.
  TESSERA_DEVICE void skip_to(int page) {
    if (page < begin_ + 64) return;
    begin_ = page;
    entry_ = load(page);
    next_ = load(page + 32);
  }

 private:
  TESSERA_DEVICE int load(int first) const { return table_[minimum(first + thread_x() % 32, last_)]; }

  const int* table_;
  int last_;
  int begin_;
  int entry_;
  int next_;
};

}  // namespace tessera::kernels
