#include "backends/gpu/ops/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "tessera/error.h"

namespace tessera::gpu {
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
  try {
    for (Piece& piece : pieces_) {
      if (piece.sent) gpu_.wait_for(piece.sent->handle());
    }
    if (memory_) gpu_.synchronize(stream_);
  } catch (const Error&) {
    // The GPU is lost, and there is nobody to tell.
  }
}

void UploadRing::open() {
  if (memory_) return;
  memory_ = gpu_.allocate_pinned(kNumPieces * kPieceBytes, "the staging memory of uploads");
  for (Piece& piece : pieces_) piece.sent.emplace(gpu_, EventKind::kUntimed);
}

void UploadRing::next_piece() {
  gpu_.record(pieces_[current_].sent->handle(), stream_);
  pieces_[current_].in_flight = true;
  current_ = (current_ + 1) % kNumPieces;
  used_bytes_ = 0;
  if (pieces_[current_].in_flight) gpu_.wait_for(pieces_[current_].sent->handle());
  pieces_[current_].in_flight = false;
}

void UploadRing::upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  const std::lock_guard lock(mutex_);
  open();
  if (stream.handle != stream_.handle && used_bytes_ > 0) next_piece();
  stream_ = stream;
  for (std::size_t done = 0; done < size_bytes;) {
    if (used_bytes_ == kPieceBytes || (used_bytes_ > 0 && size_bytes - done > kPieceBytes - used_bytes_))
      next_piece();
    const std::size_t size = std::min(kPieceBytes - used_bytes_, size_bytes - done);
    std::byte* piece = memory_.get() + current_ * kPieceBytes + used_bytes_;
    copy_to_pinned(piece, static_cast<const std::byte*>(source) + done, size);
    gpu_.upload(static_cast<std::byte*>(destination) + done, piece, size, stream);
    used_bytes_ = std::min(kPieceBytes, (used_bytes_ + size + kAlignment - 1) / kAlignment * kAlignment);
    done += size;
  }
}

}  // namespace tessera::gpu
