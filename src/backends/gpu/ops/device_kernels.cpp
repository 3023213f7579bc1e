#include "backends/gpu/ops/device_kernels.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>

#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/runtime/device_properties.h"
#include "common/gemv_blocks_traits.h"
#include "common/ops_params.h"
#include "core/block_format.h"
#include "core/rounding.h"
#include "ops/validate.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

using kernels::RowsArgument;

using kernels::kElementwiseThreads;
using kernels::kGemvRows;
using kernels::kGemvThreads;
using kernels::kNormGroups;
using kernels::kNormThreads;
using kernels::kSoftmaxGroups;
using kernels::kSoftmaxThreads;
using kernels::kTiledThreads;

constexpr std::int64_t kRopeThreads = kernels::kRopeThreads;
constexpr std::int64_t kRopeThreadsOfMany = 96;
constexpr std::int64_t kMostGemvRows = kernels::kMostGemvRows;
constexpr std::int64_t kTile = kernels::kProductTile;

// From here on rows alone fill a GPU, and a thread takes several groups of a row.
constexpr std::int64_t kManyRows = 1024;

/// Beyond, the keys of one block's warps would not fit in its shared memory: one an expert and one a group.
constexpr int kMostKeysOfFewRows = 1400;

/// Kernels come for one type of all arguments where they stand at multiples of 16 bytes in whole groups of
/// columns, and for any.
std::string entry_for(std::string_view kernel, std::int64_t columns,
                      std::initializer_list<RowsArgument> arguments, DType dtype) {
  bool fits = columns % kernels::kGroupSize == 0;
  for (const RowsArgument& a : arguments) fits = fits && a.vector != 0 && a.type == element_type(dtype);
  return fmt::format("{}_{}", kernel, fits ? dtype_name(dtype) : "any");
}

constexpr const char* kAnyNorm = "rms_norm_any";

/// "any", or the types of x, residual, out and weight that rms_norm.cu has a kernel for; and the part of the
/// source that has it.
std::pair<std::string, int> norm_entry(const RmsNormArguments& a, const kernels::RmsNormParams& p) {
  const DType out = a.out.dtype;
  const bool x_fits = a.residual
                          ? a.x.dtype == out && (a.residual->dtype == out || a.residual->dtype == DType::kF32)
                          : a.x.dtype == out || a.x.dtype == DType::kF32;
  const bool same_residual = a.residual && a.residual->dtype == out;
  const bool weight_fits = a.weight.dtype == out || (a.weight.dtype == DType::kF32 && !same_residual);
  const bool fits = x_fits && weight_fits && p.x.vector != 0 && p.out.vector != 0 && p.weight.vector != 0 &&
                    (!a.residual || p.residual.vector != 0) && p.columns % kernels::kGroupSize == 0 &&
                    p.columns <= std::int64_t{kNormThreads} * kNormGroups * kernels::kGroupSize;
  if (!fits) return {kAnyNorm, 1};
  return {fmt::format("rms_norm_{}_{}_{}_{}", dtype_name(a.x.dtype),
                      a.residual ? dtype_name(a.residual->dtype) : "none", dtype_name(out),
                      dtype_name(a.weight.dtype)),
          out == DType::kF32   ? 1
          : out == DType::kF16 ? 2
                               : 3};
}

int elementwise_blocks_per_row(std::int64_t columns) {
  const std::int64_t per_block =
      std::int64_t{kElementwiseThreads} * kernels::kElementwiseGroups * kernels::kGroupSize;
  return static_cast<int>(
      std::min<std::int64_t>(divide_up(columns, per_block), std::numeric_limits<int>::max()));
}

/// Threads of a token's block, so that the last round of its items is as full as the others.
unsigned rope_threads(const RopeAppendArguments& a, std::int64_t warp_size) {
  constexpr std::int64_t kItemsAtOnce = 2;
  const std::int64_t rotated = a.num_pairs / kernels::kGroupSize;
  const std::int64_t whole = a.head_dim / kernels::kGroupSize;
  const std::int64_t items =
      std::max<std::int64_t>(1, a.num_heads * rotated + a.num_kv_heads * (2 * whole - rotated));
  const std::int64_t most = a.q.rows < kernels::kManyTokens ? kRopeThreads : kRopeThreadsOfMany;
  const std::int64_t rounds = divide_up(items, most * kItemsAtOnce);
  const std::int64_t threads = divide_up(items, rounds * kItemsAtOnce);
  return static_cast<unsigned>(std::min(kRopeThreads, divide_up(threads, warp_size) * warp_size));
}

/// Whether gemv.cu is for this product, in groups of rows if there are many. Of Q8_0 weights groups of 8 rows
/// are faster than gemm_tiled.cu until there are several.
bool takes_few_rows(const GemmArguments& a) {
  constexpr std::int64_t kMostRowsOfQ8 = 32;
  return a.batch_invariant || a.x.rows <= (a.weight.dtype == DType::kQ8_0 ? kMostRowsOfQ8 : kMostGemvRows);
}

/// The part of gemv.cu that has a product's types, from 1 on; 0: gemv_any. By types, n, k and the alignment
/// of all rows alone: how many rows there are must not change a row's sum.
int part_of_gemv(const GemmArguments& a, const kernels::GemmParams& p) {
  constexpr std::array<std::pair<DType, DType>, 8> kTypes = {{{DType::kF32, DType::kF32},
                                                              {DType::kF32, DType::kF16},
                                                              {DType::kF32, DType::kBF16},
                                                              {DType::kF32, DType::kQ8_0},
                                                              {DType::kF16, DType::kF16},
                                                              {DType::kF16, DType::kQ8_0},
                                                              {DType::kBF16, DType::kBF16},
                                                              {DType::kBF16, DType::kQ8_0}}};
  const auto types = std::find(kTypes.begin(), kTypes.end(), std::pair(a.x.dtype, a.weight.dtype));
  const bool is_any =
      types == kTypes.end() || p.x.vector == 0 || p.weight.vector == 0 || p.k % kernels::kGroupSize != 0;
  return is_any ? 0 : static_cast<int>(types - kTypes.begin()) + 1;
}

/// Whether gemv_blocks.cu takes a product that gemv.cu has no part for; by the same alone. Rows of w may
/// stand anywhere behind the first. TQ1_0's digits to the base 3 would fill its registers, and for codebooks
/// clang takes instructions of 16 bits with registers that emulation of CDNA, all that these were tried on,
/// confuses.
bool takes_blocks(const GemmArguments& a, const kernels::GemmParams& p, const SimtLauncher& launcher) {
  const bool has_codebook = dispatch_weight(a.weight.dtype, []<class T>() {
    if constexpr (is_block_format<T>) {
      return T::kHasCodebook;
    } else {
      return false;
    }
  });
  return block_format(a.weight.dtype).elements > 1 && a.weight.dtype != DType::kTQ1_0 &&
         (!has_codebook || launcher.warp_size() == 32) && p.x.vector != 0 &&
         reinterpret_cast<std::uintptr_t>(p.weight.data) % kernels::kMovedBytes == 0;
}

/// Warps of a gemv_blocks.cu block. Half as many as rows have steps where that fills the GPU, too: what a
/// warp does besides steps takes about as long as one.
int warps_of_blocks(std::int64_t columns, std::int64_t num_blocks, int warp_size, int num_multiprocessors) {
  constexpr std::int64_t kWarpsOfMultiprocessor = 16;
  constexpr int kLeastThreads = 64;  // with fewer, steps might not be whole vectors apart
  const int warps =
      kernels::gemv_blocks_warps(columns, static_cast<int>(kGemvThreads) / warp_size, warp_size);
  const bool has_one_step = columns <= std::int64_t{warps} * kernels::step_columns(warp_size);
  const bool fills =
      num_blocks * warps / 2 >= kWarpsOfMultiprocessor * static_cast<std::int64_t>(num_multiprocessors);
  return has_one_step && fills && warps * warp_size > kLeastThreads ? warps / 2 : warps;
}

}  // namespace

void DeviceKernels::launch(SimtLaunch launch, std::int64_t grid_x, std::int64_t grid_y, Stream stream) {
  if (grid_x == 0 || grid_y == 0) return;
  if (grid_x > std::numeric_limits<int>::max() || grid_y > kMaxGridYz) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} would take a grid of {} x {} blocks; expected at most {} x {}: use "
                            "fewer rows at once",
                            launch.entry, grid_x, grid_y, std::numeric_limits<int>::max(), kMaxGridYz));
  }
  launch.grid_x = static_cast<unsigned>(grid_x);
  launch.grid_y = static_cast<unsigned>(grid_y);
  launcher_.launch(launch, stream);
}

unsigned DeviceKernels::row_threads(std::int64_t columns, std::int64_t rows, std::int64_t most_groups,
                                    unsigned most) const {
  const std::int64_t warp = launcher_.warp_size();
  const std::int64_t groups = divide_up(columns, kernels::kGroupSize);
  const std::int64_t wanted = rows >= kManyRows ? divide_up(groups, most_groups) : groups;
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
  p.rows = a.x.rows;
  const std::int64_t rows = a.x.rows * a.heads;
  const auto [entry, only] = norm_entry(a, p);
  // By its columns alone: a row's sums must not depend on how many there are.
  if (entry != kAnyNorm && !a.residual && p.columns <= kernels::kMostShortNormColumns) {
    const std::int64_t lanes = std::bit_ceil(static_cast<std::uint64_t>(p.columns / kernels::kGroupSize));
    launch("common/rms_norm.cu", "rms_norm_short" + entry.substr(std::string_view("rms_norm").size()),
           divide_up(rows, kernels::kShortNormThreads / lanes), kernels::kShortNormThreads, p, stream, 0, 1,
           only);
    return;
  }
  launch("common/rms_norm.cu", entry, rows, row_threads(a.x.columns, rows, kNormGroups, kNormThreads), p,
         stream, 0, 1, only);
}

void DeviceKernels::layer_norm(const LayerNormArguments& a, Stream stream) {
  validate(a);
  kernels::LayerNormParams p{};
  const std::int64_t head_stride = a.heads > 1 ? a.head_stride : 0;
  p.x = heads_of(a.x, head_stride);
  p.out = heads_of(a.out, head_stride);
  if (a.residual) p.residual = rows_of(*a.residual);
  p.weight = rows_of(a.weight);
  if (a.bias) p.bias = rows_of(*a.bias);
  p.columns = a.x.columns;
  p.head_stride = head_stride;
  p.heads = a.heads;
  p.eps = a.eps;
  // Of any number of rows the same threads: a row's sums must not depend on how many there are.
  launch("common/layer_norm.cu", "layer_norm_any", a.x.rows * a.heads,
         row_threads(a.x.columns, /*rows=*/1, kNormGroups, kNormThreads), p, stream);
}

void DeviceKernels::rope(const RopeArguments& a, Stream stream) {
  validate(a);
  if (a.num_pairs == 0) return;
  const kernels::RopeParams p{
      rotation_of(a.positions, a.inverse_frequencies, a.num_pairs, a.head_dim, a.pairing, a.attention_factor),
      heads_of(a.x, a.head_dim), a.heads};
  launch("common/rope.cu", "rope_any", a.x.rows, static_cast<unsigned>(kRopeThreads), p, stream,
         2 * sizeof(float) * static_cast<std::size_t>(a.num_pairs));
}

void DeviceKernels::rope_append(const RopeAppendArguments& a, Stream stream) {
  validate(a);
  const kernels::RopeAppendParams p = rope_append_params(a);
  // Groups of pairs must be whole, too.
  const std::int64_t columns = a.num_pairs % kernels::kGroupSize == 0 ? a.head_dim : 1;
  launch("common/rope.cu",
         entry_for("rope_append", columns, {p.q, p.k, p.v, p.cache_k, p.cache_v}, a.q.dtype), a.q.rows,
         rope_threads(a, launcher_.warp_size()), p, stream,
         2 * sizeof(float) * static_cast<std::size_t>(a.num_pairs));
}

void DeviceKernels::gated_activation(const GatedActivationArguments& a, Stream stream) {
  validate(a);
  kernels::GatedActivationParams p{};
  p.gate = rows_of(a.gate);
  if (a.up) p.up = rows_of(*a.up);
  p.out = rows_of(a.out);
  p.columns = a.out.columns;
  p.blocks_per_row = elementwise_blocks_per_row(a.out.columns);
  p.activation = static_cast<int>(a.activation);
  launch("common/elementwise.cu",
         entry_for("gated_activation", p.columns, {p.gate, a.up ? p.up : p.gate, p.out}, a.gate.dtype),
         a.out.rows * p.blocks_per_row, kElementwiseThreads, p, stream);
}

void DeviceKernels::route_experts(const RouteExpertsArguments& a, Stream stream) {
  validate(a);
  if (a.logits.rows == 0) return;
  kernels::RouteExpertsParams p{};
  p.logits = rows_of(a.logits);
  p.routing = routing_params(a.routing, a.logits.rows);
  p.rows = a.logits.rows;
  p.score_bias = a.score_bias;
  p.expert_scales = a.expert_scales;
  p.normalized = a.normalized ? 1 : 0;
  p.is_sigmoid = a.scoring == ExpertScoring::kSigmoid ? 1 : 0;
  p.by_scores = chooses_by_logits(a) ? 0 : 1;
  p.num_groups = a.num_groups;
  p.num_groups_used = a.num_groups_used;
  p.num_experts_of_group = a.num_experts_of_group;
  p.weight_scale = a.weight_scale;
  const int keys = a.routing.num_experts + a.num_groups;
  const auto key_bytes = [&](int threads) {
    const auto warps = static_cast<std::size_t>(threads) / launcher_.warp_size();
    return warps * static_cast<std::size_t>(keys) * sizeof(float);
  };
  if (p.routing.slots <= kernels::kMostFewSlots && keys <= kMostKeysOfFewRows) {
    launch("common/experts.cu", "route_few_rows", 1, kernels::kRouteFewThreads, p, stream,
           key_bytes(kernels::kRouteFewThreads));
    return;
  }
  const std::int64_t rows_of_block = kernels::kRouteThreads / std::int64_t{launcher_.warp_size()};
  launch("common/experts.cu", "route_experts", divide_up(a.logits.rows, rows_of_block),
         kernels::kRouteThreads, p, stream, key_bytes(kernels::kRouteThreads));
  launch("common/experts.cu", "group_slots", a.routing.num_experts, kernels::kGroupThreads, p.routing,
         stream);
}

void DeviceKernels::combine_experts(const CombineExpertsArguments& a, Stream stream) {
  validate(a);
  kernels::CombineExpertsParams p{};
  p.x = rows_of(a.x);
  p.out = rows_of(a.out);
  p.weights = a.weights;
  p.columns = a.out.columns;
  p.blocks_per_row = elementwise_blocks_per_row(a.out.columns);
  p.num_slots = a.num_slots;
  p.accumulate = a.accumulate ? 1 : 0;
  launch("common/experts.cu", "combine_experts", a.out.rows * p.blocks_per_row, kElementwiseThreads, p,
         stream);
}

DeviceKernels::ExpertGemvKernel DeviceKernels::expert_gemv_kernel(const ExpertGemmArguments& a) const {
  const kernels::ExpertGemmParams p = expert_gemm_params(a);
  // All experts' weights begin where they may if the first does.
  if (p.expert_bytes % kernels::kMovedBytes != 0) return {};
  GemmArguments one;
  one.x = a.x;
  one.weight = a.weight;
  one.weight.rows = p.gemm.n;
  // Sums of slots of Q8_0 are left to the kernel of all blocks.
  const bool is_summed_q8 = a.combines && a.weight.dtype == DType::kQ8_0;
  const int part_of_types = is_summed_q8 ? 0 : part_of_gemv(one, p.gemm);
  return {part_of_types, part_of_types == 0 && takes_blocks(one, p.gemm, launcher_)};
}

bool DeviceKernels::takes_fused_expert_gemm(const ExpertGemmArguments& a) const {
  validate(a);
  if (num_slots_in_all(a) == 0) return true;
  if (a.batch_invariant || num_slots_in_all(a) > most_slots_apart(a) || launcher_.tunes_expert_gemm(a))
    return false;
  const ExpertGemvKernel kernel = expert_gemv_kernel(a);
  const bool has_kernel = kernel.part_of_types != 0 || kernel.is_blocks;
  return has_kernel && (a.combines || rows_of_expert(a) % kGemvRows == 0);
}

void DeviceKernels::expert_gemm(const ExpertGemmArguments& a, Stream stream) {
  validate(a);
  if (num_slots_in_all(a) == 0) return;
  if (a.activation || a.combines) {
    if (!takes_fused_expert_gemm(a)) refuse_fused(a);
    return expert_gemv(a, stream);
  }
  if (launcher_.tuned_expert_gemm(a, stream)) return;
  // A row's sums must not depend on the others if batch_invariant, and those of tiles never do.
  if (!a.batch_invariant && a.out.rows <= most_slots_apart(a)) return expert_gemv(a, stream);
  launch("common/expert_gemm_tiled.cu", "expert_gemm_tiled", divide_up(a.out.columns, kTile), kTiledThreads,
         expert_gemm_params(a), stream, 0, most_expert_tiles(a, kTile));
}

void DeviceKernels::expert_gemv(const ExpertGemmArguments& a, Stream stream) {
  const kernels::ExpertGemmParams p = expert_gemm_params(a);
  const auto [part_of_types, is_blocks] = expert_gemv_kernel(a);
  const bool is_any = part_of_types == 0 && !is_blocks;
  const auto warp_size = static_cast<int>(launcher_.warp_size());
  const std::int64_t num_blocks = divide_up(p.gemm.n, is_any ? kGemvThreads / warp_size : kGemvRows);
  const std::string_view x = dtype_name(a.x.dtype);
  if (is_blocks) {
    const BlockFormat& format = block_format(a.weight.dtype);
    // Where slots are summed each warp has one of their steps at least.
    const std::int64_t steps =
        divide_up<std::int64_t>(p.gemm.k, kernels::step_columns(warp_size)) * a.routing.num_slots;
    const int warps =
        a.combines
            ? static_cast<int>(std::bit_floor(
                  static_cast<std::uint64_t>(std::min<std::int64_t>(steps, kGemvThreads / warp_size))))
            : warps_of_blocks(p.gemm.k, num_blocks * a.out.rows, warp_size, launcher_.num_multiprocessors());
    const int vectors =
        warps * kernels::warp_vectors(format.elements, static_cast<int>(format.bytes), kGemvRows, warp_size);
    launch("common/expert_gemv_blocks.cu",
           fmt::format("expert_gemv_blocks_{}{}", a.combines ? "combined_" : "", x), num_blocks,
           static_cast<unsigned>(warps * warp_size), p, stream,
           static_cast<std::size_t>(vectors) * kernels::kMovedBytes, a.out.rows, part_of_x(a.x.dtype),
           a.weight.dtype);
    return;
  }
  launch("common/expert_gemv.cu",
         is_any ? "expert_gemv_any"
                : fmt::format("expert_gemv_{}{}_{}", a.combines ? "combined_" : "", x,
                              dtype_name(a.weight.dtype)),
         num_blocks, kGemvThreads, p, stream, 0, a.out.rows, is_any ? 1 : part_of_types);
}

void DeviceKernels::softmax(const SoftmaxArguments& a, Stream stream) {
  validate(a);
  const kernels::SoftmaxParams p{rows_of(a.x), rows_of(a.out), a.x.columns};
  const bool is_short = a.x.columns <= std::int64_t{kSoftmaxThreads} * kSoftmaxGroups * kernels::kGroupSize;
  launch("common/softmax.cu",
         is_short ? entry_for("softmax", a.x.columns, {p.x, p.out}, a.x.dtype) : "softmax_any", a.x.rows,
         row_threads(a.x.columns, a.x.rows, kSoftmaxGroups, kSoftmaxThreads), p, stream);
}

void DeviceKernels::transform(const char* name, const Matrix& x, float number, Stream stream) {
  const int blocks = elementwise_blocks_per_row(x.columns);
  const kernels::TransformParams p{rows_of(x), x.columns, blocks, number};
  launch("common/elementwise.cu", entry_for(name, x.columns, {p.x}, x.dtype), x.rows * blocks,
         kElementwiseThreads, p, stream);
}

void DeviceKernels::scale(const ScaleArguments& a, Stream stream) {
  validate(a);
  transform("scale", a.x, a.factor, stream);
}

void DeviceKernels::softcap(const SoftcapArguments& a, Stream stream) {
  validate(a);
  transform("softcap", a.x, a.cap, stream);
}

void DeviceKernels::causal_mask(const CausalMaskArguments& a, Stream stream) {
  validate(a);
  const int blocks = elementwise_blocks_per_row(a.x.columns);
  launch("common/elementwise.cu", "causal_mask_any", a.x.rows * blocks, kElementwiseThreads,
         kernels::CausalMaskParams{rows_of(a.x), a.x.columns, a.shift, blocks}, stream);
}

void DeviceKernels::adjust_logits(const AdjustLogitsArguments& a, Stream stream) {
  validate(a);
  static_assert(sizeof(LogitBias) == sizeof(kernels::LogitBiasEntry) &&
                offsetof(LogitBias, bias) == offsetof(kernels::LogitBiasEntry, bias));
  kernels::AdjustLogitsParams p{};
  p.logits = rows_of(a.logits);
  p.out = rows_of(a.out);
  p.masks = a.masks;
  p.mask_rows = a.mask_rows;
  p.mask_stride = a.mask_stride;
  p.biases = reinterpret_cast<const kernels::LogitBiasEntry*>(a.biases);
  p.bias_offsets = a.bias_offsets;
  p.columns = a.logits.columns;
  p.blocks_per_row = static_cast<int>(divide_up(a.logits.columns, kernels::kAdjustTile));
  launch("common/logits.cu", "adjust_logits", a.logits.rows * p.blocks_per_row, kElementwiseThreads, p,
         stream);
}

void DeviceKernels::logprobs(const LogprobsArguments& a, Stream stream) {
  validate(a);
  kernels::LogprobsParams p{};
  p.logits = rows_of(a.logits);
  p.tokens = a.tokens;
  p.logprobs = a.logprobs;
  p.top_tokens = a.top_tokens;
  p.top_logprobs = a.top_logprobs;
  p.columns = a.logits.columns;
  p.num_top = a.num_top;
  launch("common/logits.cu", "logprobs", a.logits.rows, kernels::kLogprobThreads, p, stream);
}

void DeviceKernels::gemm(const GemmArguments& a, Stream stream) {
  validate(a);
  if (a.x.rows == 0) return;
  if (launcher_.tuned_gemm(a, {}, stream)) return;
  if (takes_few_rows(a)) {
    gemm_few_rows(a, 0, stream);
    return;
  }
  // A grid's second dimension is short.
  constexpr std::int64_t kRowsAtOnce = kMaxGridYz * kTile;
  for (std::int64_t begin = 0; begin < a.x.rows; begin += kRowsAtOnce) {
    const kernels::GemmParams part =
        gemm_params(rows_from(a, begin, std::min(kRowsAtOnce, a.x.rows - begin)), 0);
    launch("common/gemm_tiled.cu", "gemm_tiled", divide_up(part.n, kTile), kTiledThreads, part, stream, 0,
           divide_up(part.m, kTile));
  }
}

bool DeviceKernels::takes_gated_gemm(const GemmArguments& a, GatedActivation activation) const {
  if (a.weight.rows != 2 * a.out.columns) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("gated_gemm: the weight has {} rows and out {} columns; expected two rows a column",
                    a.weight.rows, a.out.columns));
  }
  GemmArguments half = a;
  half.weight.rows = a.out.columns;
  if (half.bias) half.bias->columns = a.out.columns;
  validate(half);
  if (a.x.rows == 0) return true;
  if (activation > GatedActivation::kGeGluTanh) return false;  // the others are gated_activation's alone
  if (launcher_.tunes_gated_gemm(a, activation)) return true;
  if (launcher_.tunes_gemm(a)) return false;
  const kernels::GemmParams p = gemm_params(a, 1 + static_cast<int>(activation));
  return takes_few_rows(a) && (part_of_gemv(a, p) != 0 || takes_blocks(a, p, launcher_)) &&
         p.n % kGemvRows == 0;
}

void DeviceKernels::gated_gemm(const GemmArguments& a, GatedActivation activation, Stream stream) {
  if (!takes_gated_gemm(a, activation)) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("gated_gemm: no kernel for {} rows and {} x {} weights of {}; expected a caller that "
                    "asks takes_gated_gemm() first",
                    a.x.rows, a.weight.rows, a.weight.columns, dtype_name(a.weight.dtype)));
  }
  if (a.x.rows == 0) return;
  if (launcher_.tuned_gemm(a, activation, stream)) return;
  gemm_few_rows(a, 1 + static_cast<int>(activation), stream);
}

void DeviceKernels::gemm_few_rows(const GemmArguments& a, int gated, Stream stream) {
  const kernels::GemmParams p = gemm_params(a, gated);
  const auto warp_size = static_cast<int>(launcher_.warp_size());
  const int part_of_types = part_of_gemv(a, p);
  const bool is_blocks = part_of_types == 0 && takes_blocks(a, p, launcher_);
  const bool is_any = part_of_types == 0 && !is_blocks;
  const std::int64_t num_blocks = divide_up(p.n, is_any ? kGemvThreads / warp_size : kGemvRows);
  for (std::int64_t begin = 0; begin < a.x.rows; begin += kMostGemvRows) {
    const kernels::GemmParams part =
        gemm_params(rows_from(a, begin, std::min(kMostGemvRows, a.x.rows - begin)), gated);
    const auto kernel_rows = std::bit_ceil(static_cast<std::uint64_t>(part.m));
    const std::string_view x = dtype_name(a.x.dtype);
    if (is_blocks) {
      const BlockFormat& format = block_format(a.weight.dtype);
      const int warps = warps_of_blocks(p.k, num_blocks, warp_size, launcher_.num_multiprocessors());
      const int vectors = warps * kernels::warp_vectors(format.elements, static_cast<int>(format.bytes),
                                                        kGemvRows, warp_size);
      launch("common/gemv_blocks.cu", fmt::format("gemv_blocks_{}_{}", x, kernel_rows), num_blocks,
             static_cast<unsigned>(warps * warp_size), part, stream,
             static_cast<std::size_t>(vectors) * kernels::kMovedBytes, 1, part_of_x(a.x.dtype),
             a.weight.dtype);
      continue;
    }
    launch("common/gemv.cu",
           is_any ? "gemv_any" : fmt::format("gemv_{}_{}_{}", x, dtype_name(a.weight.dtype), kernel_rows),
           num_blocks, kGemvThreads, part, stream, 0, 1, is_any ? 1 : part_of_types);
  }
}

}  // namespace tessera::gpu
