#include "backends/cpu/ops/block_streams.h"

#include <gtest/gtest.h>

#include <limits>

#include "backends/cpu/ops/bf16_streams.h"
#include "backends/cpu/ops/block_dots.h"
#include "backends/factories.h"
#include "core/block_format.h"
#include "kernels/ops_testing.h"
#include "sanitized.h"

// gemm_block_streams and gemm_bf16_streams for rows of all kinds: gemm asks for those that pay on this
// processor.

namespace tessera::testing {
namespace {

std::vector<DType> streamed_formats() {
  std::vector<DType> formats;
  if (cpu::has_block_dots()) formats.push_back(DType::kBF16);
  for (const DType dtype : weight_dtypes()) {
    if (block_format(dtype).elements > 1 && cpu::has_block_streams(dtype)) formats.push_back(dtype);
  }
  return formats;
}

GemmArguments arguments_of(FencedMatrix& x, const TestWeight& w, FencedMatrix& out) {
  return {x.view(), w.weight(), std::nullopt, out.view(), false, false};
}

/// As many as gemm_bf16_streams takes, and of blocks those that come in several groups.
std::vector<std::int64_t> rows_of_x(DType weight) {
  std::vector<std::int64_t> rows;
  for (std::int64_t m = 1; m <= cpu::kMostBf16StreamRows; ++m) rows.push_back(m);
  if (weight != DType::kBF16) rows.insert(rows.end(), {5, 7, 8, 11});
  return rows;
}

bool multiply(const GemmArguments& a) {
  return a.weight.dtype == DType::kBF16 ? cpu::gemm_bf16_streams(a) : cpu::gemm_block_streams(a);
}

TEST(BlockStreams, ErrAtMostTwiceAsMuchAsANaiveSumInFp32) {
  const std::vector<DType> formats = streamed_formats();
  if (formats.empty()) GTEST_SKIP() << "this processor has no dot products of bf16 pairs";
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  for (const DType w_dtype : formats) {
    for (const std::int64_t m : rows_of_x(w_dtype)) {
      // A block, spans and the parts of one, columns that no task's number divides.
      for (const std::int64_t least : some_if_sanitized<std::int64_t>({32, 45, 480, 1312, 4096}, 3)) {
        const std::int64_t k = whole_blocks(w_dtype, least);
        constexpr std::int64_t kN = 37;
        SCOPED_TRACE(::testing::Message() << dtype_name(w_dtype) << ", " << m << " x " << kN << " x " << k);
        const TestWeight w(w_dtype, kN, k, random_values(static_cast<std::size_t>(kN * k), 1));
        FencedMatrix x(DType::kBF16, m, k, random_values(static_cast<std::size_t>(m * k), 3), k + 7);
        FencedMatrix exact(DType::kF64, m, kN), out(DType::kF32, m, kN, kN + 3);
        reference->gemm(arguments_of(x, w, exact), {});
        ASSERT_TRUE(multiply(arguments_of(x, w, out)));
        const Values naive =
            naive_sums(x.values(), w.values(), static_cast<std::size_t>(m), kN, static_cast<std::size_t>(k));
        expect_at_most_twice_naive(out.values(), naive, exact.values(), DType::kF32);
        out.expect_fences_intact();
      }
    }
  }
}

TEST(BlockStreams, LeaveRowsToOthersThatIntegersProductsMightLose) {
  const std::vector<DType> formats = streamed_formats();
  if (formats.empty()) GTEST_SKIP() << "this processor has no dot products of bf16 pairs";
  constexpr std::int64_t kM = 3, kN = 5, kK = 256;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  struct Case {
    double number;
    bool is_taken;
  };
  for (const DType w_dtype : formats) {
    SCOPED_TRACE(std::string(dtype_name(w_dtype)));
    const TestWeight w(w_dtype, kN, kK, random_values(kN * kK, 1));
    for (const Case& c : {Case{0, true}, Case{0x1p-60, true}, Case{0x1p-61, false}, Case{0x1p-130, false},
                          Case{0x1p100, true}, Case{0x1p102, false}, Case{kInfinity, false},
                          Case{-kInfinity, false}, Case{std::nan(""), false}}) {
      SCOPED_TRACE(c.number);
      Values values = random_values(kM * kK, 2);
      for (std::size_t i = 0; i < kK; ++i) values[kK + i] = 0;  // the second row
      values[kK + 77] = c.number;
      FencedMatrix x(DType::kBF16, kM, kK, values), out(DType::kF32, kM, kN);
      EXPECT_EQ(multiply(arguments_of(x, w, out)), c.is_taken);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
