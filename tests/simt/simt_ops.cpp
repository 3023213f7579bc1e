#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backends/factories.h"
#include "backends/gpu/ops/device_kernels.h"
#include "kernels/tested_ops.h"
#include "ops/host_backend.h"
#include "ops/validate.h"
#include "simt/executor.h"
#include "simt/kernel_table.h"

namespace tessera {
namespace {

class HostLauncher final : public gpu::SimtLauncher {
 public:
  void launch(const gpu::SimtLaunch& launch, Stream) override {
    simt::Grid grid;
    grid.kernel =
        launch.blocks ? fmt::format("{}_{}", dtype_name(*launch.blocks), launch.entry) : launch.entry;
    grid.blocks = {static_cast<int>(launch.grid_x), static_cast<int>(launch.grid_y), 1};
    grid.threads = static_cast<int>(launch.threads);
    grid.shared_bytes = launch.shared_bytes;
    simt::launch(grid, launch.params);
  }
  unsigned warp_size() const override {
    return static_cast<unsigned>(simt::kernel_table().begin()->second.warp_size);
  }
  int num_multiprocessors() const override { return 4; }
  std::byte* workspace(std::size_t size_bytes, Stream) override {
    workspace_.assign(size_bytes / sizeof(Unit) + 1, Unit{});  // 0xff: no kernel may rely on an earlier call
    std::memset(workspace_.data(), 0xff, size_bytes);
    return reinterpret_cast<std::byte*>(workspace_.data());
  }

 private:
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  std::vector<Unit> workspace_;
};

/// The GPU's kernels on the host.
class SimtOps final : public gpu::DeviceKernelOps<HostOpsBackend> {
 public:
  std::string_view name() const override { return "simt"; }
  void adjust_logits(const AdjustLogitsArguments& a, Stream stream) override {
    validate(a);
    validate_contents(a);
    kernels_.adjust_logits(a, stream);
  }
  void sample(const SampleArguments& a, Stream stream) override {
    validate(a);
    validate_contents(a);
    kernels_.sample(a, stream);
  }

 private:
  gpu::DeviceKernels& kernels() override { return kernels_; }
  const gpu::DeviceKernels& kernels() const override { return kernels_; }

  HostLauncher launcher_;
  gpu::DeviceKernels kernels_{launcher_};
};

/// The tests that go over all formats of blocks leave fp16 x out.
bool is_left_out(const std::string& entry) {
  return entry.find("_gemv_blocks_f16_") != std::string::npos && !entry.starts_with("q4_k") &&
         !entry.starts_with("q6_k");
}

class Coverage final : public testing::Environment {
 public:
  void TearDown() override {
    simt::expect_all_were_launched([](const std::string& entry) {
      // Attention's have programs of their own, and only the unfused pipeline has batches of products.
      return !entry.starts_with("attention_") && !entry.starts_with("merge_states_") &&
             !entry.starts_with("widen_queries_") && entry != "align_rows" &&
             !entry.starts_with("split_rows_") && !entry.starts_with("unfused_") && entry != "gemm_batched" &&
             !is_left_out(entry);
    });
  }
};

const testing::Environment* const coverage = testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace

bool tested_ops_are_slow() { return true; }

std::unique_ptr<OpsBackend> make_tested_ops() { return std::make_unique<SimtOps>(); }

}  // namespace tessera
