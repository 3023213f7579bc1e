#include "backends/cpu/ops/gemm_columns.h"

#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/scratch.h"
#include "core/rounding.h"

namespace tessera::cpu {

std::int64_t row_bytes_of(const Weight& w) {
  return static_cast<std::int64_t>(dtype_bytes(w.dtype, static_cast<std::size_t>(w.columns)));
}

std::int64_t columns_per_task(const Weight& w) {
  constexpr std::int64_t kLeastBytes = std::int64_t{64} << 10;
  constexpr std::int64_t kMostBytes = std::int64_t{512} << 10;
  constexpr std::int64_t kColumnMultiple = 16;
  const std::int64_t row_bytes = row_bytes_of(w);
  const std::int64_t tasks = std::int64_t{4} * num_threads();
  const std::int64_t even = divide_up(w.rows, tasks);
  const std::int64_t columns =
      std::clamp(even, kLeastBytes / row_bytes, std::max<std::int64_t>(1, kMostBytes / row_bytes));
  return (columns + kColumnMultiple) / kColumnMultiple * kColumnMultiple;
}

void finish_columns(const GemmArguments& a, const ProductRange& range, float* products,
                    std::int64_t row_stride) {
  const RowKernels& kernels = row_kernels();
  const std::size_t n = static_cast<std::size_t>(range.columns);
  const std::size_t padded = padded_row(range.columns);
  const Scratch memory = scratch_floats(2, static_cast<std::int64_t>(padded), "scratch rows of gemm");
  float* bias = memory.floats();
  float* before = bias + padded;
  if (a.bias) kernels.load_as_f32(a.bias->data, a.bias->dtype, range.first_column, n, bias);
  for (std::int64_t m = 0; m < range.rows; ++m) {
    float* row = products + m * row_stride;
    const std::int64_t offset = (range.first_row + m) * a.out.row_stride + range.first_column;
    if (a.bias) {
      for (std::size_t i = 0; i < n; ++i) row[i] += bias[i];
    }
    if (a.accumulate) {
      kernels.load_as_f32(a.out.data, a.out.dtype, offset, n, before);
      for (std::size_t i = 0; i < n; ++i) row[i] += before[i];
    }
    kernels.store_from_f32(row, n, a.out.data, a.out.dtype, offset);
  }
}

}  // namespace tessera::cpu
