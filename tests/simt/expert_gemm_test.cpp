// Products of slots of a mixture of experts on tensor cores, on the host: the kernel as it is, but for the
// instructions of sm_80.
#include "sm80/expert_gemm.cu"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "backends/gpu/ops/kernel_arguments.h"
#include "kernels/ops_testing.h"
#include "simt/executor.h"

namespace tessera::testing {
namespace {

struct Case {
  std::int64_t rows;
  int num_experts, num_slots;
  std::int64_t n, k;
  bool shares_x, has_bias;
};

class ExpertGemm : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, ExpertGemm,
                         ::testing::Values(Case{1, 4, 2, 130, 72, true, false},
                                           Case{40, 3, 2, 128, 264, true, true},
                                           Case{150, 2, 1, 40, 64, true, false},
                                           Case{33, 5, 3, 257, 200, false, true}),
                         [](const auto& info) {
                           return std::to_string(info.param.rows) + "_rows_" + std::to_string(info.param.k);
                         });

TEST_P(ExpertGemm, ErrsLittleAndWritesNothingElse) {
  const Case& c = GetParam();
  const std::int64_t slots = c.rows * c.num_slots, x_rows = c.shares_x ? c.rows : slots;
  // Random experts, of which the first gets none.
  std::mt19937 generator(7);
  std::vector<std::int32_t> experts, order, offsets;
  for (std::int64_t i = 0; i < slots; ++i)
    experts.push_back(1 + static_cast<std::int32_t>(generator() % static_cast<unsigned>(c.num_experts - 1)));
  for (std::int32_t e = 0; e < c.num_experts; ++e) {
    offsets.push_back(static_cast<std::int32_t>(order.size()));
    for (std::int64_t i = 0; i < slots; ++i)
      if (experts[static_cast<std::size_t>(i)] == e) order.push_back(static_cast<std::int32_t>(i));
  }
  offsets.push_back(static_cast<std::int32_t>(order.size()));

  const auto count = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
  FencedMatrix x(DType::kF16, x_rows, c.k, random_values(count(x_rows, c.k), 1), c.k + 8);
  FencedMatrix w(DType::kF16, c.num_experts * c.n, c.k, random_values(count(c.num_experts * c.n, c.k), 2));
  const TestWeight bias(DType::kF32, c.num_experts, c.n, random_values(count(c.num_experts, c.n), 3));
  FencedMatrix out(DType::kF32, slots, c.n, c.n + 5);
  ExpertGemmArguments a;
  a.x = x.view();
  a.weight = {w.data(), DType::kF16, c.num_experts * c.n, c.k, nullptr};
  if (c.has_bias) a.bias = bias.weight();
  a.out = out.view();
  a.routing = {c.num_experts, c.num_slots, experts.data(), nullptr, order.data(), offsets.data()};
  const kernels::ExpertGemmParams params = gpu::expert_gemm_params(a);

  simt::Grid grid;
  grid.kernel = "expert_gemm_f16";
  grid.blocks = {
      static_cast<int>((c.n + kernels::kExpertTileN - 1) / kernels::kExpertTileN),
      static_cast<int>(slots / kernels::kExpertTileM + std::min<std::int64_t>(slots, c.num_experts)), 1};
  grid.threads = kernels::kExpertThreads;
  grid.shared_bytes = static_cast<std::size_t>(kernels::expert_shared_bytes());
  grid.warp_size = 32;
  simt::run_grid(grid, [&] { expert_gemm_f16(params); });

  const Values x_values = x.values(), w_values = w.values(), out_values = out.values();
  for (std::int64_t t = 0; t < slots; ++t) {
    const std::int64_t expert = experts[static_cast<std::size_t>(t)], row = c.shares_x ? t / c.num_slots : t;
    for (std::int64_t i = 0; i < c.n; ++i) {
      double sum = c.has_bias ? bias.values()[count(expert, c.n) + static_cast<std::size_t>(i)] : 0;
      for (std::int64_t j = 0; j < c.k; ++j) {
        sum += x_values[count(row, c.k) + static_cast<std::size_t>(j)] *
               w_values[count(expert * c.n + i, c.k) + static_cast<std::size_t>(j)];
      }
      ASSERT_NEAR(out_values[count(t, c.n) + static_cast<std::size_t>(i)], sum, 1e-4 * (1 + std::abs(sum)))
          << "slot " << t << ", column " << i;
    }
  }
  out.expect_fences_intact();
}

}  // namespace
}  // namespace tessera::testing
