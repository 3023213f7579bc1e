#include <fmt/core.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "backends/cuda/ops/cuda_products.h"
#include "backends/gpu/ops/device_kernels.h"
#include "backends/gpu/ops/stream_workspaces.h"
#include "backends/gpu/ops/upload_ring.h"
#include "backends/cuda/runtime/device.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "backends/factories.h"
#include "ops/validate.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using cuda::GpuDevice;
using cuda::handle_of;
using cuda::StreamHandle;

/// Runs kernels from the kernel library.
class GpuLauncher final : public cuda::SimtLauncher {
 public:
  explicit GpuLauncher(GpuDevice& device)
      : device_(device),
        library_(cuda::kernel_library(device.index())),
        products_(device, library_),
        workspaces_(device, "scratch memory of kernels") {}

  void launch(const cuda::SimtLaunch& launch, Stream stream) override {
    cuda::ModuleSpec module{launch.source, {}};
    if (launch.only != 0) module.defines.push_back(fmt::format("TESSERA_ONLY={}", launch.only));
    const cuda::Kernel& kernel = library_.find(module, launch.entry, launch.shared_bytes);
    const cuda::LaunchShape shape{
        {launch.grid_x, launch.grid_y, 1}, {launch.threads, 1, 1}, launch.shared_bytes, true};
    void* const parameters[] = {launch.params};
    library_.launch(kernel, shape, parameters, handle_of(stream), launch.entry);
  }

  unsigned warp_size() const override { return 32; }
  int num_multiprocessors() const override { return device_.properties().num_multiprocessors; }
  std::byte* workspace(std::size_t size_bytes, Stream stream) override {
    return workspaces_.get(size_bytes, handle_of(stream));
  }

  bool tuned_gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation,
                  Stream stream) override {
    return products_.gemm(arguments, activation, stream);
  }
  const cuda::CudaProducts& products() const { return products_; }

 private:
  GpuDevice& device_;
  cuda::KernelLibrary& library_;
  cuda::CudaProducts products_;
  cuda::StreamWorkspaces workspaces_;
};

class RecordedGraph final : public RecordedWork {
 public:
  RecordedGraph(GpuDevice& device, StreamHandle stream, const std::function<void()>& work)
      : graph_(device, stream, work) {}
  void replay(Stream stream) override { graph_.launch(handle_of(stream)); }

 private:
  cuda::GpuGraph graph_;
};

class CudaOps final : public cuda::DeviceKernelOps<OpsBackend> {
 public:
  explicit CudaOps(GpuDevice& device)
      : device_(device), stream_(device), ring_(device), launcher_(device), kernels_(launcher_) {}

  std::string_view name() const override { return "cuda"; }
  Device device() const override { return device_.device(); }
  Stream stream() const override { return {stream_.handle()}; }

  DeviceBuffer allocate(std::size_t size_bytes, std::string_view what) override {
    DeviceBuffer buffer{device_.allocate(size_bytes, what, stream_.handle()), size_bytes};
    // From now on any stream may use it.
    if (size_bytes > 0) device_.synchronize(stream_.handle());
    return buffer;
  }

  void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) override {
    ring_.upload(destination, source, size_bytes, handle_of(stream));
  }
  void download(void* destination, const void* source, std::size_t size_bytes, Stream stream) override {
    if (size_bytes > kBounceBytes) {
      device_.download(destination, source, size_bytes, handle_of(stream));
      return;
    }
    // Tokens of a step: the driver's own way into memory that is not page-locked takes longer.
    const std::lock_guard lock(bounce_mutex_);
    if (!bounce_) bounce_ = device_.allocate_pinned(kBounceBytes, "the staging memory of small downloads");
    device_.download(bounce_.get(), source, size_bytes, handle_of(stream));
    std::memcpy(destination, bounce_.get(), size_bytes);
  }
  void fill_zero(void* destination, std::size_t size_bytes, Stream stream) override {
    device_.fill(destination, 0, size_bytes, handle_of(stream));
  }
  void synchronize(Stream stream) override { device_.synchronize(handle_of(stream)); }

  Weight make_weight(const HostWeight& weight) override { return make_stacked_weight({&weight, 1}); }

  Weight make_stacked_weight(std::span<const HostWeight> parts) override {
    Weight result{nullptr, parts.front().dtype, 0, parts.front().columns, nullptr};
    std::string names;
    for (const HostWeight& part : parts) {
      validate(part);
      if (part.dtype != result.dtype || part.columns != result.columns) return {};
      result.rows += part.rows;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", part.name.empty() ? "(unnamed)" : part.name);
    }
    const std::size_t row_bytes = dtype_bytes(result.dtype, static_cast<std::size_t>(result.columns));
    const std::shared_ptr<std::byte> memory = device_.allocate(
        row_bytes * static_cast<std::size_t>(result.rows), fmt::format("weight {}", names), stream_.handle());
    std::byte* destination = memory.get();
    for (const HostWeight& part : parts) {
      const std::size_t size_bytes = row_bytes * static_cast<std::size_t>(part.rows);
      ring_.upload(destination, part.data, size_bytes, stream_.handle());
      destination += size_bytes;
    }
    result.data = memory.get();
    result.owner = memory;
    return result;
  }

  bool takes_normed_gemm(const NormedGemmArguments& arguments) const override {
    return launcher_.products().takes_normed_gemm(arguments);
  }
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream) override {
    launcher_.products().normed_gemm(arguments, stream);
  }

  std::unique_ptr<RecordedWork> record(const std::function<void()>& work, Stream stream) override {
    if (stream.handle == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the default stream of a GPU can't be recorded; expected a stream of one's own, such as "
                  "OpsBackend::stream()");
    }
    return std::make_unique<RecordedGraph>(device_, handle_of(stream), work);
  }

 private:
  cuda::DeviceKernels& kernels() override { return kernels_; }

  static constexpr std::size_t kBounceBytes = 4096;

  GpuDevice& device_;
  cuda::OwnedStream stream_;
  std::mutex bounce_mutex_;
  std::shared_ptr<std::byte> bounce_;  // page-locked, kBounceBytes; made by the first small download
  cuda::UploadRing ring_;
  GpuLauncher launcher_;
  cuda::DeviceKernels kernels_;
};

}  // namespace

std::unique_ptr<OpsBackend> make_cuda_ops() {
  cuda::driver();  // throws, saying why, where there is none
  return std::make_unique<CudaOps>(cuda::gpu_device(0));
}

}  // namespace tessera
