// Prints what products with weights of every format err by against fp64, in per cent of the bound that the
// tests set (twice the error of a plain fp32 sum, and the roundings of the result): a row a format, a column
// an instruction set of the CPU, or one column for kernels that run in its place. fp32 x and results, so that
// nothing hides the sums.
#include <fmt/core.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "backends/factories.h"
#include "core/block_format.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kColumns = 4096;
constexpr std::int64_t kOutputs = 96;

/// A product, what it is in fp64, and the bound of its error.
class Product {
 public:
  Product(DType format, std::int64_t rows)
      : w_(format, kOutputs, kColumns, random_values(static_cast<std::size_t>(kOutputs * kColumns), 1)),
        x_(DType::kF32, rows, kColumns, random_values(static_cast<std::size_t>(rows * kColumns), 2)) {
    FencedMatrix exact(DType::kF64, rows, kOutputs);
    make_reference_ops()->gemm({x_.view(), w_.weight(), std::nullopt, exact.view(), false, false}, {});
    exact_ = exact.values();
    const Values x = x_.values();
    Values naive;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      for (std::size_t n = 0; n < std::size_t{kOutputs}; ++n) {
        float sum = 0;
        for (std::size_t k = 0; k < std::size_t{kColumns}; ++k)
          sum +=
              static_cast<float>(x[row * kColumns + k]) * static_cast<float>(w_.values()[n * kColumns + k]);
        naive.push_back(static_cast<double>(sum));
      }
    }
    bound_ = 2 * max_error(naive, exact_) + 2 * 0x1p-24 * max_abs(exact_);
  }

  /// The error of `ops` as a share of the bound.
  double share(OpsBackend& ops) {
    FencedMatrix out(DType::kF32, x_.view().rows, kOutputs);
    ops.gemm({x_.view(), w_.weight(), std::nullopt, out.view(), false, false}, {});
    return max_error(out.values(), exact_) / bound_;
  }

 private:
  TestWeight w_;
  FencedMatrix x_;
  Values exact_;
  double bound_ = 0;
};

void print_table() {
  std::vector<std::optional<SimdTarget>> targets = {std::nullopt};
  if (tested_ops_are_the_cpus()) {
    targets.clear();
    for (const SimdTarget target : attainable_simd_targets()) targets.emplace_back(target);
  }
  std::string header = "| Format |", rule = "|---|";
  for (const auto& target : targets) {
    header += target ? fmt::format(" {} |", simd_target_name(*target)) : " kernels |";
    rule += "---|";
  }
  fmt::print("{}\n{}\n", header, rule);
  const std::unique_ptr<OpsBackend> ops = make_tested_ops();
  for (const DType format : weight_dtypes()) {
    Product one(format, 1), many(format, 33);
    fmt::print("| {} |", dtype_name(format));
    for (const auto& target : targets) {
      if (target) set_simd_target(*target);
      fmt::print(" {:.0f}, {:.0f} |", 100 * one.share(*ops), 100 * many.share(*ops));
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace tessera::testing

int main() {
  try {
    tessera::testing::print_table();
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
