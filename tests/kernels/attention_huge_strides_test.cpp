// Tensors whose elements lie more than 2^31 elements apart, in memory of which only the touched pages exist.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/element.h"
#include "kernels/usable_backends.h"
#include "tessera/attention.h"
#include "verify/attention_check.h"

namespace tessera {
namespace {

/// Addresses without memory behind them until they are written to.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {
    data_ =
        mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (valid()) munmap(data_, size_bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool valid() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t size_bytes_;
  void* data_;
};

struct Strides {
  std::int64_t batch, seq, head;
};

constexpr std::int64_t kPast31Bits = (std::int64_t{1} << 31) + 64;

/// Which dimension is stretched.
enum class Stretch { kBatch, kSeq, kHead };

Strides stretched(Stretch stretch, std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
  switch (stretch) {
    case Stretch::kBatch:
      return {kPast31Bits, heads * dim, dim};
    case Stretch::kSeq:
      return {heads * dim, kPast31Bits / 2, dim};
    case Stretch::kHead:
      return {tokens * dim, dim, kPast31Bits};
  }
  return {};
}

std::size_t span_bytes(const Strides& s, std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                       std::int64_t dim, DType dtype) {
  const std::int64_t last = (batch - 1) * s.batch + (tokens - 1) * s.seq + (heads - 1) * s.head + dim;
  return dtype_bytes(dtype, static_cast<std::size_t>(last));
}

class HugeStrides : public testing::TestWithParam<std::tuple<std::string, DType, Stretch>> {};

TEST_P(HugeStrides, GiveTheSameResult) {
  const std::string backend = std::get<0>(GetParam());
  const DType dtype = std::get<1>(GetParam());
  const Stretch stretch = std::get<2>(GetParam());
  AttentionCase c;
  c.dtype = dtype;
  c.seq_len_q = 4;
  c.seq_len_kv = 6;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim_qk = c.head_dim_v = 16;
  c.diagonal = DiagonalMask::causal();
  c.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.3, 1};
  const AttentionData data = make_attention_data(c);

  const Strides q = stretched(stretch, 4, 4, 16), kv = stretched(stretch, 6, 2, 16),
                lse = stretched(stretch, 4, 4, 1);
  SparseMemory q_memory(span_bytes(q, 2, 4, 4, 16, dtype)), o_memory(span_bytes(q, 2, 4, 4, 16, dtype));
  SparseMemory k_memory(span_bytes(kv, 2, 6, 2, 16, dtype)), v_memory(span_bytes(kv, 2, 6, 2, 16, dtype));
  SparseMemory lse_memory(span_bytes(lse, 2, 4, 4, 1, DType::kF32));
  const std::int64_t mask_batch = stretch == Stretch::kBatch ? kPast31Bits : 4 * 4 * 6;
  const std::int64_t mask_head = stretch == Stretch::kHead ? kPast31Bits : 4 * 6;
  const std::int64_t mask_query = stretch == Stretch::kSeq ? kPast31Bits : 6;
  SparseMemory mask_memory(static_cast<std::size_t>(mask_batch + 3 * mask_head + 3 * mask_query + 6));
  for (const SparseMemory* memory : {&q_memory, &k_memory, &v_memory, &o_memory, &lse_memory, &mask_memory}) {
    if (!memory->valid()) GTEST_SKIP() << "this system gives out no address space without memory";
  }

  AttentionStorage compact = store_attention_data(data);
  AttentionProblem p = compact.problem;
  p.q = {q_memory.data(), dtype, q.batch, q.seq, q.head};
  p.k = {k_memory.data(), dtype, kv.batch, kv.seq, kv.head};
  p.v = {v_memory.data(), dtype, kv.batch, kv.seq, kv.head};
  p.o = {o_memory.data(), dtype, q.batch, q.seq, q.head};
  p.lse = LseOutput{static_cast<float*>(lse_memory.data()), lse.batch, lse.head, lse.seq};
  p.scores.boolean_mask = ScoreMask{mask_memory.data(), DType::kBool, mask_batch, mask_head, mask_query, 1};
  for (std::int64_t b = 0; b < 2; ++b) {
    const SequenceData& s = data.sequences[static_cast<std::size_t>(b)];
    const auto put = [&](const std::vector<double>& numbers, void* to, const Strides& strides,
                         std::int64_t tokens, std::int64_t heads) {
      std::size_t n = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t row = b * strides.batch + t * strides.seq + h * strides.head;
          for (std::int64_t d = 0; d < 16; ++d) store_element(to, dtype, row + d, numbers[n++]);
        }
      }
    };
    put(s.q, q_memory.data(), q, 4, 4);
    put(s.k, k_memory.data(), kv, 6, 2);
    put(s.v, v_memory.data(), kv, 6, 2);
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t i = 0; i < 4; ++i) {
        for (std::int64_t j = 0; j < 6; ++j) {
          static_cast<std::uint8_t*>(
              mask_memory.data())[b * mask_batch + h * mask_head + i * mask_query + j] =
              data.boolean_mask.at(b, h, i, j) != 0;
        }
      }
    }
  }

  AttentionRun run;
  AttentionOptions options;
  options.backend = backend;
  run.kernel = attention_forward(p, options).kernel;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t h = 0; h < 4; ++h) {
        const std::int64_t row = b * q.batch + i * q.seq + h * q.head;
        for (std::int64_t d = 0; d < 16; ++d)
          run.rows.o.push_back(load_element(o_memory.data(), dtype, row + d));
        run.rows.lse.push_back(p.lse->data[b * lse.batch + i * lse.seq + h * lse.head]);
      }
    }
  }
  VerifyResult result;
  compare_attention(data, run, expect_attention(data, backend), result);
  EXPECT_TRUE(result.passed) << result.message;
}

TEST(HugePages, MayLieFarApart) {
  // Two pages of 2^31 + 64 elements' distance, of which only the first row of each is in use.
  SparseMemory k(static_cast<std::size_t>(2 * kPast31Bits) * 2),
      v(static_cast<std::size_t>(2 * kPast31Bits) * 2);
  if (!k.valid() || !v.valid()) GTEST_SKIP() << "this system gives out no address space without memory";
  const std::int32_t block_table[] = {1, 0}, seq_lens[] = {2};
  static_cast<BFloat16*>(k.data())[0] = BFloat16(2.0f);
  static_cast<BFloat16*>(v.data())[0] = BFloat16(5.0f);
  static_cast<BFloat16*>(k.data())[kPast31Bits] = BFloat16(2.0f);
  static_cast<BFloat16*>(v.data())[kPast31Bits] = BFloat16(7.0f);
  for (const std::string& backend : usable_backends()) {
    const BFloat16 q(1.0f);
    BFloat16 o(0.0f);
    AttentionProblem p;
    p.batch = p.seq_len_q = p.num_heads = p.num_kv_heads = p.head_dim_qk = p.head_dim_v = 1;
    p.seq_len_kv = 2;
    p.q = {&q, DType::kBF16, 1, 1, 1};
    p.k = {k.data(), DType::kBF16, kPast31Bits, 1, 1};
    p.v = {v.data(), DType::kBF16, kPast31Bits, 1, 1};
    p.o = {&o, DType::kBF16, 1, 1, 1};
    p.paged_kv = PagedKv{block_table, seq_lens, 2, 2, 2, 1};
    AttentionOptions options;
    options.backend = backend;
    attention_forward(p, options);
    EXPECT_EQ(static_cast<float>(o), 6.0f) << backend;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, HugeStrides,
                         testing::Combine(testing::ValuesIn(usable_backends()),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(Stretch::kBatch, Stretch::kSeq, Stretch::kHead)));

}  // namespace
}  // namespace tessera
