#include "backends/hip/hip_platform.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "backends/factories.h"
#include "backends/gpu/attention/gpu_attention.h"
#include "backends/gpu/ops/gpu_ops.h"
#include "backends/gpu/ops/plain_products.h"
#include "backends/gpu/unfused/unfused_attention.h"
#include "backends/hip/attention/attention_kernels.h"
#include "backends/hip/ops/hip_products.h"
#include "backends/hip/runtime/embedded.h"
#include "backends/hip/runtime/hip_gpu.h"
#include "backends/hip/runtime/hiprtc.h"
#include "backends/hip/runtime/rocblas.h"
#include "backends/hip/runtime/targets.h"
#include "common/ceilings_traits.h"
#include "tessera/error.h"

namespace tessera {
namespace hip {
namespace {

/// Architectures that the build made code objects for.
std::set<std::string> built_for() {
  std::set<std::string> architectures;
  for (const gpu::EmbeddedModule& module : embedded_modules()) architectures.emplace(module.architecture);
  return architectures;
}

class HipPlatform final : public gpu::Platform {
 public:
  DeviceKind kind() const override { return DeviceKind::kHip; }
  gpu::PlatformReport report() const override;
  std::string unavailable_reason() const override;
  std::string unsuitable_reason(const gpu::DeviceProperties& device) const override {
    return reason_against(device, built_for(), hiprtc_state().unavailable_reason);
  }
  gpu::Gpu& gpu(int index) override { return gpu_device(index); }

  std::string_view products_name() const override { return has_rocblas() ? "rocBLAS" : "plain"; }
  std::string products_file() const override {
    return has_rocblas() ? rocblas_state().library : "a plain kernel of this program";
  }
  std::string products_unavailable_reason() const override { return {}; }
  gpu::LibraryProducts& products(gpu::Gpu& gpu) override {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<gpu::LibraryProducts>& entry = products_[gpu.index()];
    if (!entry) {
      if (rocblas_reason_against(gpu.properties().architecture).empty()) {
        entry = std::make_unique<RocBlas>(gpu_device(gpu.index()));
      } else {
        entry = std::make_unique<gpu::PlainProducts>(gpu);
      }
    }
    return *entry;
  }

  std::optional<gpu::MatrixRate> matrix_rate(const gpu::DeviceProperties& device) const override {
    if (matrix_unit(device.architecture) == MatrixUnit::kNone) return std::nullopt;
    return gpu::MatrixRate{
        {"matrix/ceilings.hip", {}}, "mma_rate", kernels::kCeilingProducts * (16 * 16 * 16 * 2)};
  }

 private:
  /// Of the first GPU.
  bool has_rocblas() const {
    return hip_state().unavailable_reason.empty() &&
           rocblas_reason_against(gpu_device(0).properties().architecture).empty();
  }

  std::mutex mutex_;
  std::map<int, std::unique_ptr<gpu::LibraryProducts>> products_;  // guarded by mutex_
};

// Asked for the first GPU alone, which is the one that is taken where none is named: processors have small
// GPUs that nothing was built for, and then the CPU is the better choice.
std::string HipPlatform::unavailable_reason() const {
  static const std::string reason = [this] {
    const HipState& state = hip_state();
    if (!state.unavailable_reason.empty()) return state.unavailable_reason;
    try {
      return unsuitable_reason(read_properties(0));
    } catch (const Error&) {
      return std::string();  // whoever opens it meets the same, and that is an error
    }
  }();
  return reason;
}

/// The kernel module's version, which only AMD's own packages have.
std::string read_driver_version() {
  std::ifstream file("/sys/module/amdgpu/version");
  std::string version;
  std::getline(file, version);
  return version;
}

gpu::PlatformReport HipPlatform::report() const {
  const HipState& state = hip_state();
  gpu::PlatformReport report;
  report.unavailable_reason = state.unavailable_reason;
  report.driver_version = read_driver_version();
  report.api_version = version_text(state.version);
  const std::set<std::string> architectures = built_for();
  report.built_for.assign(architectures.begin(), architectures.end());
  if (!report.unavailable_reason.empty()) return report;
  report.num_devices = state.num_devices;
  const HiprtcState& hiprtc = hiprtc_state();
  report.libraries = {
      {"amdhip64", state.library, version_text(state.version), {}},
      {"hiprtc", hiprtc.library, hiprtc.version, hiprtc.unavailable_reason},
      {"rocblas", rocblas_state().library, {}, rocblas_state().unavailable_reason},
  };
  return report;
}

}  // namespace

std::string reason_against(const gpu::DeviceProperties& device, const std::set<std::string>& built_for,
                           const std::string& no_compiler) {
  if (device.warp_size != 32 && device.warp_size != 64) {
    return fmt::format("{} ({}) has waves of {} lanes; the kernels are for 32 or 64", device.name,
                       device.architecture, device.warp_size);
  }
  const bool has_code = std::ranges::any_of(built_for, [&](const std::string& architecture) {
    return runs_code_for(device.architecture, architecture);
  });
  if (has_code || no_compiler.empty()) return {};
  const std::string built = built_for.empty() ? "no AMD GPU" : fmt::format("{}", fmt::join(built_for, ", "));
  return fmt::format("{} is a {}, this binary has machine code for {}, and {}", device.name,
                     device.architecture, built, no_compiler);
}

gpu::Platform& platform() {
  // Never destroyed: when the process ends the runtime may be gone before static objects are.
  static auto& platform = *new HipPlatform;
  return platform;
}

}  // namespace hip

gpu::Platform& hip_platform() { return hip::platform(); }

std::unique_ptr<OpsBackend> make_hip_ops(const Device& device) {
  hip::HipGpu& gpu = hip::gpu_device(device.index);
  // Before a model's weights are brought there.
  const std::string reason = hip::platform().unsuitable_reason(gpu.properties());
  if (!reason.empty()) throw Error(ErrorCode::kUnsupported, reason);
  return gpu::make_gpu_ops("hip", gpu, std::make_unique<hip::HipProducts>(gpu));
}

std::unique_ptr<AttentionBackend> make_hip_attention() {
  return gpu::make_gpu_attention(
      "hip", "fused, online softmax on AMD GPUs; tensors in CPU memory are copied there and back",
      hip::platform(), hip::attention_kernels());
}

std::unique_ptr<AttentionBackend> make_hip_unfused_attention() {
  return gpu::make_unfused_attention(
      "hip_unfused", "the classic pipeline on AMD GPUs: products and separate kernels over scores in memory",
      hip::platform());
}

}  // namespace tessera
