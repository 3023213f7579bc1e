// How `tessera tune attention` measures, on a GPU that is pretended: its memory is the host's, its kernels
// are the reference, and a clock of its own says how long they take.

#include "tune_measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attention/call.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

/// Events are times of its clock, graphs what the calls that were captured take together.
class PretendedGpu final : public gpu::Gpu {
 public:
  PretendedGpu() : Gpu({DeviceKind::kCuda, 0}) {
    properties_.name = "a pretended GPU";
    properties_.l2_bytes = 1 << 16;
    properties_.num_multiprocessors = 4;
  }

  bool is_capturing() const { return is_capturing_; }
  void spend(double us) { (is_capturing_ ? captured_us_ : now_us_) += us; }

  gpu::KernelLibrary& kernels() override { throw Error(ErrorCode::kUnsupported, "it has no kernels"); }
  std::shared_ptr<std::byte> allocate_pinned(std::size_t, std::string_view) override { return nullptr; }
  std::size_t free_memory_bytes() const override { return std::size_t{1} << 30; }
  void upload(void* to, const void* from, std::size_t bytes, Stream) override {
    std::memcpy(to, from, bytes);
  }
  void start_download(void* to, const void* from, std::size_t bytes, Stream) override {
    std::memcpy(to, from, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream) override { std::memcpy(to, from, bytes); }
  void fill(void* to, unsigned char value, std::size_t bytes, Stream) override {
    std::memset(to, value, bytes);
  }

  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) const override {}

  gpu::EventHandle create_event(gpu::EventKind) override { return new double(0); }
  void destroy_event(gpu::EventHandle event) noexcept override { delete static_cast<double*>(event); }
  void record(gpu::EventHandle event, Stream) override { *static_cast<double*>(event) = now_us_; }
  void wait_for(gpu::EventHandle) override {}
  double elapsed_ms(gpu::EventHandle start, gpu::EventHandle stop) override {
    return (*static_cast<double*>(stop) - *static_cast<double*>(start)) / 1e3;
  }

  std::unique_ptr<gpu::Graph> capture(Stream, const std::function<void()>& work) override {
    class Replay final : public gpu::Graph {
     public:
      Replay(PretendedGpu& device, double us) : device_(device), us_(us) {}
      // Up to 1 % slower, now and then 20 %, as on a machine that others use.
      void launch(Stream) override {
        const int n = device_.num_launches_++;
        device_.now_us_ += us_ * (1 + 0.01 * (n * 7 % 11) / 10 + (n % 17 == 0 ? 0.2 : 0));
      }

     private:
      PretendedGpu& device_;
      double us_;
    };
    captured_us_ = 0;
    is_capturing_ = true;
    work();
    is_capturing_ = false;
    return std::make_unique<Replay>(*this, captured_us_);
  }

  void launch(const gpu::Kernel&, const gpu::LaunchShape&, std::span<void* const>, Stream,
              std::string_view) override {}
  gpu::CodeFit fit_of(std::string_view) const override { return gpu::CodeFit::kNone; }
  void* load_module(std::span<const std::byte>, std::string_view) override { return nullptr; }
  gpu::Kernel find_function(void*, const std::string&, gpu::CodeFit, std::string_view) override { return {}; }
  void allow_shared(gpu::Kernel&, std::size_t, std::string_view) override {}

 private:
  std::byte* take_memory(std::size_t bytes, std::string_view, Stream) override {
    return static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  }
  void give_memory(std::byte* memory, Stream) noexcept override { std::free(memory); }

  double now_us_ = 0;
  double captured_us_ = 0;
  bool is_capturing_ = false;
  int num_launches_ = 0;
};

enum class Result { kRight, kOneRowWrong, kOneRowForgotten, kUnsupported, kDeviceFails };

/// A candidate, what it takes and what it makes of a problem.
struct Pretended {
  AttentionCandidate candidate;
  double us;
  Result result = Result::kRight;
};

class PretendedBackend final : public AttentionBackend, public AttentionTuner {
 public:
  PretendedBackend(PretendedGpu& device, std::vector<Pretended> kernels)
      : device_(device), kernels_(std::move(kernels)) {}

  std::string_view name() const override { return "pretended"; }
  std::string_view description() const override { return "a stand-in"; }
  std::string unavailable_reason() const override { return {}; }
  std::string unsupported_reason(const AttentionProblem&) const override { return {}; }
  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig&) const override {
    return plan_candidate(p, kernels_.front().candidate);
  }
  const AttentionTuner* tuner() const override { return this; }
  std::shared_ptr<std::byte> allocate_workspace(const Device&, std::size_t, Stream) const override {
    return nullptr;
  }
  std::string unsupported_reason(const MergeStatesProblem&) const override { return {}; }
  void merge_states(const MergeStatesProblem&, Stream) const override {}
  Ceilings ceilings(DType) const override { return {}; }

  std::vector<AttentionCandidate> candidates(const AttentionProblem&) const override {
    std::vector<AttentionCandidate> all;
    for (const Pretended& kernel : kernels_) all.push_back(kernel.candidate);
    return all;
  }

  AttentionPlan plan_candidate(const AttentionProblem& p,
                               const AttentionCandidate& candidate) const override {
    const Pretended kernel = *std::ranges::find(kernels_, candidate, &Pretended::candidate);
    AttentionPlan plan;
    plan.kernel = candidate.kernel;
    plan.config = candidate.config;
    plan.call = std::make_shared<AttentionCall>(
        p, 0, [this, kernel](const AttentionProblem& problem, std::span<std::byte>, Stream) {
          run(kernel, problem);
        });
    return plan;
  }

  void prepare(const AttentionProblem&, std::span<const AttentionCandidate>) const override {}
  TuningTable tuned(const Device&) const override { return {}; }
  void remember(const Device&, const TuningTable&) const override {}

 private:
  void run(const Pretended& kernel, const AttentionProblem& problem) const {
    device_.spend(kernel.us);
    if (device_.is_capturing()) return;
    if (kernel.result == Result::kUnsupported) throw Error(ErrorCode::kUnsupported, "it can't be compiled");
    if (kernel.result == Result::kDeviceFails) throw Error(ErrorCode::kDevice, "the GPU has stopped");
    AttentionProblem host = problem;
    host.device = {};
    attention_forward(host, {.backend = "reference", .config = {}});
    float* const last_row =
        static_cast<float*>(problem.o.data) + (problem.seq_len_q - 1) * problem.o.seq_stride;
    if (kernel.result == Result::kOneRowWrong) last_row[0] += 0.1f;
    if (kernel.result == Result::kOneRowForgotten) last_row[0] = std::numeric_limits<float>::quiet_NaN();
  }

  PretendedGpu& device_;
  std::vector<Pretended> kernels_;
};

MeasuredProblem measure(std::vector<Pretended> kernels) {
  PretendedGpu device;
  const PretendedBackend backend(device, std::move(kernels));
  ProblemOptions options;
  options.seq_len_q = 70;  // more rows than the fp64 check looks at
  options.num_heads = 2;
  options.head_dim = 16;
  return measure_candidates(backend, &device, options, 0);
}

const MeasuredCandidate* find(const MeasuredProblem& m, const AttentionCandidate& candidate) {
  const auto found = std::ranges::find(m.candidates, candidate, &MeasuredCandidate::candidate);
  return found == m.candidates.end() ? nullptr : &*found;
}

TEST(MeasureCandidates, FindsTheQuickest) {
  const AttentionCandidate quickest = {"b", {.num_splits = 4}};
  const MeasuredProblem m =
      measure({{{"a", {}}, 10}, {{"b", {}}, 11}, {{"b", {.num_splits = 2}}, 9}, {quickest, 8}});
  EXPECT_EQ(m.shapes, "f32 d16 group1 dense q64 kv64 kvheads2");
  EXPECT_EQ(m.entry.best, quickest);
  EXPECT_EQ(m.entry.default_kernel, "a");
  EXPECT_EQ(m.entry.kv_heads, 2);
  EXPECT_EQ(m.entry.num_candidates, 4);
  EXPECT_NEAR(m.entry.best_us, 8, 0.08);
  EXPECT_NEAR(m.entry.default_us, 10, 0.1);
  EXPECT_EQ(m.entry.date.size(), 10u);
  EXPECT_LT(find(m, {"b", {}})->rounds, find(m, {"a", {}})->rounds) << "far behind";
}

TEST(MeasureCandidates, KeepsTheUntunedChoiceWhereGainsAreNoise) {
  const MeasuredProblem m = measure({{{"a", {}}, 10}, {{"b", {}}, 9.8}, {{"a", {.num_splits = 2}}, 10.1}});
  EXPECT_EQ(m.entry.best, AttentionCandidate{});
  EXPECT_EQ(m.entry.best_us, m.entry.default_us);
  EXPECT_EQ(m.entry.num_candidates, 3);
}

TEST(MeasureCandidates, LeavesOutWhatIsWrongInOneRowOrCannotRun) {
  const AttentionCandidate right = {"right", {}};
  const MeasuredProblem m = measure({{{"a", {}}, 10},
                                     {{"wrong", {}}, 1, Result::kOneRowWrong},
                                     {{"forgetful", {}}, 1, Result::kOneRowForgotten},
                                     {{"missing", {}}, 1, Result::kUnsupported},
                                     {right, 9}});
  EXPECT_EQ(m.entry.best, right);
  EXPECT_EQ(m.entry.num_candidates, 2);
  EXPECT_NE(find(m, {"wrong", {}})->failure.find("its result differs by 0.1"), std::string::npos)
      << find(m, {"wrong", {}})->failure;
  EXPECT_NE(find(m, {"forgetful", {}})->failure.find("its result differs by inf"), std::string::npos);
  EXPECT_EQ(find(m, {"missing", {}})->failure, "it can't be compiled");
}

TEST(MeasureCandidates, TriesNoVariantsOfKernelsThatAreHopelessByThemselves) {
  const MeasuredProblem m = measure({{{"a", {}}, 10},
                                     {{"a", {.num_splits = 2}}, 10},
                                     {{"slow", {}}, 14},
                                     {{"slow", {.num_splits = 2}}, 1},
                                     {{"missing", {}}, 1, Result::kUnsupported},
                                     {{"missing", {.num_splits = 2}}, 1}});
  EXPECT_EQ(m.entry.best, AttentionCandidate{});
  EXPECT_NE(find(m, {"a", {.num_splits = 2}}), nullptr);
  EXPECT_EQ(find(m, {"slow", {.num_splits = 2}}), nullptr);
  EXPECT_EQ(find(m, {"missing", {.num_splits = 2}}), nullptr);
}

TEST(MeasureCandidates, FailsWhereTheUntunedChoiceIsWrongOrTheDeviceStops) {
  const auto message_of = [](std::vector<Pretended> kernels) {
    try {
      measure(std::move(kernels));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDevice);
      return error.message();
    }
    return std::string();
  };
  EXPECT_NE(message_of({{{"a", {}}, 10, Result::kOneRowForgotten}}).find("a gives a wrong result"),
            std::string::npos);
  EXPECT_EQ(message_of({{{"a", {}}, 10}, {{"b", {}}, 9, Result::kDeviceFails}}), "the GPU has stopped");
}

TEST(MeasureCandidates, OnTheCpuAgreesWithTheReference) {
  ProblemOptions options;
  options.seq_len_q = 100;
  options.num_heads = 2;
  options.head_dim = 32;
  const MeasuredProblem m = measure_candidates(find_attention_backend("cpu"), nullptr, options, 0);
  EXPECT_GT(m.candidates.size(), 3u);
  for (const MeasuredCandidate& c : m.candidates) {
    EXPECT_EQ(c.failure, "") << to_string(c.candidate);
    EXPECT_GT(c.us, 0);
  }
}

}  // namespace
}  // namespace tessera::cli
