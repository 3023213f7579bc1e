// Before the suite runs on a GPU, its kernels are loaded on all threads. The GPU here is the reference, which
// waits while it loads.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
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

class Names {
 public:
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.insert(name);
  }
  std::set<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return names_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> names_;
};

/// What kernels are compiled for: a problem's types, sizes of rows, pages, and whether vectors can read it.
std::string kernel_of(const AttentionProblem& p) {
  const auto elements = static_cast<std::int64_t>(16 / dtype_bytes(p.q.dtype, 1));
  const auto is_aligned = [&](const auto& t) {
    return t.batch_stride % elements == 0 && t.seq_stride % elements == 0 && t.head_stride % elements == 0;
  };
  return fmt::format("{} {} {} {} {}", dtype_name(p.q.dtype), p.head_dim_qk, p.head_dim_v,
                     p.paged_kv ? "paged" : "", is_aligned(p.q) && is_aligned(p.k) && is_aligned(p.v));
}

/// The reference, as if it had kernels to load. Every third call can't be loaded.
class LoadingBackend final : public ForwardingBackend {
 public:
  explicit LoadingBackend(DeviceKind kind) : kind_(kind) {}

  std::string_view name() const override {
    return kind_ == DeviceKind::kCpu ? "loads_on_cpu" : kind_ == DeviceKind::kHip ? "loads_on_hip" : "loads";
  }
  DeviceKind device_kind() const override { return kind_; }
  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    AttentionPlan plan = ForwardingBackend::plan(p, config);
    plan.call = std::make_shared<AttentionCall>(
        p, plan.workspace_bytes,
        [this, right = plan.call](const AttentionProblem& problem, std::span<std::byte> workspace,
                                  Stream stream) {
          used.add(kernel_of(problem));
          right->forward(problem, workspace, stream);
        },
        [this, kernel = kernel_of(p)] {
          loaded.add(kernel);
          const int number = loads.fetch_add(1);
          if (number < 2 && num_threads() > 1) meeting.wait();
          if (number % 3 == 0) throw Error(ErrorCode::kDevice, "a kernel can't be loaded");
        });
    return plan;
  }

  mutable std::atomic<int> loads = 0;
  mutable Names loaded, used;
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
  options.filter = "NaN in keys outside the window";
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

TEST(VerifyPrepares, WhatACaseRunsBesideItsFirstCall) {
  const LoadingBackend& backend = add_backend(DeviceKind::kHip);
  VerifyOptions options;
  options.filter = "batch_invariant/causal/f16";
  std::set<std::string> loaded;
  const std::vector<VerifyResult> results =
      run_verify("loads_on_hip", VerifyMemory::cpu(), options,
                 [&](const VerifyResult&) { loaded = backend.loaded.all(); });
  ASSERT_EQ(results.size(), 1u);
  const std::set<std::string> used = backend.used.all();
  EXPECT_GE(used.size(), 3u);  // pages and rows that are not aligned, too
  EXPECT_EQ(loaded, used);
}

TEST(VerifyWorksAhead, WithTheResultsOfOneCaseAfterTheOther) {
  VerifyOptions options;
  options.filter = "NaN in keys outside the window";
  std::size_t compared = 0;
  set_num_threads(2);
  for (const std::string backend : {"unfused", "reference"}) {
    const std::vector<VerifyResult> results = run_verify(backend, VerifyMemory::cpu(), options);
    auto result = results.begin();
    for (const VerifyCase& verify_case : attention_verify_cases()) {
      if (verify_case.name.find(options.filter) == std::string::npos) continue;
      ASSERT_NE(result, results.end());
      const VerifyResult alone = run_verify_case(verify_case, backend, VerifyMemory::cpu());
      EXPECT_EQ(result->name, alone.name);
      EXPECT_EQ(result->passed, alone.passed) << alone.name;
      EXPECT_EQ(result->error, alone.error) << alone.name;
      EXPECT_EQ(result->bound, alone.bound) << alone.name;
      EXPECT_EQ(result->lse_bound, alone.lse_bound) << alone.name;
      ++result;
      ++compared;
    }
    EXPECT_EQ(result, results.end());
  }
  set_num_threads(0);
  EXPECT_GT(compared, 2 * 4u);  // more than are worked out at once
}

TEST(VerifyPrepares, NothingForTheCpu) {
  const LoadingBackend& backend = add_backend(DeviceKind::kCpu);
  VerifyOptions options;
  options.filter = "NaN in keys outside the window";
  ASSERT_FALSE(run_verify("loads_on_cpu", VerifyMemory::cpu(), options).empty());
  EXPECT_EQ(backend.loads, 0);
}

}  // namespace
}  // namespace tessera
