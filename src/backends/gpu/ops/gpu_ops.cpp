#include "backends/gpu/ops/gpu_ops.h"

#include <fmt/core.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "backends/gpu/ops/device_kernels.h"
#include "backends/gpu/ops/pinned_readback.h"
#include "backends/gpu/ops/stream_workspaces.h"
#include "backends/gpu/ops/upload_ring.h"
#include "backends/gpu/ops/widened_products.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "ops/validate.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

/// Runs kernels from the kernel library.
class GpuLauncher final : public SimtLauncher {
 public:
  GpuLauncher(Gpu& gpu, std::unique_ptr<TunedProducts> products)
      : gpu_(gpu), products_(std::move(products)), workspaces_(gpu, "scratch memory of kernels") {}

  void launch(const SimtLaunch& launch, Stream stream) override {
    ModuleSpec module{launch.source, {}};
    if (launch.only != 0) module.defines.push_back(fmt::format("TESSERA_ONLY={}", launch.only));
    if (launch.blocks) module.defines.push_back(blocks_define(*launch.blocks));
    const Kernel& kernel = gpu_.kernels().find(module, launch.entry, launch.shared_bytes);
    const LaunchShape shape{
        {launch.grid_x, launch.grid_y, 1}, {launch.threads, 1, 1}, launch.shared_bytes, true};
    void* const parameters[] = {launch.params};
    gpu_.launch(kernel, shape, parameters, stream, launch.entry);
  }

  unsigned warp_size() const override { return static_cast<unsigned>(gpu_.properties().warp_size); }
  int num_multiprocessors() const override { return gpu_.properties().num_multiprocessors; }
  std::byte* workspace(std::size_t size_bytes, Stream stream) override {
    return workspaces_.get(size_bytes, stream);
  }

  bool tuned_gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation,
                  Stream stream) override {
    return products_ && products_->gemm(arguments, activation, stream);
  }
  bool tuned_expert_gemm(const ExpertGemmArguments& arguments, Stream stream) override {
    return products_ && products_->expert_gemm(arguments, stream);
  }
  bool tunes_expert_gemm(const ExpertGemmArguments& arguments) const override {
    return products_ && products_->takes_expert_gemm(arguments);
  }
  bool tunes_gated_gemm(const GemmArguments& arguments, GatedActivation activation) const override {
    return products_ && products_->takes_gated_gemm(arguments, activation);
  }
  bool tunes_gemm(const GemmArguments& arguments) const override {
    return products_ && products_->takes_gemm(arguments);
  }
  TunedProducts* products() const { return products_.get(); }

 private:
  Gpu& gpu_;
  std::unique_ptr<TunedProducts> products_;
  StreamWorkspaces workspaces_;
};

class RecordedGraph final : public RecordedWork {
 public:
  explicit RecordedGraph(std::unique_ptr<Graph> graph) : graph_(std::move(graph)) {}
  void replay(Stream stream) override { graph_->launch(stream); }

 private:
  std::unique_ptr<Graph> graph_;
};

class GpuOps final : public DeviceKernelOps<OpsBackend> {
 public:
  GpuOps(std::string_view name, Gpu& gpu, std::unique_ptr<TunedProducts> products)
      : name_(name),
        gpu_(gpu),
        stream_(gpu),
        ring_(gpu),
        launcher_(gpu, std::move(products)),
        kernels_(launcher_) {}

  std::string_view name() const override { return name_; }
  Device device() const override { return gpu_.device(); }
  Stream stream() const override { return stream_.handle(); }

  DeviceBuffer allocate(std::size_t size_bytes, std::string_view what) override {
    DeviceBuffer buffer{gpu_.allocate(size_bytes, what, stream_.handle()), size_bytes};
    // From now on any stream may use it.
    if (size_bytes > 0) gpu_.synchronize(stream_.handle());
    return buffer;
  }

  void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) override {
    ring_.upload(destination, source, size_bytes, stream);
  }
  void download(void* destination, const void* source, std::size_t size_bytes, Stream stream) override {
    if (size_bytes > kBounceBytes) {
      gpu_.download(destination, source, size_bytes, stream);
      return;
    }
    // Tokens of a step: the driver's own way into memory that is not page-locked takes longer.
    const std::lock_guard lock(bounce_mutex_);
    if (!bounce_) bounce_ = gpu_.allocate_pinned(kBounceBytes, "the staging memory of small downloads");
    gpu_.download(bounce_.get(), source, size_bytes, stream);
    std::memcpy(destination, bounce_.get(), size_bytes);
  }
  std::unique_ptr<Readback> make_readback(std::size_t most_bytes) override {
    return std::make_unique<PinnedReadback>(gpu_, most_bytes);
  }
  void fill_zero(void* destination, std::size_t size_bytes, Stream stream) override {
    gpu_.fill(destination, 0, size_bytes, stream);
  }
  void synchronize(Stream stream) override { gpu_.synchronize(stream); }

  Weight make_weight(const HostWeight& weight) override { return make_stacked_weight({&weight, 1}); }

  Weight make_stacked_weight(std::span<const HostWeight> parts) override {
    Weight result{nullptr, parts.front().dtype, 0, parts.front().columns, nullptr};
    std::string names;
    for (const HostWeight& part : parts) {
      validate(part);
      if (part.dtype != result.dtype || part.columns != result.columns) return {};
      result.rows += part.rows;
      if (part.name.empty() && !names.empty()) continue;  // a further part of what has a name
      names += fmt::format("{}{}", names.empty() ? "" : ", ", part.name.empty() ? "(unnamed)" : part.name);
    }
    const std::size_t row_bytes = dtype_bytes(result.dtype, static_cast<std::size_t>(result.columns));
    const std::shared_ptr<std::byte> memory = gpu_.allocate(
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
    const TunedProducts* products = launcher_.products();
    return products != nullptr &&
           (products->takes_normed_gemm(arguments) || takes_normed_apart(*products, arguments));
  }
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream) override {
    TunedProducts* products = launcher_.products();
    if (products == nullptr) return OpsBackend::normed_gemm(arguments, stream);
    if (products->takes_normed_gemm(arguments) || !takes_normed_apart(*products, arguments))
      return products->normed_gemm(arguments, stream);
    validate(arguments);
    const Matrix& x = arguments.gemm.x;
    NormedGemmArguments projection = normed_apart(arguments);
    projection.gemm.x.data = launcher_.workspace(
        dtype_bytes(projection.gemm.x.dtype, static_cast<std::size_t>(x.rows * x.columns)), stream);
    kernels_.rms_norm({x, projection.gemm.x, arguments.norm_weight, arguments.eps, std::nullopt}, stream);
    products->projection(projection, stream);
  }

  std::unique_ptr<RecordedWork> record(const std::function<void()>& work, Stream stream) override {
    if (stream.handle == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the default stream of a GPU can't be recorded; expected a stream of one's own, such as "
                  "OpsBackend::stream()");
    }
    return std::make_unique<RecordedGraph>(gpu_.capture(stream, work));
  }

 private:
  /// The product of rows that a kernel of its own norms to out's dtype, into memory that is aligned.
  static NormedGemmArguments normed_apart(const NormedGemmArguments& arguments) {
    NormedGemmArguments result = arguments;
    Matrix& x = result.gemm.x;
    x = {nullptr, arguments.gemm.out.dtype, x.rows, x.columns, x.columns};
    return result;
  }
  static bool takes_normed_apart(const TunedProducts& products, const NormedGemmArguments& arguments) {
    return arguments.gemm.x.rows > 0 && products.takes_projection(normed_apart(arguments));
  }

  DeviceKernels& kernels() override { return kernels_; }
  const DeviceKernels& kernels() const override { return kernels_; }

  static constexpr std::size_t kBounceBytes = 4096;

  std::string name_;
  Gpu& gpu_;
  OwnedStream stream_;
  std::mutex bounce_mutex_;
  std::shared_ptr<std::byte> bounce_;  // page-locked, kBounceBytes; made by the first small download
  UploadRing ring_;
  GpuLauncher launcher_;
  DeviceKernels kernels_;
};

}  // namespace

std::unique_ptr<OpsBackend> make_gpu_ops(std::string_view name, Gpu& gpu,
                                         std::unique_ptr<TunedProducts> products) {
  return std::make_unique<GpuOps>(name, gpu, std::move(products));
}

}  // namespace tessera::gpu
