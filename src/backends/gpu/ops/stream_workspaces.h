#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/gpu/runtime/gpu.h"

namespace tessera::gpu {

/// Scratch memory for kernels, a piece for each stream. Safe to use from several threads.
class StreamWorkspaces {
 public:
  /// zeroed: memory is 0 when a stream first gets it; after that it is what kernels leave there.
  StreamWorkspaces(Gpu& gpu, const char* what, bool zeroed = false)
      : gpu_(gpu), what_(what), zeroed_(zeroed) {}

  /// At least size_bytes, the same memory again for a stream as long as that is enough. What a stream had
  /// before stays, since recordings refer to it; sizes at least double, so that all of it together is less
  /// than twice the last. While a stream is being recorded the driver gives no memory: work must have run
  /// once before, as for its kernels to be loaded.
  std::byte* get(std::size_t size_bytes, Stream stream);

 private:
  struct Piece {
    std::shared_ptr<std::byte> data;
    std::size_t size_bytes;
  };

  Gpu& gpu_;
  const char* what_;
  bool zeroed_;
  std::mutex mutex_;
  std::map<void*, std::vector<Piece>> pieces_;  // by the stream's handle; guarded by mutex_
};

}  // namespace tessera::gpu
