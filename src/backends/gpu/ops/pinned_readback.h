#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backends/gpu/runtime/gpu.h"
#include "ops/backend.h"
#include "tessera/error.h"

namespace tessera::gpu {

/// A readback through page-locked memory of its own.
class PinnedReadback final : public Readback {
 public:
  PinnedReadback(Gpu& gpu, std::size_t most_bytes)
      : gpu_(gpu),
        memory_(gpu.allocate_pinned(most_bytes, "the staging memory of results")),
        arrived_(gpu, EventKind::kUntimed) {}
  PinnedReadback(const PinnedReadback&) = delete;
  PinnedReadback& operator=(const PinnedReadback&) = delete;
  ~PinnedReadback() override {
    try {
      wait();  // or memory that is somebody else's would be written
    } catch (const Error&) {
      // The GPU is lost, and there is nobody to tell.
    }
  }

  void start(const void* source, std::size_t size_bytes, Stream stream) override {
    gpu_.start_download(memory_.get(), source, size_bytes, stream);
    gpu_.record(arrived_.handle(), stream);
    size_bytes_ = size_bytes;
  }
  std::span<const std::byte> wait() override {
    if (size_bytes_ > 0) gpu_.wait_for(arrived_.handle());
    return {memory_.get(), size_bytes_};
  }

 private:
  Gpu& gpu_;
  std::shared_ptr<std::byte> memory_;
  OwnedEvent arrived_;
  std::size_t size_bytes_ = 0;
};

}  // namespace tessera::gpu
