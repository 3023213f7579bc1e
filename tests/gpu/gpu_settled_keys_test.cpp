// Calls with settled keys: each sequence's newest keys and values are written by the kernels just before,
// which may still run when the call's blocks begin.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/element.h"
#include "gpu/dense_problem.h"
#include "gpu/tested_gpu.h"
#include "tessera/attention.h"

namespace tessera::testing {
namespace {

const ::testing::Environment* const needs_gpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

struct Case {
  std::int64_t batch = 1, seq_len_q = 1, most_keys = 512;
  int num_heads = 8, num_kv_heads = 2, head_dim = 128;
  bool has_pages = true;
  DType kv_dtype = DType::kBF16;
};

/// A decode step's attention over a cache whose newest rows a kernel turns around.
class DecodeStep {
 public:
  explicit DecodeStep(const Case& c) : case_(c), ops_(make_tested_gpu_ops()) {
    problem_ = dense_problem(tested_device().kind, DType::kBF16, c.seq_len_q, c.most_keys, c.num_heads,
                             c.num_kv_heads, c.head_dim);
    problem_.batch = c.batch;
    problem_.k.dtype = problem_.v.dtype = c.kv_dtype;
    problem_.scores.diagonal = DiagonalMask::causal();
    if (c.has_pages) use_pages(problem_);
    const std::int64_t row = std::int64_t{c.num_kv_heads} * c.head_dim;
    const std::int64_t rows_q = c.batch * c.seq_len_q * c.num_heads * c.head_dim;
    problem_.q.data = upload(random_numbers(rows_q, DType::kBF16));
    problem_.k.data = upload(random_numbers(c.batch * c.most_keys * row, c.kv_dtype));
    problem_.v.data = upload(random_numbers(c.batch * c.most_keys * row, c.kv_dtype));
    o_bytes_ = dtype_bytes(DType::kBF16, static_cast<std::size_t>(rows_q));
    problem_.o.data = upload(std::vector<std::byte>(o_bytes_));
    slow_ = upload(std::vector<std::byte>(tested_gpu_is_slow() ? 4096 : std::size_t{256} << 20));

    std::vector<std::int32_t> table, lens;
    for (std::int64_t b = 0; b < c.batch; ++b)
      lens.push_back(static_cast<std::int32_t>(c.most_keys - b * 61 % (c.most_keys / 2)));
    if (c.has_pages) {
      for (std::int64_t page = 0; page < problem_.paged_kv->num_pages; ++page)
        table.push_back(static_cast<std::int32_t>(page));
      problem_.paged_kv->block_table = reinterpret_cast<const std::int32_t*>(upload(bytes_of(table)));
      problem_.paged_kv->block_table_stride = problem_.paged_kv->max_pages_per_seq;
      problem_.paged_kv->seq_lens_kv = reinterpret_cast<const std::int32_t*>(upload(bytes_of(lens)));
    } else {
      problem_.seq_lens_kv = reinterpret_cast<const std::int32_t*>(upload(bytes_of(lens)));
    }
    lens_ = std::move(lens);
    problem_.settled_kv = true;
    plan_ = prepare_attention(problem_);
    workspace_ = ops_->allocate(plan_.workspace_bytes, "test workspace");
    ops_->synchronize(ops_->stream());
  }

  const std::string& kernel() const { return plan_.kernel; }

  /// Turns the newest keys and values around, or of two that make up a word the second, behind kernels that
  /// take their time, and calls.
  std::vector<std::byte> run(bool waits_between) {
    const auto elements = static_cast<std::size_t>(case_.num_kv_heads * case_.head_dim);
    const auto columns = static_cast<std::int64_t>(dtype_bytes(case_.kv_dtype, elements) / 2);
    const auto scale = [&](std::byte* rows, std::int64_t count, float factor) {
      ops_->scale({{rows, DType::kBF16, count, columns, columns}, factor}, ops_->stream());
    };
    const std::int64_t slow_rows = (tested_gpu_is_slow() ? 2048 : 128 << 20) / columns;
    for (int i = 0; i < 2; ++i) scale(slow_, slow_rows, 1.0f);
    for (std::int64_t b = 0; b < case_.batch; ++b) {
      const std::int64_t newest = b * case_.most_keys + lens_[static_cast<std::size_t>(b)] - case_.seq_len_q;
      for (const void* tensor : {problem_.k.data, problem_.v.data}) {
        auto* const rows = const_cast<std::byte*>(static_cast<const std::byte*>(tensor)) +
                           dtype_bytes(DType::kBF16, static_cast<std::size_t>(newest * columns));
        scale(rows, case_.seq_len_q, -1.0f);
      }
    }
    if (waits_between) ops_->synchronize(ops_->stream());
    attention_forward(problem_, plan_, {workspace_.as<std::byte>(), plan_.workspace_bytes}, ops_->stream());
    std::vector<std::byte> o(o_bytes_);
    ops_->download(o.data(), problem_.o.data, o.size(), ops_->stream());
    return o;
  }

 private:
  /// Of which none is so small that two narrow ones make up a subnormal word.
  static std::vector<std::byte> random_numbers(std::int64_t count, DType dtype) {
    std::mt19937 generator(static_cast<unsigned>(count));
    std::uniform_real_distribution<double> magnitude(0.25, 2);
    std::vector<std::byte> numbers(dtype_bytes(dtype, static_cast<std::size_t>(count)));
    const std::int64_t fresh = std::min<std::int64_t>(count, 100'003);  // and again from the first
    for (std::int64_t i = 0; i < fresh; ++i)
      store_element(numbers.data(), dtype, i,
                    generator() % 2 == 0 ? magnitude(generator) : -magnitude(generator));
    const std::size_t period = dtype_bytes(dtype, static_cast<std::size_t>(fresh));
    for (std::size_t i = period; i < numbers.size(); ++i) numbers[i] = numbers[i - period];
    return numbers;
  }
  static std::vector<std::byte> bytes_of(const std::vector<std::int32_t>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(std::int32_t));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  std::byte* upload(const std::vector<std::byte>& bytes) {
    const DeviceBuffer& buffer = buffers_.emplace_back(ops_->allocate(bytes.size(), "test tensor"));
    ops_->upload(buffer.data.get(), bytes.data(), bytes.size(), ops_->stream());
    return buffer.data.get();
  }

  Case case_;
  std::unique_ptr<OpsBackend> ops_;
  std::vector<DeviceBuffer> buffers_;
  std::byte* slow_ = nullptr;
  std::vector<std::int32_t> lens_;
  AttentionProblem problem_;
  AttentionPlan plan_;
  DeviceBuffer workspace_;
  std::size_t o_bytes_ = 0;
};

TEST(SettledKeys, TheNewestAreReadWhenTheKernelsBeforeHaveWrittenThem) {
  std::vector<Case> cases = {{1, 1, 512}, {3, 2, 100, 4, 2, 64}, {2, 1, 96, 4, 1, 80, false}};
  if (!tested_gpu_is_slow()) {
    for (const bool has_pages : {true, false}) {
      for (const int head_dim : {64, 96, 128, 192, 256}) {
        cases.push_back({16, 1, 528, 32, 8, head_dim, has_pages});
        cases.push_back({16, 3, 2064, 32, 8, head_dim, has_pages});
        cases.push_back({40, 1, 144, 16, 4, head_dim, has_pages});
        cases.push_back({5, 1, 8000, 8, 1, head_dim, has_pages});
        cases.push_back({16, 1, 528, 32, 8, head_dim, has_pages, DType::kF8E4M3});
        cases.push_back({5, 3, 2064, 8, 2, head_dim, has_pages, DType::kF8E4M3});
      }
    }
  }
  for (const Case& c : cases) {
    DecodeStep step(c);
    SCOPED_TRACE(step.kernel() + ", " + std::to_string(c.batch) + " x " + std::to_string(c.most_keys) +
                 ", head_dim " + std::to_string(c.head_dim) + (c.has_pages ? ", pages" : ""));
    const std::vector<std::byte> turned = step.run(true), back = step.run(true);
    EXPECT_NE(turned, back) << "newest keys must matter";
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(step.run(false), turned);
      EXPECT_EQ(step.run(false), back);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
