// The sampler's scratch memory on a GPU: streams that draw at once, recordings.
#include <memory>
#include <random>

#include "gpu/tested_gpu.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

/// A batch in the GPU's memory; tokens of `draws` draws.
class DeviceBatch {
 public:
  static constexpr std::int64_t kVocab = 128256;
  static constexpr std::int64_t kBatch = 6;
  static int num_draws() { return tested_gpu_is_slow() ? 3 : 40; }

  DeviceBatch(OpsBackend& ops, std::uint32_t seed)
      : ops_(ops),
        logits_(ops.allocate(kBatch * kVocab * sizeof(float), "logits")),
        parameters_(ops.allocate(kBatch * sizeof(SamplingParameters), "parameters")),
        steps_(ops.allocate(static_cast<std::size_t>(num_draws() * kBatch) * sizeof(std::int64_t), "steps")),
        tokens_(
            ops.allocate(static_cast<std::size_t>(num_draws() * kBatch) * sizeof(std::int32_t), "tokens")) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(kBatch * kVocab);
    for (float& x : logits) x = normal(random);
    std::fill(logits.end() - kVocab, logits.end(), 1.0f);  // whose list does not hold its tokens
    std::vector<SamplingParameters> parameters(kBatch);
    for (std::size_t s = 1; s < kBatch; ++s) parameters[s].temperature = 1;
    parameters[1].min_p = 0.01f;
    parameters[2].top_k = 40;
    parameters[3].top_p = 0.9f;
    parameters[4].top_k = 30000;
    parameters[4].top_p = 0.8f;
    parameters[5].top_p = 0.5f;
    std::vector<std::int64_t> steps(static_cast<std::size_t>(num_draws() * kBatch));
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<std::int64_t>(i / kBatch);
    upload(logits_, logits);
    upload(parameters_, parameters);
    upload(steps_, steps);
    ops.fill_zero(tokens_.data.get(), tokens_.size_bytes, ops.stream());
    ops.synchronize(ops.stream());
  }

  void draw(int n, Stream stream) {
    SampleArguments a;
    a.logits = {logits_.data.get(), DType::kF32, kBatch, kVocab, kVocab};
    a.parameters = parameters_.as<SamplingParameters>();
    a.steps = steps_.as<std::int64_t>() + n * kBatch;
    a.tokens = tokens_.as<std::int32_t>() + n * kBatch;
    ops_.sample(a, stream);
  }
  std::vector<std::int32_t> take_tokens() {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_draws() * kBatch));
    ops_.download(tokens.data(), tokens_.data.get(), tokens_.size_bytes, ops_.stream());
    ops_.fill_zero(tokens_.data.get(), tokens_.size_bytes, ops_.stream());
    ops_.synchronize(ops_.stream());
    return tokens;
  }

 private:
  template <class T>
  void upload(const DeviceBuffer& to, const std::vector<T>& from) {
    ops_.upload(to.data.get(), from.data(), to.size_bytes, ops_.stream());
  }

  OpsBackend& ops_;
  DeviceBuffer logits_, parameters_, steps_, tokens_;
};

TEST(GpuSample, StreamsThatDrawAtOnceDoNotMeet) {
  const std::unique_ptr<OpsBackend> ops = make_tested_gpu_ops();
  gpu::Gpu& device = tested_gpu();
  DeviceBatch a(*ops, 1), b(*ops, 2);
  for (int n = 0; n < DeviceBatch::num_draws(); ++n) a.draw(n, ops->stream());
  const std::vector<std::int32_t> expected_a = a.take_tokens();
  for (int n = 0; n < DeviceBatch::num_draws(); ++n) b.draw(n, ops->stream());
  const std::vector<std::int32_t> expected_b = b.take_tokens();
  EXPECT_NE(expected_a, expected_b);

  gpu::OwnedStream stream_a(device), stream_b(device);
  for (int n = 0; n < DeviceBatch::num_draws(); ++n) {
    a.draw(n, {stream_a.handle()});
    b.draw(n, {stream_b.handle()});
  }
  device.synchronize(stream_a.handle());
  device.synchronize(stream_b.handle());
  EXPECT_EQ(a.take_tokens(), expected_a);
  EXPECT_EQ(b.take_tokens(), expected_b);
}

TEST(GpuSample, RecordingsDrawTheSameTokensEachTime) {
  const std::unique_ptr<OpsBackend> ops = make_tested_gpu_ops();
  DeviceBatch batch(*ops, 3);
  const auto draw_all = [&] {
    for (int n = 0; n < DeviceBatch::num_draws(); ++n) batch.draw(n, ops->stream());
  };
  draw_all();
  const std::vector<std::int32_t> tokens = batch.take_tokens();
  const std::unique_ptr<RecordedWork> recording = ops->record(draw_all, ops->stream());
  for (int replay = 0; replay < 3; ++replay) {
    recording->replay(ops->stream());
    EXPECT_EQ(batch.take_tokens(), tokens);
  }
}

}  // namespace
}  // namespace tessera::testing
