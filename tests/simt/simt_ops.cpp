#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "backends/cuda/ops/device_kernels.h"
#include "backends/factories.h"
#include "kernels/tested_ops.h"
#include "ops/host_backend.h"
#include "ops/validate.h"
#include "simt/executor.h"
#include "simt/kernel_table.h"

namespace tessera {
namespace {

class HostLauncher final : public cuda::SimtLauncher {
 public:
  void launch(const cuda::SimtLaunch& launch, Stream) override {
    unsigned threads = launch.threads;
    // The sampler takes any power of two; most of its launches are worth fewer threads here.
    if (launch.entry == "sample_any" && ++num_samples_ % 16 != 0) threads = 128;
    simt::Grid grid;
    grid.kernel = launch.entry;
    grid.blocks = {static_cast<int>(launch.grid_x), static_cast<int>(launch.grid_y), 1};
    grid.threads = static_cast<int>(threads);
    grid.shared_bytes = launch.shared_bytes;
    simt::launch(grid, launch.params);
  }
  unsigned warp_size() const override {
    return static_cast<unsigned>(simt::kernel_table().begin()->second.warp_size);
  }
  std::size_t max_shared_bytes() const override { return 96 * 1024; }

 private:
  unsigned num_samples_ = 0;
};

/// The GPU's kernels on the host.
class SimtOps final : public cuda::DeviceKernelOps<HostOpsBackend> {
 public:
  std::string_view name() const override { return "simt"; }
  void sample(const SampleArguments& a, Stream stream) override {
    validate(a);
    validate_contents(a);
    kernels_.sample(a, stream);
  }

 private:
  cuda::DeviceKernels& kernels() override { return kernels_; }

  HostLauncher launcher_;
  cuda::DeviceKernels kernels_{launcher_};
};

class Coverage final : public testing::Environment {
 public:
  void TearDown() override {
    simt::expect_all_were_launched([](const std::string& entry) {
      // Attention's have programs of their own.
      return !entry.starts_with("attention_") && !entry.starts_with("merge_states_") &&
             !entry.starts_with("unfused_");
    });
  }
};

const testing::Environment* const coverage = testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace

bool tested_ops_are_slow() { return true; }

std::unique_ptr<OpsBackend> make_tested_ops() { return std::make_unique<SimtOps>(); }

}  // namespace tessera
