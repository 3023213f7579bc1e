#pragma once

#include "backends/cuda/runtime/driver.h"
#include "backends/gpu/runtime/gpu.h"
#include "backends/gpu/runtime/kernel_library.h"

namespace tessera::cuda {

/// An NVIDIA GPU through the driver: its primary context.
class CudaGpu final : public gpu::Gpu {
 public:
  explicit CudaGpu(int index);

  gpu::KernelLibrary& kernels() override { return *kernels_; }

  /// Makes this GPU's context the calling thread's. Every function below does so itself.
  void make_current() const;

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

  DeviceOrdinal ordinal_ = 0;
  Context context_ = nullptr;
  bool has_memory_pools_ = false;
  std::unique_ptr<gpu::KernelLibrary> kernels_;
};

inline StreamHandle handle_of(Stream stream) { return static_cast<StreamHandle>(stream.handle); }

/// GPU `index` as the driver counts them, opened on first use. Throws Error{kInvalidArgument} for an index
/// that is not there, Error{kDevice} if the driver can't open it.
CudaGpu& gpu_device(int index);

}  // namespace tessera::cuda
