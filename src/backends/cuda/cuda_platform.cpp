#include "backends/cuda/cuda_platform.h"

#include <fmt/core.h>

#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/cuda/attention/shipped_tunings.h"
#include "backends/cuda/ops/cuda_products.h"
#include "backends/cuda/runtime/cublaslt.h"
#include "backends/cuda/runtime/cuda_gpu.h"
#include "backends/cuda/runtime/embedded.h"
#include "backends/cuda/runtime/nvrtc.h"
#include "backends/factories.h"
#include "backends/gpu/attention/gpu_attention.h"
#include "backends/gpu/ops/gpu_ops.h"
#include "backends/gpu/unfused/unfused_attention.h"
#include "common/ceilings_traits.h"

namespace tessera {
namespace cuda {
namespace {

class CudaPlatform final : public gpu::Platform {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  gpu::PlatformReport report() const override;
  std::string unavailable_reason() const override { return driver_state().unavailable_reason; }
  std::string unsuitable_reason(const gpu::DeviceProperties& device) const override;
  gpu::Gpu& gpu(int index) override { return gpu_device(index); }

  std::string_view products_name() const override { return "cuBLASLt"; }
  std::string products_file() const override { return cublaslt_state().library; }
  std::string products_unavailable_reason() const override { return cublaslt_state().unavailable_reason; }
  gpu::LibraryProducts& products(gpu::Gpu& gpu) override {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<CublasLt>& entry = products_[gpu.index()];
    if (!entry) {
      entry = std::make_unique<CublasLt>(gpu_device(gpu.index()), CublasLt::Workspace::kOfEachProduct);
    }
    return *entry;
  }

  std::optional<gpu::MatrixRate> matrix_rate(const gpu::DeviceProperties&) const override {
    return gpu::MatrixRate{
        {"sm80/ceilings.cu", {}}, "mma_rate", kernels::kCeilingProducts * (16 * 8 * 16 * 2)};
  }

 private:
  std::mutex mutex_;
  std::map<int, std::unique_ptr<CublasLt>> products_;  // guarded by mutex_
};

std::string CudaPlatform::unsuitable_reason(const gpu::DeviceProperties& device) const {
  if (device.compute_capability >= 80) return {};
  return fmt::format("{} has compute capability {}.{}; the kernels need 8.0 or later", device.name,
                     device.compute_capability / 10, device.compute_capability % 10);
}

/// The kernel module's version, which is the driver's.
std::string read_driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return version;
}

std::string version_text(int version) {
  return version > 0 ? fmt::format("{}.{}", version / 1000, version % 1000 / 10) : std::string();
}

gpu::PlatformReport CudaPlatform::report() const {
  const DriverState& driver = driver_state();
  gpu::PlatformReport report;
  report.unavailable_reason = driver.unavailable_reason;
  report.driver_version = read_driver_version();
  report.api_version = version_text(driver.version);
  std::set<std::string> architectures;
  for (const gpu::EmbeddedModule& module : embedded_modules()) architectures.emplace(module.architecture);
  report.built_for.assign(architectures.begin(), architectures.end());
  if (!report.unavailable_reason.empty()) return report;
  report.num_devices = driver.num_devices;
  const NvrtcState& nvrtc = nvrtc_state();
  const CublasLtState& cublaslt = cublaslt_state();
  report.libraries = {
      {"nvrtc", nvrtc.library, version_text(nvrtc.version), nvrtc.unavailable_reason},
      {"cublaslt", cublaslt.library, {}, cublaslt.unavailable_reason},
  };
  return report;
}

}  // namespace

gpu::Platform& platform() {
  // Never destroyed: when the process ends the driver may be gone before static objects are.
  static auto& platform = *new CudaPlatform;
  return platform;
}

}  // namespace cuda

gpu::Platform& cuda_platform() { return cuda::platform(); }

std::unique_ptr<OpsBackend> make_cuda_ops(const Device& device) {
  cuda::CudaGpu& gpu = cuda::gpu_device(device.index);
  return gpu::make_gpu_ops("cuda", gpu, std::make_unique<cuda::CudaProducts>(gpu));
}

std::unique_ptr<AttentionBackend> make_cuda_attention() {
  return gpu::make_gpu_attention(
      "cuda", "fused, tiled, online softmax on NVIDIA GPUs; tensors in CPU memory are copied there and back",
      cuda::platform(), cuda::attention_kernels(), cuda::shipped_tunings());
}

std::unique_ptr<AttentionBackend> make_cuda_unfused_attention() {
  return gpu::make_unfused_attention(
      "cuda_unfused",
      "the classic pipeline on NVIDIA GPUs: cuBLASLt's products and separate kernels over scores in memory",
      cuda::platform());
}

}  // namespace tessera
