#include "backends/cuda/ops/expert_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "backends/cuda/ops/block_rows_products.h"
#include "backends/cuda/ops/stream_products.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/ops/widened_products.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "common/gemv_blocks_traits.h"
#include "core/block_format.h"
#include "core/rounding.h"
#include "sm80/expert_gemm_traits.h"
#include "sm90/expert_blocks.h"
#include "sm90/expert_many_rows.h"

namespace tessera::cuda {
namespace {

/// Of widened weights: so many experts' that their tiles keep all multiprocessors busy for some rounds. As
/// few as stay in the last cache would leave most of them idle at the end of each product.
constexpr std::int64_t kScratchBytes = std::int64_t{256} << 20;

bool is_at_vectors(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kernels::kMovedBytes == 0;
}

bool has_16_bit_weights(const ExpertGemmArguments& a) {
  return gpu::is_16_bit(a.x.dtype) && a.weight.dtype == a.x.dtype;
}

/// gpu::most_slots_apart where tiles read weights of 16 bits or of blocks once: where half of the experts
/// have a slot, some have two (docs/kernels/experts.md).
std::int64_t most_slots_apart(const ExpertGemmArguments& a) {
  constexpr std::int64_t kRows = 4;
  return std::max<std::int64_t>(kRows * a.routing.num_slots, a.routing.num_experts / 2);
}

/// `experts` experts from `first` on, whose weights stand at `weights`. Which slots are theirs is in the same
/// memory as that of all.
ExpertGemmArguments some_experts(const ExpertGemmArguments& a, int first, int experts, const void* weights) {
  ExpertGemmArguments part = a;
  part.routing.num_experts = experts;
  part.routing.offsets += first;
  part.weight.data = weights;
  part.weight.dtype = DType::kBF16;
  part.weight.rows = rows_of_expert(a) * experts;
  if (a.bias) {
    part.bias->rows = experts;
    part.bias->data = static_cast<const std::byte*>(a.bias->data) +
                      dtype_bytes(a.bias->dtype, static_cast<std::size_t>(first * a.bias->columns));
  }
  return part;
}

}  // namespace

ExpertProducts::ExpertProducts(CudaGpu& gpu) : gpu_(gpu), workspaces_(gpu, "widened weights of experts") {}

bool ExpertProducts::takes(const ExpertGemmArguments& a) const {
  if (slots_of_blocks(a) > 0) return true;
  const bool is_16_bit = has_16_bit_weights(a);
  const bool is_blocks = block_format(a.weight.dtype).elements > 1 && a.x.dtype == DType::kBF16 &&
                         a.out.dtype == DType::kBF16 && !a.batch_invariant;
  if (gpu_.properties().compute_capability < 80 || !(is_16_bit || is_blocks)) return false;
  if (gpu::rows_of(a.x).vector == 0 || !is_at_vectors(a.weight.data) || a.weight.columns % 8 != 0)
    return false;
  return a.batch_invariant ||
         num_slots_in_all(a) > (is_16_bit ? most_slots_apart(a) : gpu::most_slots_apart(a));
}

bool ExpertProducts::gemm(const ExpertGemmArguments& a, Stream stream) {
  if (const int slots = slots_of_blocks(a); slots > 0) {
    launch_blocks(a, slots, stream);
    return true;
  }
  if (!takes(a)) return false;
  const bool many_rows = takes_many_rows(a);
  if (has_16_bit_weights(a)) {
    launch(a, many_rows, stream);
    return true;
  }
  const std::int64_t expert_elements = rows_of_expert(a) * a.weight.columns;
  const auto at_once = static_cast<int>(
      std::clamp<std::int64_t>(kScratchBytes / (2 * expert_elements), 1, a.routing.num_experts));
  std::byte* const scratch = workspaces_.get(static_cast<std::size_t>(2 * at_once * expert_elements), stream);
  for (int first = 0; first < a.routing.num_experts; first += at_once) {
    const int count = std::min(at_once, a.routing.num_experts - first);
    Weight blocks = a.weight;
    blocks.rows = rows_of_expert(a) * count;
    blocks.data = static_cast<const std::byte*>(a.weight.data) +
                  dtype_bytes(a.weight.dtype, static_cast<std::size_t>(first * expert_elements));
    gpu::widen(gpu_, blocks, scratch, stream);
    launch(some_experts(a, first, count, scratch), many_rows, stream);
  }
  return true;
}

int ExpertProducts::slots_of_blocks(const ExpertGemmArguments& a) const {
  // With fewer than half a slot an expert few slots share weights; with more than 24, widening them once is
  // less.
  constexpr std::int64_t kMostOfExpert = 24;
  const std::int64_t slots = num_slots_in_all(a), experts = a.routing.num_experts;
  if (gpu_.properties().compute_capability != 90 || a.batch_invariant || !gpu::is_16_bit(a.x.dtype) ||
      (a.out.dtype != a.x.dtype && a.out.dtype != DType::kF32) ||
      !gpu::is_aligned(a.x.data, a.x.dtype, a.x.row_stride) || slots <= most_slots_apart(a) ||
      slots > kMostOfExpert * experts)
    return 0;
  const kernels::BlockRowsFormat format = rows_format(a.weight.dtype);
  const std::int64_t elements = block_format(a.weight.dtype).elements;
  if (format.piece_bytes == 0 || a.weight.columns % elements != 0) return 0;
  // Pieces that are multiples of 16 bytes have to be whole; of others a row's last may go on behind it.
  if (a.weight.columns % (format.piece_bytes % 16 == 0 ? kernels::kPieceColumns : elements) != 0) return 0;
  const kernels::ExpertGemmParams p = gpu::expert_gemm_params(a);
  if (!is_at_vectors(a.weight.data) || p.expert_bytes % kernels::kMovedBytes != 0 ||
      p.expert_bytes > std::numeric_limits<std::int32_t>::max())
    return 0;
  return slots > 12 * experts ? 32 : 16;
}

void ExpertProducts::launch_blocks(const ExpertGemmArguments& a, int slots, Stream stream) {
  kernels::ExpertBlocksParams params{};
  params.product = gpu::expert_gemm_params(a);
  params.w_tiles =
      static_cast<int>(divide_up<std::int64_t>(rows_of_expert(a), kernels::block_rows_tile(slots)));
  params.row_bytes =
      static_cast<unsigned>(dtype_bytes(a.weight.dtype, static_cast<std::size_t>(a.weight.columns)));
  const std::string entry = fmt::format("expert_blocks_{}_{}", dtype_name(a.x.dtype), slots);
  const gpu::ModuleSpec module{"sm90/expert_blocks.cu",
                               {gpu::blocks_define(a.weight.dtype), part_of_16_bit_define(a.x.dtype)}};
  const auto shared_bytes =
      static_cast<std::size_t>(kernels::block_rows_shared_bytes(rows_format(a.weight.dtype), slots));
  const gpu::Kernel& kernel = gpu_.kernels().find(module, entry, shared_bytes);
  const std::int64_t items = std::int64_t{params.w_tiles} * gpu::most_expert_tiles(a, slots);
  const std::int64_t blocks = std::min<std::int64_t>(items, gpu_.properties().num_multiprocessors);
  const gpu::LaunchShape shape{{static_cast<unsigned>(blocks), 1, 1},
                               {static_cast<unsigned>(kernels::block_rows_threads(slots)), 1, 1},
                               shared_bytes,
                               true};
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry, params);
}

bool ExpertProducts::takes_many_rows(const ExpertGemmArguments& a) const {
  constexpr std::int64_t kSlotsOfExpert = 8;  // with fewer on the average, smaller tiles do
  const gpu::DeviceProperties& device = gpu_.properties();
  return device.compute_capability == 90 && device.has_tensor_maps && !a.batch_invariant &&
         a.out.dtype == a.x.dtype && gpu::is_aligned(a.out.data, a.out.dtype, a.out.row_stride) &&
         a.x.row_stride < std::numeric_limits<int>::max() / 2 &&
         rows_of_expert(a) % kernels::kGroupSize == 0 && a.weight.columns % kernels::kGroupSize == 0 &&
         num_slots_in_all(a) >= kSlotsOfExpert * a.routing.num_experts &&
         a.weight.rows < std::numeric_limits<int>::max() - kernels::kExpertRowsTile;
}

void ExpertProducts::launch_many_rows(const ExpertGemmArguments& a, Stream stream) {
  kernels::ExpertRowsParams params{};
  params.product = gpu::expert_gemm_params(a);
  params.w_tiles = static_cast<int>(divide_up<std::int64_t>(rows_of_expert(a), kernels::kExpertRowsTile));
  TensorMapShape weight{.data = a.weight.data, .dtype = a.weight.dtype};
  weight.add(a.weight.columns, 0, kernels::kExpertRowsStep);
  weight.add(a.weight.rows, a.weight.columns * 2, kernels::kExpertRowsTile);
  params.weight = encode_tensor_map(weight);
  const std::string entry = fmt::format("expert_many_rows_{}", dtype_name(a.x.dtype));
  const gpu::ModuleSpec module{"sm90/expert_many_rows.cu", {part_of_16_bit_define(a.x.dtype)}};
  const auto shared_bytes = static_cast<std::size_t>(kernels::expert_rows_shared_bytes());
  const gpu::Kernel& kernel = gpu_.kernels().find(module, entry, shared_bytes);
  const std::int64_t items =
      std::int64_t{params.w_tiles} * gpu::most_expert_tiles(a, kernels::kExpertRowsSlots);
  const std::int64_t blocks = std::min<std::int64_t>(items, gpu_.properties().num_multiprocessors);
  const gpu::LaunchShape shape{{static_cast<unsigned>(blocks), 1, 1},
                               {static_cast<unsigned>(kernels::kExpertRowsThreads), 1, 1},
                               shared_bytes,
                               true};
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry, params);
}

void ExpertProducts::launch(const ExpertGemmArguments& a, bool many_rows, Stream stream) {
  if (many_rows) return launch_many_rows(a, stream);
  const kernels::ExpertGemmParams params = gpu::expert_gemm_params(a);
  const std::string entry = fmt::format("expert_gemm_{}", dtype_name(a.x.dtype));
  const auto shared_bytes = static_cast<std::size_t>(kernels::expert_shared_bytes());
  const gpu::Kernel& kernel = gpu_.kernels().find({"sm80/expert_gemm.cu", {}}, entry, shared_bytes);
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>(divide_up<std::int64_t>(a.out.columns, kernels::kExpertTileN)),
                static_cast<unsigned>(gpu::most_expert_tiles(a, kernels::kExpertTileM)), 1};
  shape.block = {kernels::kExpertThreads, 1, 1};
  shape.shared_bytes = shared_bytes;
  shape.overlaps_prior = true;
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry.c_str(), params);
}

}  // namespace tessera::cuda
