// NVIDIA's decode kernel (sm80/attention_decode.cu) on the host, its blocks launched as clusters and alone,
// beside the equation in fp64. Before it has waited for the kernels before it, queries and each sequence's
// newest keys and values are others.

// Before the kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "common/attention_constants.cuh"
#include "common/attention_row.cuh"
#include "cuda_names.h"

namespace tessera::kernels {

/// Rows that the kernel gave up and did again, which would hide what it did wrong.
static int rows_redone = 0;

template <class Element, class Stored, class... Arguments>
void count_and_redo_row(const Arguments&... arguments) {
  ++rows_redone;
  redo_row<Element, Stored>(arguments...);
}

/// What the kernels before still have to write.
static std::function<void()> end_prior_kernels;

inline void end_and_wait_for_prior_kernels() {
  if (end_prior_kernels) std::exchange(end_prior_kernels, nullptr)();
}

}  // namespace tessera::kernels

#define wait_for_prior_kernels end_and_wait_for_prior_kernels
#define redo_row count_and_redo_row
#include "sm80/attention_decode.cu"
#undef redo_row
#undef wait_for_prior_kernels
// Behind it.
#include "simt/decode_launch.h"

namespace tessera {
namespace {

constexpr int kKvHeads = 2, kDim = kernels::kHeadDimQk, kPage = 16;
constexpr int kTokenElements = kKvHeads * kDim;

kernels::f16 half_of(float x) { return kernels::from_float<kernels::f16>(x); }

struct Case {
  std::vector<int> keys;  // of each sequence
  int group = 4, queries = 1;
  bool is_settled = false;
  bool has_sinks = false;
};

/// Key j of sequence b, and where it is.
std::size_t place_of(const std::vector<int>& table, int pages, int b, int j) {
  return static_cast<std::size_t>(table[static_cast<std::size_t>(b * pages + j / kPage)] * kPage +
                                  j % kPage) *
         kTokenElements;
}

void expect_exact(const Case& c, int cluster) {
  SCOPED_TRACE(::testing::Message() << "clusters of " << cluster << ", " << c.queries << " queries of "
                                    << c.group << " heads, " << c.keys.front() << " keys"
                                    << (c.is_settled ? ", settled" : ""));
  const int batch = static_cast<int>(c.keys.size());
  const int heads = c.group * kKvHeads;
  const int pages = (*std::ranges::max_element(c.keys) + kPage - 1) / kPage + 1;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  // The sequences' pages lie in turns, from the last on; what no sequence has is NaN.
  std::vector<int> table;
  for (int b = 0; b < batch; ++b)
    for (int page = 0; page < pages; ++page) table.push_back((pages - 1 - page) * batch + b);
  const kernels::f16 nan = half_of(std::numeric_limits<float>::quiet_NaN());
  std::vector<kernels::f16> k(static_cast<std::size_t>(batch * pages) * kPage * kTokenElements, nan), v = k;
  const kernels::f16 early = half_of(1.5f);
  std::vector<kernels::f16> q(static_cast<std::size_t>(batch * c.queries * heads) * kDim, early);
  std::vector<kernels::f16> o(q.size(), nan);
  std::vector<std::pair<kernels::f16*, kernels::f16>> late;
  for (kernels::f16& x : q) late.emplace_back(&x, half_of(normal(random)));
  for (int b = 0; b < batch; ++b) {
    const int length = c.keys[static_cast<std::size_t>(b)];
    for (int j = 0; j < length; ++j) {
      for (int d = 0; d < kTokenElements; ++d) {
        for (auto* x : {&k, &v}) {
          kernels::f16* const at = &(*x)[place_of(table, pages, b, j) + static_cast<std::size_t>(d)];
          const kernels::f16 value = half_of(normal(random));
          if (j < length - c.queries) {
            *at = value;
          } else {
            *at = early;
            late.emplace_back(at, value);
          }
        }
      }
    }
  }

  kernels::AttentionParams p = simt::paged_decode_params(batch, c.queries, heads, kKvHeads, kPage, pages);
  p.q.data = q.data();
  p.o.data = o.data();
  p.k.data = k.data();
  p.v.data = v.data();
  p.seq_lens_kv = c.keys.data();
  p.block_table = table.data();
  p.settled_kv = c.is_settled ? 1 : 0;
  p.window_right = 0;
  std::vector<float> lse(static_cast<std::size_t>(batch * heads * c.queries), NAN);
  p.lse = {lse.data(), heads * c.queries, c.queries, 1};
  const std::vector<float> sinks(static_cast<std::size_t>(heads), 0.5f);
  if (c.has_sinks) p.sinks = sinks.data();
  kernels::end_prior_kernels = [&] {
    for (const auto& [at, value] : late) *at = value;
  };
  simt::run_decode(p, cluster);
  EXPECT_FALSE(kernels::end_prior_kernels) << "nobody waited";
  EXPECT_EQ(std::exchange(kernels::rows_redone, 0), 0);

  for (int b = 0; b < batch; ++b) {
    const int length = c.keys[static_cast<std::size_t>(b)];
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < c.queries; ++i) {
        const std::size_t row = static_cast<std::size_t>((b * c.queries + i) * heads + h) * kDim;
        std::vector<double> sums(kDim);
        double sum = 0;
        for (int j = 0; j <= i + length - c.queries; ++j) {
          const std::size_t at = place_of(table, pages, b, j) + static_cast<std::size_t>(h / c.group * kDim);
          double score = 0;
          for (std::size_t d = 0; d < kDim; ++d)
            score += double{kernels::to_float(q[row + d])} * kernels::to_float(k[at + d]);
          const double weight = std::exp(score * 0.125);
          sum += weight;
          for (std::size_t d = 0; d < kDim; ++d) sums[d] += weight * kernels::to_float(v[at + d]);
        }
        const bool has_keys = sum > 0;
        if (has_keys && c.has_sinks) sum += std::exp(0.5);
        const float found_lse = lse[static_cast<std::size_t>((b * heads + h) * c.queries + i)];
        if (has_keys) {
          EXPECT_NEAR(found_lse, std::log(sum), 1e-4);
        } else {
          EXPECT_EQ(found_lse, -std::numeric_limits<float>::infinity());
        }
        // Weights and results are rounded to f16 (2^-11 each) beside values up to 5.
        for (std::size_t d = 0; d < kDim; ++d) {
          ASSERT_NEAR(kernels::to_float(o[row + d]), has_keys ? sums[d] / sum : 0, 5 * 2 * 0x1p-11)
              << "sequence " << b << ", head " << h << ", query " << i << ", column " << d;
        }
      }
    }
  }
}

// Tiles of a cluster are 64 keys a block: rows end in the first, in some and in the last of its blocks, in
// the first key of a warp and in its last, and in later tiles.
TEST(DecodeClusters, MergeWhatTheirBlocksFind) {
  for (const int cluster : {1, 2, 3, 4, 6, 8}) {
    for (const bool is_settled : {false, true}) {
      for (const int keys : {1, 16, 17, 64 * cluster, 64 * cluster + 1, 64 * (cluster - 1) + 49, 700})
        expect_exact({{keys, 5}, 4, 1, is_settled}, cluster);
    }
  }
}

TEST(DecodeClusters, TakeAsManyRowsAsABlock) {
  for (const int cluster : {1, 3, 6, 8}) {
    for (const bool is_settled : {false, true}) {
      expect_exact({{300, 16}, 4, 4, is_settled}, cluster);  // 16 rows
      expect_exact({{300, 33}, 8, 2, is_settled}, cluster);
      expect_exact({{65 * cluster}, 3, 5, is_settled, true}, cluster);
      expect_exact({{130, 0, 2}, 13, 1, is_settled, true}, cluster);
    }
  }
}

// What comes behind a grid counts on what was in front of it, too.
TEST(DecodeClusters, WaitForKernelsBeforeWithoutRows) {
  for (const int cluster : {1, 4}) {
    const std::vector<int> no_queries(3), keys = {40, 7}, table(2 * 3);
    kernels::AttentionParams p = simt::paged_decode_params(2, 1, 1, 1, kPage, 3);
    p.cu_seqlens_q = no_queries.data();
    p.seq_lens_kv = keys.data();
    p.block_table = table.data();
    p.settled_kv = 1;
    bool has_waited = false;
    kernels::end_prior_kernels = [&] { has_waited = true; };
    simt::run_decode(p, cluster);
    EXPECT_TRUE(has_waited) << "clusters of " << cluster;
    kernels::end_prior_kernels = nullptr;
  }
}

}  // namespace
}  // namespace tessera
