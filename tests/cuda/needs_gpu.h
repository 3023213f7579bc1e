#pragma once

#include <gtest/gtest.h>

#include <string>

#include "backends/cuda/runtime/driver.h"

namespace tessera::testing {

/// Skips all tests of a program on a machine without a GPU, if added to its global environments.
class NeedsGpu final : public ::testing::Environment {
  void SetUp() override {
    const std::string& reason = cuda::driver_state().unavailable_reason;
    if (!reason.empty()) GTEST_SKIP() << "no GPU: " << reason;
  }
};

}  // namespace tessera::testing
