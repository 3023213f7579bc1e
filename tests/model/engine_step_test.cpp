// Steps of the execution plan below the public interface: bits that don't depend on the batch, and decode
// steps that a device records once and replays.

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/generator.h"
#include "engine/kv_cache.h"
#include "model/execution_plan.h"
#include "model/random_checkpoint.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace tessera {
namespace {

/// Runs another backend's kernels and records like a device that gains from it. Attention does not come
/// through here, so that a recording is the work itself: it must hold copies of all that it needs, as if its
/// kernels' arguments were fixed.
class RecordingOps : public OpsBackend {
 public:
  explicit RecordingOps(std::unique_ptr<OpsBackend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return "recording"; }
  Device device() const override { return inner_->device(); }
  DeviceBuffer allocate(std::size_t size_bytes, std::string_view what) override {
    EXPECT_FALSE(is_recording_) << "memory is allocated while a step is recorded";
    return inner_->allocate(size_bytes, what);
  }
  void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) override {
    EXPECT_FALSE(is_recording_) << "data is uploaded while a step is recorded";
    uploads_.insert(destination);
    inner_->upload(destination, source, size_bytes, stream);
  }
  void download(void* destination, const void* source, std::size_t size_bytes, Stream stream) override {
    EXPECT_FALSE(is_recording_) << "data is downloaded while a step is recorded";
    inner_->download(destination, source, size_bytes, stream);
  }
  void fill_zero(void* destination, std::size_t size_bytes, Stream stream) override {
    inner_->fill_zero(destination, size_bytes, stream);
  }
  void synchronize(Stream stream) override { inner_->synchronize(stream); }
  Weight make_weight(const HostWeight& weight) override { return inner_->make_weight(weight); }

  std::unique_ptr<RecordedWork> record(const std::function<void()>& work, Stream) override;

  void embedding(const EmbeddingArguments& a, Stream s) override { inner_->embedding(a, s); }
  void rms_norm(const RmsNormArguments& a, Stream s) override { inner_->rms_norm(a, s); }
  void gemm(const GemmArguments& a, Stream s) override { inner_->gemm(a, s); }
  void rope(const RopeArguments& a, Stream s) override { inner_->rope(a, s); }
  void rope_append(const RopeAppendArguments& a, Stream s) override { inner_->rope_append(a, s); }
  void gated_activation(const GatedActivationArguments& a, Stream s) override {
    inner_->gated_activation(a, s);
  }
  void softmax(const SoftmaxArguments& a, Stream s) override { inner_->softmax(a, s); }
  void scale(const ScaleArguments& a, Stream s) override { inner_->scale(a, s); }
  void causal_mask(const CausalMaskArguments& a, Stream s) override { inner_->causal_mask(a, s); }
  void sample(const SampleArguments& a, Stream s) override { inner_->sample(a, s); }

  int num_recorded() const { return num_recorded_; }
  int num_replayed() const { return num_replayed_; }
  std::multiset<const void*>& uploads() { return uploads_; }

 private:
  class Recording;

  std::unique_ptr<OpsBackend> inner_;
  std::multiset<const void*> uploads_;
  bool is_recording_ = false;
  int num_recorded_ = 0;
  int num_replayed_ = 0;
};

class RecordingOps::Recording : public RecordedWork {
 public:
  Recording(RecordingOps& ops, std::function<void()> work) : ops_(ops), work_(std::move(work)) {}
  void replay(Stream) override {
    ++ops_.num_replayed_;
    ops_.is_recording_ = true;
    work_();
    ops_.is_recording_ = false;
  }

 private:
  RecordingOps& ops_;
  std::function<void()> work_;
};

std::unique_ptr<RecordedWork> RecordingOps::record(const std::function<void()>& work, Stream) {
  ++num_recorded_;
  return std::make_unique<Recording>(*this, work);
}

/// A device that norms, multiplies and rotates or activates steps of few rows in one kernel.
class FusingOps : public RecordingOps {
 public:
  explicit FusingOps(std::int64_t most_rows) : RecordingOps(make_ops_backend("cpu")), most_rows_(most_rows) {}

  Weight make_stacked_weight(std::span<const HostWeight> parts) override {
    std::vector<float>& stacked = stacked_.emplace_back();
    for (const HostWeight& part : parts) {
      const float* data = reinterpret_cast<const float*>(part.data);
      stacked.insert(stacked.end(), data, data + part.rows * part.columns);
    }
    const std::int64_t columns = parts.front().columns;
    return make_weight({reinterpret_cast<const std::byte*>(stacked.data()), DType::kF32,
                        static_cast<std::int64_t>(stacked.size()) / columns, columns, "stacked"});
  }
  bool takes_normed_gemm(const NormedGemmArguments& a) const override {
    ++num_asked_;
    return a.gemm.x.rows <= most_rows_;
  }
  void normed_gemm(const NormedGemmArguments& a, Stream stream) override {
    const std::int64_t rows = a.gemm.x.rows, hidden = a.gemm.x.columns, outputs = a.gemm.weight.rows;
    std::vector<float> normed(static_cast<std::size_t>(rows * hidden));
    RmsNormArguments norm;
    norm.x = a.gemm.x;
    norm.out = {normed.data(), DType::kF32, rows, hidden, hidden};
    norm.weight = a.norm_weight;
    norm.eps = a.eps;
    rms_norm(norm, stream);
    GemmArguments product = a.gemm;
    product.x = norm.out;
    if (!a.activation) {
      gemm(product, stream);
      if (a.rope) rope_append(*a.rope, stream);
      return;
    }
    std::vector<float> both(static_cast<std::size_t>(rows * outputs));
    product.out = {both.data(), DType::kF32, rows, outputs, outputs};
    gemm(product, stream);
    const Matrix gate{both.data(), DType::kF32, rows, outputs / 2, outputs};
    const Matrix up{both.data() + outputs / 2, DType::kF32, rows, outputs / 2, outputs};
    gated_activation({*a.activation, gate, up, a.gemm.out}, stream);
  }

  int num_asked() const { return num_asked_; }

 private:
  std::int64_t most_rows_;
  std::deque<std::vector<float>> stacked_;
  mutable int num_asked_ = 0;
};

/// A tiny random model down to its generator, on a backend of the test's choice.
struct TinyEngine {
  explicit TinyEngine(OpsBackend& ops_backend, bool batch_invariant = false) : ops(ops_backend) {
    random = make_random_checkpoint(random_model_shape("tiny"), DType::kF32);
    const ModelConfig& config = random.checkpoint.config;
    weights = load_weights(random.checkpoint, ops);
    const KvCacheShape shape{config.num_layers, config.num_kv_heads, config.head_dim, DType::kF32, 8, 64};
    cache = std::make_unique<KvCache>(shape, ops);
    ExecutionPlanOptions options;
    options.batch_invariant = batch_invariant;
    options.max_tokens = 64;
    options.max_batch = 4;
    options.max_seq_len = 128;
    options.max_logits_rows = 64;
    plan = std::make_unique<ExecutionPlan>(config, weights, cache->layers(), options, ops);
    GeneratorOptions generator_options;
    generator_options.vocab_size = config.vocab_size;
    generator_options.token_limit = config.vocab_size;
    generator_options.max_seq_len = 128;
    generator_options.prefill_chunk = 60;
    generator = std::make_unique<Generator>(*plan, *cache, ops, generator_options);
  }

  /// Logits of all rows of one step.
  std::vector<float> step_logits(std::span<const SequenceSlice> slices) {
    const StepShape shape = plan->begin_step(slices);
    plan->run_layers(shape);
    const RowRange rows{0, shape.num_tokens};
    plan->run_head({&rows, 1});
    std::vector<float> logits(static_cast<std::size_t>(shape.num_tokens * weights.head.rows));
    ops.download(logits.data(), plan->logits(shape.num_tokens).data, logits.size() * sizeof(float), {});
    return logits;
  }

  OpsBackend& ops;
  RandomCheckpoint random;
  ModelWeights weights;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<ExecutionPlan> plan;
  std::unique_ptr<Generator> generator;
};

std::vector<std::int32_t> some_tokens(int length, int seed) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((37 * i + 101 * seed + i * i) % 512);
  return tokens;
}

TEST(Step, BatchInvariantBitsDontDependOnTheOtherSequencesOfARaggedStep) {
  const auto ops = make_ops_backend("cpu");
  TinyEngine engine(*ops, /*batch_invariant=*/true);
  const std::vector<std::vector<std::int32_t>> tokens = {some_tokens(13, 0), some_tokens(1, 1),
                                                         some_tokens(30, 2), some_tokens(7, 3)};
  // The last 7, 1, 30 and 1 tokens go through together, after the others have gone through alone.
  const std::vector<std::size_t> new_tokens = {7, 1, 30, 1};
  std::vector<KvSequence> pages;
  std::vector<std::vector<float>> alone;
  std::vector<SequenceSlice> slices;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    pages.emplace_back(*engine.cache);
    pages.back().reserve(static_cast<std::int64_t>(tokens[i].size()));
    const std::size_t before = tokens[i].size() - new_tokens[i];
    const std::span<const std::int32_t> all(tokens[i]);
    if (before > 0) {
      const SequenceSlice prefix{all.first(before), 0, pages.back().block_table()};
      engine.step_logits({&prefix, 1});
    }
    slices.push_back({all.subspan(before), static_cast<std::int64_t>(before), pages.back().block_table()});
    alone.push_back(engine.step_logits({&slices.back(), 1}));
  }
  std::vector<float> expected;
  for (const std::vector<float>& logits : alone)
    expected.insert(expected.end(), logits.begin(), logits.end());
  EXPECT_TRUE(engine.step_logits(slices) == expected);
}

TEST(Step, WhatOneKernelDoesIsDecidedOnceForANumberOfRowsAndNamedSo) {
  FusingOps fusing_ops(/*most_rows=*/4);
  const auto plain_ops = make_ops_backend("cpu");
  TinyEngine fusing(fusing_ops), plain(*plain_ops);
  const int layers = static_cast<int>(fusing.weights.layers.size());
  const auto names = [&](std::int64_t rows) {
    std::vector<std::string> result;
    for (const PlanStep& step : fusing.plan->steps({rows, 1, rows, 256})) {
      if (step.layer == layers - 2) result.push_back(step.name);
    }
    return result;
  };
  EXPECT_EQ(names(4),
            (std::vector<std::string>{"input_norm+qkv_proj+rope_append", "attention", "o_proj+residual",
                                      "post_attention_norm+gate_up_proj+activation", "down_proj+residual"}));
  EXPECT_EQ(fusing_ops.num_asked(), 2 * layers);
  EXPECT_EQ(names(5),
            (std::vector<std::string>{"input_norm", "qkv_proj", "rope_append", "attention", "o_proj",
                                      "post_attention_norm", "gate_up_proj", "activation", "down_proj"}));
  EXPECT_EQ(fusing.plan->steps({4, 1, 4, 256}).back().name, "down_proj") << "the head's norm adds the last";

  const std::vector<std::int32_t> tokens = some_tokens(30, 1);
  const auto logits_of = [&](TinyEngine& engine) {
    KvSequence pages(*engine.cache);
    pages.reserve(30);
    std::vector<float> all;
    std::int64_t at = 0;
    for (const std::int64_t count : {10, 4, 1, 1, 10, 4}) {
      const SequenceSlice slice{
          std::span(tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)), at,
          pages.block_table()};
      const std::vector<float> logits = engine.step_logits({&slice, 1});
      all.insert(all.end(), logits.begin(), logits.end());
      at += count;
    }
    return all;
  };
  const std::vector<float> actual = logits_of(fusing), expected = logits_of(plain);
  EXPECT_EQ(fusing_ops.num_asked(), 2 * layers * 4) << "for 4, 5, 10 rows and one";
  ASSERT_EQ(actual.size(), expected.size());
  // Sums in another order: a few roundings of fp32 in each of the layers.
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4) << i;
}

TEST(Step, ReplayedDecodeStepsGiveTheTokensOfPlainOnes) {
  const auto plain_ops = make_ops_backend("cpu");
  RecordingOps recording_ops(make_ops_backend("cpu"));
  TinyEngine plain(*plain_ops);
  TinyEngine recording(recording_ops);
  recording_ops.uploads().clear();
  const int probes = recording_ops.num_recorded();

  std::vector<std::vector<std::int32_t>> prompts = {some_tokens(20, 0), some_tokens(5, 1), some_tokens(9, 2)};
  std::vector<GenerationRequest> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request;
    request.prompt = prompts[i];
    request.options.max_tokens = static_cast<std::int64_t>(10 + 10 * i);
    request.options.sampling.temperature = 0.7f;
    request.options.sampling.seed = i;
    requests.push_back(request);
  }
  const std::vector<Generation> expected = plain.generator->generate(requests);
  const std::vector<Generation> actual = recording.generator->generate(requests);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(actual[i].tokens.size(), 10 + 10 * i);
    EXPECT_EQ(actual[i].tokens, expected[i].tokens) << "prompt " << i;
  }
  // 29 decode steps: with three, two and one sequences. The first of each runs plainly, the second is
  // recorded.
  EXPECT_EQ(recording_ops.num_recorded() - probes, 3);
  EXPECT_EQ(recording_ops.num_replayed(), 29 - 3);
  // Tokens come from the host for the prefill and where a sequence has left the batch, not in between.
  EXPECT_EQ(recording_ops.uploads().count(recording.plan->tokens()), 3u);
}

}  // namespace
}  // namespace tessera
