#include "backends/cuda/ops/stream_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "common/ops_params.h"
#include "core/rounding.h"
#include "ops/validate.h"
#include "sm80/gemm_blocks_traits.h"
#include "sm80/gemv_stream_traits.h"
#include "tessera/error.h"

namespace tessera::cuda {

using gpu::gemm_params;
using gpu::is_16_bit;
using gpu::rope_append_params;
using gpu::rows_of;

namespace {

using kernels::StreamParams;

using kernels::kMostStreamRows;
using kernels::kStreamRows;

constexpr int kRowsApart = 2;
constexpr std::int64_t kStaticSharedBytes = 1024 + 128;  // the system's of each block, and the kernel's

/// Apart from the size of shared memory. A row of x must have the weight's type, or be normed to it.
bool fits(const StreamParams& p, const GemmArguments& a) {
  return is_16_bit(a.weight.dtype) && !a.batch_invariant && a.x.rows <= kMostStreamRows &&
         p.gemm.x.vector != 0 && p.gemm.weight.vector != 0 && p.gemm.k % kernels::kGroupSize == 0 &&
         p.gemm.n < std::numeric_limits<int>::max() && (p.gemm.gated == 0 || p.gemm.n % kStreamRows == 0);
}

StreamParams normed_params(const NormedGemmArguments& a) {
  StreamParams p = stream_params(a.gemm, a.activation, kRowsApart);
  p.norm_weight = rows_of(a.norm_weight);
  p.eps = a.eps;
  if (!a.rope) return p;
  p.rope = rope_append_params(*a.rope);
  p.first_head = a.first_head;
  if (a.rope->pairing == RopePairing::kHalves) {
    p.group_shift = std::countr_zero(static_cast<unsigned>(a.rope->head_dim) / 4);
    p.rows_apart = a.rope->head_dim / 2;
  }
  return p;
}

}  // namespace

StreamParams stream_params(const GemmArguments& a, std::optional<GatedActivation> activation,
                           int rows_apart) {
  StreamParams p{};
  p.gemm = gemm_params(a, activation ? 1 + static_cast<int>(*activation) : 0);
  p.group_shift = activation ? 31 : 0;
  p.rows_apart = activation ? static_cast<int>(p.gemm.n / 2) : rows_apart;
  return p;
}

std::optional<StreamParams> projection_params(const NormedGemmArguments& a) {
  const DType dtype = a.gemm.out.dtype;
  // Rows that no such kernel takes are rounded before they are rotated.
  if (a.gemm.batch_invariant || a.gemm.x.rows == 0 || !is_16_bit(dtype)) return {};
  StreamParams p = stream_params(a.gemm, a.activation, kernels::kTileRows / 2);
  if (!a.rope) return p;
  const auto head_dim = static_cast<unsigned>(a.rope->head_dim);
  if (a.rope->cache.dtype != dtype || 2 * a.rope->num_pairs != a.rope->head_dim ||
      a.rope->head_dim < kernels::kTileRows || !std::has_single_bit(head_dim))
    return {};
  p.rope = rope_append_params(*a.rope);
  p.first_head = a.first_head;
  if (a.rope->pairing == RopePairing::kHalves) {
    p.group_shift = std::countr_zero(head_dim / kernels::kTileRows);
    p.rows_apart = a.rope->head_dim / 2;
  }
  return p;
}

std::string part_of_16_bit_define(DType dtype) {
  return fmt::format("TESSERA_ONLY={}", dtype == DType::kF16 ? 1 : 2);
}

StreamProducts::Launch StreamProducts::choose_launch(const StreamParams& p) const {
  const gpu::DeviceProperties& device = gpu_.properties();
  if (device.compute_capability < kLeastComputeCapability) return {};
  const std::int64_t chunks = divide_up(p.gemm.k, kernels::kStreamChunk);
  std::int64_t warps_k = kernels::kStreamWarps;
  while (warps_k > chunks) warps_k /= 2;
  const std::int64_t warps_n = kernels::kStreamWarps / warps_k;

  const std::int64_t bytes = kernels::stream_shared_bytes(
      static_cast<int>(p.gemm.m), chunks, p.rope.num_heads == 0 ? 0 : p.rope.rotation.num_pairs);
  if (bytes + kStaticSharedBytes > static_cast<std::int64_t>(device.shared_per_block_bytes)) return {};
  const std::int64_t resident = std::min<std::int64_t>(
      kernels::kMostStreamBlocks,
      static_cast<std::int64_t>(device.shared_per_multiprocessor_bytes) / (bytes + kStaticSharedBytes));
  const std::int64_t rounds_of_a_block = divide_up(divide_up(p.gemm.n, kStreamRows), warps_n);
  return {static_cast<unsigned>(std::min(rounds_of_a_block, resident * device.num_multiprocessors)),
          static_cast<std::size_t>(bytes)};
}

void StreamProducts::launch(const StreamParams& p, const Launch& chosen, DType weight_dtype,
                            Stream stream) const {
  const gpu::ModuleSpec module{"sm80/gemv_stream.cu", {part_of_16_bit_define(weight_dtype)}};
  const std::string entry = fmt::format("gemv_stream{}_{}_{}", p.norm_weight.data != nullptr ? "_normed" : "",
                                        dtype_name(weight_dtype), p.gemm.m);
  const gpu::Kernel& kernel = gpu_.kernels().find(module, entry, chosen.shared_bytes);
  const gpu::LaunchShape shape{{chosen.blocks, 1, 1},
                               {static_cast<unsigned>(kernels::kStreamThreads), 1, 1},
                               chosen.shared_bytes,
                               true};
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry, p);
}

bool StreamProducts::gemm(const GemmArguments& a, std::optional<GatedActivation> activation,
                          Stream stream) const {
  if (a.x.dtype != a.weight.dtype) return false;
  const StreamParams p = stream_params(a, activation, kRowsApart);
  if (!fits(p, a)) return false;
  const Launch chosen = choose_launch(p);
  if (chosen.blocks == 0) return false;
  launch(p, chosen, a.weight.dtype, stream);
  return true;
}

bool StreamProducts::takes_gated(const GemmArguments& a, GatedActivation activation) const {
  if (a.x.dtype != a.weight.dtype) return false;
  const StreamParams p = stream_params(a, activation, kRowsApart);
  return fits(p, a) && choose_launch(p).blocks > 0;
}

bool StreamProducts::takes_normed_gemm(const NormedGemmArguments& a) const {
  const DType dtype = a.gemm.weight.dtype;
  if (a.gemm.x.rows == 0 || a.gemm.x.rows > kMostStreamRows ||
      a.gemm.x.columns > kernels::most_normed_columns(static_cast<int>(a.gemm.x.rows)) ||
      a.gemm.out.dtype != dtype || (a.norm_weight.dtype != dtype && a.norm_weight.dtype != DType::kF32)) {
    return false;
  }
  if (a.rope && (a.rope->cache.dtype != dtype || 2 * a.rope->num_pairs != a.rope->head_dim ||
                 a.rope->num_pairs > kernels::kStreamThreads || a.rope->head_dim < kStreamRows ||
                 !std::has_single_bit(static_cast<unsigned>(a.rope->head_dim)))) {
    return false;
  }
  const StreamParams p = normed_params(a);
  return p.norm_weight.vector != 0 && fits(p, a.gemm) && choose_launch(p).blocks > 0;
}

void StreamProducts::normed_gemm(const NormedGemmArguments& a, Stream stream) const {
  validate(a);
  if (!takes_normed_gemm(a)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("normed_gemm: no kernel for {} rows, {} x {} weights of {} and a norm of {}; "
                            "expected a caller that asks takes_normed_gemm() first",
                            a.gemm.x.rows, a.gemm.weight.rows, a.gemm.weight.columns,
                            dtype_name(a.gemm.weight.dtype), dtype_name(a.norm_weight.dtype)));
  }
  const StreamParams p = normed_params(a);
  launch(p, choose_launch(p), a.gemm.weight.dtype, stream);
}

}  // namespace tessera::cuda
