#include "backends/gpu/ops/stream_workspaces.h"

#include <algorithm>
#include <bit>

namespace tessera::gpu {

std::byte* StreamWorkspaces::get(std::size_t size_bytes, Stream stream) {
  constexpr std::size_t kLeastBytes = std::size_t{1} << 18;
  const std::lock_guard lock(mutex_);
  std::vector<Piece>& pieces = pieces_[stream.handle];
  if (pieces.empty() || pieces.back().size_bytes < size_bytes) {
    const std::size_t rounded = std::max(kLeastBytes, std::bit_ceil(size_bytes));
    pieces.push_back({gpu_.allocate(rounded, what_), rounded});
    if (zeroed_) gpu_.fill(pieces.back().data.get(), 0, rounded, {});
    gpu_.synchronize({});  // from now on any stream may use it
  }
  return pieces.back().data.get();
}

}  // namespace tessera::gpu
