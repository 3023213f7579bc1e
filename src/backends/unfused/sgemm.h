#pragma once

#include <cstdint>

namespace tessera::unfused {

/// A row-major fp32 matrix by address and distance between rows in elements.
struct ConstMatrix {
  const float* data = nullptr;
  std::int64_t stride = 0;
};
struct Matrix {
  float* data = nullptr;
  std::int64_t stride = 0;
};

/// c (m, n) = a (m, k) b^T with b (n, k). On the calling thread alone; c's old content is not read.
void sgemm_nt(std::int64_t m, std::int64_t n, std::int64_t k, ConstMatrix a, ConstMatrix b, Matrix c);

/// c (m, n) = a (m, k) b with b (k, n). On the calling thread alone; c's old content is not read.
void sgemm_nn(std::int64_t m, std::int64_t n, std::int64_t k, ConstMatrix a, ConstMatrix b, Matrix c);

}  // namespace tessera::unfused
