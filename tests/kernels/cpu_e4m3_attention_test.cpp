// e4m3 keys and values beside bf16 on the CPU: every e4m3 there is, and scales that pairs of bf16 can't hold.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/simd_target.h"
#include "tessera/attention.h"

namespace tessera {
namespace {

constexpr std::int64_t kKeys = 300, kPageSize = 16, kPages = (kKeys + kPageSize - 1) / kPageSize;
constexpr int kHeads = 4, kKvHeads = 2, kDim = 72;

/// One sequence in pages, each page with scales of its own.
class Sequence {
 public:
  explicit Sequence(std::int64_t queries) : queries_(queries), q_(queries * kHeads * kDim) {
    for (BFloat16& x : q_) x = BFloat16(normal_(random_));
    for (auto* numbers : {&k_, &v_})
      for (Float8E4M3& x : *numbers) x = Float8E4M3(normal_(random_));
    for (std::int64_t i = 0; i < kPages; ++i) table_.push_back(static_cast<std::int32_t>(kPages - 1 - i));
    for (std::int64_t i = 0; i < kPages * kKvHeads; ++i) {
      k_scales_.push_back(0.25f * static_cast<float>(1 + i % 3));
      v_scales_.push_back(static_cast<float>(1 + i % 5));
    }
  }

  void multiply_queries(float factor) {
    for (BFloat16& x : q_) x = BFloat16(static_cast<float>(x) * factor);
  }
  void multiply_key_scales(float factor) {
    for (float& x : k_scales_) x *= factor;
  }
  void multiply_value_scales(float factor) {
    for (float& x : v_scales_) x *= factor;
  }
  std::vector<Float8E4M3>& values() { return v_; }
  const float* mask = nullptr;  // of each key

  AttentionProblem problem(std::vector<BFloat16>& o) {
    AttentionProblem p;
    p.batch = 1;
    p.seq_len_q = queries_;
    p.seq_len_kv = kKeys;
    p.num_heads = kHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim_qk = p.head_dim_v = kDim;
    p.q = {q_.data(), DType::kBF16, 0, kHeads * kDim, kDim};
    p.k = {k_.data(), DType::kF8E4M3, kPageSize * kKvHeads * kDim, kKvHeads * kDim, kDim};
    p.v = {v_.data(), DType::kF8E4M3, kPageSize * kKvHeads * kDim, kKvHeads * kDim, kDim};
    o.assign(q_.size(), BFloat16(0.0f));
    p.o = {o.data(), DType::kBF16, 0, kHeads * kDim, kDim};
    p.paged_kv = PagedKv{};
    p.paged_kv->block_table = table_.data();
    p.paged_kv->seq_lens_kv = &keys_;
    p.paged_kv->page_size = kPageSize;
    p.paged_kv->num_pages = kPages;
    p.paged_kv->block_table_stride = p.paged_kv->max_pages_per_seq = kPages;
    if (mask != nullptr) p.scores.additive_mask = ScoreMask{mask, DType::kF32, 0, 0, 0, 1};
    p.kv_scales = KvScales{k_scales_.data(), v_scales_.data(), kKvHeads, 1};
    return p;
  }

  std::vector<double> run(const std::string& backend) {
    std::vector<BFloat16> o;
    attention_forward(problem(o), {.backend = backend});
    std::vector<double> result;
    for (const BFloat16 x : o) result.push_back(static_cast<double>(static_cast<float>(x)));
    return result;
  }

 private:
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
  std::int64_t queries_;
  std::int32_t keys_ = kKeys;
  std::vector<BFloat16> q_;
  std::vector<Float8E4M3> k_ = std::vector<Float8E4M3>(kPages * kPageSize * kKvHeads * kDim);
  std::vector<Float8E4M3> v_ = k_;
  std::vector<std::int32_t> table_;
  std::vector<float> k_scales_, v_scales_;
};

/// Weights and o are rounded to bf16, and a sum's terms may be larger than it is.
void expect_near_reference(Sequence& sequence) {
  const std::vector<double> exact = sequence.run("reference");
  double largest = 0;
  for (const double x : exact) largest = std::max(largest, std::abs(x));
  for (const SimdTarget target : attainable_simd_targets()) {
    SCOPED_TRACE(std::string(simd_target_name(target)));
    set_simd_target(target);
    const std::vector<double> o = sequence.run("cpu");
    set_simd_target(std::nullopt);
    double error = 0;
    for (std::size_t i = 0; i < o.size(); ++i) error = std::max(error, std::abs(o[i] - exact[i]));
    EXPECT_LE(error, 4 * unit_roundoff(DType::kBF16) * largest);
  }
}

/// As many as the decode kernel takes, in one chunk of rows and in two, and more.
constexpr std::int64_t kQueries[] = {1, 4, 20};

TEST(CpuE4m3Attention, ScalesMayBeAnyThatFp32Holds) {
  for (const std::int64_t queries : kQueries) {
    SCOPED_TRACE(queries);
    for (const float factor : {1.0f, 0x1p-40f, 0x1p-70f, 0x1p-124f, 0x1p70f, 0x1p125f}) {
      SCOPED_TRACE(factor);
      Sequence values(queries);
      values.multiply_value_scales(factor);
      expect_near_reference(values);
      // Queries that only the scales of keys bring to where scores differ.
      Sequence scores(queries);
      scores.multiply_queries(1 / factor);
      scores.multiply_key_scales(factor);
      expect_near_reference(scores);
    }
  }
}

TEST(CpuE4m3Attention, AVisibleNanCountsHoweverSmallItsWeightAndItsScale) {
  for (const std::int64_t queries : kQueries) {
    SCOPED_TRACE(queries);
    Sequence sequence(queries);
    sequence.multiply_value_scales(0x1p-60f);
    // The first key of page 0, which is the sequence's last.
    for (int i = 0; i < kKvHeads * kDim; ++i)
      sequence.values()[i] = std::bit_cast<Float8E4M3>(std::uint8_t{0x7f});
    std::vector<float> mask(kKeys, 0.0f);
    mask[kKeys / kPageSize * kPageSize] = -55.0f;
    sequence.mask = mask.data();
    for (const SimdTarget target : attainable_simd_targets()) {
      SCOPED_TRACE(std::string(simd_target_name(target)));
      set_simd_target(target);
      for (const double x : sequence.run("cpu")) ASSERT_TRUE(std::isnan(x));
      set_simd_target(std::nullopt);
    }
  }
}

TEST(CpuE4m3Attention, EveryNumberCounts) {
  for (const std::int64_t queries : kQueries) {
    SCOPED_TRACE(queries);
    Sequence sequence(queries);
    // All but the two NaN, so that each dimension's mean has each of them.
    for (std::size_t i = 0; i < sequence.values().size(); ++i) {
      const std::size_t bits = (i * 37 + i / kDim) % 254;
      sequence.values()[i] =
          std::bit_cast<Float8E4M3>(static_cast<std::uint8_t>(bits < 127 ? bits : bits + 1));
    }
    expect_near_reference(sequence);
  }
}

TEST(CpuE4m3Attention, MeetsBf16InPairsWhereTheProcessorHasThem) {
  for (const SimdTarget target : attainable_simd_targets()) {
    if (cpu::e4m3_dot_kernels(target) == nullptr) continue;
    set_simd_target(target);
    for (const auto& [queries, kernel] :
         {std::pair{std::int64_t{1}, "decode/"}, {std::int64_t{20}, "prefill/"}}) {
      Sequence sequence(queries);
      std::vector<BFloat16> o;
      AttentionProblem p = sequence.problem(o);
      EXPECT_EQ(plan_attention(p, {.backend = "cpu"}).kernel,
                std::string(kernel) + std::string(simd_target_name(target)));
    }
    set_simd_target(std::nullopt);
  }
}

}  // namespace
}  // namespace tessera
