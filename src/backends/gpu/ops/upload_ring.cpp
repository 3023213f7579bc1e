#include "backends/gpu/ops/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
// Copies from here on are shared by several threads: one does not reach the bandwidth of the bus.
constexpr std::size_t kThreadBytes = std::size_t{512} << 10;

void copy_to_pinned(std::byte* destination, const std::byte* source, std::size_t size_bytes) {
  if (size_bytes < 2 * kThreadBytes) {
    std::memcpy(destination, source, size_bytes);
    return;
  }
  parallel_for((size_bytes + kThreadBytes - 1) / kThreadBytes, [&](std::size_t part) {
    const std::size_t begin = part * kThreadBytes;
    std::memcpy(destination + begin, source + begin, std::min(kThreadBytes, size_bytes - begin));
  });
}

}  // namespace

UploadRing::~UploadRing() {
  // Failures mean that the context is lost, and there is nobody to tell.
  for (Piece& piece : pieces_) {
    if (piece.sent == nullptr) continue;
    driver_state().api.cuEventSynchronize(piece.sent);
    driver_state().api.cuEventDestroy(piece.sent);
  }
  if (memory_) driver_state().api.cuStreamSynchronize(stream_);
}

void UploadRing::open() {
  if (memory_) return;
  memory_ = device_.allocate_pinned(kNumPieces * kPieceBytes, "the staging memory of uploads");
  for (Piece& piece : pieces_)
    check(driver().cuEventCreate(&piece.sent, kEventDisableTiming), "cuEventCreate");
}

void UploadRing::next_piece() {
  check(driver().cuEventRecord(pieces_[current_].sent, stream_), "cuEventRecord");
  pieces_[current_].in_flight = true;
  current_ = (current_ + 1) % kNumPieces;
  used_bytes_ = 0;
  if (pieces_[current_].in_flight)
    check(driver().cuEventSynchronize(pieces_[current_].sent), "cuEventSynchronize");
  pieces_[current_].in_flight = false;
}

void UploadRing::upload(void* destination, const void* source, std::size_t size_bytes, StreamHandle stream) {
  if (size_bytes == 0) return;
  const std::lock_guard lock(mutex_);
  device_.make_current();
  open();
  if (stream != stream_ && used_bytes_ > 0) next_piece();
  stream_ = stream;
  for (std::size_t done = 0; done < size_bytes;) {
    if (used_bytes_ == kPieceBytes || (used_bytes_ > 0 && size_bytes - done > kPieceBytes - used_bytes_))
      next_piece();
    const std::size_t size = std::min(kPieceBytes - used_bytes_, size_bytes - done);
    std::byte* piece = memory_.get() + current_ * kPieceBytes + used_bytes_;
    copy_to_pinned(piece, static_cast<const std::byte*>(source) + done, size);
    device_.upload(static_cast<std::byte*>(destination) + done, piece, size, stream);
    used_bytes_ = std::min(kPieceBytes, (used_bytes_ + size + kAlignment - 1) / kAlignment * kAlignment);
    done += size;
  }
}

}  // namespace tessera::cuda
