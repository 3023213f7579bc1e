#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/backend.h"

namespace tessera::bench {

/// How far sampled results are from the fp64 reference.
struct OpsCheck {
  double error = 0;  ///< largest absolute error; NaN if a result is NaN
  double bound = 0;
  bool passed() const { return error <= bound; }
};

/// One call of a kernel, with data of its own.
struct OpsBench {
  double bytes = 0;     ///< that must be read or written at least, each once
  double flops = 0;     ///< multiply-adds count as two; 0 where they don't matter
  bool writes = false;  ///< writes about as much as it reads: the copy rate bounds it, not the read rate
  std::function<void()> run;        ///< leaves inputs such that it can run again
  std::function<OpsCheck()> check;  ///< runs on fresh inputs and compares some rows with the reference
};

/// A benchmark that takes its memory only when it is made.
struct OpsBenchCase {
  std::string kernel;  ///< "gemm", "rms_norm", ...
  std::string shape;   ///< "1 x 16384 x 4096"
  DType dtype;         ///< of the weights for gemm, else of the activations; picks the ceiling of the flops
  std::function<OpsBench(OpsBackend&)> make;
};

/// All of them: gemm with one row, a few and many, and the other kernels on sizes beyond the caches.
std::vector<OpsBenchCase> ops_bench_cases();

/// The same kernels in the sizes of a GPU: products of a model with 8 * 10^9 parameters, and rows of 8192
/// columns.
std::vector<OpsBenchCase> gpu_ops_bench_cases();

/// Bytes read plus bytes written a second when all threads copy memory several times the caches' size.
double measure_copy_bytes_per_s();

}  // namespace tessera::bench
