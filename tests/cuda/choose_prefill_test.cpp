// Which prompts Hopper's kernel of f16 and bf16 takes, and what it does with their rows, masks and pages.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "backends/gpu/attention/align_rows.h"
#include "cuda/chosen.h"
#include "gpu/dense_problem.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

using gpu::DeviceProperties;
using gpu::KernelChoice;
using gpu::ModuleSpec;

TEST(ChooseKernel, HoppersKernelTakesBatchInvariantPromptsInTheSegmentsOfOthers) {
  for (const int head_dim : {40, 64, 96, 128}) {
    AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, head_dim);
    p.batch_invariant = true;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/prefill");
    EXPECT_EQ(choice.config.block_n, 64);  // keys that share a base, as in sm80/prefill
    EXPECT_EQ(choice.keys_per_segment, choose_kernel(p, a100(), {}).keys_per_segment);
    EXPECT_NE(std::ranges::find(choice.module.defines, "TESSERA_INVARIANT=1"), choice.module.defines.end());
  }
}

TEST(ChooseKernel, HoppersKernelTakesLongPrompts) {
  const AttentionProblem plain = problem(DType::kBF16, 4096, 4096, 16, 16, 128);
  EXPECT_EQ(choose_kernel(plain, h200(), {}).kernel->name, "sm90/prefill");
  EXPECT_EQ(choose_kernel(plain, a100(), {}).kernel->name, "sm80/prefill");
  const auto reason = [&](auto change, DeviceProperties device = h200()) {
    AttentionProblem p = plain;
    change(p);
    const KernelChoice choice = choose_kernel(p, device, {});
    EXPECT_NE(choice.kernel->name, "sm90/prefill");
    for (const std::string& line : reasons_against_other_kernels(p, device, choice)) {
      if (line.starts_with("not sm90/prefill: ")) return line.substr(18);
    }
    return std::string();
  };
  DeviceProperties old_driver = h200();
  old_driver.has_tensor_maps = false;
  EXPECT_NE(reason([](AttentionProblem&) {}, old_driver).find("CUDA 12.0"), std::string::npos);
  // What has other bits than the kernels that take few queries of the same keys.
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch_invariant = true;
              p.head_dim_v = 136;
            }).find("with batch_invariant it takes head_dims up to 128"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch_invariant = true;
              p.scores.softcap = 30.0f;
            }).find("without score terms"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch_invariant = true;
              p.k.dtype = p.v.dtype = DType::kF8E4M3;
            }).find("keys of q's dtype"),
            std::string::npos);
  for (const int page_size : {8, 48, 80}) {  // boxes of which make up no tile, or are of few rows
    EXPECT_NE(reason([&](AttentionProblem& p) {
                p.batch_invariant = true;
                testing::use_pages(p);
                p.paged_kv->page_size = page_size;
              }).find("pages of 16, 32 or a multiple of 64 keys"),
              std::string::npos);
  }
  EXPECT_EQ(reason([](AttentionProblem& p) {
              p.batch_invariant = true;
              p.batch = 64;
              p.seq_len_q = 24;
              p.num_kv_heads = 2;
            }),
            "here it doesn't pack so few queries with the heads of their group");
  EXPECT_NE(reason([](AttentionProblem& p) { p.seq_len_kv = 0; }).find("empty"), std::string::npos);
  // What a tensor map can't describe, of tensors that aren't copied. Broadcast ones would be for each reader.
  EXPECT_NE(reason([](AttentionProblem& p) { p.k.head_stride = 0; }).find("strides"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch = 2;
              p.v.batch_stride = 0;
            }).find("strides"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              testing::use_pages(p);
              p.v.seq_stride = 2050;
            }).find("aligned"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch_invariant = true;
              p.num_heads = p.num_kv_heads = 1;
              p.seq_len_q = 256;
            }).find("idle"),
            std::string::npos);
  // One of a kind may have any stride.
  AttentionProblem one = plain;
  one.q.batch_stride = -3;
  one.num_kv_heads = 1;
  one.k.head_stride = one.v.head_stride = 0;
  one.q.batch_stride = 0;
  EXPECT_EQ(choose_kernel(one, h200(), {}).kernel->name, "sm90/prefill");
}

TEST(ChooseKernel, HoppersKernelHasRowsCopiedThatTheCopyEngineDoesNotTake) {
  using gpu::kAlignedK, gpu::kAlignedQ, gpu::kAlignedV;
  constexpr int kAll = kAlignedQ | kAlignedK | kAlignedV;
  const auto choice = [](int head_dim, auto change) {
    AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, head_dim);
    change(p);
    const KernelChoice c = choose_kernel(p, h200(), {});
    EXPECT_EQ(c.kernel->name, "sm90/prefill");
    EXPECT_EQ(choose_kernel(p, h200(), c.config), c);
    const std::vector<ModuleSpec> modules = gpu::modules_of(c);
    EXPECT_EQ(std::ranges::count(modules, "common/align_rows.cu", &ModuleSpec::source),
              c.aligned_tensors != 0 ? 1 : 0);
    return c;
  };
  const auto piece = [](const KernelChoice& c) {
    for (const int bytes : {2, 4, 8}) {
      if (std::ranges::count(c.module.defines, fmt::format("TESSERA_O_PIECE={}", bytes)) == 1) return bytes;
    }
    return 16;
  };
  const auto as_it_is = [](AttentionProblem&) {};
  const KernelChoice plain = choice(128, as_it_is);
  EXPECT_EQ(plain.aligned_tensors, 0);
  EXPECT_EQ(plain.workspace_bytes(), plain.partial_bytes);
  EXPECT_EQ(piece(plain), 16);

  for (const auto& [head_dim, row, bytes] : {std::tuple{100, 128, 8}, {65, 96, 2}, {250, 256, 4}}) {
    const KernelChoice c = choice(head_dim, as_it_is);
    EXPECT_EQ(c.aligned_tensors, kAll);
    EXPECT_EQ(piece(c), bytes);
    EXPECT_EQ(c.aligned_rows_bytes, static_cast<std::size_t>(3 * 4096 * 16 * row * 2));
    EXPECT_GE(c.aligned_rows_begin, c.partial_bytes);
    EXPECT_EQ(c.aligned_rows_begin % 256, 0u);
    EXPECT_EQ(c.workspace_bytes(), c.aligned_rows_begin + c.aligned_rows_bytes);
  }
  // Only what needs it: o is written by elements.
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.v.seq_stride = 2050; }).aligned_tensors, kAlignedV);
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.k.head_stride = -128; }).aligned_tensors, kAlignedK);
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.q.seq_stride = -2048; }).aligned_tensors, kAlignedQ);
  const KernelChoice of_o = choice(128, [](AttentionProblem& p) { p.o.head_stride = 129; });
  EXPECT_EQ(of_o.aligned_tensors, 0);
  EXPECT_EQ(piece(of_o), 2);
  const KernelChoice of_wide_rows = choice(100, [](AttentionProblem& p) {
    for (AttentionInput* x : {&p.q, &p.k, &p.v}) {
      x->head_stride = 104;
      x->seq_stride = 104 * 16;
    }
  });
  EXPECT_EQ(of_wide_rows.aligned_tensors, 0);
  EXPECT_EQ(piece(of_wide_rows), 8);
  // Addresses that a plan finds unaligned may be so in other ways later.
  const KernelChoice shifted =
      choice(128, [](AttentionProblem& p) { p.k.data = reinterpret_cast<const void*>(std::uintptr_t{2}); });
  EXPECT_EQ(shifted.aligned_tensors, kAll);
  EXPECT_EQ(piece(shifted), 2);
  // Ragged tokens once, of all sequences.
  EXPECT_EQ(choice(100,
                   [](AttentionProblem& p) {
                     p.batch = 3;
                     p.ragged_q = p.ragged_kv = RaggedTokens{.total_tokens = 9000};
                   })
                .aligned_rows_bytes,
            std::size_t{3} * 9000 * 16 * 128 * 2);
  EXPECT_EQ(choice(100, [](AttentionProblem& p) { p.batch_invariant = true; }).aligned_tensors, kAll);
}

// As measured: few queries of many keys don't make up for the copies.
TEST(ChooseKernel, RowsAreCopiedWhereThatWasFasterWhenMeasured) {
  struct Measured {
    int head_dim;
    std::int64_t batch, seq_len_q, seq_len_kv;
    bool is_causal;
    bool are_copied;
  };
  for (const Measured& m :
       {Measured{100, 4, 4096, 4096, false, true}, Measured{100, 16, 1024, 1024, true, true},
        Measured{100, 8, 512, 512, false, true}, Measured{65, 8, 512, 512, true, true},
        Measured{100, 1, 1024, 1024, false, true}, Measured{100, 1, 512, 512, true, true},
        Measured{100, 1, 256, 256, false, true}, Measured{100, 4, 128, 128, false, true},
        Measured{250, 16, 1024, 1024, true, true}, Measured{100, 1, 256, 8192, false, true},
        Measured{100, 1, 24, 16384, true, false}, Measured{100, 1, 40, 60000, true, false}}) {
    AttentionProblem p = problem(DType::kBF16, m.seq_len_q, m.seq_len_kv, 16, 16, m.head_dim);
    p.batch = m.batch;
    p.q.batch_stride = p.o.batch_stride = m.seq_len_q * p.q.seq_stride;
    p.k.batch_stride = p.v.batch_stride = m.seq_len_kv * p.k.seq_stride;
    if (m.is_causal) p.scores.diagonal = DiagonalMask::causal();
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.aligned_tensors != 0, m.are_copied) << choice.kernel->name << ' ' << to_string(p);
    if (m.are_copied) continue;
    EXPECT_EQ(
        std::ranges::count(reasons_against_other_kernels(p, h200(), choice),
                           "not sm90/prefill: it would have q, k, v copied to aligned rows first, which "
                           "takes longer than it saves"),
        1);
  }
}

// Few queries of many keys, causal: splits whose measured time is within 5 % of the least of 1, 2, 4, 8
// and 16.
TEST(ChooseKernel, ShortPromptsHaveAsManySplitsAsWereFastWhenMeasured) {
  struct Measured {
    std::int64_t batch, seq_len_q, seq_len_kv;
    int num_heads, num_kv_heads;
    int fewest_splits, most_splits;
  };
  const std::vector<Measured> cases = {
      {16, 4, 8192, 32, 1, 7, 9},   {16, 16, 8192, 32, 1, 2, 2}, {16, 16, 8192, 64, 8, 1, 1},
      {16, 8, 8192, 48, 4, 1, 2},   {8, 32, 4096, 32, 8, 1, 2},  {8, 64, 4096, 32, 8, 1, 1},
      {1, 32, 8192, 32, 8, 8, 16},  {1, 128, 8192, 32, 8, 4, 4}, {1, 16, 32768, 64, 8, 16, 16},
      {1, 128, 8192, 16, 16, 8, 8}, {4, 20, 3000, 28, 4, 4, 4},  {2, 100, 5000, 40, 8, 1, 2},
  };
  for (const Measured& m : cases) {
    AttentionProblem p = problem(DType::kBF16, m.seq_len_q, m.seq_len_kv, m.num_heads, m.num_kv_heads, 128);
    p.batch = m.batch;
    p.scores.diagonal = DiagonalMask::causal();
    const KernelChoice c = choose_kernel(p, h200(), {});
    SCOPED_TRACE(to_string(p));
    EXPECT_EQ(c.kernel->name, "sm90/prefill");
    EXPECT_GE(c.config.num_splits, m.fewest_splits);
    EXPECT_LE(c.config.num_splits, m.most_splits);
    EXPECT_EQ(c.combine_entry.empty(), c.config.num_splits == 1);
    EXPECT_EQ(choose_kernel(p, h200(), c.config).config, c.config);
  }
}

TEST(ChooseKernel, TilesHaveTheHeadsOfAGroupWhereThatLeavesFewerOfThem) {
  const auto packed_heads = [](std::int64_t seq_len_q, std::int64_t seq_len_kv, auto change) {
    AttentionProblem p = problem(DType::kBF16, seq_len_q, seq_len_kv, 32, 8, 128);
    p.batch = 8;
    change(p);
    const KernelChoice c = choose_kernel(p, h200(), {});
    EXPECT_EQ(c.kernel->name, "sm90/prefill");
    return c.pack_heads;
  };
  const auto as_it_is = [](AttentionProblem&) {};
  EXPECT_EQ(packed_heads(40, 4096, as_it_is), 4);
  EXPECT_EQ(packed_heads(192, 4096, as_it_is), 4);
  EXPECT_EQ(packed_heads(200, 4096, as_it_is), 1);
  EXPECT_EQ(packed_heads(512, 4096, as_it_is), 1);
  // Those of one sequence run at once anyway, and over few keys nothing else is gained.
  EXPECT_EQ(packed_heads(64, 64, as_it_is), 4);
  EXPECT_EQ(packed_heads(64, 64, [](AttentionProblem& p) { p.batch = 1; }), 1);
  // A mask's tiles are brought to those of one head only.
  const auto with_mask = [](AttentionProblem& p) {
    p.scores.additive_mask = ScoreMask{.dtype = DType::kBF16, .q_stride = 4096, .kv_stride = 1};
  };
  EXPECT_EQ(packed_heads(32, 4096, with_mask), 4);
  EXPECT_EQ(packed_heads(64, 4096, with_mask), 1);
  // A tile is of whole queries.
  AttentionProblem p = problem(DType::kBF16, 24, 4096, 28, 4, 128);
  const KernelChoice c = choose_kernel(p, h200(), {});
  EXPECT_EQ(c.pack_heads, 7);
  EXPECT_EQ(c.num_row_tiles, 2);  // of 18 queries
}

TEST(ChooseKernel, HoppersKernelIsCompiledWithTheTermsOfACall) {
  const AttentionProblem plain = problem(DType::kBF16, 4096, 4096, 16, 16, 128);
  const auto choice = [&](auto change) {
    AttentionProblem p = plain;
    change(p);
    return choose_kernel(p, h200(), {});
  };
  const auto has = [](const KernelChoice& c, const std::string& define) {
    return std::ranges::find(c.module.defines, define) != c.module.defines.end();
  };
  const KernelChoice none = choice([](AttentionProblem&) {});
  EXPECT_TRUE(has(none, "TESSERA_TERMS=0") && has(none, "TESSERA_COPIED_MASK=0"))
      << none.module.defines.size();
  const KernelChoice softcap = choice([](AttentionProblem& p) { p.scores.softcap = 30.0f; });
  EXPECT_EQ(softcap.kernel->name, "sm90/prefill");
  EXPECT_TRUE(has(softcap, "TESSERA_TERMS=1"));
  EXPECT_EQ(softcap.shared_bytes, none.shared_bytes);
  EXPECT_EQ(choice([](AttentionProblem& p) { p.scores.softmax_scale = -1.0f; }).kernel->name, "sm90/prefill");
}

TEST(ChooseKernel, HoppersKernelCopiesMasksThatATensorMapDescribes) {
  const auto choice = [](const ScoreMask& mask, int head_dim = 128) {
    AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, head_dim);
    (mask.dtype == DType::kBool ? p.scores.boolean_mask : p.scores.additive_mask) = mask;
    const KernelChoice c = choose_kernel(p, h200(), {});
    EXPECT_EQ(c.kernel->name, "sm90/prefill");
    EXPECT_LE(c.shared_bytes, h200().shared_per_block_bytes);
    return c;
  };
  constexpr std::int64_t kPlane = 4096 * 4096;
  EXPECT_EQ(choice({nullptr, DType::kBF16, 0, 0, 4096}).copied_mask, kernels::kTermAdditiveMask);
  EXPECT_EQ(choice({nullptr, DType::kBool, 16 * kPlane, kPlane, 4096}).copied_mask,
            kernels::kTermBooleanMask);
  EXPECT_EQ(choice({nullptr, DType::kBF16, 0, 0, 4096}).aligned_tensors, 0);
  // One row for all queries, rows that aren't aligned, an address that isn't: aligned rows are made of them,
  // which all heads read; of a mask a head that takes longer than its elements do.
  const auto is_aligned_first = [&](const ScoreMask& mask) {
    const KernelChoice c = choice(mask);
    EXPECT_EQ(c.copied_mask != 0, c.aligned_tensors != 0);
    EXPECT_GE(c.aligned_rows_bytes, c.aligned_tensors != 0 ? 2u * kPlane : 0u);
    return c.aligned_tensors == gpu::kAlignedAdditiveMask;
  };
  EXPECT_TRUE(is_aligned_first({nullptr, DType::kBF16, 4096, 0, 0}));
  EXPECT_TRUE(is_aligned_first({nullptr, DType::kF32, 0, 0, 4097}));
  EXPECT_TRUE(is_aligned_first({reinterpret_cast<const void*>(8), DType::kBF16, 0, 0, 4096}));
  EXPECT_FALSE(is_aligned_first({nullptr, DType::kF32, 0, kPlane, 4097}));
  EXPECT_EQ(choice({nullptr, DType::kBool, 0, 0, 4104}).aligned_tensors, gpu::kAlignedBooleanMask);
  EXPECT_EQ(choice({nullptr, DType::kBF16, 0, 0, 2 * 4096, 2}).copied_mask, 0);  // keys apart
  // A tile of the widest fits at all head_dims.
  for (const int head_dim : {64, 128, 192, 256})
    EXPECT_EQ(choice({nullptr, DType::kF32, 0, 0, 4096}, head_dim).copied_mask, kernels::kTermAdditiveMask);
}

TEST(ChooseKernel, HoppersKernelGathersPagesThatDoNotMakeUpTiles) {
  const auto of_pages = [](int page_size, int head_dim = 128) {
    AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, head_dim);
    p.paged_kv.emplace();
    p.paged_kv->page_size = page_size;
    p.paged_kv->num_pages = 4096;
    p.k.batch_stride = p.v.batch_stride = page_size * p.k.seq_stride;
    return p;
  };
  const auto gathers = [](const AttentionProblem& p) {
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/prefill");
    EXPECT_EQ(choice.zeroed_bytes, sizeof(int));  // lengths are the device's
    EXPECT_LE(choice.shared_bytes, h200().shared_per_block_bytes);
    const bool gathers = std::ranges::count(choice.module.defines, "TESSERA_GATHERS=1") == 1;
    EXPECT_EQ(choice.note.empty(), !gathers);
    return gathers;
  };
  for (const int page_size : {32, 64, 128, 256, 1024})
    EXPECT_FALSE(gathers(of_pages(page_size))) << page_size;
  // Boxes of 16 keys are slower than warps, unless rows are short or warps have something else to do.
  for (const int head_dim : {96, 128, 192, 256}) EXPECT_TRUE(gathers(of_pages(16, head_dim))) << head_dim;
  EXPECT_FALSE(gathers(of_pages(16, 64)));
  EXPECT_EQ(choose_kernel(of_pages(16), h200(), {}).note,
            "warps copy keys and values row by row: boxes of 16 keys a page would be slower");
  EXPECT_EQ(choose_kernel(of_pages(5), h200(), {}).note,
            "warps copy keys and values row by row: boxes of pages of 5 keys make up no tile of 128");
  AttentionProblem invariant = of_pages(16);
  invariant.batch_invariant = true;
  EXPECT_FALSE(gathers(invariant));
  AttentionProblem masked = of_pages(16);
  masked.scores.additive_mask = ScoreMask{.data = nullptr,
                                          .dtype = DType::kBF16,
                                          .batch_stride = 0,
                                          .head_stride = 0,
                                          .q_stride = 4096,
                                          .kv_stride = 1};
  EXPECT_FALSE(gathers(masked));
  EXPECT_FALSE(gathers(of_pages(48, 192)));
  for (const int head_dim : {64, 80, 128, 192, 256}) {
    for (const int page_size : {1, 5, 8, 12, 100, 200}) EXPECT_TRUE(gathers(of_pages(page_size, head_dim)));
  }
  // There are two warpgroups, whatever is asked for; three leave no registers.
  EXPECT_EQ(choose_kernel(of_pages(1, 64), h200(), {}).config.block_m, 128);

  const auto reason = [](const AttentionProblem& p) {
    const KernelChoice choice = choose_kernel(p, h200(), {});
    for (const std::string& line : reasons_against_other_kernels(p, h200(), choice)) {
      if (line.starts_with("not sm90/prefill: ")) return line.substr(18);
    }
    return std::string("no reason");
  };
  AttentionProblem modified = of_pages(8);
  modified.scores.modifier = ScoreModifier{.score = "score + 1", .visible = "", .tensors = {}, .scalars = {}};
  EXPECT_FALSE(gathers(modified));
  AttentionProblem narrow = of_pages(24);
  narrow.k.dtype = narrow.v.dtype = DType::kF8E4M3;
  EXPECT_EQ(reason(narrow),
            "of keys of 8 bits it takes pages of a multiple of 8 keys that divides or is a multiple of 128, "
            "not of 24");
}

TEST(ChooseKernel, HoppersKernelDrawsTicketsWhereTilesDiffer) {
  AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, 128);
  EXPECT_EQ(choose_kernel(p, h200(), {}).zeroed_bytes, 0u);
  p.scores.diagonal = DiagonalMask::causal();
  EXPECT_EQ(choose_kernel(p, h200(), {}).zeroed_bytes, 0u);  // 512 tiles, to and fro
  p.batch = 2;
  const KernelChoice causal = choose_kernel(p, h200(), {});
  EXPECT_EQ(causal.zeroed_bytes, sizeof(int));
  // A counter, and an int for each warp of each tile.
  EXPECT_EQ(causal.partial_bytes, 16u + sizeof(int) * 8 * 2 * 16 * (4096 / 128));
  p.batch = 1;
  const std::int32_t lengths[1] = {};
  p.seq_lens_kv = lengths;
  EXPECT_EQ(choose_kernel(p, h200(), {}).zeroed_bytes, sizeof(int));
  AttentionConfig forced;
  forced.block_n = 64;
  EXPECT_THROW(choose_kernel(p, h200(), forced), Error);
}

}  // namespace
}  // namespace tessera::cuda
