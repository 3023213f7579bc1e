#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "backends/family.h"

namespace tessera::testing {

/// The family of GPUs that tests for those of any vendor use: the one that TESSERA_TESTED_GPU names, or cuda.
inline const BackendFamily& tested_family() {
  const char* name = std::getenv("TESSERA_TESTED_GPU");
  const std::string_view wanted = name != nullptr ? name : "cuda";
  for (const BackendFamily& family : backend_families()) {
    if (family.name == wanted && family.platform != nullptr) return family;
  }
  throw Error(ErrorCode::kInvalidArgument, "TESSERA_TESTED_GPU names no family of GPUs");
}

inline Device tested_device() { return {tested_family().kind, 0}; }
inline gpu::Gpu& tested_gpu() { return find_gpu(tested_device()); }
inline std::unique_ptr<OpsBackend> make_tested_gpu_ops() { return tested_family().make_ops(tested_device()); }

/// True for one that is emulated, which TESSERA_SLOW_GPU says: tests then take fewer and smaller shapes.
inline bool tested_gpu_is_slow() { return std::getenv("TESSERA_SLOW_GPU") != nullptr; }

/// Skips all tests of a program on a machine without such a GPU, if added to its global environments.
class NeedsGpu final : public ::testing::Environment {
  void SetUp() override {
    const std::string reason = tested_family().unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << "no GPU: " << reason;
  }
};

}  // namespace tessera::testing
