#pragma once

#include "common/rows.cuh"

// What kernels that bring a state from a sequence's rows to its next ones have in common.

namespace tessera::kernels {

/// A sequence's rows and state. One whose rows are all that it has begins with zeros, whatever its slot
/// holds.
struct SequencePart {
  int64 first;  // row
  int rows;
  bool begins;
  int64 slot;
};

TESSERA_DEVICE SequencePart sequence_part(const SequenceRowsParams& p, int sequence) {
  const int first = p.cu_seqlens[sequence], rows = p.cu_seqlens[sequence + 1] - first;
  return {first, rows, p.seq_lens[sequence] == rows, p.slots[sequence]};
}

/// Stands for elements of any type, wherever they are.
struct AnyElement {};

/// Group of columns from `column` on of a row. Where T is a type all rows are of it, in whole groups at
/// multiples of 16 bytes.
template <class T>
TESSERA_DEVICE void load_columns_of(const RowsArgument& m, int64 row, int64 column, int count,
                                    float (&v)[kGroupSize]) {
  if constexpr (is_same<T, AnyElement>) {
    load_group<kAnyType>(m, row * m.row_stride + column, count, v);
  } else {
    load_typed<T>(m.data, row * m.row_stride + column, kGroupSize, true, v);
  }
}

template <class T>
TESSERA_DEVICE void store_columns_of(const RowsArgument& m, int64 row, int64 column, int count,
                                     const float (&v)[kGroupSize]) {
  if constexpr (is_same<T, AnyElement>) {
    store_group<kAnyType>(m, row * m.row_stride + column, count, v);
  } else {
    store_typed<T>(m.data, row * m.row_stride + column, kGroupSize, true, v);
  }
}

template <class T>
TESSERA_DEVICE float load_element_of(const RowsArgument& m, int64 row, int64 column) {
  if constexpr (is_same<T, AnyElement>) {
    return load_scalar(m, row * m.row_stride + column);
  } else {
    return to_float(static_cast<const T*>(m.data)[row * m.row_stride + column]);
  }
}

template <class T>
TESSERA_DEVICE void store_element_of(const RowsArgument& m, int64 row, int64 column, float value) {
  if constexpr (is_same<T, AnyElement>) {
    store_scalar(m, row * m.row_stride + column, value);
  } else {
    static_cast<T*>(m.data)[row * m.row_stride + column] = from_float<T>(value);
  }
}

}  // namespace tessera::kernels
