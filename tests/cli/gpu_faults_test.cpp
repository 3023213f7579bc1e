// What users meet when a GPU, its driver, the run-time compiler or the kernel cache is not as it should be.

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "gpu_commands.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

std::vector<std::string> fake_driver(int init, int devices, int result) {
  return {std::string("TESSERA_CUDA_LIBRARY=") + TESSERA_FAKE_CUDA_DRIVER,
          "FAKE_CUDA_INIT=" + std::to_string(init), "FAKE_CUDA_DEVICES=" + std::to_string(devices),
          "FAKE_CUDA_RESULT=" + std::to_string(result)};
}

TEST(Driver, NotThere) {
  expect_cpu_and_reason("cuda", {"TESSERA_CUDA_LIBRARY=/nowhere/libcuda.so.1"}, "no NVIDIA driver was found");
}

TEST(Driver, NotADriver) {
  expect_cpu_and_reason("cuda", {"TESSERA_CUDA_LIBRARY=libm.so.6"}, "lacks cuInit");
}

TEST(Driver, ThereWithoutADevice) {
  constexpr int kNoDevice = 100;
  expect_cpu_and_reason("cuda", fake_driver(kNoDevice, 0, 0), "finds no GPU");
  expect_cpu_and_reason("cuda", fake_driver(0, 0, 0), "finds no GPU");
}

TEST(Driver, DoesNotStart) {
  constexpr int kSystemDriverMismatch = 803;
  expect_cpu_and_reason("cuda", fake_driver(kSystemDriverMismatch, 1, 1),
                        "does not start: unknown error (803");
}

TEST(Driver, AGpuThatFailsAtOnceIsAnErrorAndNotTheCpu) {
  constexpr int kDevicesUnavailable = 46;
  const auto environment = fake_driver(0, 1, kDevicesUnavailable);
  for (const char* backend : {"auto", "cuda"}) {
    const ProcessResult result = run_model(backend, environment);
    EXPECT_EQ(result.exit_code, 1) << backend;
    EXPECT_EQ(result.signal, 0) << backend;
    EXPECT_NE(result.err.find("cuDeviceGet failed: unknown error (46"), std::string::npos) << result.err;
  }
  EXPECT_EQ(run_model("cpu", environment).exit_code, 0);
}

/// The rest needs a GPU. Each test has an empty kernel cache.
class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto info = nlohmann::json::parse(run_in({"info", "--json"}, {}).out);
    for (const auto& backend : info.at("attention_backends")) {
      if (backend.at("name") == "cuda" && !backend.at("available").get<bool>()) {
        GTEST_SKIP() << "no GPU: " << backend.at("unavailable_reason");
      }
    }
    folder_ = fs::path(::testing::TempDir()) / ("tessera_gpu_faults_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    cache_ = "TESSERA_CACHE_DIR=" + folder_.string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
  std::string cache_;
};

// No build has this head_dim ahead of time.
const Arguments kCompiledNow = {"verify",  "--backend", "cuda",
                                "--quick", "--filter",  "head_dim 192 and 128/bf16"};

TEST_F(Gpu, HiddenByTheEnvironment) {
  expect_cpu_and_reason("cuda", {"CUDA_VISIBLE_DEVICES="}, "CUDA_VISIBLE_DEVICES");
}

TEST_F(Gpu, WithoutTheCompilerOnlyKernelsBuiltAheadRun) {
  const std::string no_compiler = "TESSERA_NVRTC_LIBRARY=/nowhere/libnvrtc.so";
  const ProcessResult result = run_in({"bench", "attention", "--backend", "cuda", "--dtype", "bf16",
                                       "--head-dim", "80", "--seq-len-q", "256"},
                                      {cache_, no_compiler});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("cuda-nvrtc"), std::string::npos) << result.err;
#ifdef TESSERA_KERNELS_AHEAD_OF_TIME
  const ProcessResult built_ahead = run_in({"bench", "attention", "--backend", "cuda", "--dtype", "bf16",
                                            "--head-dim", "128", "--seq-len-q", "256"},
                                           {cache_, no_compiler});
  EXPECT_EQ(built_ahead.exit_code, 0) << built_ahead.err;
#endif
}

TEST_F(Gpu, ACacheThatCannotBeWrittenOnlyCostsTime) {
  const ProcessResult result = run_in(kCompiledNow, {"TESSERA_CACHE_DIR=/proc/nowhere"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(Gpu, ProcessesMayFillTheCacheTogether) {
  std::array<ProcessResult, 4> results;
  std::vector<std::thread> threads;
  for (ProcessResult& result : results) {
    threads.emplace_back([&] { result = run_in(kCompiledNow, {cache_}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const ProcessResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(run_in({"cache", "verify"}, {cache_}).exit_code, 0);
  EXPECT_FALSE(fs::is_empty(folder_));
}

TEST_F(Gpu, KilledWhileItFillsTheCache) {
  for (const int delay_ms : {500, 900, 1300, 1700, 2100, 2500}) {
    ProcessOptions options;
    options.environment = {cache_};
    options.signal_after = {SIGKILL, std::chrono::milliseconds(delay_ms)};
    run_tessera(kCompiledNow, options);
    EXPECT_EQ(run_in({"cache", "verify"}, {cache_}).exit_code, 0) << delay_ms;
  }
  const ProcessResult result = run_in(kCompiledNow, {cache_});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

}  // namespace
}  // namespace tessera::testing
