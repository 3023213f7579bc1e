// The CUDA backend with arguments in host memory: copies what a call refers to there and back, for the tests
// of the CPU's ops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backends/cuda/runtime/driver.h"
#include "backends/factories.h"
#include "kernels/tested_ops.h"
#include "ops/host_backend.h"
#include "ops/validate.h"

namespace tessera {
namespace {

/// Skips all tests on a machine without a GPU.
class NeedsGpu final : public testing::Environment {
  void SetUp() override {
    const std::string& reason = cuda::driver_state().unavailable_reason;
    if (!reason.empty()) GTEST_SKIP() << "no GPU: " << reason;
  }
};
const testing::Environment* const needs_gpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

/// Host ranges that a call refers to, as copies on the device. Ranges that overlap stay one, and addresses
/// keep their alignment.
class Stage {
 public:
  explicit Stage(OpsBackend& ops) : ops_(ops) {}

  void add(const void* data, std::size_t size_bytes) {
    if (data == nullptr || size_bytes == 0) return;
    auto begin = reinterpret_cast<std::uintptr_t>(data);
    auto end = begin + size_bytes;
    for (auto it = ranges_.begin(); it != ranges_.end();) {
      if (it->first < end && begin < it->second.end) {
        begin = std::min(begin, it->first);
        end = std::max(end, it->second.end);
        it = ranges_.erase(it);
      } else {
        ++it;
      }
    }
    ranges_[begin] = {end, {}, nullptr};
  }
  void add(const Matrix& m) {
    if (m.rows == 0) return;
    add(m.data, dtype_bytes(m.dtype, static_cast<std::size_t>((m.rows - 1) * m.row_stride + m.columns)));
  }
  void add(const Weight& w) {
    add(w.data, static_cast<std::size_t>(w.rows) * dtype_bytes(w.dtype, static_cast<std::size_t>(w.columns)));
  }

  void upload() {
    for (auto& [begin, range] : ranges_) {
      const std::size_t offset = begin % 256;
      range.memory = ops_.allocate(range.end - begin + offset, "a staged argument");
      range.device = range.memory.data.get() + offset;
      ops_.upload(range.device, reinterpret_cast<const void*>(begin), range.end - begin, ops_.stream());
    }
  }

  template <class T>
  void map(T*& pointer) const {
    if (pointer == nullptr) return;
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    auto found = ranges_.upper_bound(address);
    if (found == ranges_.begin()) return;
    --found;
    if (address < found->second.end)
      pointer = reinterpret_cast<T*>(found->second.device + (address - found->first));
  }
  void map(Matrix& m) const { map(m.data); }
  void map(Weight& w) const { map(w.data); }

  void download() {
    for (auto& [begin, range] : ranges_) {
      ops_.download(reinterpret_cast<void*>(begin), range.device, range.end - begin, ops_.stream());
    }
  }

 private:
  struct Range {
    std::uintptr_t end;
    DeviceBuffer memory;
    std::byte* device;
  };
  OpsBackend& ops_;
  std::map<std::uintptr_t, Range> ranges_;
};

class StagedCudaOps final : public HostOpsBackend {
 public:
  std::string_view name() const override { return "cuda"; }

  void embedding(const EmbeddingArguments& given, Stream) override {
    EmbeddingArguments a = given;
    validate(a);
    Stage stage(*ops_);
    stage.add(a.tokens, static_cast<std::size_t>(a.out.rows) * 4);
    stage.add(a.table);
    stage.add(a.out);
    stage.upload();
    stage.map(a.tokens);
    stage.map(a.table);
    stage.map(a.out);
    ops_->embedding(a, ops_->stream());
    stage.download();
  }

  void rms_norm(const RmsNormArguments& given, Stream) override {
    RmsNormArguments a = given;
    validate(a);
    Stage stage(*ops_);
    for (Matrix m : {a.x, a.out}) {
      if (a.heads > 1) m.columns += (a.heads - 1) * a.head_stride;
      stage.add(m);
    }
    if (a.residual) stage.add(*a.residual);
    stage.add(a.weight);
    stage.upload();
    stage.map(a.x);
    stage.map(a.out);
    if (a.residual) stage.map(*a.residual);
    stage.map(a.weight);
    ops_->rms_norm(a, ops_->stream());
    stage.download();
  }

  void gemm(const GemmArguments& given, Stream) override {
    GemmArguments a = given;
    validate(a);
    Stage stage(*ops_);
    stage.add(a.x);
    stage.add(a.weight);
    if (a.bias) stage.add(*a.bias);
    stage.add(a.out);
    stage.upload();
    stage.map(a.x);
    stage.map(a.weight);
    if (a.bias) stage.map(*a.bias);
    stage.map(a.out);
    ops_->gemm(a, ops_->stream());
    stage.download();
  }

  void rope(const RopeArguments& given, Stream) override {
    RopeArguments a = given;
    validate(a);
    Stage stage(*ops_);
    stage.add(a.x);
    stage.add(a.positions, static_cast<std::size_t>(a.x.rows) * 4);
    stage.add(a.inverse_frequencies, static_cast<std::size_t>(a.num_pairs) * 4);
    stage.upload();
    stage.map(a.x);
    stage.map(a.positions);
    stage.map(a.inverse_frequencies);
    ops_->rope(a, ops_->stream());
    stage.download();
  }

  void rope_append(const RopeAppendArguments& given, Stream) override {
    RopeAppendArguments a = given;
    validate(a);
    validate_contents(a);
    KvCacheView& c = a.cache;
    Stage stage(*ops_);
    for (const Matrix& m : {a.q, a.k, a.v}) stage.add(m);
    const std::size_t tokens = static_cast<std::size_t>(a.q.rows);
    std::int64_t sequences = 0;
    for (std::size_t t = 0; t < tokens; ++t)
      sequences = std::max<std::int64_t>(sequences, a.sequences[t] + 1);
    stage.add(a.positions, tokens * 4);
    stage.add(a.sequences, tokens * 4);
    stage.add(a.inverse_frequencies, static_cast<std::size_t>(a.num_pairs) * 4);
    const std::int64_t cache_elements = (c.num_pages - 1) * c.page_stride +
                                        (c.page_size - 1) * c.token_stride +
                                        (a.num_kv_heads - 1) * c.head_stride + a.head_dim;
    stage.add(c.k, dtype_bytes(c.dtype, static_cast<std::size_t>(cache_elements)));
    stage.add(c.v, dtype_bytes(c.dtype, static_cast<std::size_t>(cache_elements)));
    stage.add(c.block_table, static_cast<std::size_t>(sequences * c.block_table_stride) * 4);
    stage.upload();
    for (Matrix* m : {&a.q, &a.k, &a.v}) stage.map(*m);
    stage.map(a.positions);
    stage.map(a.sequences);
    stage.map(a.inverse_frequencies);
    stage.map(c.k);
    stage.map(c.v);
    stage.map(c.block_table);
    ops_->rope_append(a, ops_->stream());
    stage.download();
  }

  void gated_activation(const GatedActivationArguments& given, Stream) override {
    GatedActivationArguments a = given;
    validate(a);
    Stage stage(*ops_);
    for (const Matrix& m : {a.gate, a.up, a.out}) stage.add(m);
    stage.upload();
    for (Matrix* m : {&a.gate, &a.up, &a.out}) stage.map(*m);
    ops_->gated_activation(a, ops_->stream());
    stage.download();
  }

  void softmax(const SoftmaxArguments& given, Stream) override {
    SoftmaxArguments a = given;
    validate(a);
    Stage stage(*ops_);
    stage.add(a.x);
    stage.add(a.out);
    stage.upload();
    stage.map(a.x);
    stage.map(a.out);
    ops_->softmax(a, ops_->stream());
    stage.download();
  }

  void scale(const ScaleArguments& given, Stream) override {
    ScaleArguments a = given;
    validate(a);
    Stage stage(*ops_);
    stage.add(a.x);
    stage.upload();
    stage.map(a.x);
    ops_->scale(a, ops_->stream());
    stage.download();
  }

  void causal_mask(const CausalMaskArguments& given, Stream) override {
    CausalMaskArguments a = given;
    validate(a);
    Stage stage(*ops_);
    stage.add(a.x);
    stage.upload();
    stage.map(a.x);
    ops_->causal_mask(a, ops_->stream());
    stage.download();
  }

  void sample(const SampleArguments& given, Stream) override {
    SampleArguments a = given;
    validate(a);
    validate_contents(a);
    const std::size_t batch = static_cast<std::size_t>(a.logits.rows);
    Stage stage(*ops_);
    stage.add(a.logits);
    stage.add(a.parameters, batch * sizeof(SamplingParameters));
    stage.add(a.steps, batch * sizeof(std::int64_t));
    if (a.history != nullptr) stage.add(a.history, batch * static_cast<std::size_t>(a.history_stride) * 4);
    stage.add(a.history_lens, batch * 4);
    stage.add(a.tokens, batch * 4);
    stage.upload();
    stage.map(a.logits);
    stage.map(a.parameters);
    stage.map(a.steps);
    stage.map(a.history);
    stage.map(a.history_lens);
    stage.map(a.tokens);
    ops_->sample(a, ops_->stream());
    stage.download();
  }

 private:
  std::unique_ptr<OpsBackend> ops_ = make_cuda_ops();
};

}  // namespace

bool tested_ops_are_slow() { return false; }

std::unique_ptr<OpsBackend> make_tested_ops() { return std::make_unique<StagedCudaOps>(); }

}  // namespace tessera
