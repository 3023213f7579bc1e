// NVIDIA's products with weights of blocks on the host: the kernel as it is, but for the instructions of
// sm_80.
#include "backends/cuda/ops/block_products.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "backends/factories.h"
#include "kernels/ops_testing.h"
#define TESSERA_BLOCKS Q4_K
#include "simt/executor.h"
#include "sm80/gemm_block_bits.cu"
#include "sm80/gemm_blocks.cu"
#include "sm90/gemm_block_stream_traits.h"

namespace tessera::testing {
namespace {

using cuda::BlockGemmLaunch;

/// Formats that the kernels take. Of these a sanitizer, with which each takes seconds to compile, sees those
/// that have among them all that formats differ in.
template <class T>
constexpr bool is_tuned = [] {
  constexpr bool is_seen = !kSanitized || std::is_same_v<T, formats::Q5_1> ||
                           std::is_same_v<T, formats::Q8_0> || std::is_same_v<T, formats::Q3_K> ||
                           std::is_same_v<T, formats::Q4_K> || std::is_same_v<T, formats::Q6_K>;
  if constexpr (is_block_format<T>) return is_seen && kernels::HasFragment<T>::kValue;
  return false;
}();

gpu::DeviceProperties some_gpu() {
  gpu::DeviceProperties device;
  device.compute_capability = 90;
  device.num_multiprocessors = 3;
  device.shared_per_block_bytes = 227 << 10;
  device.shared_per_multiprocessor_bytes = 228 << 10;
  device.warp_size = 32;
  device.has_tensor_maps = false;  // the host runs kernels that do without
  return device;
}

/// f.operator()<kXRows>(), as the launch's module is compiled.
template <class F>
auto dispatch_x_rows(const BlockGemmLaunch& launch, const F& f) {
  const auto has = [&](const char* define) {
    return std::ranges::find(launch.module.defines, define) != launch.module.defines.end();
  };
  if (has("TESSERA_X_ROWS=1")) return f.template operator()<1>();
  if (has("TESSERA_X_ROWS=2")) return f.template operator()<2>();
  if (has("TESSERA_X_ROWS=4")) return f.template operator()<4>();
  EXPECT_TRUE(has("TESSERA_X_ROWS=8"));
  return f.template operator()<8>();
}

template <class X, class Format>
std::function<void(const kernels::BlockGemmParams&)> kernel_of(const BlockGemmLaunch& launch) {
  if constexpr (!std::is_same_v<X, float>) {
    if (launch.entry.find("bits") != std::string::npos) {
      const bool is_normed = launch.entry.find("normed") != std::string::npos;
      return dispatch_x_rows(
          launch, [&]<int kXRows>() -> std::function<void(const kernels::BlockGemmParams&)> {
            if (kXRows <= kernels::kMostNormedRows && is_normed) {
              return [](const auto& p) {
                kernels::bits::gemm_block_bits<X, Format, kXRows, kXRows <= kernels::kMostNormedRows>(
                    p, kernels::block_x());
              };
            }
            return [](const auto& p) {
              kernels::bits::gemm_block_bits<X, Format, kXRows, false>(p, kernels::block_x());
            };
          });
    }
  }
  if (launch.entry.ends_with("_1")) return kernels::gemm_blocks<X, Format, 1>;
  return kernels::gemm_blocks<X, Format, 2>;
}

void run(const BlockGemmLaunch& launch, const std::function<void()>& kernel) {
  simt::Grid grid;
  grid.kernel = launch.entry;
  grid.blocks = {static_cast<int>(launch.shape.grid[0]), 1, 1};
  grid.threads = static_cast<int>(launch.shape.block[0]);
  grid.shared_bytes = launch.shape.shared_bytes;
  simt::run_grid(grid, kernel);
}

void run(const BlockGemmLaunch& launch, DType x, DType weight) {
  dispatch_weight(weight, [&]<class Format>() {
    if constexpr (is_tuned<Format>) {
      const auto kernel = x == DType::kF32   ? kernel_of<float, Format>(launch)
                          : x == DType::kF16 ? kernel_of<kernels::f16, Format>(launch)
                                             : kernel_of<kernels::bf16, Format>(launch);
      run(launch, [&] { kernel(std::get<kernels::BlockGemmParams>(launch.params)); });
    }
  });
}

template <class Upper, class Lower>
void run_of_two(const BlockGemmLaunch& launch) {
  const auto& params = std::get<kernels::TwoBlockGemmParams>(launch.params);
  run(launch, [&] {
    const bool is_normed = launch.entry == "gemm_block_bits_normed_bf16";
    dispatch_x_rows(launch, [&]<int kXRows>() {
      if (kXRows <= kernels::kMostNormedRows && is_normed) {
        kernels::bits::gemm_block_bits_of_two<kernels::bf16, Upper, Lower, kXRows,
                                              kXRows <= kernels::kMostNormedRows>(params);
      } else {
        kernels::bits::gemm_block_bits_of_two<kernels::bf16, Upper, Lower, kXRows, false>(params);
      }
    });
  });
}

class BlockProducts : public ::testing::TestWithParam<DType> {
 protected:
  const DType w_dtype = GetParam();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();

  void multiply(const GemmArguments& a) {
    const auto launch = cuda::block_gemm_launch(a, {}, some_gpu());
    ASSERT_TRUE(launch);
    run(*launch, a.x.dtype, w_dtype);
  }
};

std::vector<DType> block_dtypes() {
  std::vector<DType> dtypes;
  for (const DType dtype : weight_dtypes())
    if (dispatch_weight(dtype, []<class T>() { return is_tuned<T>; })) dtypes.push_back(dtype);
  return dtypes;
}
INSTANTIATE_TEST_SUITE_P(Weights, BlockProducts, ::testing::ValuesIn(block_dtypes()),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

struct Shape {
  std::int64_t m, n, k;
};

TEST_P(BlockProducts, ErrAtMostTwiceAsMuchAsANaiveSum) {
  // Columns: a block's number of pieces is even or odd, as many warps as pieces or fewer; groups that are not
  // whole; one tile of x or two.
  for (const auto& [x_dtype, s] : {std::pair(DType::kBF16, Shape{1, 33, 512}),
                                   {DType::kF16, {3, 16, 4352}},
                                   {DType::kF16, {8, 70, 512}},
                                   {DType::kF32, {5, 50, 256}},
                                   {DType::kBF16, {11, 40, 768}}}) {
    SCOPED_TRACE(::testing::Message() << dtype_name(x_dtype) << ' ' << s.m << " x " << s.n << " x " << s.k);
    const TestWeight w(w_dtype, s.n, s.k, random_values(static_cast<std::size_t>(s.n * s.k), 1));
    const TestWeight bias(DType::kF32, 1, s.n, random_values(static_cast<std::size_t>(s.n), 2));
    FencedMatrix x(x_dtype, s.m, s.k, random_values(static_cast<std::size_t>(s.m * s.k), 3), s.k + 16);
    FencedMatrix exact(DType::kF64, s.m, s.n);
    FencedMatrix out(x_dtype, s.m, s.n, Values(static_cast<std::size_t>(s.m * s.n)), s.n + 3);
    reference->gemm({x.view(), w.weight(), bias.weight(), exact.view(), false, false}, {});
    ASSERT_NO_FATAL_FAILURE(multiply({x.view(), w.weight(), bias.weight(), out.view(), false, false}));
    const Values x_values = x.values(), w_values = w.values(), bias_values = bias.values();
    Values naive(static_cast<std::size_t>(s.m * s.n));
    for (std::size_t i = 0; i < naive.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(s.n), column = i % static_cast<std::size_t>(s.n);
      const std::size_t k = static_cast<std::size_t>(s.k);
      float sum = 0;
      for (std::size_t j = 0; j < k; ++j)
        sum += static_cast<float>(x_values[row * k + j]) * static_cast<float>(w_values[column * k + j]);
      naive[i] = sum + static_cast<float>(bias_values[column]);
    }
    expect_at_most_twice_naive(out.values(), naive, exact.values(), x_dtype);
    out.expect_fences_intact();
  }
}

TEST_P(BlockProducts, OfARowThatIsNotFiniteAreNotFinite) {
  constexpr std::int64_t kRowsOfW = 16, kColumns = 512;
  const TestWeight w(w_dtype, kRowsOfW, kColumns, random_values(kRowsOfW * kColumns, 1));
  for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::int64_t m : {1, 2, 3, 5}) {
      SCOPED_TRACE(::testing::Message() << bad << " in the first of " << m);
      Values x_values = random_values(static_cast<std::size_t>(m * kColumns), 3);
      x_values[300] = bad;
      FencedMatrix x(DType::kBF16, m, kColumns, x_values), out(DType::kBF16, m, kRowsOfW);
      ASSERT_NO_FATAL_FAILURE(multiply({x.view(), w.weight(), std::nullopt, out.view(), false, false}));
      const Values results = out.values();
      for (std::size_t i = 0; i < results.size(); ++i)
        EXPECT_EQ(std::isfinite(results[i]), i >= static_cast<std::size_t>(kRowsOfW)) << "result " << i;
    }
  }
}

TEST_P(BlockProducts, OfTheSmallestNumbersLoseNothing) {
  constexpr std::int64_t kRowsOfW = 16, kColumns = 512;
  const TestWeight w(w_dtype, kRowsOfW, kColumns, random_values(kRowsOfW * kColumns, 1));
  for (const std::int64_t m : {1, 2, 3, 5, 11}) {
    SCOPED_TRACE(m);
    FencedMatrix x(DType::kBF16, m, kColumns,
                   random_values(static_cast<std::size_t>(m * kColumns), 3, 0x1p-119));
    FencedMatrix exact(DType::kF64, m, kRowsOfW), out(DType::kF32, m, kRowsOfW);
    reference->gemm({x.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
    ASSERT_NO_FATAL_FAILURE(multiply({x.view(), w.weight(), std::nullopt, out.view(), false, false}));
    const Values results = out.values(), right = exact.values();
    const double most = max_abs(right);
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_NEAR(results[i], right[i], 1e-4 * most) << "result " << i;
  }
}

/// Rows are normed, products gated, or rotated and appended to a cache, where the reference does one after
/// the other.
TEST_P(BlockProducts, OfNormedRowsGateOrRotate) {
  constexpr int kHeads = 3, kKvHeads = 2, kHeadDim = 32, kPageSize = 4;
  constexpr std::int64_t kWidth = (kHeads + 2 * kKvHeads) * kHeadDim, kColumns = 512;
  const DType x_dtype = DType::kBF16;
  const TestWeight w(w_dtype, kWidth, kColumns, random_values(kWidth * kColumns, 1, 0.05));
  const TestWeight norm(DType::kF32, 1, kColumns, random_values(kColumns, 6));
  const std::vector<std::int32_t> positions = {6, 3}, sequences = {1, 0}, table = {2, 1, 0, 3};
  std::vector<float> frequencies;
  for (int i = 0; i < kHeadDim / 2; ++i)
    frequencies.push_back(static_cast<float>(std::pow(500.0, -i / 16.0)));
  struct Cache {
    FencedMatrix k, v;
    explicit Cache(DType dtype) : k(dtype, 4 * kPageSize, kKvHeads * kHeadDim), v(k) {}
  };
  const auto append = [&](FencedMatrix& out, Cache& cache, RopePairing pairing) {
    RopeAppendArguments rope;
    rope.q = rope.k = rope.v = out.view();
    rope.q.columns = kHeads * kHeadDim;
    rope.k.columns = rope.v.columns = kKvHeads * kHeadDim;
    rope.k.data = out.data() + dtype_bytes(rope.q.dtype, kHeads * kHeadDim);
    rope.v.data = out.data() + dtype_bytes(rope.q.dtype, (kHeads + kKvHeads) * kHeadDim);
    rope.num_heads = kHeads;
    rope.num_kv_heads = kKvHeads;
    rope.head_dim = kHeadDim;
    rope.positions = positions.data();
    rope.sequences = sequences.data();
    rope.inverse_frequencies = frequencies.data();
    rope.num_pairs = kHeadDim / 2;
    rope.pairing = pairing;
    rope.cache = {cache.k.data(),      cache.v.data(),
                  rope.q.dtype,        kPageSize * kKvHeads * kHeadDim,
                  kKvHeads * kHeadDim, kHeadDim,
                  kPageSize,           4,
                  table.data(),        2};
    return rope;
  };
  for (const std::int64_t m : {1, 2}) {
    FencedMatrix residual(DType::kF32, m, kColumns, random_values(static_cast<std::size_t>(m * kColumns), 5));
    FencedMatrix normed(x_dtype, m, kColumns), exact(DType::kF64, m, kWidth);
    reference->rms_norm({residual.view(), normed.view(), norm.weight(), 1e-5f, std::nullopt}, {});
    reference->gemm({normed.view(), w.weight(), std::nullopt, exact.view(), false, false}, {});
    // What comes of another rounding of x and of out, each by up to 2^-8 of a number.
    const double bound = 2 * 0x1p-8 * max_abs(exact.values());

    FencedMatrix gated(x_dtype, m, kWidth / 2),
        expected_gated(DType::kF64, m, kWidth / 2, Values(static_cast<std::size_t>(m * kWidth / 2)));
    NormedGemmArguments a;
    a.gemm = {residual.view(), w.weight(), std::nullopt, gated.view(), false, false};
    a.norm_weight = norm.weight();
    a.activation = GatedActivation::kSwiGlu;
    Matrix gate = exact.view(), up = exact.view();
    gate.columns = up.columns = kWidth / 2;
    up.data = exact.data() + 8 * (kWidth / 2);
    reference->gated_activation({GatedActivation::kSwiGlu, gate, up, expected_gated.view()}, {});
    auto launch = cuda::normed_block_gemm_launch(a, some_gpu());
    ASSERT_TRUE(launch);
    run(*launch, x_dtype, w_dtype);
    EXPECT_LE(max_error(gated.values(), expected_gated.values()), bound * (1 + max_abs(exact.values())));

    for (const RopePairing pairing : {RopePairing::kHalves, RopePairing::kInterleaved}) {
      for (const auto& [first_head, is_cut] : {std::pair(0, false),
                                               {kHeads + kKvHeads, false},  // v alone
                                               {0, true}}) {                // v's rows below the others
        constexpr std::int64_t kColumnOfV = (kHeads + kKvHeads) * kHeadDim;
        const std::int64_t first_column = first_head * kHeadDim;
        FencedMatrix turned(DType::kF64, m, kWidth, exact.values()), out(x_dtype, m, kWidth);
        Cache expected_cache(DType::kF64), cache(x_dtype);
        reference->rope_append(append(turned, expected_cache, pairing), {});
        a.activation.reset();
        const auto rows_of_w = [&](std::int64_t begin, std::int64_t end) {
          Weight rows = w.weight();
          rows.rows = end - begin;
          rows.data = static_cast<const std::byte*>(rows.data) +
                      dtype_bytes(w_dtype, static_cast<std::size_t>(begin * kColumns));
          return rows;
        };
        a.gemm.weight = rows_of_w(first_column, is_cut ? kColumnOfV : kWidth);
        a.lower.reset();
        if (is_cut) a.lower = {rows_of_w(kColumnOfV, kWidth), std::nullopt};
        a.gemm.out = out.view();
        a.gemm.out.columns = kWidth - first_column;
        a.rope = append(out, cache, pairing);
        a.first_head = first_head;
        launch = cuda::normed_block_gemm_launch(a, some_gpu());
        if (!launch && (first_head > 0 || is_cut)) continue;  // v's rows begin at no multiple of 16 bytes
        ASSERT_TRUE(launch);
        if (is_cut) {
          dispatch_weight(w_dtype, [&]<class Format>() {
            if constexpr (is_tuned<Format>) run_of_two<Format, Format>(*launch);
          });
        } else {
          run(*launch, x_dtype, w_dtype);
        }
        const auto expect_close = [&](const Values& got, const Values& wanted, std::size_t columns,
                                      std::size_t width) {
          std::size_t num_written = 0;
          for (std::size_t i = 0; i < got.size(); ++i) {
            if (i % width >= columns || std::isnan(wanted[i])) continue;
            ++num_written;
            EXPECT_LE(std::abs(got[i] - wanted[i]), 2 * bound) << "element " << i;
          }
          EXPECT_GT(num_written, 0u);
        };
        if (first_head == 0) {
          expect_close(out.values(), turned.values(), kHeads * kHeadDim, kWidth);
          expect_close(cache.k.values(), expected_cache.k.values(), kKvHeads * kHeadDim, kKvHeads * kHeadDim);
        }
        expect_close(cache.v.values(), expected_cache.v.values(), kKvHeads * kHeadDim, kKvHeads * kHeadDim);
      }
    }
  }
}

struct Pair {
  DType upper, lower;
  void (*run)(const BlockGemmLaunch& launch);
};
#define TESSERA_PAIR(Upper, Lower) \
  Pair { DType::k##Upper, DType::k##Lower, run_of_two<formats::Upper, formats::Lower> }

class BlockProductsOfTwo : public ::testing::TestWithParam<Pair> {
 protected:
  static constexpr DType kXType = DType::kBF16;
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();

  /// Out's columns are of rows of w that `parts` have.
  Values naive(const Values& x, const Shape& s, std::initializer_list<const TestWeight*> parts,
               const Values& bias) const {
    Values w;
    for (const TestWeight* part : parts) w.insert(w.end(), part->values().begin(), part->values().end());
    Values sums = naive_sums(x, w, static_cast<std::size_t>(s.m), static_cast<std::size_t>(s.n),
                             static_cast<std::size_t>(s.k));
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] = static_cast<float>(sums[i]) + static_cast<float>(bias[i % bias.size()]);
    return sums;
  }
};
INSTANTIATE_TEST_SUITE_P(Weights, BlockProductsOfTwo,
                         ::testing::Values(TESSERA_PAIR(Q4_K, Q6_K), TESSERA_PAIR(Q5_K, Q6_K),
                                           TESSERA_PAIR(Q3_K, Q5_K), TESSERA_PAIR(Q8_0, Q6_K),
                                           TESSERA_PAIR(Q5_0, Q8_0), TESSERA_PAIR(IQ4_XS, Q4_K)),
                         [](const auto& info) {
                           return std::string(dtype_name(info.param.upper)) + "_" +
                                  std::string(dtype_name(info.param.lower));
                         });

TEST_P(BlockProductsOfTwo, ErrAtMostTwiceAsMuchAsANaiveSum) {
  // Groups that are not whole in either part; blocks with none, one and more of them.
  struct Case {
    std::int64_t m, upper, lower, k;
  };
  for (const Case& c :
       {Case{1, 33, 21, 512}, {2, 16, 130, 768}, {3, 100, 16, 256}, {5, 50, 40, 512}, {8, 47, 33, 4352}}) {
    const std::int64_t m = c.m, upper = c.upper, lower = c.lower, k = c.k;
    SCOPED_TRACE(::testing::Message() << m << " x (" << upper << " + " << lower << ") x " << k);
    const Shape s{m, upper + lower, k};
    const TestWeight first(GetParam().upper, upper, k, random_values(static_cast<std::size_t>(upper * k), 1)),
        second(GetParam().lower, lower, k, random_values(static_cast<std::size_t>(lower * k), 2));
    const TestWeight bias(DType::kF32, 1, s.n, random_values(static_cast<std::size_t>(s.n), 3));
    Weight biases[2] = {bias.weight(), bias.weight()};
    biases[0].columns = upper;
    biases[1].columns = lower;
    biases[1].data = static_cast<const std::byte*>(biases[1].data) + upper * 4;
    const TestWeight norm(DType::kF32, 1, k, random_values(static_cast<std::size_t>(k), 4));
    FencedMatrix residual(DType::kF32, m, k, random_values(static_cast<std::size_t>(m * k), 5), k + 4),
        exact_x(DType::kF64, m, k), x(kXType, m, k, k + 8);
    reference->rms_norm({residual.view(), exact_x.view(), norm.weight(), 1e-5f, std::nullopt}, {});
    x.fill(exact_x.values());
    const auto expect_right = [&](NormedGemmArguments a, FencedMatrix& exact_rows, const auto& choose) {
      FencedMatrix out(kXType, m, s.n, s.n + 3), exact(DType::kF64, m, s.n);
      a.gemm.weight = first.weight();
      a.gemm.bias = biases[0];
      a.lower = {second.weight(), biases[1]};
      a.gemm.out = exact.view();
      a.gemm.x = exact_rows.view();
      for (const NormedGemmArguments& part : {without_lower_rows(a), only_lower_rows(a)})
        reference->gemm(part.gemm, {});
      a.gemm.out = out.view();
      a.gemm.x = a.norm_weight ? residual.view() : x.view();
      const auto launch = choose(a, some_gpu());
      ASSERT_TRUE(launch);
      EXPECT_EQ(launch->module.defines.size(), 4u);
      GetParam().run(*launch);
      expect_at_most_twice_naive(out.values(), naive(x.values(), s, {&first, &second}, bias.values()),
                                 exact.values(), kXType);
      out.expect_fences_intact();
    };
    expect_right({}, x, cuda::lower_rows_launch);
    if (m > kernels::kMostNormedRows) continue;
    NormedGemmArguments normed;
    normed.norm_weight = norm.weight();
    expect_right(normed, exact_x, cuda::normed_block_gemm_launch);
  }
}

TEST(BlockProductsOfTwo, LeaveNoBlockWithMoreThanItsShareOfBytes) {
  // q and k of 40 heads, v of 8, as an H200 takes them: 320 groups of 144 bytes a piece and 64 of 210.
  gpu::DeviceProperties h200 = some_gpu();
  h200.num_multiprocessors = 132;
  alignas(256) static std::byte nothing{};
  NormedGemmArguments a;
  a.gemm.weight = {&nothing, DType::kQ4_K, 5120, 4096, nullptr};
  a.lower = {{&nothing, DType::kQ6_K, 1024, 4096, nullptr}, std::nullopt};
  a.norm_weight = {&nothing, DType::kF32, 1, 4096, nullptr};
  a.gemm.x = {&nothing, DType::kF32, 1, 4096, 4096};
  a.gemm.out = {&nothing, DType::kBF16, 1, 6144, 6144};
  const auto launch = cuda::normed_block_gemm_launch(a, h200);
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->module.defines,
            (std::vector<std::string>{"TESSERA_BLOCKS=Q4_K", "TESSERA_LOWER_BLOCKS=Q6_K", "TESSERA_X_ROWS=1",
                                      "TESSERA_ONLY=3"}));
  const auto& params = std::get<kernels::TwoBlockGemmParams>(launch->params);
  EXPECT_EQ(launch->shape.grid[0], 132u);
  EXPECT_EQ(params.upper_blocks, 100);
  EXPECT_EQ(params.upper.groups_per_block, 3);
  EXPECT_EQ(params.upper.more_groups, 20);
  EXPECT_EQ(params.lower.groups_per_block, 2);
  EXPECT_EQ(params.lower.more_groups, 0);
  // fp32 rows are left to gemm_blocks.cu, which has one format.
  a.gemm.out.dtype = DType::kF32;
  EXPECT_FALSE(cuda::normed_block_gemm_launch(a, h200));
  a.gemm.out.dtype = DType::kBF16;
  a.lower->weight.dtype = DType::kBF16;
  EXPECT_FALSE(cuda::normed_block_gemm_launch(a, h200));
}

TEST(BlockStreamLaunch, FitsSharedMemoryWhateverFormatAndSize) {
  gpu::DeviceProperties h200 = some_gpu();
  h200.num_multiprocessors = 132;
  h200.has_tensor_maps = true;
  alignas(256) static std::byte nothing{};
  for (const DType format : {DType::kQ4_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                             DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kMXFP4, DType::kIQ4_XS}) {
    for (const std::int64_t columns : {256, 1024, 2048, 4096, 14336, 53248}) {
      for (const std::int64_t x_rows : {1, 2, 3, 4, 8}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(format) << ", " << columns << " columns, " << x_rows);
        GemmArguments a;
        a.weight = {&nothing, format, 28672, columns, nullptr};
        a.x = {&nothing, DType::kBF16, x_rows, columns, columns};
        a.out = {&nothing, DType::kBF16, x_rows, 28672, 28672};
        const auto launch = cuda::block_gemm_launch(a, std::nullopt, h200);
        ASSERT_TRUE(launch);
        if (launch->maps.empty()) continue;  // rows that are no multiple of 16 bytes
        ASSERT_EQ(launch->module.source, "sm90/gemm_block_stream.cu");
        const auto& p = std::get<kernels::BlockStreamParams>(launch->params).gemm;
        const unsigned warps = launch->shape.block[0] / 32 - 1;
        EXPECT_EQ(warps, kernels::kTeams * std::min<std::int64_t>(columns / 256, kernels::kSlotPieces));
        EXPECT_LE(launch->shape.shared_bytes + 1024, h200.shared_per_block_bytes);
        EXPECT_GE(p.stages, 2 * kernels::kTeams);
        EXPECT_LE(p.stages, kernels::kMostSlots);
        EXPECT_EQ(p.stages % kernels::kTeams, 0) << "a slot is always the same team's";
        EXPECT_EQ(p.groups_per_block * launch->shape.grid[0] + p.more_groups, 28672 / 16);
        EXPECT_LE(p.groups_at_once, p.groups_per_block + 1);
        const cuda::TensorMapShape& map = launch->maps.front();
        EXPECT_EQ(map.rank, 3u);
        EXPECT_LE(map.box[0], 256u);
        EXPECT_EQ(map.box[0] % 2, 0u);  // whole vectors of 16 bytes
        EXPECT_EQ(map.strides_bytes[1] % 16, 0u);
      }
    }
  }
}

/// Of a warp and a group, beside nothing else.
template <int kXRows>
void expect_room_for_sums_alone() {
  const auto bytes = static_cast<long long>(32 * sizeof(typename kernels::bits::LaneSums<kXRows>::OfLane));
  EXPECT_EQ(kernels::block_gemm_shared_bytes(0, 1, 1, kXRows, 0, 0), bytes) << kXRows << " rows";
}

TEST(BlockSums, HaveTheirRoomAndNoMore) {
  expect_room_for_sums_alone<1>();
  expect_room_for_sums_alone<2>();
  expect_room_for_sums_alone<4>();
  expect_room_for_sums_alone<8>();
  for (const int rows : {5, 16}) {  // gemm_blocks.cu's, two rows of x and two of w each
    const auto bytes = static_cast<long long>(8 * ((rows + 1) / 2) * sizeof(kernels::Sums));
    EXPECT_EQ(kernels::block_gemm_shared_bytes(0, 1, 1, rows, 0, 0), bytes) << rows << " rows";
  }
}

TEST(BlockStreamLaunch, HoldsXWholeUnlessThatLeavesFewerGroupsAtOnce) {
  gpu::DeviceProperties h200 = some_gpu();
  h200.num_multiprocessors = 132;
  h200.has_tensor_maps = true;
  alignas(256) static std::byte nothing{};
  const auto params = [&](std::int64_t x_rows, std::int64_t rows, std::int64_t columns) {
    GemmArguments a;
    a.weight = {&nothing, DType::kQ4_K, rows, columns, nullptr};
    a.x = {&nothing, DType::kBF16, x_rows, columns, columns};
    a.out = {&nothing, DType::kBF16, x_rows, rows, rows};
    return std::get<kernels::BlockStreamParams>(cuda::block_gemm_launch(a, std::nullopt, h200)->params);
  };
  EXPECT_EQ(params(1, 28672, 4096).holds_x, 1);
  EXPECT_EQ(params(3, 4096, 14336).holds_x, 1);  // 84 KB
  const kernels::BlockStreamParams eight = params(8, 28672, 4096);
  EXPECT_EQ(eight.holds_x, 0);
  EXPECT_EQ(eight.gemm.groups_at_once, 7);  // of 14
}

TEST(BlockStreamLaunch, LeavesRowsThatTensorMapsDoNotTake) {
  gpu::DeviceProperties h200 = some_gpu();
  h200.has_tensor_maps = true;
  alignas(256) static std::byte nothing{};
  GemmArguments a;
  a.weight = {&nothing, DType::kQ6_K, 4096, 3072, nullptr};  // rows of 2,520 bytes
  a.x = {&nothing, DType::kBF16, 1, 3072, 3072};
  a.out = {&nothing, DType::kBF16, 1, 4096, 4096};
  EXPECT_EQ(cuda::block_gemm_launch(a, std::nullopt, h200)->module.source, "sm80/gemm_block_bits.cu");
  a.weight.dtype = DType::kQ4_K;
  EXPECT_EQ(cuda::block_gemm_launch(a, std::nullopt, h200)->module.source, "sm90/gemm_block_stream.cu");
  h200.compute_capability = 100;
  EXPECT_EQ(cuda::block_gemm_launch(a, std::nullopt, h200)->module.source, "sm80/gemm_block_bits.cu");
}

}  // namespace
}  // namespace tessera::testing
