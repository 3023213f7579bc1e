#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "backends/gpu/runtime/gpu.h"

namespace tessera::gpu {

/// Copies host memory of any kind to the GPU through page-locked pieces, so that the source may be reused at
/// once while the copy is still under way, and large weights stream: one piece is filled while others travel.
/// Safe to use from several threads.
class UploadRing {
 public:
  explicit UploadRing(Gpu& gpu) : gpu_(gpu) {}
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream);

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
  static constexpr std::size_t kNumPieces = 8;

  struct Piece {
    std::optional<OwnedEvent> sent;  // after the last copy out of it
    bool in_flight = false;
  };

  void open();
  void next_piece();

  Gpu& gpu_;
  std::mutex mutex_;
  std::shared_ptr<std::byte> memory_;  // all pieces; allocated by the first upload
  std::array<Piece, kNumPieces> pieces_;
  std::size_t current_ = 0;
  std::size_t used_bytes_ = 0;  // of the current piece
  Stream stream_;               // that the current piece's copies are in
};

}  // namespace tessera::gpu
