#include "backends/gpu/ops/library_products.h"

namespace tessera::gpu {

bool library_gemm(LibraryProducts& library, const GemmArguments& a, Stream stream) {
  if (a.weight.dtype != a.x.dtype) return false;
  if (a.out.dtype != a.x.dtype && a.out.dtype != DType::kF32) return false;
  if (a.bias && (a.bias->dtype != a.out.dtype || a.accumulate)) return false;
  LibraryProduct p;
  p.x = a.x.data;
  p.weight = a.weight.data;
  p.bias = a.bias ? a.bias->data : nullptr;
  p.out = a.out.data;
  p.dtype = a.x.dtype;
  p.out_dtype = a.out.dtype;
  p.m = a.x.rows;
  p.n = a.weight.rows;
  p.k = a.weight.columns;
  p.x_stride = a.x.row_stride;
  p.out_stride = a.out.row_stride;
  p.accumulate = a.accumulate;
  return library.multiply(p, stream);
}

}  // namespace tessera::gpu
