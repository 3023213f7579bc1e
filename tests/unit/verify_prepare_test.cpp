// Before the suite runs on a GPU, its kernels are loaded on all threads. The GPU here is the reference, which
// waits while it loads.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "attention/backend.h"
#include "core/parallel.h"
#include "forwarding_backend.h"
#include "tessera/error.h"
#include "verify/verify.h"

namespace tessera {
namespace {

/// Opens when two threads wait for it; they wait for ever only if nothing but one comes.
class Meeting {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    has_met_ = changed_.wait_for(lock, std::chrono::seconds(20), [&] { return waiting_ >= 2; }) && has_met_;
  }
  bool has_met() const { return has_met_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool has_met_ = true;
};

/// The reference, as if it had kernels to load. Every third call can't be loaded.
class LoadingBackend final : public ForwardingBackend {
 public:
  explicit LoadingBackend(DeviceKind kind) : kind_(kind) {}

  std::string_view name() const override { return kind_ == DeviceKind::kCpu ? "loads_on_cpu" : "loads"; }
  DeviceKind device_kind() const override { return kind_; }
  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    AttentionPlan plan = ForwardingBackend::plan(p, config);
    plan.call = std::make_shared<AttentionCall>(
        p, plan.workspace_bytes,
        [right = plan.call](const AttentionProblem& problem, std::span<std::byte> workspace, Stream stream) {
          right->forward(problem, workspace, stream);
        },
        [this] {
          const int number = loads.fetch_add(1);
          if (number < 2 && num_threads() > 1) meeting.wait();
          if (number % 3 == 0) throw Error(ErrorCode::kDevice, "a kernel can't be loaded");
        });
    return plan;
  }

  mutable std::atomic<int> loads = 0;
  mutable Meeting meeting;

 private:
  DeviceKind kind_;
};

const LoadingBackend& add_backend(DeviceKind kind) {
  auto owned = std::make_unique<LoadingBackend>(kind);
  const LoadingBackend& backend = *owned;
  add_attention_backend(std::move(owned));
  return backend;
}

TEST(VerifyPrepares, AllCasesOfAGpuSideBySideBeforeTheFirst) {
  const LoadingBackend& backend = add_backend(DeviceKind::kCuda);
  VerifyOptions options;
  options.filter = "window";
  int loads_at_first_result = -1;
  const std::vector<VerifyResult> results =
      run_verify("loads", VerifyMemory::cpu(), options, [&](const VerifyResult&) {
        if (loads_at_first_result < 0) loads_at_first_result = backend.loads;
      });
  ASSERT_GT(results.size(), 3u);
  EXPECT_GE(loads_at_first_result, static_cast<int>(results.size()));
  EXPECT_TRUE(backend.meeting.has_met()) << "one was loaded after the other";
  for (const VerifyResult& result : results)
    EXPECT_TRUE(result.passed) << result.name << ": " << result.message;
}

TEST(VerifyPrepares, NothingForTheCpu) {
  const LoadingBackend& backend = add_backend(DeviceKind::kCpu);
  VerifyOptions options;
  options.filter = "window";
  ASSERT_FALSE(run_verify("loads_on_cpu", VerifyMemory::cpu(), options).empty());
  EXPECT_EQ(backend.loads, 0);
}

}  // namespace
}  // namespace tessera
