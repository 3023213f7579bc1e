// The CUDA backend with arguments in host memory, for the tests of the CPU's ops.
#include <gtest/gtest.h>

#include <string>

#include "backends/cuda/runtime/driver.h"
#include "backends/factories.h"
#include "kernels/tested_ops.h"
#include "ops/staged_ops.h"

namespace tessera {
namespace {

/// Skips all tests on a machine without a GPU.
class NeedsGpu final : public testing::Environment {
  void SetUp() override {
    const std::string& reason = cuda::driver_state().unavailable_reason;
    if (!reason.empty()) GTEST_SKIP() << "no GPU: " << reason;
  }
};
const testing::Environment* const needs_gpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace

bool tested_ops_are_slow() { return false; }

std::unique_ptr<OpsBackend> make_tested_ops() { return std::make_unique<StagedOps>(make_cuda_ops()); }

}  // namespace tessera
