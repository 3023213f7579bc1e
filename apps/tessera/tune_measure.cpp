#include "tune_measure.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <span>

#include "core/aligned_memory.h"
#include "core/element.h"
#include "core/parallel.h"
#include "gpu_bench.h"
#include "row_check.h"
#include "tessera/error.h"
#include "timing.h"

namespace tessera::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kReplayMs = 1.5;
constexpr double kWarmUpMs = 40;
constexpr int kFirstRounds = 3;  // of all
constexpr int kRounds = 15;
constexpr std::chrono::seconds kLongest{10};  // of rounds after the first few
// Of the quickest's median after the first rounds.
constexpr double kHopeless = 1.3;  // a kernel's own choice: its variants are not worth compiling
constexpr double kFarBehind = 1.08;

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

/// Largest difference of two results of `dtype`; infinite for a NaN.
double largest_difference(std::span<const std::byte> a, std::span<const std::byte> b, DType dtype) {
  constexpr std::size_t kChunk = std::size_t{1} << 18;
  double largest = 0;
  dispatch_float(dtype, [&]<class T>() {
    const std::size_t count = a.size() / sizeof(T);
    std::vector<double> of_chunk((count + kChunk - 1) / kChunk);
    parallel_for(of_chunk.size(), [&](std::size_t chunk) {
      const T* const x = reinterpret_cast<const T*>(a.data());
      const T* const y = reinterpret_cast<const T*>(b.data());
      for (std::size_t i = chunk * kChunk; i < std::min(count, (chunk + 1) * kChunk); ++i) {
        const double difference = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
        if (std::isnan(difference)) {
          of_chunk[chunk] = std::numeric_limits<double>::infinity();
        } else {
          of_chunk[chunk] = std::max(of_chunk[chunk], difference);
        }
      }
    });
    for (const double difference : of_chunk) largest = std::max(largest, difference);
  });
  return largest;
}

/// Where a problem is computed: its tensors there, calls of plans on them, and their times.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual const AttentionProblem& problem() const = 0;
  virtual std::shared_ptr<std::byte> allocate(std::size_t size_bytes) = 0;
  /// The result of one call over poisoned outputs, in the o of the problem's data.
  virtual void run_once(const AttentionPlan& plan, std::span<std::byte> workspace) = 0;
  /// What gives one more sample of a plan's time, in milliseconds.
  virtual std::function<double()> make_sampler(const AttentionPlan& plan, std::span<std::byte> workspace) = 0;
};

/// On copies of the tensors in a GPU's memory, in replays of graphs.
class GpuRunner final : public Runner {
 public:
  GpuRunner(ProblemData& data, gpu::Gpu& device)
      : device_(device), stream_(device), tensors_(data.problem(), device, /*warm=*/false) {}

  const AttentionProblem& problem() const override { return tensors_.problem(0); }

  std::shared_ptr<std::byte> allocate(std::size_t size_bytes) override {
    return device_.allocate(size_bytes, "the workspace of a measurement", stream_.handle());
  }

  void run_once(const AttentionPlan& plan, std::span<std::byte> workspace) override {
    tensors_.poison_outputs();
    device_.synchronize({});
    attention_forward(tensors_.problem(0), plan, workspace, stream_.handle());
    device_.synchronize(stream_.handle());
    tensors_.download_outputs();
  }

  std::function<double()> make_sampler(const AttentionPlan& plan, std::span<std::byte> workspace) override {
    const auto call = [&](int n) {
      attention_forward(tensors_.problem(n % tensors_.copies()), plan, workspace, stream_.handle());
    };
    auto replay = std::make_shared<GpuReplay>(device_, stream_.handle(), tensors_.copies(), call, kReplayMs);
    if (!is_warm_) replay->warm_up(kWarmUpMs);
    is_warm_ = true;
    return [replay] { return replay->sample_ms(); };
  }

 private:
  gpu::Gpu& device_;
  const gpu::OwnedStream stream_;
  GpuProblem tensors_;
  bool is_warm_ = false;
};

/// In main memory, whose caches each sample finds flushed.
class CpuRunner final : public Runner {
 public:
  explicit CpuRunner(ProblemData& data) : data_(data) {}

  const AttentionProblem& problem() const override { return data_.problem(); }

  std::shared_ptr<std::byte> allocate(std::size_t size_bytes) override {
    return allocate_aligned(std::max<std::size_t>(size_bytes, 1), "the workspace of a measurement");
  }

  void run_once(const AttentionPlan& plan, std::span<std::byte> workspace) override {
    data_.poison_output();
    attention_forward(data_.problem(), plan, workspace);
  }

  std::function<double()> make_sampler(const AttentionPlan& plan, std::span<std::byte> workspace) override {
    return [this, plan, workspace] {
      flusher_.flush();
      const Clock::time_point start = Clock::now();
      attention_forward(data_.problem(), plan, workspace);
      return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    };
  }

 private:
  ProblemData& data_;
  CacheFlusher flusher_;
};

/// A candidate that can be run.
struct Runnable {
  std::size_t index;  ///< among the measured
  AttentionPlan plan;
  std::shared_ptr<std::byte> memory;
  std::function<double()> sample_ms;
  std::vector<double> samples_ms;

  std::span<std::byte> workspace() const { return {memory.get(), plan.workspace_bytes}; }
  double median_ms() const { return median_of(samples_ms); }
};

/// One problem's data and what is measured on it.
class Measurement {
 public:
  Measurement(const AttentionBackend& backend, gpu::Gpu* device, const ProblemOptions& options,
              std::uint64_t seed)
      : tuner_(*backend.tuner()), data_(options) {
    data_.fill(seed);
    if (device != nullptr) {
      runner_ = std::make_unique<GpuRunner>(data_, *device);
    } else {
      runner_ = std::make_unique<CpuRunner>(data_);
    }
  }

  MeasuredProblem run() {
    const AttentionProblem& problem = runner_->problem();
    // What kernels choose by themselves, then what else the quicker ones have.
    std::vector<AttentionCandidate> own, variants;
    for (const AttentionCandidate& candidate : tuner_.candidates(problem))
      (candidate.config == AttentionConfig{} ? own : variants).push_back(candidate);
    add(own);
    take_rounds(kFirstRounds);
    leave_out_slower_than(kHopeless);
    std::erase_if(variants, [&](const AttentionCandidate& variant) {
      return std::ranges::none_of(runnable_, [&](const Runnable& r) {
        return measured_[r.index].candidate.kernel == variant.kernel;
      });
    });
    add(variants);
    take_rounds(kFirstRounds);
    leave_out_slower_than(kFarBehind);
    for (Runnable& r : runnable_) r.samples_ms.clear();
    // Alone the untuned choice has nothing to be compared with.
    take_rounds(runnable_.size() > 1 ? kRounds : kFirstRounds);
    for (const Runnable& r : runnable_) note(r);
    const std::size_t best = choose();
    return {to_string(problem), shape_class(problem), entry_of(best), std::move(measured_)};
  }

 private:
  /// Plans and runs candidates, and leaves those out that fail or compute something else than the first of
  /// all.
  void add(std::span<const AttentionCandidate> candidates) {
    const AttentionProblem& problem = runner_->problem();
    tuner_.prepare(problem, candidates);
    for (const AttentionCandidate& candidate : candidates) {
      MeasuredCandidate& c = measured_.emplace_back();
      c.candidate = candidate;
      Runnable r = {measured_.size() - 1, tuner_.plan_candidate(problem, candidate), nullptr, {}, {}};
      c.config = r.plan.config;
      r.memory = runner_->allocate(r.plan.workspace_bytes);
      try {
        runner_->run_once(r.plan, r.workspace());
      } catch (const Error& error) {
        // Not that the device has failed: then nothing works any more.
        if (expected_.empty() || error.code() == ErrorCode::kDevice) throw;
        c.failure = error.message();
        continue;
      }
      if (expected_.empty()) {
        expect_result(c, r.plan.narrow_weights);
      } else if (const double difference =
                     largest_difference(expected_, data_.output(), data_.problem().o.dtype);
                 !(difference <= tolerance_)) {
        c.failure = fmt::format("its result differs by {:.3g} from that of {}, more than {:.3g}", difference,
                                measured_.front().candidate.kernel, tolerance_);
        continue;
      }
      r.sample_ms = runner_->make_sampler(r.plan, r.workspace());
      runnable_.push_back(std::move(r));
    }
  }

  /// Takes the untuned choice's result for that of all, if the reference confirms it.
  void expect_result(const MeasuredCandidate& untuned, bool narrow_weights) {
    const RowCheck check = check_rows(data_.problem(), narrow_weights);
    if (!check.passed()) {
      throw Error(ErrorCode::kDevice,
                  fmt::format("{} gives a wrong result: error {:.3g}, bound {:.3g} in {} rows",
                              untuned.candidate.kernel, check.error, check.bound, check.rows));
    }
    if (largest_difference(data_.output(), data_.output(), data_.problem().o.dtype) != 0) {
      throw Error(ErrorCode::kDevice, fmt::format("{} gives a wrong result: not all of it are finite numbers",
                                                  untuned.candidate.kernel));
    }
    expected_.assign(data_.output().begin(), data_.output().end());
    // Either result may be off by the bound, which is that of some rows, not of all.
    tolerance_ = 4 * check.bound;
  }

  /// Fewer if they take very long.
  void take_rounds(int rounds) {
    const Clock::time_point start = Clock::now();
    for (int round = 0; round < rounds; ++round) {
      if (round >= kFirstRounds && Clock::now() - start > kLongest) break;
      for (Runnable& r : runnable_) r.samples_ms.push_back(r.sample_ms());
    }
  }

  /// All but the untuned choice whose medians are `factor` times the least one or more.
  void leave_out_slower_than(double factor) {
    double quickest = std::numeric_limits<double>::infinity();
    for (const Runnable& r : runnable_) quickest = std::min(quickest, r.median_ms());
    for (std::size_t i = runnable_.size(); i-- > 1;) {
      if (runnable_[i].median_ms() <= factor * quickest) continue;
      note(runnable_[i]);
      runnable_.erase(runnable_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void note(const Runnable& r) {
    measured_[r.index].us = r.median_ms() * 1e3;
    measured_[r.index].rounds = static_cast<int>(r.samples_ms.size());
  }

  /// The quickest whose result the reference confirms.
  std::size_t choose() {
    for (;;) {
      std::vector<std::vector<double>> samples;
      for (const Runnable& r : runnable_) samples.push_back(r.samples_ms);
      const std::size_t best = fastest_in_rounds(samples);
      const std::size_t index = runnable_[best].index;
      if (best == 0) return index;
      runner_->run_once(runnable_[best].plan, runnable_[best].workspace());
      // As exact as the untuned one, whatever its own plan allows.
      const RowCheck check = check_rows(data_.problem(), runnable_.front().plan.narrow_weights);
      if (check.passed()) return index;
      measured_[index].failure = fmt::format("its result is wrong: error {:.3g}, bound {:.3g} in {} rows",
                                             check.error, check.bound, check.rows);
      runnable_.erase(runnable_.begin() + static_cast<std::ptrdiff_t>(best));
    }
  }

  TunedEntry entry_of(std::size_t best) const {
    const AttentionProblem& p = data_.problem();
    TunedEntry entry;
    if (best != 0) entry.best = measured_[best].candidate;
    entry.kv_heads = p.batch * p.num_kv_heads;
    entry.best_us = measured_[best].us;
    entry.default_kernel = measured_[0].candidate.kernel;
    entry.default_us = measured_[0].us;
    entry.num_candidates = static_cast<int>(
        std::ranges::count_if(measured_, [](const MeasuredCandidate& c) { return c.failure.empty(); }));
    entry.date = today();
    return entry;
  }

  const AttentionTuner& tuner_;
  ProblemData data_;
  std::unique_ptr<Runner> runner_;
  std::vector<std::byte> expected_;  // the untuned choice's result
  double tolerance_ = 0;             // of others' differences from it
  std::vector<MeasuredCandidate> measured_;
  std::vector<Runnable> runnable_;  // those in question; the first is the untuned choice
};

}  // namespace

MeasuredProblem measure_candidates(const AttentionBackend& backend, gpu::Gpu* device,
                                   const ProblemOptions& options, std::uint64_t seed) {
  return Measurement(backend, device, options, seed).run();
}

}  // namespace tessera::cli
