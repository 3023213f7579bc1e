#pragma once

#include <list>
#include <mutex>
#include <vector>

#include "backends/gpu/runtime/gpu.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "backends/hip/runtime/hip_library.h"

namespace tessera::hip {

/// An AMD GPU through HIP.
class HipGpu final : public gpu::Gpu {
 public:
  explicit HipGpu(int index);

  gpu::KernelLibrary& kernels() override { return *kernels_; }

  /// Makes this GPU the calling thread's. Every function below does so itself.
  void make_current() const { check(hip().hipSetDevice(index()), "hipSetDevice"); }

  std::shared_ptr<std::byte> allocate_pinned(std::size_t size_bytes, std::string_view what) override;
  std::size_t free_memory_bytes() const override;
  void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) override;
  void start_download(void* destination, const void* source, std::size_t size_bytes, Stream stream) override;
  void copy(void* destination, const void* source, std::size_t size_bytes, Stream stream) override;
  void fill(void* destination, unsigned char value, std::size_t size_bytes, Stream stream) override;

  Stream create_stream() override;
  void destroy_stream(Stream stream) noexcept override;
  void synchronize(Stream stream) const override;
  gpu::EventHandle create_event(gpu::EventKind kind) override;
  void destroy_event(gpu::EventHandle event) noexcept override;
  void record(gpu::EventHandle event, Stream stream) override;
  void wait_for(gpu::EventHandle event) override;
  double elapsed_ms(gpu::EventHandle start, gpu::EventHandle stop) override;
  std::unique_ptr<gpu::Graph> capture(Stream stream, const std::function<void()>& work) override;

  gpu::CodeFit fit_of(std::string_view architecture) const override;
  void* load_module(std::span<const std::byte> image, std::string_view what) override;
  gpu::Kernel find_function(void* module, const std::string& entry, gpu::CodeFit fit,
                            std::string_view what) override;
  void allow_shared(gpu::Kernel& kernel, std::size_t dynamic_bytes, std::string_view what) override;
  void launch(const gpu::Kernel& kernel, const gpu::LaunchShape& shape, std::span<void* const> parameters,
              Stream stream, std::string_view problem) override;

 private:
  std::byte* take_memory(std::size_t size_bytes, std::string_view what, Stream stream) override;
  void give_memory(std::byte* memory, Stream stream) noexcept override;

  bool has_memory_pools_ = false;
  std::mutex mutex_;
  std::list<std::vector<std::byte>> relabelled_;  // images that modules were made of; guarded by mutex_
  std::unique_ptr<gpu::KernelLibrary> kernels_;
};

inline StreamHandle handle_of(Stream stream) { return static_cast<StreamHandle>(stream.handle); }

/// The properties of GPU `index`. Throws Error{kDevice} if HIP can't give them.
gpu::DeviceProperties read_properties(int index);

/// GPU `index` as HIP counts them, opened on first use. Throws Error{kInvalidArgument} for an index that is
/// not there, Error{kDevice} if HIP can't open it.
HipGpu& gpu_device(int index);

}  // namespace tessera::hip
