// NVIDIA's decode kernel (sm80/attention_decode.cu) on the host with a window written as a modifier, beside
// the equation in fp64. Pages of keys that no query sees lie where nothing may be read.

#include <sys/mman.h>

// Before the kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "cuda_names.h"
#include "kernels/modifier_examples.h"
#include "sm80/attention_decode.cu"
// Behind it.
#include "simt/decode_launch.h"

namespace tessera {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = kernels::kHeadDimQk, kPage = 64, kBatch = 2;
constexpr int kTokenElements = kKvHeads * kDim;

kernels::f16 half_of(float x) { return kernels::from_float<kernels::f16>(x); }

/// Pages of keys or values; behind them as many that can't be read.
class Pool {
 public:
  explicit Pool(int pages) : bytes_(static_cast<std::size_t>(pages) * kPage * kTokenElements * 2) {
    void* memory = mmap(nullptr, 2 * bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    EXPECT_EQ(mprotect(memory, bytes_, PROT_READ | PROT_WRITE), 0);
    data_ = static_cast<kernels::f16*>(memory);
  }
  ~Pool() { munmap(data_, 2 * bytes_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  kernels::f16* data() { return data_; }
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < bytes_ / 2; ++i) data_[i] = half_of(normal(random));
  }

 private:
  std::size_t bytes_;
  kernels::f16* data_;
};

/// keys: of each sequence; queries: of each.
void expect_exact(const std::vector<int>& keys, int queries, int window, int num_splits) {
  SCOPED_TRACE(::testing::Message() << queries << " queries, window " << window << ", splits " << num_splits);
  const int pages = (*std::max_element(keys.begin(), keys.end()) + kPage - 1) / kPage;
  std::mt19937 random(3);
  Pool k(pages), v(pages);
  k.fill(random);
  v.fill(random);
  std::vector<kernels::f16> q(static_cast<std::size_t>(kBatch) * queries * kHeads * kDim), o(q.size());
  std::normal_distribution<float> normal;
  for (kernels::f16& x : q) x = half_of(normal(random));
  const auto sees = [&](int b, int i, int j) {
    return std::abs(i + keys[static_cast<std::size_t>(b)] - queries - j) <= window;
  };
  // Both sequences have the same pages, each those that it sees.
  std::vector<int> table, pages_seen;
  for (int b = 0; b < kBatch; ++b) {
    pages_seen.push_back(0);
    for (int page = 0; page < pages; ++page) {
      bool any = false;
      for (int j = page * kPage; j < std::min((page + 1) * kPage, keys[static_cast<std::size_t>(b)]); ++j)
        for (int i = 0; i < queries; ++i) any |= sees(b, i, j);
      table.push_back(any ? page : pages);
      pages_seen.back() += any ? 1 : 0;
    }
  }

  kernels::AttentionParams p = simt::paged_decode_params(kBatch, queries, kHeads, kKvHeads, kPage, pages);
  p.q.data = q.data();
  p.o.data = o.data();
  p.k.data = k.data();
  p.v.data = v.data();
  p.seq_lens_kv = keys.data();
  p.block_table = table.data();
  p.num_splits = num_splits;
  p.keys_per_split = (pages + num_splits - 1) / num_splits * kPage;
  const std::size_t rows = static_cast<std::size_t>(kBatch) * kHeads * queries;
  std::vector<float> o_partial(static_cast<std::size_t>(num_splits) * rows * kDim, NAN);
  std::vector<float> lse_partial(static_cast<std::size_t>(num_splits) * rows, NAN);
  std::vector<float> lse(rows);
  p.o_partial = o_partial.data();
  p.lse_partial = lse_partial.data();
  p.lse = {lse.data(), kHeads * queries, queries, 1};
  const ModifierExamples examples;
  const auto& scalars = examples.visible("").scalars;
  for (std::size_t n = 0; n < scalars.size(); ++n)
    p.modifier.integers[n] = scalars[n].first == "w" ? window : static_cast<int>(scalars[n].second);
  simt::run_decode(p);

  for (int b = 0; b < kBatch; ++b) {
    std::vector<bool> split_has_keys(static_cast<std::size_t>(num_splits));
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < queries; ++i) {
        const kernels::f16* query = &q[static_cast<std::size_t>((b * queries + i) * kHeads + h) * kDim];
        std::vector<double> sums(kDim);
        double sum = 0;
        for (int j = 0; j < keys[static_cast<std::size_t>(b)]; ++j) {
          if (!sees(b, i, j)) continue;
          const std::size_t at = static_cast<std::size_t>(j) * kTokenElements + h / p.pack_heads * kDim;
          double score = 0;
          for (int d = 0; d < kDim; ++d)
            score += double{kernels::to_float(query[d])} * kernels::to_float(k.data()[at + d]);
          const double weight = std::exp(score * 0.125);
          sum += weight;
          for (int d = 0; d < kDim; ++d) sums[d] += weight * kernels::to_float(v.data()[at + d]);
        }
        // What the combination would make of the splits.
        const std::size_t row = static_cast<std::size_t>((b * kHeads + h) * queries + i);
        std::vector<double> found(kDim);
        double found_sum = 0;
        for (int split = 0; split < num_splits; ++split) {
          const std::size_t partial = static_cast<std::size_t>(split) * rows + row;
          const double part = std::exp(double{num_splits > 1 ? lse_partial[partial] : lse[row]});
          found_sum += part;
          if (part > 0) split_has_keys[static_cast<std::size_t>(split)] = true;
          for (int d = 0; d < kDim; ++d)
            found[d] +=
                part * (num_splits > 1
                            ? o_partial[partial * kDim + d]
                            : kernels::to_float(
                                  o[static_cast<std::size_t>(((b * queries + i) * kHeads + h) * kDim + d)]));
        }
        EXPECT_NEAR(found_sum / sum, 1, 1e-4);  // fp32 and 64 products: 1e-5
        // Weights and results are rounded to f16 (2^-11 each) beside values up to 5.
        for (int d = 0; d < kDim; ++d) EXPECT_NEAR(found[d] / found_sum, sums[d] / sum, 5 * 2 * 0x1p-11);
      }
    }
    // A page is a tile.
    EXPECT_EQ(std::count(split_has_keys.begin(), split_has_keys.end(), true),
              std::min(num_splits, pages_seen[static_cast<std::size_t>(b)]));
  }
}

TEST(DecodeModifier, AWindowReadsItsOwnTilesAndSharesThemOut) {
  ASSERT_TRUE(kernels::kHidesTiles);
  expect_exact({3000, 700}, 1, 20, 1);
  expect_exact({3000, 700}, 4, 300, 1);
  expect_exact({3000, 1111}, 1, 500, 3);
  expect_exact({3000, 64}, 2, 200, 7);
}

}  // namespace
}  // namespace tessera
