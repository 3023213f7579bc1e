#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/ops_testing.h"

// What tests of products share.

namespace tessera::testing {

struct Shape {
  std::int64_t m, n, k;
};

/// One fp32 sum after the other, as the textbook has it.
inline Values naive_gemm(const Values& x, const Values& w, const Shape& s, const Values& bias,
                         const Values& start) {
  Values out(static_cast<std::size_t>(s.m * s.n));
  for (std::int64_t m = 0; m < s.m; ++m) {
    for (std::int64_t n = 0; n < s.n; ++n) {
      float sum = 0;
      for (std::int64_t k = 0; k < s.k; ++k) {
        sum += static_cast<float>(x[static_cast<std::size_t>(m * s.k + k)]) *
               static_cast<float>(w[static_cast<std::size_t>(n * s.k + k)]);
      }
      if (!bias.empty()) sum += static_cast<float>(bias[static_cast<std::size_t>(n)]);
      if (!start.empty()) sum += static_cast<float>(start[static_cast<std::size_t>(m * s.n + n)]);
      out[static_cast<std::size_t>(m * s.n + n)] = sum;
    }
  }
  return out;
}

/// To ask a backend whether it takes such a weight, before numbers are made and judged in vain.
inline Weight without_data(DType dtype, std::int64_t rows, std::int64_t columns) {
  alignas(256) static const std::byte nothing{};
  return {&nothing, dtype, rows, columns, nullptr};
}

/// Rows of a residual stream through a norm, then a product: by the reference, and as rounded between the
/// two.
struct NormedRows {
  FencedMatrix residual;
  TestWeight norm;
  Values exact, naive;  // of fp64, rounded to `dtype`

  NormedRows(OpsBackend& reference, const Shape& s, DType norm_dtype, DType dtype, double scale)
      : residual(DType::kF32, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 5, scale),
                 s.k + 4),
        norm(norm_dtype, 1, s.k, random_values(static_cast<std::size_t>(s.k), 6)) {
    FencedMatrix normed(DType::kF64, s.m, s.k);
    reference.rms_norm({residual.view(), normed.view(), norm.weight(), kEps, std::nullopt}, {});
    exact = normed.values();
    naive = rounded(exact, dtype);
  }
  static constexpr float kEps = 1e-5f;
};

}  // namespace tessera::testing
