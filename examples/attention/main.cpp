// Runs causal grouped-query attention on random data through the public API, prints what ran, and checks one
// row of the result against the definition.

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "tessera/attention.h"
#include "tessera/error.h"

namespace {

constexpr int kBatch = 2;
constexpr int kSeqLen = 300;
constexpr int kNumHeads = 8;
constexpr int kNumKvHeads = 2;
constexpr int kHeadDim = 64;

std::vector<float> random_tensor(std::size_t elements, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(elements);
  for (float& value : values) value = normal(generator);
  return values;
}

/// Offset of a token's head in a (batch, seq, heads, head_dim) tensor.
std::size_t offset(int b, int token, int head, int num_heads) {
  return ((static_cast<std::size_t>(b) * kSeqLen + static_cast<std::size_t>(token)) *
              static_cast<std::size_t>(num_heads) +
          static_cast<std::size_t>(head)) *
         kHeadDim;
}

/// o of one query by the definition: softmax(q k^T / sqrt(head_dim)) v over the keys up to the query.
std::vector<double> exact_row(const std::vector<float>& q, const std::vector<float>& k,
                              const std::vector<float>& v, int b, int query, int head) {
  const int kv_head = head / (kNumHeads / kNumKvHeads);
  std::vector<double> weights;
  double sum = 0;
  for (int j = 0; j <= query; ++j) {
    double score = 0;
    for (std::size_t d = 0; d < kHeadDim; ++d) {
      score += static_cast<double>(q[offset(b, query, head, kNumHeads) + d]) *
               static_cast<double>(k[offset(b, j, kv_head, kNumKvHeads) + d]);
    }
    weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kHeadDim))));
    sum += weights.back();
  }
  std::vector<double> row(kHeadDim);
  for (int j = 0; j <= query; ++j) {
    for (std::size_t d = 0; d < kHeadDim; ++d) {
      row[d] += weights[static_cast<std::size_t>(j)] / sum *
                static_cast<double>(v[offset(b, j, kv_head, kNumKvHeads) + d]);
    }
  }
  return row;
}

int run() {
  using namespace tessera;
  const std::vector<float> q = random_tensor(std::size_t{kBatch} * kSeqLen * kNumHeads * kHeadDim, 1);
  const std::vector<float> k = random_tensor(std::size_t{kBatch} * kSeqLen * kNumKvHeads * kHeadDim, 2);
  const std::vector<float> v = random_tensor(k.size(), 3);
  std::vector<float> o(q.size());

  AttentionProblem problem;
  problem.batch = kBatch;
  problem.seq_len_q = problem.seq_len_kv = kSeqLen;
  problem.num_heads = kNumHeads;
  problem.num_kv_heads = kNumKvHeads;
  problem.head_dim_qk = problem.head_dim_v = kHeadDim;
  const auto layout = AttentionLayout::kBatchSeqHeads;
  problem.q = attention_input(layout, q.data(), DType::kF32, kSeqLen, kNumHeads, kHeadDim);
  problem.k = attention_input(layout, k.data(), DType::kF32, kSeqLen, kNumKvHeads, kHeadDim);
  problem.v = attention_input(layout, v.data(), DType::kF32, kSeqLen, kNumKvHeads, kHeadDim);
  problem.o = attention_output(layout, o.data(), DType::kF32, kSeqLen, kNumHeads, kHeadDim);
  problem.scores.diagonal = DiagonalMask::causal();

  const AttentionPlan plan = attention_forward(problem);
  std::printf("%s\nran %s/%s with tiles of %d queries and %d keys\n", to_string(problem).c_str(),
              plan.backend.c_str(), plan.kernel.c_str(), plan.config.block_m, plan.config.block_n);

  constexpr int kCheckedQuery = 211;
  constexpr int kCheckedHead = 5;
  const std::vector<double> expected = exact_row(q, k, v, 1, kCheckedQuery, kCheckedHead);
  double error = 0;
  for (std::size_t d = 0; d < kHeadDim; ++d) {
    const double got = o[offset(1, kCheckedQuery, kCheckedHead, kNumHeads) + d];
    error = std::fmax(error, std::abs(got - expected[d]));
  }
  // A weighted mean of values below 5 or so in fp32: a few hundred roundings of 6e-8.
  constexpr double kBound = 1e-5;
  std::printf("query %d of head %d: largest error %.2e, bound %.0e\n", kCheckedQuery, kCheckedHead, error,
              kBound);
  return error <= kBound ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.message().c_str());
    return 1;
  }
}
