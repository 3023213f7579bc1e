// A step's attention over the paged cache.

#include "model/paged_attention.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "ops/backend.h"

namespace tessera {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 64, kPageSize = 8, kPagesOfSequence = 24;

/// Sequences of random keys and values on the CPU.
struct Step {
  explicit Step(const std::vector<std::pair<int, int>>& new_and_all_tokens) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) values.push_back(normal(random));
    };
    const std::size_t num_pages = new_and_all_tokens.size() * kPagesOfSequence;
    fill(keys, num_pages * kPageSize * kKvHeads * kHeadDim);
    fill(values, num_pages * kPageSize * kKvHeads * kHeadDim);
    cu_seqlens.push_back(0);
    for (const auto& [num_new, all] : new_and_all_tokens) {
      cu_seqlens.push_back(cu_seqlens.back() + num_new);
      seq_lens.push_back(all);
    }
    for (std::size_t i = 0; i < num_pages; ++i) block_table.push_back(static_cast<std::int32_t>(i));
    fill(q, static_cast<std::size_t>(cu_seqlens.back()) * kHeads * kHeadDim);
  }

  /// o of sequences [begin, end), which are a step by themselves, of which the first num_decodes are apart.
  std::vector<float> attend(std::size_t begin, std::size_t end, std::int64_t num_decodes) {
    const auto ops = make_ops_backend("cpu");
    PagedAttentionOptions options;
    options.num_heads = kHeads;
    options.num_kv_heads = kKvHeads;
    options.head_dim = kHeadDim;
    PagedAttention attention(options, *ops);
    const std::int64_t rows = cu_seqlens[end] - cu_seqlens[begin];
    std::vector<std::int32_t> begins, prompt_begins;
    PagedAttentionCall call;
    for (std::size_t i = begin; i <= end; ++i) {
      begins.push_back(cu_seqlens[i] - cu_seqlens[begin]);
      if (i - begin >= static_cast<std::size_t>(num_decodes))
        prompt_begins.push_back(begins.back() - static_cast<std::int32_t>(num_decodes));
      if (i < end)
        call.shape.seq_len_q =
            std::max<std::int64_t>(call.shape.seq_len_q, cu_seqlens[i + 1] - cu_seqlens[i]);
    }
    call.shape.num_tokens = rows;
    call.shape.batch = static_cast<std::int64_t>(end - begin);
    call.shape.seq_len_kv = call.shape.decode_len_kv = kPagesOfSequence * kPageSize;
    call.shape.num_decodes = num_decodes;
    if (num_decodes == 0) call.shape.decode_len_kv = 0;
    call.descriptors = {begins.data(), prompt_begins.data(), seq_lens.data() + begin,
                        block_table.data() + begin * kPagesOfSequence, kPagesOfSequence};
    constexpr int kColumns = kHeads * kHeadDim;
    std::vector<float> o(static_cast<std::size_t>(rows) * kColumns);
    call.q = {q.data() + cu_seqlens[begin] * kColumns, DType::kF32, rows, kColumns, kColumns};
    call.o = {o.data(), DType::kF32, rows, kColumns, kColumns};
    call.cache = {keys.data(),
                  values.data(),
                  DType::kF32,
                  kPageSize * kKvHeads * kHeadDim,
                  kKvHeads * kHeadDim,
                  kHeadDim,
                  kPageSize,
                  static_cast<std::int64_t>(block_table.size()),
                  nullptr,
                  0};
    attention.run(call);
    return o;
  }

  std::vector<float> q, keys, values;
  std::vector<std::int32_t> cu_seqlens, seq_lens, block_table;
};

TEST(PagedAttention, DecodesAndPromptsOfAStepHaveTheBitsOfAStepEach) {
  Step step({{1, 190}, {1, 9}, {1, 130}, {40, 150}, {5, 5}});
  std::vector<float> apart = step.attend(0, 3, 0);
  const std::vector<float> prompts = step.attend(3, 5, 0);
  apart.insert(apart.end(), prompts.begin(), prompts.end());
  EXPECT_EQ(step.attend(0, 5, 3), apart);
}

}  // namespace
}  // namespace tessera
