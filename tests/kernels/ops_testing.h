#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/simd_target.h"
#include "core/element.h"
#include "core/quantize.h"
#include "kernels/tested_ops.h"
#include "ops/backend.h"
#include "sanitized.h"

namespace tessera::testing {

inline const std::vector<DType> kActivationDTypes = {DType::kF32, DType::kF16, DType::kBF16};
inline const std::vector<DType> kWeightDTypes(weight_dtypes().begin(), weight_dtypes().end());
/// Those that have kernels of their own somewhere.
inline const std::vector<DType> kTunedWeightDTypes = {DType::kF32,  DType::kF16,  DType::kBF16,
                                                      DType::kQ8_0, DType::kQ4_K, DType::kQ6_K};

/// A multiple of the dtype's blocks, k or a little more.
inline std::int64_t whole_blocks(DType dtype, std::int64_t k) {
  const std::int64_t elements = block_format(dtype).elements;
  return (k + elements - 1) / elements * elements;
}

/// Values of any kind in row-major order, as fp64.
using Values = std::vector<double>;

inline Values random_values(std::size_t n, std::uint32_t seed, double scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  Values values(n);
  for (double& v : values) v = normal(random);
  return values;
}

/// A matrix between fences: all bytes that belong to no element are 0xff, which is NaN in every float dtype
/// and so poisons any result that reads it.
class FencedMatrix {
 public:
  FencedMatrix(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride = 0)
      : dtype_(dtype), rows_(rows), columns_(columns), stride_(row_stride == 0 ? columns : row_stride) {
    bytes_.assign(2 * kFence + dtype_bytes(dtype, static_cast<std::size_t>(rows_ * stride_)),
                  std::byte{0xff});
  }
  FencedMatrix(DType dtype, std::int64_t rows, std::int64_t columns, const Values& values,
               std::int64_t row_stride = 0)
      : FencedMatrix(dtype, rows, columns, row_stride) {
    fill(values);
  }

  void fill(const Values& values) {
    for (std::int64_t i = 0; i < rows_ * columns_; ++i) {
      store_element(data(), dtype_, i / columns_ * stride_ + i % columns_,
                    values[static_cast<std::size_t>(i)]);
    }
  }

  std::byte* data() { return bytes_.data() + kFence; }
  Matrix view() { return {data(), dtype_, rows_, columns_, stride_}; }

  Values values() {
    Values result(static_cast<std::size_t>(rows_ * columns_));
    for (std::int64_t i = 0; i < rows_ * columns_; ++i) {
      result[static_cast<std::size_t>(i)] =
          load_element(data(), dtype_, i / columns_ * stride_ + i % columns_);
    }
    return result;
  }

  /// Fails the test if a byte outside the elements was written.
  void expect_fences_intact() const {
    const std::size_t element = dtype_bytes(dtype_, 1);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const bool inside =
          i >= kFence && i < bytes_.size() - kFence &&
          (i - kFence) / element % static_cast<std::size_t>(stride_) < static_cast<std::size_t>(columns_);
      if (!inside) {
        ASSERT_EQ(bytes_[i], std::byte{0xff}) << "byte " << i << " outside the elements changed";
      }
    }
  }

 private:
  static constexpr std::size_t kFence = 128;
  DType dtype_;
  std::int64_t rows_, columns_, stride_;
  std::vector<std::byte> bytes_;
};

/// A weight of any dtype made from values, with the values it really holds.
class TestWeight {
 public:
  TestWeight(DType dtype, std::int64_t rows, std::int64_t columns, const Values& values)
      : dtype_(dtype), rows_(rows), columns_(columns) {
    const std::size_t n = static_cast<std::size_t>(rows * columns);
    // Exactly as long as the data, so that AddressSanitizer sees a read past the end.
    bytes_.resize(dtype_bytes(dtype, n));
    values_.resize(n);
    if (block_format(dtype).elements > 1) {
      quantize(values);
    } else {
      for (std::size_t i = 0; i < n; ++i) {
        store_element(bytes_.data(), dtype, static_cast<std::int64_t>(i), values[i]);
        values_[i] = load_element(bytes_.data(), dtype, static_cast<std::int64_t>(i));
      }
    }
  }

  Weight weight() const { return {bytes_.data(), dtype_, rows_, columns_, nullptr}; }
  const Values& values() const { return values_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  /// The fp64 decoding is judged by the blocks of files that the gguf package decoded.
  void quantize(const Values& values) {
    const std::vector<float> floats(values.begin(), values.end());
    fill_blocks(dtype_, floats, bytes_.data());
    dispatch_weight(dtype_, [&]<class T>() {
      if constexpr (is_block_format<T>) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          double element[1];
          T::decode(reinterpret_cast<const unsigned char*>(bytes_.data()) + i / T::kElements * T::kBytes,
                    static_cast<int>(i % T::kElements), element);
          values_[i] = element[0];
        }
      }
    });
  }

  DType dtype_;
  std::int64_t rows_, columns_;
  std::vector<std::byte> bytes_;
  Values values_;
};

/// Whether a test takes fewer and smaller shapes.
inline bool backend_is_slow() { return tested_ops_are_slow() || kSanitized; }

/// Of a suite's cases for all pairs of dtypes a sanitizer sees one in seven, which is prime to the number of
/// pairs.
inline void skip_some_pairs_if_sanitized() {
  static SomeIfSanitized pairs(7);
  if (pairs.leaves_out_next()) GTEST_SKIP() << "a sanitizer sees a part of all pairs of dtypes";
}

/// Runs the test body with every SIMD target that this machine can run, then with the automatic choice again;
/// once for a backend that has none; with a sanitizer by turns with one of them.
inline void for_each_simd_target(const std::function<void()>& body) {
  if (!tested_ops_are_the_cpus()) return body();
  const std::vector<SimdTarget> targets = attainable_simd_targets();
  for (const SimdTarget target : some_if_sanitized(targets, targets.size())) {
    SCOPED_TRACE(std::string(simd_target_name(target)));
    set_simd_target(target);
    body();
    set_simd_target(std::nullopt);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

/// One fp32 sum after the other.
inline Values naive_sums(const Values& x, const Values& w, std::size_t m, std::size_t n, std::size_t k) {
  Values out(m * n);
  for (std::size_t i = 0; i < m * n; ++i) {
    float sum = 0;
    for (std::size_t j = 0; j < k; ++j) {
      sum += static_cast<float>(x[i / n * k + j]) * static_cast<float>(w[i % n * k + j]);
    }
    out[i] = static_cast<double>(sum);
  }
  return out;
}

inline double max_abs(const Values& values) {
  double result = 0;
  for (const double v : values) result = std::max(result, std::abs(v));
  return result;
}

inline double max_error(const Values& values, const Values& exact) {
  double result = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = values[i] == exact[i] ? 0 : std::abs(values[i] - exact[i]);
    if (std::isnan(difference)) return difference;
    result = std::max(result, difference);
  }
  return result;
}

/// Values as they are after one rounding to dtype.
inline Values rounded(const Values& values, DType dtype) {
  Values result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    double stored = 0;
    store_element(&stored, dtype, 0, values[i]);
    result[i] = load_element(&stored, dtype, 0);
  }
  return result;
}

/// The error may be twice that of the naive fp32 computation, rounded to the same dtype. The floor: two
/// roundings of the result, because the naive one may come out exact by chance where it happens to be short.
inline void expect_at_most_twice_naive(const Values& values, const Values& naive_f32, const Values& exact,
                                       DType dtype) {
  ASSERT_EQ(values.size(), exact.size());
  ASSERT_EQ(naive_f32.size(), exact.size());
  const double naive_error = max_error(rounded(naive_f32, dtype), exact);
  const double floor = 2 * std::max(unit_roundoff(dtype), unit_roundoff(DType::kF32)) * max_abs(exact);
  const double error = max_error(values, exact);
  EXPECT_LE(error, 2 * naive_error + floor) << "naive " << naive_error << ", floor " << floor;
  EXPECT_FALSE(std::isnan(error));
}

template <class F>
void expect_error(F&& call, ErrorCode code, const std::string& part) {
  try {
    call();
    FAIL() << "expected an error that mentions '" << part << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
}

}  // namespace tessera::testing
