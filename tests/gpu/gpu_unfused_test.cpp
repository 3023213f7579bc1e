// What the conformance suite can't see of the unfused pipeline on a GPU: parts, its workspace, graphs.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "backends/gpu/attention/stage_tensors.h"
#include "core/element.h"
#include "gpu/tested_gpu.h"
#include "tessera/attention.h"
#include "verify/attention_check.h"

namespace tessera {
namespace {

const ::testing::Environment* const needs_gpu =
    ::testing::AddGlobalTestEnvironment(new tessera::testing::NeedsGpu);

gpu::Gpu& gpu() { return tessera::testing::tested_gpu(); }

/// "cuda_unfused"
std::string backend() { return std::string(tessera::testing::tested_family().name) + "_unfused"; }

/// A case's tensors in GPU memory and a plan for them.
class Call {
 public:
  explicit Call(const AttentionData& data, int block_m = 0) : storage_(store_attention_data(data)) {
    const std::size_t size_bytes = gpu::stage_problem(storage_.problem, gpu().device(), nullptr).size_bytes;
    memory_ = gpu().allocate(size_bytes, "test tensors");
    staged_ = gpu::stage_problem(storage_.problem, gpu().device(), memory_.get());
    for (const auto& copy : staged_.copies)
      gpu().upload(memory_.get() + copy.offset, copy.host, copy.size_bytes, {});
    AttentionOptions options;
    options.backend = backend();
    options.config.block_m = block_m;
    plan_ = plan_attention(staged_.problem, options);
    workspace_ = gpu().allocate(plan_.workspace_bytes, "test workspace");
    gpu().synchronize({});
  }

  const AttentionPlan& plan() const { return plan_; }

  /// Fills the workspace, which the pipeline must not read before it has written it, with `value`.
  void fill_workspace(unsigned char value) {
    gpu().fill(workspace_.get(), value, plan_.workspace_bytes, {});
    gpu().synchronize({});
  }

  void run(Stream stream) const {
    attention_forward(staged_.problem, plan_, {workspace_.get(), plan_.workspace_bytes}, {stream});
  }

  /// o and lse as the last run left them.
  AttentionRows rows(Stream stream) {
    gpu().synchronize(stream);
    for (const auto& copy : staged_.copies) {
      if (!copy.is_output) continue;
      gpu().download(const_cast<void*>(copy.host), memory_.get() + copy.offset, copy.size_bytes, {});
    }
    const AttentionProblem& p = storage_.problem;
    AttentionRows rows;
    for (const std::int64_t offset : storage_.o_offsets) {
      for (int d = 0; d < p.head_dim_v; ++d) {
        rows.o.push_back(load_element(storage_.blobs[storage_.o_blob].data(), p.o.dtype, offset + d));
      }
    }
    for (const std::int64_t offset : storage_.lse_offsets) {
      rows.lse.push_back(load_element(storage_.blobs[storage_.lse_blob].data(), DType::kF32, offset));
    }
    return rows;
  }

 private:
  AttentionStorage storage_;
  std::shared_ptr<std::byte> memory_, workspace_;
  gpu::StagedProblem staged_;
  AttentionPlan plan_;
};

/// Ragged queries over paged keys, all terms, sizes that no tile divides.
AttentionCase everything(DType dtype) {
  AttentionCase c;
  c.dtype = dtype;
  c.batch = 3;
  c.num_heads = 6;
  c.num_kv_heads = 2;
  c.head_dim_qk = 41;
  c.head_dim_v = 70;
  c.strides = StrideStyle::kOdd;
  c.lens_q = {37, 0, 90};
  c.seq_len_q = 90;
  c.kv_storage = KvStorage::kPaged;
  c.lens_kv = {83, 5, 131};
  c.seq_len_kv = 131;
  c.softcap = 20.0f;
  c.alibi = c.sinks = true;
  c.additive_mask = MaskRecipe{DType::kF16, true, true, true, 0.2, 1};
  c.boolean_mask = MaskRecipe{DType::kBool, true, false, true, 0.2, 1};
  c.diagonal = DiagonalMask::sliding_window(60, 4);
  return c;
}

/// Rows of scores longer than what a thread block keeps in registers.
AttentionCase long_rows(DType dtype) {
  AttentionCase c;
  c.dtype = dtype;
  c.batch = 1;
  c.num_heads = c.num_kv_heads = 1;
  c.seq_len_q = 3;
  c.seq_len_kv = 20011;
  return c;
}

void expect_same_bits(const AttentionRows& a, const AttentionRows& b, const AttentionData& data) {
  const std::string difference =
      describe_bit_difference(a, 0, b, 0, data.num_rows(), data.description.head_dim_v);
  EXPECT_EQ(difference, "") << dtype_name(data.description.dtype);
}

class GpuUnfused : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::string reason = tessera::testing::tested_family().platform().products_unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(GpuUnfused, ReadsNothingOfItsWorkspaceThatItHasNotWritten) {
  for (const AttentionCase& c : {everything(GetParam()), long_rows(GetParam())}) {
    const AttentionData data = make_attention_data(c);
    Call call(data);
    call.fill_workspace(0xff);  // NaN
    call.run({});
    const AttentionRows after_nan = call.rows({});
    call.fill_workspace(0x3c);
    call.run({});
    expect_same_bits(after_nan, call.rows({}), data);
  }
}

TEST_P(GpuUnfused, PartsOfFewRowsGiveTheExactResultWithinTheSameBounds) {
  const AttentionData data = make_attention_data(everything(GetParam()));
  const AttentionExpectation expectation = expect_attention(data, backend());
  for (const int block_m : {1, 7, 128}) {
    Call call(data, block_m);
    EXPECT_EQ(call.plan().config.block_m, block_m);
    call.fill_workspace(0xff);
    call.run({});
    AttentionRun run;
    run.rows = call.rows({});
    VerifyResult result;
    compare_attention(data, run, expectation, result);
    EXPECT_TRUE(result.passed) << result.message << ", block_m " << block_m;
  }
}

TEST_P(GpuUnfused, RowsOfManyKeysAreRight) {
  const AttentionData data = make_attention_data(long_rows(GetParam()));
  Call call(data);
  call.run({});
  AttentionRun run;
  run.rows = call.rows({});
  VerifyResult result;
  compare_attention(data, run, expect_attention(data, backend()), result);
  EXPECT_TRUE(result.passed) << result.message;
}

TEST_P(GpuUnfused, AGraphReplaysTheBitsOfADirectCall) {
  const AttentionData data = make_attention_data(everything(GetParam()));
  Call call(data);
  const gpu::OwnedStream stream(gpu());
  call.run(stream.handle());
  const AttentionRows direct = call.rows(stream.handle());
  const auto graph = gpu().capture(stream.handle(), [&] { call.run(stream.handle()); });
  call.fill_workspace(0xff);
  graph->launch(stream.handle());
  expect_same_bits(direct, call.rows(stream.handle()), data);
}

INSTANTIATE_TEST_SUITE_P(DTypes, GpuUnfused, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace tessera
