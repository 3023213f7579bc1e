// A GPU with arguments in host memory, for the tests of the CPU's ops.
#include <gtest/gtest.h>

#include "gpu/tested_gpu.h"
#include "kernels/tested_ops.h"
#include "ops/staged_ops.h"

namespace tessera {
namespace {

const ::testing::Environment* const needs_gpu =
    ::testing::AddGlobalTestEnvironment(new tessera::testing::NeedsGpu);

}  // namespace

bool tested_ops_are_slow() { return tessera::testing::tested_gpu_is_slow(); }

std::unique_ptr<OpsBackend> make_tested_ops() {
  return std::make_unique<StagedOps>(tessera::testing::make_tested_gpu_ops());
}

}  // namespace tessera
