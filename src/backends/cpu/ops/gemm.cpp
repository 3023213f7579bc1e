#include "backends/cpu/ops/gemm.h"

#include <algorithm>

#include "backends/cpu/ops/gemm_kernel.h"
#include "backends/cpu/ops/row_kernels.h"
#include "core/aligned_memory.h"
#include "core/parallel.h"

namespace tessera::cpu {
namespace {

/// Columns a task takes: enough work to pay for handing it out, and several tasks a thread to balance.
std::int64_t columns_per_task(const GemmArguments& a) {
  constexpr std::int64_t kLeastBytes = std::int64_t{64} << 10;
  constexpr std::int64_t kMostBytes = std::int64_t{512} << 10;
  constexpr std::int64_t kColumnMultiple = 16;
  const std::int64_t row_bytes =
      static_cast<std::int64_t>(dtype_bytes(a.weight.dtype, static_cast<std::size_t>(a.weight.columns)));
  const std::int64_t tasks = std::int64_t{4} * num_threads();
  const std::int64_t even = (a.weight.rows + tasks - 1) / tasks;
  const std::int64_t columns =
      std::clamp(even, kLeastBytes / row_bytes, std::max<std::int64_t>(1, kMostBytes / row_bytes));
  return (columns + kColumnMultiple) / kColumnMultiple * kColumnMultiple;
}

/// Whether one row of w at a time is best: if the rows of x stay in the first-level cache meanwhile.
bool fits_streams(const GemmPanel& p) {
  constexpr std::int64_t kCacheBytes = std::int64_t{32} << 10;
  const std::int64_t x_bytes = p.m * p.k * static_cast<std::int64_t>(sizeof(float));
  return p.m == 1 || (p.m <= kMostStreamRows && x_bytes <= kCacheBytes);
}

void gemm_dot_products(const GemmArguments& a) {
  const RowKernels& rows = row_kernels();
  const GemmKernels& kernels = gemm_kernels();
  GemmPanel panel;
  panel.m = a.x.rows;
  panel.k = a.x.columns;
  panel.x_stride = static_cast<std::int64_t>(padded_row(panel.k));
  panel.weight = &a.weight;
  panel.bias = a.bias ? &*a.bias : nullptr;
  panel.accumulate = a.accumulate;
  panel.out = a.out;
  const std::shared_ptr<std::byte> scratch = allocate_aligned(
      checked_product({panel.m, panel.x_stride, sizeof(float)}, "gemm's x in fp32"), "gemm's x in fp32");
  float* x = reinterpret_cast<float*>(scratch.get());
  for (std::int64_t m = 0; m < panel.m; ++m) {
    rows.load_as_f32(a.x.data, a.x.dtype, m * a.x.row_stride, static_cast<std::size_t>(panel.k),
                     x + m * panel.x_stride);
  }
  panel.x = x;

  const auto kernel = !a.batch_invariant && fits_streams(panel) ? kernels.streams : kernels.tiles;
  const std::int64_t step = columns_per_task(a);
  const std::int64_t tasks = (a.weight.rows + step - 1) / step;
  parallel_for(static_cast<std::size_t>(tasks), [&](std::size_t task) {
    const std::int64_t begin = static_cast<std::int64_t>(task) * step;
    kernel(panel, begin, std::min(begin + step, a.weight.rows));
  });
}

}  // namespace

void gemm(const GemmArguments& a) {
  if (a.x.rows == 0) return;
  gemm_dot_products(a);
}

}  // namespace tessera::cpu
