#include "backends/cuda/ops/q8_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <memory>

#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/rounding.h"
#include "sm80/gemm_q8.h"
#include "sm80/gemm_q8_traits.h"
#include "tessera/error.h"

namespace tessera::cuda {

using gpu::gemm_params;

namespace {

using kernels::kTileM;

constexpr std::int64_t kGroupRows = kernels::kTileRows;  // of w

/// Of x; with more, a kernel of its own for the activation costs little.
constexpr std::int64_t kMostGatedRows = 32;

/// Most rows of x that gemm_q8.cu takes at once.
std::int64_t most_few_rows(DType x) { return x == DType::kF32 ? 16 : 32; }

/// Whether gemm_q8_tiled.cu is faster than gemm_q8.cu pass by pass, of as many rows of x as that takes. As
/// measured, a multiprocessor multiplies so many rows of w in a pass in the time that it takes for a tile,
/// and a pass takes as long again as some rows to start and end.
bool takes_tiles(DType x, std::int64_t passes, std::int64_t rows, std::int64_t tiles,
                 std::int64_t multiprocessors) {
  const std::int64_t rows_in_time_of_tile = x == DType::kF32 ? 900 : 270;
  constexpr std::int64_t kRowsInTimeOfStart = 32;
  return passes * (rows + kRowsInTimeOfStart * multiprocessors) >
         divide_up(tiles, multiprocessors) * multiprocessors * rows_in_time_of_tile;
}

std::int64_t tiles_of(const GemmArguments& a, std::int64_t warps) {
  return divide_up(a.weight.rows, warps * kernels::kQ8TiledWarpRows) *
         divide_up(a.x.rows, kernels::kQ8TiledTiles * kTileM);
}

/// Whether gemm_q8.cu takes a product of some number of rows of x.
bool fits(const GemmArguments& a, int gated) {
  const kernels::GemmParams p = gemm_params(a, gated);
  // It counts bytes between the rows of a group in 32 bits.
  const std::int64_t row_bytes = a.weight.columns / kernels::kQ8PieceColumns * kernels::kQ8PieceBytes;
  const std::int64_t group_span = gated == 0 ? kGroupRows : a.out.columns + kGroupRows;
  return p.x.vector != 0 && p.weight.vector != 0 &&
         a.out.columns >= (gated == 0 ? kGroupRows : kGroupRows / 2) &&
         a.weight.rows <= std::numeric_limits<int>::max() - kGroupRows &&
         group_span * row_bytes <= std::numeric_limits<std::int32_t>::max();
}

/// The columns of out from `begin` on, and the rows of the weight that make them.
GemmArguments columns_of(const GemmArguments& a, std::int64_t begin, std::int64_t count) {
  GemmArguments part = a;
  part.weight.rows = count;
  part.weight.data = static_cast<const std::byte*>(a.weight.data) +
                     dtype_bytes(a.weight.dtype, static_cast<std::size_t>(begin * a.weight.columns));
  part.out.columns = count;
  part.out.data =
      static_cast<std::byte*>(a.out.data) + dtype_bytes(a.out.dtype, static_cast<std::size_t>(begin));
  if (a.bias) {
    part.bias->columns = count;
    part.bias->data = static_cast<const std::byte*>(a.bias->data) +
                      dtype_bytes(a.bias->dtype, static_cast<std::size_t>(begin));
  }
  return part;
}

}  // namespace

Q8Products::Q8Products(gpu::Gpu& device, gpu::LibraryProducts* library) : gpu_(device), library_(library) {}

bool Q8Products::takes_gated(const GemmArguments& a, GatedActivation activation) const {
  return a.x.rows <= kMostGatedRows && fits(a, 1 + static_cast<int>(activation));
}

bool Q8Products::gemm(const GemmArguments& a, std::optional<GatedActivation> activation, Stream stream) {
  const int gated = activation ? 1 + static_cast<int>(*activation) : 0;
  const std::int64_t most = most_few_rows(a.x.dtype);
  if (activation ? !takes_gated(a, *activation) : !fits(a, 0)) return false;
  if (gated == 0 && a.x.rows > most) {
    if (multiply_widened(a, stream)) return true;
    if (takes_tiles(a.x.dtype, divide_up(a.x.rows, most), a.weight.rows,
                    tiles_of(a, kernels::kQ8TiledMostWarps), gpu_.properties().num_multiprocessors)) {
      multiply_tiles(a, stream);
      return true;
    }
  }
  for (std::int64_t begin = 0; begin < a.x.rows; begin += most)
    multiply_few(gpu::rows_from(a, begin, std::min(most, a.x.rows - begin)), gated, stream);
  return true;
}

void Q8Products::multiply_few(const GemmArguments& a, int gated, Stream stream) {
  const std::int64_t tiles = a.x.rows <= kTileM ? 1 : a.x.rows <= 2 * kTileM ? 2 : 4;
  const std::int64_t groups = divide_up(a.weight.rows, kGroupRows);
  const std::int64_t blocks = std::min<std::int64_t>(groups, gpu_.properties().num_multiprocessors);
  const std::int64_t share = divide_up(groups, blocks);
  const auto shared_bytes = [&](std::int64_t warps, std::int64_t at_once) {
    return static_cast<std::size_t>(kernels::q8_shared_bytes(warps, at_once, a.x.rows));
  };
  std::int64_t warps = tiles == 1 ? 16 : 8;
  const std::size_t most_bytes = gpu_.properties().shared_per_block_bytes;
  while (warps > 1 && shared_bytes(warps, 1) > most_bytes) warps /= 2;
  // What a warp holds of x serves groups in as many rounds as it must, of equal sizes.
  constexpr std::int64_t kMostAtOnce = 16;
  std::int64_t at_once = 1;
  for (std::int64_t rounds = divide_up(share, kMostAtOnce); rounds <= share; ++rounds) {
    at_once = divide_up(share, rounds);
    if (shared_bytes(warps, at_once) <= most_bytes) break;
  }
  kernels::Q8GemmParams params{gemm_params(a, gated), static_cast<int>(groups / blocks),
                               static_cast<int>(groups % blocks), static_cast<int>(at_once)};
  launch("sm80/gemm_q8.cu", fmt::format("gemm_q8_{}_{}", dtype_name(a.x.dtype), tiles), blocks,
         static_cast<unsigned>(warps * 32), shared_bytes(warps, at_once), &params, stream);
}

void Q8Products::multiply_tiles(const GemmArguments& a, Stream stream) {
  kernels::GemmParams params = gemm_params(a, 0);
  const auto shared_bytes = [&](int warps) {
    return static_cast<std::size_t>(kernels::q8_tiled_shared_bytes(warps, a.x.dtype == DType::kF32));
  };
  int warps = kernels::kQ8TiledMostWarps;
  while (warps > 1 && shared_bytes(warps) > gpu_.properties().shared_per_block_bytes) warps /= 2;
  launch("sm80/gemm_q8_tiled.cu", fmt::format("gemm_q8_tiled_{}", dtype_name(a.x.dtype)), tiles_of(a, warps),
         static_cast<unsigned>(warps * 32), shared_bytes(warps), &params, stream);
}

bool Q8Products::multiply_widened(const GemmArguments& a, Stream stream) {
  // fp16 might not hold the weights, and an fp32 result would show that they were rounded.
  if (library_ == nullptr || a.x.dtype != DType::kBF16 || a.out.dtype != DType::kBF16) return false;
  // As much as stays in the L2 cache between being written and read; the stream's own, from the pool.
  constexpr std::int64_t kScratchBytes = std::int64_t{32} << 20;
  constexpr std::int64_t kRowsTogether = 256;
  const std::int64_t row_bytes = a.weight.columns * 2;
  const std::int64_t most_rows =
      std::max(kRowsTogether, kScratchBytes / row_bytes / kRowsTogether * kRowsTogether);
  const std::int64_t rounds = divide_up(a.weight.rows, most_rows);
  const std::int64_t rows_at_once =
      std::min(round_up(divide_up(a.weight.rows, rounds), kRowsTogether), a.weight.rows);
  const std::shared_ptr<std::byte> scratch =
      gpu_.allocate(static_cast<std::size_t>(rows_at_once * row_bytes), "Q8_0 weights as bf16", stream);
  for (std::int64_t begin = 0; begin < a.weight.rows; begin += rows_at_once) {
    const GemmArguments part = columns_of(a, begin, std::min(rows_at_once, a.weight.rows - begin));
    const void* blocks = part.weight.data;
    void* out = scratch.get();
    kernels::int64 groups = part.weight.rows * part.weight.columns / kernels::kGroupSize;
    std::array<void*, 3> parameters = {&blocks, &out, &groups};
    const gpu::Kernel& kernel = gpu_.kernels().find({"sm80/widen_q8.cu", {}}, "widen_q8_bf16");
    const auto num_blocks = static_cast<unsigned>(divide_up<std::int64_t>(groups, kernels::kWidenThreads));
    gpu_.launch(kernel, {{num_blocks, 1, 1}, {kernels::kWidenThreads, 1, 1}, 0, true}, parameters, stream,
                "widen_q8_bf16");
    GemmArguments widened = part;
    widened.weight.data = scratch.get();
    widened.weight.dtype = DType::kBF16;
    if (gpu::library_gemm(*library_, widened, stream)) continue;
    if (begin == 0) return false;
    multiply_tiles(part, stream);
  }
  return true;
}

void Q8Products::launch(const std::string& source, const std::string& entry, std::int64_t blocks,
                        unsigned threads, std::size_t shared_bytes, void* params, Stream stream) {
  if (blocks > std::numeric_limits<int>::max()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} would take a grid of {} blocks; expected at most {}: use fewer rows at once",
                            entry, blocks, std::numeric_limits<int>::max()));
  }
  const gpu::Kernel& kernel = gpu_.kernels().find({source, {}}, entry, shared_bytes);
  const gpu::LaunchShape shape{{static_cast<unsigned>(blocks), 1, 1}, {threads, 1, 1}, shared_bytes, true};
  const std::array<void*, 1> parameters = {params};
  gpu_.launch(kernel, shape, parameters, stream, entry);
}

}  // namespace tessera::cuda
