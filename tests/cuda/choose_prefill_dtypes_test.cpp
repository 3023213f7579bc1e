// Prompts of fp32, and of keys or queries of 8 bits.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_platform.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "core/rounding.h"
#include "cuda/built_ahead.h"
#include "cuda/chosen.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

using gpu::DeviceProperties;
using gpu::KernelChoice;
using gpu::ModuleSpec;

TEST(ChooseKernel, F32IsSplitForHoppersProducts) {
  using Change = std::function<void(AttentionProblem&)>;
  const auto choice = [](int head_dim, const Change& change) {
    AttentionProblem p = problem(DType::kF32, 4096, 4096, 16, 4, head_dim);
    change(p);
    const KernelChoice c = choose_kernel(p, h200(), {});
    EXPECT_EQ(choose_kernel(p, h200(), c.config), c);
    const bool is_split = c.kernel->name == "sm90/prefill_f32";
    const std::vector<ModuleSpec> modules = gpu::modules_of(c);
    EXPECT_EQ(std::ranges::count(modules, "common/split_rows.cu", &ModuleSpec::source), is_split ? 1 : 0);
    EXPECT_EQ(c.split_rows_bytes > 0, is_split);
    if (is_split) {
      EXPECT_GE(c.split_rows_begin, c.partial_bytes);
      EXPECT_EQ(c.split_rows_begin % 256, 0u);
      EXPECT_EQ(c.workspace_bytes(), c.split_rows_begin + c.split_rows_bytes);
      EXPECT_EQ(c.module.source, "sm90/attention_f32.cu");
    } else {
      EXPECT_EQ(c.kernel->name, "sm80/prefill_f32");
    }
    return c;
  };
  const auto as_it_is = [](AttentionProblem&) {};
  for (const auto& [head_dim, row] : {std::pair{64, 128}, {65, 256}, {128, 256}, {192, 384}, {256, 512}}) {
    const KernelChoice c = choice(head_dim, as_it_is);
    EXPECT_EQ(c.kernel->name, "sm90/prefill_f32");
    // Highs and lows of 16 heads of q and of 4 of k and v, and what is said of their tiles.
    const std::size_t tiles_of_keys = divide_up(4096, c.config.block_n);
    const std::size_t tiles = 16 * 64 + 2 * round_up(4 * tiles_of_keys, std::size_t{16});
    EXPECT_EQ(c.split_rows_bytes, static_cast<std::size_t>(4096 * 24 * row * 2) + tiles * 16) << head_dim;
  }
  // Any strides: q, k and v are copied anyway.
  EXPECT_GT(choice(100, [](AttentionProblem& p) { p.k.seq_stride = -401; }).split_rows_bytes, 0u);
  const KernelChoice modified =
      choice(128, [](AttentionProblem& p) { p.scores.modifier.emplace().score = "score * 2"; });
  EXPECT_EQ(modified.kernel->name, "sm90/prefill_f32");
  EXPECT_EQ(modified.config.block_n % 32, 0);
  // Pages are split sequence by sequence, unless these are many times all of them.
  const auto of_pages = [&](std::int64_t batch, std::int64_t num_pages) {
    return choice(128, [&](AttentionProblem& p) {
      p.batch = batch;
      p.paged_kv.emplace();
      p.paged_kv->page_size = 16;
      p.paged_kv->num_pages = num_pages;
    });
  };
  EXPECT_EQ(of_pages(4, 4 * 256).split_rows_bytes, 4 * choice(128, as_it_is).split_rows_bytes);
  EXPECT_EQ(of_pages(4, 256).split_rows_bytes, 0u);
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.batch_invariant = true; }).split_rows_bytes, 0u);
  // A short window's products are few beside what is split.
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.scores.diagonal = {32, 0}; }).split_rows_bytes, 0u);
  AttentionConfig forced;
  forced.block_n = 32;
  const gpu::AttentionKernel& kernel = *choice(128, as_it_is).kernel;
  EXPECT_THROW(kernel.choose(problem(DType::kF32, 4096, 4096, 16, 4, 128), h200(), forced), Error);
}

// As measured on an H200.
TEST(ChooseKernel, F32IsSplitWhereThatWasFasterWhenMeasured) {
  struct Measured {
    std::int64_t batch, seq_len_q, seq_len_kv;
    bool is_split;
  };
  for (const Measured& m : {Measured{1, 64, 256, true},
                            {1, 64, 2048, false},
                            {4, 40, 2048, false},
                            {4, 64, 8192, false},
                            {1, 128, 2048, false},
                            {4, 128, 2048, true},
                            {1, 128, 8192, false},
                            {4, 128, 8192, true},
                            {1, 256, 2048, true},
                            {4, 256, 8192, true},
                            {1, 512, 512, true},
                            {32, 512, 512, true}}) {
    AttentionProblem p = problem(DType::kF32, m.seq_len_q, m.seq_len_kv, 16, 16, 128);
    p.batch = m.batch;
    EXPECT_EQ(choose_kernel(p, h200(), {}).split_rows_bytes > 0, m.is_split)
        << m.batch << " x " << m.seq_len_q << " x " << m.seq_len_kv;
  }
}

TEST(ChooseKernel, HoppersKernelTakesPromptsOverKeysOf8Bits) {
  const auto narrow = [](DType dtype, std::int64_t seq_len_q, int head_dim) {
    AttentionProblem p = problem(dtype, seq_len_q, 4096, 16, 4, head_dim);
    p.k.dtype = p.v.dtype = DType::kF8E4M3;
    return p;
  };
  const auto kernel_of = [](const AttentionProblem& p) { return choose_kernel(p, h200(), {}).kernel->name; };
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (const std::int64_t seq_len_q : {2048, 4096}) {
      const KernelChoice choice = choose_kernel(narrow(DType::kF16, seq_len_q, head_dim), h200(), {});
      EXPECT_EQ(choice.kernel->name, "sm90/prefill") << head_dim;
      EXPECT_LE(choice.shared_bytes, h200().shared_per_block_bytes) << head_dim;
    }
  }
  AttentionProblem values = narrow(DType::kBF16, 512, 192);
  values.head_dim_v = 128;
  EXPECT_LE(choose_kernel(values, h200(), {}).shared_bytes, h200().shared_per_block_bytes);
  EXPECT_EQ(kernel_of(narrow(DType::kF32, 512, 128)), "tiled");
  EXPECT_EQ(kernel_of(narrow(DType::kBF16, 512, 72)), "sm80/prefill");  // rows of 72 bytes are not aligned
  EXPECT_EQ(kernel_of(narrow(DType::kBF16, 512, 512)), "sm80/prefill");
  EXPECT_EQ(choose_kernel(narrow(DType::kBF16, 512, 128), a100(), {}).kernel->name, "sm80/prefill");
  AttentionProblem invariant = narrow(DType::kF16, 1, 128);
  invariant.batch_invariant = true;
  EXPECT_EQ(kernel_of(invariant), "sm80/prefill");

  AttentionProblem paged = narrow(DType::kBF16, 512, 128);
  paged.paged_kv.emplace();
  paged.paged_kv->page_size = 16;
  paged.paged_kv->num_pages = 4096;
  paged.k.batch_stride = paged.v.batch_stride = 16 * paged.k.seq_stride;
  paged.kv_scales = KvScales{};
  paged.kv_scales->head_stride = 1;
  EXPECT_EQ(kernel_of(paged), "sm90/prefill");
  paged.kv_scales->batch_stride = 4;
  EXPECT_EQ(kernel_of(paged), "tiled");

  // Nor are there registers for a modifier's bounds of tiles in Hopper's kernel.
  AttentionProblem modified = narrow(DType::kBF16, 4096, 128);
  modified.scores.modifier = ScoreModifier{.score = "score + 1", .visible = "", .tensors = {}, .scalars = {}};
  EXPECT_EQ(kernel_of(modified), "sm80/prefill");

  // What is copied of a mask would have no room; its elements are read where they lie.
  AttentionProblem masked = narrow(DType::kBF16, 4096, 128);
  masked.scores.additive_mask = ScoreMask{nullptr, DType::kBF16, 0, 0, 4096};
  const KernelChoice choice = choose_kernel(masked, h200(), {});
  EXPECT_EQ(choice.kernel->name, "sm90/prefill");
  EXPECT_EQ(choice.copied_mask, 0);
}

// Few queries whose keys every kernel takes apart before it multiplies them.
TEST(ChooseKernel, KeysThatAreTakenApartGoToTheKernelThatWasFasterWhenMeasured) {
  struct Measured {
    DType kv_dtype;
    int head_dim;
    std::int64_t batch, seq_len_q, seq_len_kv;
    int num_heads, num_kv_heads, page_size;
    const char* kernel;
  };
  const std::vector<Measured> cases = {
      {DType::kF8E4M3, 64, 32, 4, 2846, 64, 1, 0, "sm90/prefill"},
      {DType::kF8E4M3, 64, 8, 8, 305, 28, 4, 0, "sm80/decode"},
      {DType::kF8E4M3, 96, 1, 4, 15447, 8, 1, 128, "sm80/decode"},
      {DType::kF8E4M3, 128, 4, 48, 5803, 32, 32, 128, "sm90/prefill"},
      {DType::kF8E4M3, 128, 32, 100, 1741, 32, 32, 128, "sm90/prefill"},
      {DType::kF8E4M3, 192, 16, 3, 4065, 64, 8, 16, "sm80/decode"},
      {DType::kF8E4M3, 256, 16, 8, 3861, 64, 8, 16, "sm90/prefill"},
      {DType::kF8E4M3, 256, 1, 20, 14569, 16, 8, 0, "sm90/prefill"},
      {DType::kF32, 96, 4, 20, 10091, 12, 12, 16, "sm80/decode"},
      {DType::kF32, 64, 8, 16, 9389, 16, 8, 0, "sm80/decode"},
      {DType::kF32, 128, 1, 40, 3742, 32, 32, 0, "sm80/prefill_f32"},
      {DType::kF32, 64, 32, 8, 2189, 64, 8, 64, "sm80/prefill_f32"},
  };
  for (const Measured& m : cases) {
    const DType dtype = m.kv_dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
    AttentionProblem p = problem(dtype, m.seq_len_q, m.seq_len_kv, m.num_heads, m.num_kv_heads, m.head_dim);
    p.batch = m.batch;
    p.k.dtype = p.v.dtype = m.kv_dtype;
    if (m.page_size > 0) gpu::use_pages(p, m.page_size);
    EXPECT_EQ(choose_kernel(p, h200(), {}).kernel->name, m.kernel)
        << fmt::format("{}, head_dim {}, {} x {} queries of {} keys, {}/{} heads", dtype_name(m.kv_dtype),
                       m.head_dim, m.batch, m.seq_len_q, m.seq_len_kv, m.num_heads, m.num_kv_heads);
  }
}

AttentionProblem problem_of_8_bits(std::int64_t seq_len_q, std::int64_t seq_len_kv, int head_dim) {
  AttentionProblem p = problem(DType::kBF16, seq_len_q, seq_len_kv, 32, 8, head_dim);
  p.q.dtype = p.k.dtype = p.v.dtype = DType::kF8E4M3;
  return p;
}

TEST(ChooseKernel, HoppersKernelOfE4M3TakesPromptsOf8Bits) {
  struct Tiles {
    int head_dim, module_head_dim, block_m, block_n, num_warps, num_stages;
  };
  for (const Tiles& t :
       {Tiles{16, 64, 192, 128, 16, 2}, Tiles{64, 64, 192, 128, 16, 2}, Tiles{80, 128, 128, 192, 12, 2},
        Tiles{128, 128, 128, 192, 12, 2}, Tiles{176, 192, 128, 128, 12, 2}, Tiles{192, 192, 128, 128, 12, 2},
        Tiles{208, 256, 128, 96, 12, 2}, Tiles{256, 256, 128, 96, 12, 2}}) {
    const AttentionProblem p = problem_of_8_bits(4096, 4096, t.head_dim);
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/prefill_e4m3") << t.head_dim;
    EXPECT_EQ(choice.entry, "attention_e4m3");
    EXPECT_EQ(choice.config.block_m, t.block_m);
    EXPECT_EQ(choice.config.block_n, t.block_n);
    EXPECT_EQ(choice.config.num_warps, t.num_warps);
    EXPECT_EQ(choice.config.num_stages, t.num_stages);
    EXPECT_EQ(choice.wide_queries_bytes, 0u) << "q is taken as it is";
    EXPECT_LE(choice.shared_bytes, h200().shared_per_block_bytes);
    for (const char* name : {"HEAD_DIM_QK", "HEAD_DIM_V"}) {
      EXPECT_EQ(
          std::ranges::count(choice.module.defines, fmt::format("TESSERA_{}={}", name, t.module_head_dim)),
          1);
    }
    EXPECT_EQ(choose_kernel(p, h200(), choice.config), choice);
    // A list of spoilt tiles for each warp, behind the ticket's 16 bytes.
    EXPECT_EQ(choice.partial_bytes,
              16 + static_cast<std::size_t>((4096 + t.block_m - 1) / t.block_m * 32 * (t.block_m / 16)) * 4);
    EXPECT_EQ(choice.kernel->shape(choice, 1, 32).grid[0], 132u);
  }
  if (!embedded_modules().empty()) {
    for (const int head_dim : {64, 128, 256})
      EXPECT_TRUE(
          is_built_ahead(choose_kernel(problem_of_8_bits(512, 512, head_dim), h200(), {}).module, "sm_90a"));
  }
  EXPECT_TRUE(choose_kernel(problem_of_8_bits(128, 1, 128), h200(), {}).kernel->narrow_weights);
  AttentionProblem paged = problem_of_8_bits(512, 4096, 128);
  paged.o.dtype = DType::kF16;
  paged.scores.sinks.emplace();
  for (const int page_size : {8, 16, 24, 64, 128, 192, 256}) {
    paged.paged_kv = PagedKv{.num_pages = 1000, .page_size = page_size};
    paged.k.batch_stride = paged.v.batch_stride = page_size * paged.k.seq_stride;
    const KernelChoice choice = choose_kernel(paged, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/prefill_e4m3") << page_size;
    EXPECT_EQ(choice.config.block_n, page_size % 128 == 0 ? 128 : 192) << page_size;
  }
}

TEST(ChooseKernel, HoppersKernelOfE4M3SaysWhatItDoesNotTake) {
  const auto reason = [](auto change, DeviceProperties device = h200()) {
    AttentionProblem p = problem_of_8_bits(4096, 4096, 128);
    change(p);
    const KernelChoice choice = choose_kernel(p, device, {});
    EXPECT_NE(choice.kernel->name, "sm90/prefill_e4m3");
    EXPECT_FALSE(choice.kernel->narrow_weights);
    for (const std::string& line : reasons_against_other_kernels(p, device, choice)) {
      if (line.starts_with("not sm90/prefill_e4m3: ")) return line.substr(23);
    }
    return std::string();
  };
  EXPECT_NE(reason([](AttentionProblem&) {}, a100()).find("Hopper"), std::string::npos);
  EXPECT_EQ(reason([](AttentionProblem& p) { p.q.dtype = DType::kBF16; }),
            "it takes queries of f8e4m3, not bf16");
  EXPECT_EQ(reason([](AttentionProblem& p) { p.o.dtype = DType::kF32; }), "it writes f16 and bf16, not f32");
  EXPECT_NE(reason([](AttentionProblem& p) { p.head_dim_qk = 272; }).find("up to 256"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.batch_invariant = true; }).find("batch_invariant"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.scores.softcap = 30.0f; }).find("no terms"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.scores.softmax_scale = -1.0f; }).find("above 0"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.paged_kv = PagedKv{.num_pages = 100, .page_size = 40};
            }).find("divides or is a multiple of 128, not of 40"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.paged_kv = PagedKv{.num_pages = 100, .page_size = 64};
              p.kv_scales = KvScales{};
              p.kv_scales->batch_stride = 8;
            }).find("not of pages"),
            std::string::npos);
  EXPECT_EQ(reason([](AttentionProblem& p) { p.seq_len_q = 127; }), "it takes at least 128 queries, not 127");
  EXPECT_NE(reason([](AttentionProblem& p) { p.seq_len_kv = 32769; }).find("at most 32768 keys, not 32769"),
            std::string::npos);
  // Rows of 8 bits are aligned where their number of elements is a multiple of 16.
  EXPECT_NE(reason([](AttentionProblem& p) { p.q.seq_stride += 8; }).find("aligned"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.k.head_stride = 0; }).find("strides"), std::string::npos);
  AttentionConfig forced;
  forced.block_n = 128;
  EXPECT_THROW(gpu::choose_with(*choose_kernel(problem_of_8_bits(512, 512, 128), h200(), {}).kernel,
                                problem_of_8_bits(512, 512, 128), h200(), forced),
               Error);
}

TEST(ChooseKernel, QueriesOf8BitsAreWidenedForKernelsThatTakeNone) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::int64_t seq_len_q : {1, 512}) {
      AttentionProblem wide = problem(dtype, seq_len_q, 4096, 32, 8, 128);
      wide.k.dtype = wide.v.dtype = DType::kF8E4M3;
      AttentionProblem p = wide;
      p.q.dtype = DType::kF8E4M3;
      p.q.data = reinterpret_cast<const void*>(std::uintptr_t{3});  // no matter: what is widened is aligned
      const KernelChoice choice = choose_kernel(p, h200(), {});
      const KernelChoice of_wide = choose_kernel(wide, h200(), {});
      if (choice.kernel->takes_narrow_q) continue;
      EXPECT_EQ(choice.kernel->name, of_wide.kernel->name);
      EXPECT_EQ(choice.module, of_wide.module);
      EXPECT_EQ(choice.entry, of_wide.entry);
      EXPECT_EQ(choice.config, of_wide.config);
      EXPECT_EQ(of_wide.wide_queries_bytes, 0u);
      EXPECT_EQ(choice.wide_queries_bytes,
                dtype_bytes(dtype, 1) * static_cast<std::size_t>(p.batch * seq_len_q * p.num_heads * 128));
      EXPECT_GE(choice.wide_queries_begin, choice.partial_bytes);
      EXPECT_EQ(choice.wide_queries_begin % 256, 0u);
      const std::vector<ModuleSpec> modules = gpu::modules_of(choice);
      EXPECT_TRUE(std::ranges::any_of(
          modules, [](const ModuleSpec& m) { return m.source == "common/widen_queries.cu"; }));
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
