// A plan is what runs: whatever is written into its fields and however many threads there are by then; and
// for its description only.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "backends/gpu/attention/stage_tensors.h"
#include "tessera/attention.h"
#include "tessera/error.h"
#include "tessera/threads.h"

namespace tessera {
namespace {

/// Backends that run problems in CPU memory without a device.
constexpr const char* kBackends[] = {"cpu", "unfused", "reference"};

/// A ragged or dense batch with most terms, in fp32.
class Batch {
 public:
  explicit Batch(bool is_paged, std::int64_t seq_len_q = 5) {
    constexpr int kHeads = 4, kKvHeads = 2, kDim = 16;
    constexpr std::int64_t kSeqLenKv = 600;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::vector<float>* x : {&q_, &k_, &v_, &mask_}) {
      x->resize(200 * 1024);
      for (float& value : *x) value = normal(random);
    }
    o.assign(static_cast<std::size_t>(2 * seq_len_q * kHeads * kDim), -1);
    lse.assign(static_cast<std::size_t>(2 * seq_len_q * kHeads), -1);
    p.batch = 2;
    p.seq_len_q = seq_len_q;
    p.seq_len_kv = kSeqLenKv;
    p.num_heads = kHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim_qk = p.head_dim_v = kDim;
    constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
    p.q = attention_input(kLayout, q_.data(), DType::kF32, seq_len_q, kHeads, kDim);
    p.k = attention_input(kLayout, k_.data(), DType::kF32, is_paged ? 100 : kSeqLenKv, kKvHeads, kDim);
    p.v = attention_input(kLayout, v_.data(), DType::kF32, is_paged ? 100 : kSeqLenKv, kKvHeads, kDim);
    p.o = attention_output(kLayout, o.data(), DType::kF32, seq_len_q, kHeads, kDim);
    p.lse = lse_output(lse.data(), kHeads, seq_len_q);
    p.scores.softmax_scale = 0.3f;
    p.scores.softcap = 20.0f;
    p.scores.alibi = AlibiBias{head_numbers_.data(), 0};
    p.scores.additive_mask = ScoreMask{mask_.data(), DType::kF32, 0, 0, kSeqLenKv, 1};
    p.scores.diagonal = DiagonalMask::causal();
    p.scores.sinks = AttentionSinks{head_numbers_.data()};
    if (is_paged) {
      cu_seqlens_ = {0, 3, static_cast<std::int32_t>(3 + seq_len_q)};
      p.ragged_q = RaggedTokens{cu_seqlens_.data(), 3 + seq_len_q};
      p.lse = LseOutput{lse.data(), 0, 3 + seq_len_q, 1};
      p.paged_kv = PagedKv{block_table_.data(), lengths_.data(), 6, 6, 6, 100};
    } else {
      p.seq_lens_kv = lengths_.data();
    }
  }

  std::vector<float> o, lse;
  AttentionProblem p;

 private:
  std::vector<float> q_, k_, v_, mask_, head_numbers_ = {0.5f, 0.25f, 0.125f, 0.0625f};
  std::vector<std::int32_t> cu_seqlens_, lengths_ = {600, 421};
  std::vector<std::int32_t> block_table_ = {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0};
};

/// Workspace of a plan, full of NaN.
class Workspace {
 public:
  Workspace(const std::string& backend, std::size_t size_bytes)
      : size_bytes_(size_bytes),
        memory_(find_attention_backend(backend).allocate_workspace({}, size_bytes, {})) {
    if (size_bytes > 0) std::memset(memory_.get(), 0xff, size_bytes);
  }
  std::span<std::byte> bytes() const { return {memory_.get(), size_bytes_}; }

 private:
  std::size_t size_bytes_;
  std::shared_ptr<std::byte> memory_;
};

AttentionOptions on(const std::string& backend) { return {.backend = backend, .config = {}}; }

/// The message of the Error{kInvalidArgument} that `f` must throw.
std::string refusal_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "expected an Error";
  return {};
}

TEST(AttentionPlan, RunsAsItWasMadeWhateverIsWrittenIntoIt) {
  for (const char* backend : kBackends) {
    Batch expected(false), batch(false);
    AttentionPlan plan = attention_forward(expected.p, on(backend));
    const Workspace workspace(backend, plan.workspace_bytes);
    plan.config = {};
    plan.kernel.clear();
    plan.backend = "another";
    plan.workspace_bytes = 0;
    attention_forward(batch.p, plan, workspace.bytes());
    EXPECT_EQ(batch.o, expected.o) << backend;
    EXPECT_EQ(batch.lse, expected.lse) << backend;
  }
}

TEST(AttentionPlan, RunsWithMoreAndWithFewerThreadsThanItWasMadeWith) {
  const int before = num_threads();
  for (const char* backend : kBackends) {
    for (const std::int64_t seq_len_q : {1, 200}) {
      Batch expected(false, seq_len_q), batch(false, seq_len_q);
      set_num_threads(3);
      const AttentionPlan plan = prepare_attention(expected.p, on(backend));
      const Workspace workspace(backend, plan.workspace_bytes);
      attention_forward(expected.p, plan, workspace.bytes());
      for (const int threads : {1, 2, 8, 30}) {
        set_num_threads(threads);
        batch.o.assign(batch.o.size(), -1);
        attention_forward(batch.p, plan, workspace.bytes());
        EXPECT_EQ(batch.o, expected.o) << backend << " on " << threads << " threads";
      }
    }
  }
  set_num_threads(before);
}

TEST(AttentionPlan, ThatNobodyMadeIsRefused) {
  Batch batch(false);
  EXPECT_NE(refusal_of([&] { attention_forward(batch.p, AttentionPlan{}, {}); }).find("plan_attention"),
            std::string::npos);
}

TEST(AttentionPlan, RefusesAWorkspaceThatIsNullSmallOrMisaligned) {
  for (const char* backend : kBackends) {
    Batch batch(false);
    const AttentionPlan plan = plan_attention(batch.p, on(backend));
    if (plan.workspace_bytes == 0) continue;
    const Workspace workspace(backend, plan.workspace_bytes + 64);
    const auto refusal = [&](std::span<std::byte> bytes) {
      return refusal_of([&] { attention_forward(batch.p, plan, bytes); });
    };
    EXPECT_NE(refusal({}).find("at null"), std::string::npos) << backend;
    EXPECT_NE(refusal({static_cast<std::byte*>(nullptr), plan.workspace_bytes}).find("at null"),
              std::string::npos);
    EXPECT_NE(refusal(workspace.bytes().first(plan.workspace_bytes - 1)).find("workspace has"),
              std::string::npos);
    EXPECT_NE(refusal(workspace.bytes().subspan(4)).find("multiple of 64"), std::string::npos) << backend;
    EXPECT_EQ(batch.o, Batch(false).o) << "nothing was written";
  }
}

/// A change of a problem's description and the field that the refusal names.
struct Change {
  std::string field;
  std::function<void(AttentionProblem&)> apply;
};

std::vector<Change> changes() {
  return {
      {"batch", [](auto& p) { p.batch = 1; }},
      {"seq_len_q", [](auto& p) { ++p.seq_len_q; }},
      {"seq_len_kv", [](auto& p) { --p.seq_len_kv; }},
      {"num_heads", [](auto& p) { p.num_heads = 2; }},
      {"num_kv_heads", [](auto& p) { p.num_kv_heads = 1; }},
      {"head_dim_qk", [](auto& p) { p.head_dim_qk = 8; }},
      {"head_dim_v", [](auto& p) { p.head_dim_v = 8; }},
      {"device",
       [](auto& p) {
         p.device = {DeviceKind::kCuda, 0};
       }},
      {"q", [](auto& p) { p.q.dtype = DType::kF16; }},
      {"q", [](auto& p) { ++p.q.batch_stride; }},
      {"k", [](auto& p) { ++p.k.seq_stride; }},
      {"v", [](auto& p) { ++p.v.head_stride; }},
      {"o", [](auto& p) { p.o.head_stride = 20; }},
      {"lse", [](auto& p) { p.lse.reset(); }},
      {"lse", [](auto& p) { ++p.lse->seq_stride; }},
      {"scores.softmax_scale", [](auto& p) { p.scores.softmax_scale.reset(); }},
      {"scores.softcap", [](auto& p) { p.scores.softcap = 1.0f; }},
      {"scores.alibi", [](auto& p) { p.scores.alibi.reset(); }},
      {"scores.alibi.batch_stride", [](auto& p) { p.scores.alibi->batch_stride = 4; }},
      {"scores.additive_mask", [](auto& p) { p.scores.additive_mask.reset(); }},
      {"scores.additive_mask", [](auto& p) { p.scores.additive_mask->dtype = DType::kF16; }},
      {"scores.boolean_mask",
       [](auto& p) {
         p.scores.boolean_mask = ScoreMask{&p, DType::kU8};
       }},
      {"scores.diagonal", [](auto& p) { p.scores.diagonal.reset(); }},
      {"scores.diagonal.window_left", [](auto& p) { p.scores.diagonal->window_left = 3; }},
      {"scores.diagonal.window_right", [](auto& p) { p.scores.diagonal->window_right = 1; }},
      {"scores.diagonal.alignment",
       [](auto& p) { p.scores.diagonal->alignment = DiagonalAlignment::kTopLeft; }},
      {"scores.sinks", [](auto& p) { p.scores.sinks.reset(); }},
      {"ragged_q", [](auto& p) { p.ragged_q.reset(); }},
      {"ragged_q", [](auto& p) { --p.ragged_q->total_tokens; }},
      {"ragged_kv", [](auto& p) { p.ragged_kv = p.ragged_q; }},
      {"paged_kv", [](auto& p) { p.paged_kv.reset(); }},
      {"paged_kv.block_table_stride", [](auto& p) { ++p.paged_kv->block_table_stride; }},
      {"paged_kv.num_pages", [](auto& p) { ++p.paged_kv->num_pages; }},
      {"paged_kv.max_pages_per_seq", [](auto& p) { --p.paged_kv->max_pages_per_seq; }},
      {"paged_kv.page_size", [](auto& p) { --p.paged_kv->page_size; }},
      {"seq_lens_kv", [](auto& p) { p.seq_lens_kv = p.paged_kv->seq_lens_kv; }},
      {"k", [](auto& p) { p.k.dtype = DType::kF8E4M3; }},
      {"q_scales", [](auto& p) { p.q_scales = QScales{}; }},
      {"kv_scales", [](auto& p) { p.kv_scales = KvScales{}; }},
      {"batch_invariant", [](auto& p) { p.batch_invariant = true; }},
  };
}

TEST(AttentionPlan, RefusesAProblemOfAnotherDescription) {
  Batch batch(true);
  const AttentionPlan plan = plan_attention(batch.p, on("cpu"));
  const Workspace workspace("cpu", plan.workspace_bytes);
  for (const Change& change : changes()) {
    AttentionProblem other = batch.p;
    change.apply(other);
    const std::string message = refusal_of([&] { attention_forward(other, plan, workspace.bytes()); });
    EXPECT_TRUE(message.starts_with(change.field + " is not what the plan was made with")) << message;
  }
  AttentionProblem other = batch.p;
  ++other.q.seq_stride;  // which no description has in words
  const std::string message = refusal_of([&] { attention_forward(other, plan, workspace.bytes()); });
  EXPECT_NE(message.find("both are for f32"), std::string::npos) << message;
  EXPECT_EQ(batch.o, Batch(true).o) << "nothing was written";
  attention_forward(batch.p, plan, workspace.bytes());
  EXPECT_NE(batch.o, Batch(true).o);
}

TEST(AttentionPlan, ForValuesInKeysRefusesOthers) {
  Batch batch(true);
  AttentionProblem within = batch.p;
  within.v = within.k;
  within.head_dim_v = within.head_dim_qk / 2;
  const AttentionPlan plan = plan_attention(within, on("cpu"));
  const Workspace workspace("cpu", plan.workspace_bytes);
  attention_forward(within, plan, workspace.bytes());
  AttentionProblem apart = within;
  apart.v.data = batch.p.v.data;
  const std::string message = refusal_of([&] { attention_forward(apart, plan, workspace.bytes()); });
  EXPECT_TRUE(message.starts_with("that v is a part of k is not what the plan was made with")) << message;
  // Values that are all of the keys are values as any.
  within.head_dim_v = apart.head_dim_v = within.head_dim_qk;
  const AttentionPlan of_all = plan_attention(within, on("cpu"));
  const Workspace workspace_of_all("cpu", of_all.workspace_bytes);
  attention_forward(apart, of_all, workspace_of_all.bytes());
}

TEST(AttentionPlan, RefusesPointersThatLeadOutOfTheTensors) {
  Batch batch(true);
  const AttentionPlan plan = plan_attention(batch.p, on("cpu"));
  const Workspace workspace("cpu", plan.workspace_bytes);
  const std::vector<std::int32_t> pages = {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 6};
  AttentionProblem wrong = batch.p;
  wrong.paged_kv->block_table = pages.data();
  attention_forward(wrong, plan, workspace.bytes());  // the second sequence ends before its last page
  const std::vector<std::int32_t> far = {0, 1, 2, 6, 4, 5, 5, 4, 3, 2, 1, 0};
  wrong.paged_kv->block_table = far.data();
  EXPECT_NE(refusal_of([&] { attention_forward(wrong, plan, workspace.bytes()); }).find("block_table[0][3]"),
            std::string::npos);
  wrong = batch.p;
  wrong.k.data = nullptr;
  EXPECT_NE(refusal_of([&] { attention_forward(wrong, plan, workspace.bytes()); }).find("k.data is null"),
            std::string::npos);
}

// A plan's workspace holds the copies of tensors wherever these start.
TEST(StagedProblem, TakesAsMuchMemoryForAnyPointers) {
  Batch batch(false);
  const std::size_t size_bytes = gpu::stage_problem(batch.p, {}, nullptr).size_bytes;
  std::vector<float> elsewhere(100000);
  for (const int offset : {0, 1, 7, 31, 63}) {
    AttentionProblem p = batch.p;
    p.q.data = elsewhere.data() + offset;
    p.k.data = elsewhere.data() + 3 * offset;
    p.o.data = elsewhere.data() + 5 * offset;
    const gpu::StagedProblem staged = gpu::stage_problem(p, {}, nullptr);
    EXPECT_EQ(staged.size_bytes, size_bytes) << offset;
    std::size_t end = 0;
    for (const gpu::StagedProblem::Copy& copy : staged.copies) {
      EXPECT_GE(copy.offset, end);
      EXPECT_EQ((copy.offset - reinterpret_cast<std::uintptr_t>(copy.host)) % 256, 0u);
      end = copy.offset + copy.size_bytes;
    }
    EXPECT_LE(end, size_bytes);
  }
}

// A tensor's scales are read by kernels of a pool without pages, too.
TEST(StagedProblem, TakesScalesWithoutPages) {
  Batch batch(true);
  batch.p.paged_kv->num_pages = 0;
  const float scales[2] = {0.5f, 2.0f};
  batch.p.kv_scales = KvScales{.k = &scales[0], .v = &scales[1]};
  const gpu::StagedProblem staged = gpu::stage_problem(batch.p, {}, nullptr);
  for (const float& scale : scales) {
    EXPECT_EQ(
        std::ranges::count(staged.copies, static_cast<const void*>(&scale), &gpu::StagedProblem::Copy::host),
        1);
  }
}

}  // namespace
}  // namespace tessera
