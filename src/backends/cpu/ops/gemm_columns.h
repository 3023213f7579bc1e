#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/ops/scratch.h"
#include "core/block_format.h"
#include "core/parallel.h"
#include "ops/arguments.h"

namespace tessera::cpu {

/// Calls body(begin, end) for ranges of `step` columns in parallel.
template <class Body>
void for_column_ranges(std::int64_t columns, std::int64_t step, Body body) {
  parallel_for(static_cast<std::size_t>((columns + step - 1) / step), [&](std::size_t task) {
    const std::int64_t begin = static_cast<std::int64_t>(task) * step;
    body(begin, std::min(begin + step, columns));
  });
}

std::int64_t row_bytes_of(const Weight& w);

/// Columns a task of a dot-product kernel takes: enough work to pay for handing it out, and several tasks a
/// thread to balance.
std::int64_t columns_per_task(const Weight& w);

/// A part of a product.
struct ProductRange {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_column = 0, columns = 0;
};

/// out[range] = products (+ bias) (+ out), rounded to out's dtype. products: (rows, columns), row_stride
/// floats apart; changed.
void finish_columns(const GemmArguments& a, const ProductRange& range, float* products,
                    std::int64_t row_stride);

/// f.operator()<T>() with what weights of `dtype` consist of, if Traits<T>::kExists; else false.
template <template <class> class Traits, class Function>
bool with_weight_of(DType dtype, Function f) {
  return dispatch_weight(dtype, [&]<class T>() {
    if constexpr (Traits<T>::kExists) {
      return f.template operator()<T>();
    } else {
      return false;
    }
  });
}

/// Neighbouring rows of w, each of k elements.
struct RowsOfW {
  const unsigned char* first = nullptr;
  std::int64_t row_bytes = 0, rows = 0, k = 0;
};

/// out: multiply(rows of w, products) gives what they are with each row of x, (rows of x, rows of w).
template <class Multiply>
void stream_rows_of_w(const GemmArguments& a, Multiply multiply) {
  const Weight& w = a.weight;
  const std::int64_t row_bytes = row_bytes_of(w);
  for_column_ranges(w.rows, columns_per_task(w), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t columns = end - begin;
    const Scratch products = scratch_floats(a.x.rows, columns, "gemm's products");
    const auto* first = static_cast<const unsigned char*>(w.data) + begin * row_bytes;
    multiply(RowsOfW{first, row_bytes, columns, w.columns}, products.floats());
    finish_columns(a, {0, a.x.rows, begin, columns}, products.floats(), columns);
  });
}

}  // namespace tessera::cpu
