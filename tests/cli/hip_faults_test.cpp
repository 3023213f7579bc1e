// What users meet when an AMD GPU, its runtime or its compiler is not as it should be; by libraries that
// only pretend, so that it runs everywhere.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu_commands.h"

namespace tessera::testing {
namespace {

using Environment = std::vector<std::string>;

// An NVIDIA GPU would come first.
const std::string kNoCuda = "TESSERA_CUDA_LIBRARY=/nowhere/libcuda.so.1";

Environment fake_runtime(int init, int devices, int result, const std::string& architecture = "gfx1100") {
  return {std::string("TESSERA_HIP_LIBRARY=") + TESSERA_FAKE_HIP_RUNTIME,
          "TESSERA_HIPRTC_LIBRARY=/nowhere/libhiprtc.so.6",
          kNoCuda,
          "FAKE_HIP_INIT=" + std::to_string(init),
          "FAKE_HIP_DEVICES=" + std::to_string(devices),
          "FAKE_HIP_RESULT=" + std::to_string(result),
          "FAKE_HIP_ARCHITECTURE=" + architecture};
}

TEST(HipRuntime, NotThere) {
  expect_cpu_and_reason("hip", {kNoCuda, "TESSERA_HIP_LIBRARY=/nowhere/libamdhip64.so.6"},
                        "no HIP runtime for AMD GPUs was found");
}

TEST(HipRuntime, NotTheRuntime) {
  expect_cpu_and_reason("hip", {kNoCuda, "TESSERA_HIP_LIBRARY=libm.so.6"}, "lacks hipInit");
}

TEST(HipRuntime, ThereWithoutADevice) {
  constexpr int kNoDevice = 100;
  expect_cpu_and_reason("hip", fake_runtime(kNoDevice, 0, 0), "finds no AMD GPU");
  expect_cpu_and_reason("hip", fake_runtime(0, 0, 0), "finds no AMD GPU");
}

TEST(HipRuntime, DoesNotStart) {
  expect_cpu_and_reason("hip", fake_runtime(999, 1, 1), "does not start: hipErrorFake (999: a fake error)");
}

TEST(HipRuntime, AGpuThatNothingWasBuiltForTakesTheCompiler) {
  expect_cpu_and_reason("hip", fake_runtime(0, 1, 0, "gfx803:xnack-"),
                        "Fake Radeon is a gfx803, this binary has");
  const ProcessResult result = run_in({"bench", "attention", "--backend", "hip", "--seq-len-q", "64"},
                                      fake_runtime(0, 1, 0, "gfx803"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("hipRTC was not found"), std::string::npos) << result.err;
}

TEST(HipRuntime, AGpuWithoutAnArchitectureIsSaid) {
  const ProcessResult result = run_model("hip", fake_runtime(0, 1, 0, ""));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("does not say which architecture"), std::string::npos) << result.err;
}

TEST(HipRuntime, InfoSaysWhoseCodeAGpuRuns) {
  const ProcessResult info = run_in({"info"}, fake_runtime(0, 1, 0, "gfx1103"));
  EXPECT_NE(info.out.find("gfx1103 (the instructions of gfx1102: runs its kernels)"), std::string::npos)
      << info.out;
  const nlohmann::json hip =
      nlohmann::json::parse(run_in({"info", "--json"}, fake_runtime(0, 2, 0, "gfx1103:xnack-")).out)
          .at("hip");
  ASSERT_EQ(hip.at("gpus").size(), 2u);
  EXPECT_EQ(hip.at("gpus")[1].at("name"), "hip:1");
  EXPECT_EQ(hip.at("gpus")[1].at("architecture"), "gfx1103");
  EXPECT_EQ(hip.at("gpus")[1].at("runs_kernels_for"), "gfx1102");
  EXPECT_EQ(hip.at("hip_version"), "6.3");
}

#ifdef TESSERA_HIP_KERNELS_AHEAD_OF_TIME
TEST(HipRuntime, AGpuThatFailsAtOnceIsAnErrorAndNotTheCpu) {
  constexpr int kDevicesUnavailable = 46;
  const Environment environment = fake_runtime(0, 1, kDevicesUnavailable);
  for (const char* backend : {"auto", "hip"}) {
    const ProcessResult result = run_model(backend, environment);
    EXPECT_EQ(result.exit_code, 1) << backend;
    EXPECT_EQ(result.signal, 0) << backend;
    EXPECT_NE(result.err.find("hipSetDevice failed: hipErrorFake (46"), std::string::npos) << result.err;
  }
  EXPECT_EQ(run_model("cpu", environment).exit_code, 0);
}
#endif

}  // namespace
}  // namespace tessera::testing
