#include "backends/cuda/ops/device_kernels.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/ops_params.h"
#include "ops/validate.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

using kernels::RowsArgument;

// As the kernels' sources have them.
constexpr unsigned kRowThreads = 512;          // rms_norm.cu, softmax.cu
constexpr unsigned kElementwiseThreads = 256;  // elementwise.cu
constexpr unsigned kGroupsPerThread = 2;
constexpr unsigned kRopeThreads = 512;
constexpr unsigned kGemvThreads = 256;
constexpr unsigned kGemvRows = 2;
constexpr std::int64_t kGemvMaxRows = 8;
constexpr unsigned kTiledThreads = 256;
constexpr std::int64_t kTile = 64;
constexpr unsigned kSampleThreads = 1024;
constexpr std::size_t kSampleStaticBytes = 36 * 1024;

// From here on rows alone fill a GPU, and a thread takes several groups of a row.
constexpr std::int64_t kManyRows = 1024;
// Warps that a product with few rows is spread over: enough loads in flight for the memory of the largest
// GPUs.
constexpr std::int64_t kGemvWarpsWanted = 2048;

// The kernels read SamplingParameters as their own struct.
static_assert(sizeof(SamplingParameters) == sizeof(kernels::SamplerSettings));
static_assert(offsetof(SamplingParameters, top_k) == offsetof(kernels::SamplerSettings, top_k));
static_assert(offsetof(SamplingParameters, top_p) == offsetof(kernels::SamplerSettings, top_p));
static_assert(offsetof(SamplingParameters, min_p) == offsetof(kernels::SamplerSettings, min_p));
static_assert(offsetof(SamplingParameters, repetition_penalty) ==
              offsetof(kernels::SamplerSettings, repetition_penalty));
static_assert(offsetof(SamplingParameters, seed) == offsetof(kernels::SamplerSettings, seed));
static_assert(sizeof(std::int64_t) == sizeof(kernels::int64));

int element_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kernels::kElementF16;
    case DType::kBF16:
      return kernels::kElementBF16;
    case DType::kQ8_0:
      return kernels::kElementQ8;
    default:
      return kernels::kElementF32;
  }
}

bool is_aligned(const void* data, DType dtype, std::int64_t stride) {
  const std::int64_t stride_alignment = dtype == DType::kF32 ? 4 : 8;
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % stride_alignment == 0;
}

RowsArgument rows_of(const Matrix& m) {
  const std::int64_t stride = m.rows > 1 ? m.row_stride : 0;
  return {m.data, stride, element_type(m.dtype), is_aligned(m.data, m.dtype, stride) ? 1 : 0};
}

RowsArgument rows_of(const Weight& w) {
  const bool vector = w.dtype == DType::kQ8_0 ? reinterpret_cast<std::uintptr_t>(w.data) % 2 == 0
                                              : is_aligned(w.data, w.dtype, w.rows > 1 ? w.columns : 0);
  return {const_cast<void*>(w.data), w.columns, element_type(w.dtype), vector ? 1 : 0};
}

/// Kernels come for one type of all arguments, and for any types.
template <class... More>
std::string entry_for(std::string_view kernel, DType first, More... more) {
  const bool same = ((more == first) && ...);
  return fmt::format("{}_{}", kernel, same ? dtype_name(first) : "any");
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

int elementwise_blocks_per_row(std::int64_t columns) {
  const std::int64_t per_block = std::int64_t{kElementwiseThreads} * kGroupsPerThread * kernels::kGroupSize;
  return static_cast<int>(
      std::min<std::int64_t>(divide_up(columns, per_block), std::numeric_limits<int>::max()));
}

kernels::RopeRotation rotation_of(const std::int32_t* positions, const float* inverse_frequencies,
                                  int num_pairs, int head_dim, RopePairing pairing, float attention_factor) {
  return {
      positions,       inverse_frequencies, num_pairs, head_dim, pairing == RopePairing::kInterleaved ? 1 : 0,
      attention_factor};
}

/// Heads must also stand at multiples of 16 bytes.
RowsArgument heads_of(const Matrix& m, std::int64_t head_stride) {
  RowsArgument rows = rows_of(m);
  if (!is_aligned(m.data, m.dtype, head_stride)) rows.vector = 0;
  return rows;
}

RowsArgument cache_rows(void* data, const KvCacheView& c) {
  const bool vector = is_aligned(data, c.dtype, c.page_stride) && is_aligned(data, c.dtype, c.token_stride) &&
                      is_aligned(data, c.dtype, c.head_stride);
  return {data, c.page_stride, element_type(c.dtype), vector ? 1 : 0};
}

}  // namespace

template <class Params>
void DeviceKernels::launch(std::string_view source, std::string entry, std::int64_t grid_x, unsigned threads,
                           const Params& params, Stream stream, std::size_t shared_bytes,
                           std::int64_t grid_y) {
  if (grid_x == 0 || grid_y == 0) return;
  if (grid_x > std::numeric_limits<int>::max() || grid_y > 65535) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} would take a grid of {} x {} blocks; expected at most {} x 65535: use "
                            "fewer rows at once",
                            entry, grid_x, grid_y, std::numeric_limits<int>::max()));
  }
  Params copy = params;
  launcher_.launch({std::string(source), std::move(entry), static_cast<unsigned>(grid_x),
                    static_cast<unsigned>(grid_y), threads, shared_bytes, &copy},
                   stream);
}

unsigned DeviceKernels::row_threads(std::int64_t columns, std::int64_t rows, unsigned most) const {
  const std::int64_t warp = launcher_.warp_size();
  const std::int64_t groups = divide_up(columns, kernels::kGroupSize);
  const std::int64_t wanted = rows >= kManyRows ? divide_up(groups, 4) : groups;
  return static_cast<unsigned>(std::clamp<std::int64_t>(divide_up(wanted, warp) * warp, warp, most));
}

void DeviceKernels::embedding(const EmbeddingArguments& a, Stream stream) {
  validate(a);
  RowsArgument table = rows_of(a.table);
  launch("common/elementwise.cu", "embedding_any", a.out.rows, kElementwiseThreads,
         kernels::EmbeddingParams{a.tokens, table, rows_of(a.out), a.table.rows, a.table.columns}, stream);
}

void DeviceKernels::rms_norm(const RmsNormArguments& a, Stream stream) {
  validate(a);
  const std::int64_t head_stride = a.heads > 1 ? a.head_stride : 0;
  kernels::RmsNormParams p{};
  p.x = heads_of(a.x, head_stride);
  p.out = heads_of(a.out, head_stride);
  if (a.residual) p.residual = rows_of(*a.residual);
  p.weight = rows_of(a.weight);
  p.columns = a.x.columns;
  p.head_stride = head_stride;
  p.heads = a.heads;
  p.eps = a.eps;
  const std::int64_t rows = a.x.rows * a.heads;
  launch("common/rms_norm.cu", entry_for("rms_norm", a.x.dtype, a.out.dtype), rows,
         row_threads(a.x.columns, rows, kRowThreads), p, stream);
}

void DeviceKernels::rope(const RopeArguments& a, Stream stream) {
  validate(a);
  if (a.num_pairs == 0) return;
  const kernels::RopeParams p{
      rotation_of(a.positions, a.inverse_frequencies, a.num_pairs, a.head_dim, a.pairing, a.attention_factor),
      heads_of(a.x, a.head_dim), a.heads};
  launch("common/rope.cu", "rope_any", a.x.rows, kRopeThreads, p, stream,
         2 * sizeof(float) * static_cast<std::size_t>(a.num_pairs));
}

void DeviceKernels::rope_append(const RopeAppendArguments& a, Stream stream) {
  validate(a);
  const KvCacheView& c = a.cache;
  kernels::RopeAppendParams p{};
  p.rotation =
      rotation_of(a.positions, a.inverse_frequencies, a.num_pairs, a.head_dim, a.pairing, a.attention_factor);
  p.q = heads_of(a.q, a.head_dim);
  p.k = heads_of(a.k, a.head_dim);
  p.v = heads_of(a.v, a.head_dim);
  p.cache_k = cache_rows(c.k, c);
  p.cache_v = cache_rows(c.v, c);
  p.cache_token_stride = c.token_stride;
  p.cache_head_stride = c.head_stride;
  p.sequences = a.sequences;
  p.block_table = c.block_table;
  p.block_table_stride = c.block_table_stride;
  p.page_size = c.page_size;
  p.num_heads = a.num_heads;
  p.num_kv_heads = a.num_kv_heads;
  launch("common/rope.cu", entry_for("rope_append", a.q.dtype, a.k.dtype, a.v.dtype, c.dtype), a.q.rows,
         kRopeThreads, p, stream, 2 * sizeof(float) * static_cast<std::size_t>(a.num_pairs));
}

void DeviceKernels::gated_activation(const GatedActivationArguments& a, Stream stream) {
  validate(a);
  kernels::GatedActivationParams p{};
  p.gate = rows_of(a.gate);
  p.up = rows_of(a.up);
  p.out = rows_of(a.out);
  p.columns = a.out.columns;
  p.blocks_per_row = elementwise_blocks_per_row(a.out.columns);
  p.activation = static_cast<int>(a.activation);
  launch("common/elementwise.cu", entry_for("gated_activation", a.gate.dtype, a.up.dtype, a.out.dtype),
         a.out.rows * p.blocks_per_row, kElementwiseThreads, p, stream);
}

void DeviceKernels::softmax(const SoftmaxArguments& a, Stream stream) {
  validate(a);
  launch("common/softmax.cu", entry_for("softmax", a.x.dtype, a.out.dtype), a.x.rows,
         row_threads(a.x.columns, a.x.rows, kRowThreads),
         kernels::SoftmaxParams{rows_of(a.x), rows_of(a.out), a.x.columns}, stream);
}

void DeviceKernels::scale(const ScaleArguments& a, Stream stream) {
  validate(a);
  const int blocks = elementwise_blocks_per_row(a.x.columns);
  launch("common/elementwise.cu", "scale_any", a.x.rows * blocks, kElementwiseThreads,
         kernels::ScaleParams{rows_of(a.x), a.x.columns, blocks, a.factor}, stream);
}

void DeviceKernels::causal_mask(const CausalMaskArguments& a, Stream stream) {
  validate(a);
  const int blocks = elementwise_blocks_per_row(a.x.columns);
  launch("common/elementwise.cu", "causal_mask_any", a.x.rows * blocks, kElementwiseThreads,
         kernels::CausalMaskParams{rows_of(a.x), a.x.columns, a.shift, blocks}, stream);
}

void DeviceKernels::sample(const SampleArguments& a, Stream stream) {
  validate(a);
  kernels::SampleParams p{};
  p.logits = rows_of(a.logits);
  p.settings = reinterpret_cast<const kernels::SamplerSettings*>(a.parameters);
  p.steps = reinterpret_cast<const kernels::int64*>(a.steps);
  p.history = a.history;
  p.history_lens = a.history_lens;
  p.history_stride = a.history_stride;
  p.tokens = a.tokens;
  p.vocab_size = static_cast<int>(a.logits.columns);
  // 45 bits are as fine as weights that are cut off (e^-32) need; fewer only so that 2^62 holds the sum.
  p.weight_bits =
      std::min(45, 62 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(a.logits.columns))));
  // A bit a token, if penalties may be used.
  const std::size_t bits_bytes =
      a.history == nullptr ? 0 : static_cast<std::size_t>(divide_up(a.logits.columns, 32)) * 4;
  if (a.logits.columns > (std::int64_t{1} << 30) ||
      bits_bytes + kSampleStaticBytes > launcher_.max_shared_bytes()) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format(
            "sample: a vocabulary of {} tokens; expected at most {} for a repetition penalty on this GPU",
            a.logits.columns, (launcher_.max_shared_bytes() - kSampleStaticBytes) * 8));
  }
  launch("common/sample.cu", "sample_any", a.logits.rows, kSampleThreads, p, stream, bits_bytes);
}

void DeviceKernels::gemm(const GemmArguments& a, Stream stream) {
  validate(a);
  if (a.x.rows == 0) return;
  if ((a.x.rows <= kGemvMaxRows || a.batch_invariant) && gemm_few_rows(a, stream)) return;
  // The library picks its algorithm by the number of rows, which may change the order of sums.
  if (!a.batch_invariant && launcher_.library_gemm(a, stream)) return;
  kernels::GemmParams p{};
  p.x = rows_of(a.x);
  p.weight = rows_of(a.weight);
  if (a.bias) p.bias = rows_of(*a.bias);
  p.out = rows_of(a.out);
  p.n = a.weight.rows;
  p.k = a.weight.columns;
  p.accumulate = a.accumulate ? 1 : 0;
  // A grid's second dimension is short.
  constexpr std::int64_t kRowsAtOnce = 65535 * kTile;
  for (std::int64_t begin = 0; begin < a.x.rows; begin += kRowsAtOnce) {
    p.m = std::min(kRowsAtOnce, a.x.rows - begin);
    kernels::GemmParams part = p;
    part.x.data = static_cast<std::byte*>(p.x.data) +
                  dtype_bytes(a.x.dtype, static_cast<std::size_t>(begin * a.x.row_stride));
    part.out.data = static_cast<std::byte*>(p.out.data) +
                    dtype_bytes(a.out.dtype, static_cast<std::size_t>(begin * a.out.row_stride));
    launch("common/gemm_tiled.cu", "gemm_tiled", divide_up(p.n, kTile), kTiledThreads, part, stream, 0,
           divide_up(p.m, kTile));
  }
}

bool DeviceKernels::gemm_few_rows(const GemmArguments& a, Stream stream) {
  const DType x = a.x.dtype;
  const DType w = a.weight.dtype;
  if (x != DType::kF32 && w != x && w != DType::kQ8_0) return false;
  kernels::GemmParams p{};
  p.weight = rows_of(a.weight);
  p.n = a.weight.rows;
  p.k = a.weight.columns;
  if (p.k % kernels::kGroupSize != 0) p.weight.vector = 0;
  if (a.bias) p.bias = rows_of(*a.bias);
  p.accumulate = a.accumulate ? 1 : 0;
  // By n and k alone: how many rows there are must not change a row's sum.
  const std::int64_t warps_a_block = kGemvThreads / launcher_.warp_size();
  const std::int64_t groups_a_lane = divide_up(divide_up(p.k, kernels::kGroupSize), 32);
  p.splits = 1;
  while (p.splits < warps_a_block && divide_up(p.n, kGemvRows) * p.splits < kGemvWarpsWanted &&
         groups_a_lane / (2 * p.splits) >= 4) {
    p.splits *= 2;
  }
  const std::int64_t rows_a_block = warps_a_block / p.splits * kGemvRows;
  for (std::int64_t begin = 0; begin < a.x.rows; begin += kGemvMaxRows) {
    Matrix part_x = a.x;
    Matrix part_out = a.out;
    const std::int64_t rows = std::min(kGemvMaxRows, a.x.rows - begin);
    part_x.data =
        static_cast<std::byte*>(a.x.data) + dtype_bytes(x, static_cast<std::size_t>(begin * a.x.row_stride));
    part_out.data = static_cast<std::byte*>(a.out.data) +
                    dtype_bytes(a.out.dtype, static_cast<std::size_t>(begin * a.out.row_stride));
    // Alignment is that of all rows: a chunk must not take another path than the whole.
    p.x = rows_of(a.x);
    p.x.data = part_x.data;
    p.out = rows_of(a.out);
    p.out.data = part_out.data;
    p.m = rows;
    const std::int64_t kernel_rows =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
    launch("common/gemv.cu", fmt::format("gemv_{}_{}_{}", dtype_name(x), dtype_name(w), kernel_rows),
           divide_up(p.n, rows_a_block), kGemvThreads, p, stream);
  }
  return true;
}

}  // namespace tessera::cuda
