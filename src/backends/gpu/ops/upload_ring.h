#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

#include "backends/cuda/runtime/device.h"

namespace tessera::cuda {

/// Copies host memory of any kind to the GPU through page-locked pieces, so that the source may be reused at
/// once while the copy is still under way, and large weights stream: one piece is filled while others travel.
/// Safe to use from several threads.
class UploadRing {
 public:
  explicit UploadRing(GpuDevice& device) : device_(device) {}
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  void upload(void* destination, const void* source, std::size_t size_bytes, StreamHandle stream);

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
  static constexpr std::size_t kNumPieces = 8;

  struct Piece {
    EventHandle sent = nullptr;  // after the last copy out of it
    bool in_flight = false;
  };

  void open();
  void next_piece();

  GpuDevice& device_;
  std::mutex mutex_;
  std::shared_ptr<std::byte> memory_;  // all pieces; allocated by the first upload
  std::array<Piece, kNumPieces> pieces_;
  std::size_t current_ = 0;
  std::size_t used_bytes_ = 0;     // of the current piece
  StreamHandle stream_ = nullptr;  // that the current piece's copies are in
};

}  // namespace tessera::cuda
