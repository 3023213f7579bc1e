#include "backends/cuda/ops/block_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "backends/cuda/ops/stream_products.h"
#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/ops/widened_products.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/block_format.h"
#include "core/rounding.h"
#include "ops/validate.h"
#include "sm80/gemm_q8_traits.h"
#include "sm90/gemm_few_rows_blocks.h"
#include "tessera/error.h"

namespace tessera::cuda {

using gpu::gemm_params;

namespace {

using kernels::kTileM;
using kernels::kTileRows;

constexpr std::int64_t kSystemSharedBytes = 1024;  // of each block

/// Of x, that gemm_blocks.cu takes at once.
std::int64_t most_rows(DType x) { return x == DType::kF32 ? kTileM : 2 * kTileM; }
/// Of x; with more, a kernel of its own for the activation costs little.
constexpr std::int64_t kMostGatedRows = 32;
/// Of x, up to which reading w for every most_rows() is faster than widening it.
constexpr std::int64_t kMostRowsOfPasses = 64;
/// Of x, that sm90/gemm_few_rows_blocks.cu is the fastest for; beyond 64 it reads w again.
constexpr std::int64_t kLeastRowsOfWgmma = 9, kMostRowsOfWgmma = 128;

/// WeightPiece of a format; zeros if the kernel does not take it.
struct PieceBytes {
  std::int64_t row = 0;   // of a piece
  std::int64_t unit = 0;  // of a buffer
  int stages = 0;         // of gemm_blocks.cu's warps
  int bits_stages = 0;    // of gemm_block_bits.cu's, at most
};

PieceBytes piece_bytes(DType weight) {
  return dispatch_weight(weight, []<class T>() {
    if constexpr (is_block_format<T>) {
      using Piece = kernels::WeightPiece<T>;
      if (kernels::HasFragment<T>::kValue)
        return PieceBytes{Piece::kBytes, Piece::kUnitBytes, Piece::kStages, Piece::kBitsStages};
    }
    return PieceBytes{};
  });
}

/// The launch for `stream` params whose groups of rows are set; `x_dtype` is what products have of x.
std::optional<BlockGemmLaunch> choose_launch(const kernels::StreamParams& stream, DType x_dtype, DType weight,
                                             const gpu::DeviceProperties& device) {
  const kernels::GemmParams& p = stream.gemm;
  const bool is_normed = stream.norm_weight.data != nullptr;
  const std::int64_t out_rows = p.gated == 0 ? kTileRows : kTileRows / 2;  // of w, that a group makes
  const std::int64_t columns = p.gated == 0 ? p.n : p.n / 2;
  const std::int64_t pieces = p.k / kernels::kPieceColumns;
  const PieceBytes piece = piece_bytes(weight);
  if (device.compute_capability < kLeastComputeCapability || p.m > most_rows(x_dtype) || p.x.vector == 0 ||
      !has_pieces(stream, piece.row) || columns < out_rows)
    return {};

  const std::int64_t tiles = p.m <= kTileM ? 1 : 2;
  const std::int64_t groups = divide_up(columns, out_rows);
  const std::int64_t num_pairs = stream.rope.num_heads == 0 ? 0 : stream.rope.rotation.num_pairs;
  const bool takes_bits = tiles == 1 && x_dtype != DType::kF32;
  // More rows of x take the place of a buffer: then more groups share what a warp holds of x.
  const int bits_stages = p.m <= kTileM / 2 ? piece.bits_stages : kernels::kLeastStages;
  const std::int64_t warp_bytes =
      takes_bits ? piece.unit * bits_stages + kernels::x_piece_bytes(static_cast<int>(p.m))
                 : piece.unit * piece.stages;
  const auto shared_bytes = [&](std::int64_t warps, std::int64_t at_once) {
    return kernels::block_gemm_shared_bytes(warp_bytes, warps, at_once, p.m, is_normed ? p.k : 0, num_pairs);
  };
  // As many warps as share the pieces evenly.
  std::int64_t most_warps =
      tiles > 1 || x_dtype == DType::kF32 ? kernels::kMostPieceWarps / 2 : kernels::kMostPieceWarps;
  const auto most_bytes = static_cast<std::int64_t>(device.shared_per_block_bytes);
  // Fewer groups at once would not be worth what x takes to be made ready.
  const std::int64_t least_at_once =
      std::min<std::int64_t>(divide_up<std::int64_t>(groups, device.num_multiprocessors), takes_bits ? 4 : 1);
  while (most_warps > 1 && shared_bytes(most_warps, least_at_once) > most_bytes) most_warps /= 2;
  const std::int64_t warps = divide_up(pieces, divide_up(pieces, most_warps));
  if (shared_bytes(warps, 1) > most_bytes) return {};
  if (is_normed &&
      (p.k > warps * 32 * kernels::kNormedRowGroups * kernels::kGroupSize || num_pairs > warps * 32))
    return {};

  const std::int64_t fit = static_cast<std::int64_t>(device.shared_per_multiprocessor_bytes) /
                           (shared_bytes(warps, 1) + kSystemSharedBytes);
  const std::int64_t resident =
      std::clamp<std::int64_t>(most_warps / warps, 1, std::max<std::int64_t>(fit, 1));
  const std::int64_t blocks = std::min(groups, resident * device.num_multiprocessors);
  const std::int64_t share = divide_up(groups, blocks);
  // What a warp holds of x serves groups in as many rounds as it must, of equal sizes.
  constexpr std::int64_t kMostAtOnce = 16;
  const std::int64_t bytes_of_block =
      std::min(most_bytes, static_cast<std::int64_t>(device.shared_per_multiprocessor_bytes) / resident -
                               kSystemSharedBytes);
  std::int64_t at_once = 1;
  for (std::int64_t rounds = divide_up(share, kMostAtOnce); rounds <= share; ++rounds) {
    at_once = divide_up(share, rounds);
    if (shared_bytes(warps, at_once) <= bytes_of_block) break;
  }
  BlockGemmLaunch launch;
  launch.module = {takes_bits ? "sm80/gemm_block_bits.cu" : "sm80/gemm_blocks.cu",
                   {gpu::blocks_define(weight), fmt::format("TESSERA_ONLY={}", gpu::part_of_x(x_dtype))}};
  launch.entry = is_normed    ? fmt::format("gemm_block_bits_normed_{}", dtype_name(x_dtype))
                 : takes_bits ? fmt::format("gemm_block_bits_{}", dtype_name(x_dtype))
                              : fmt::format("gemm_blocks_{}_{}", dtype_name(x_dtype), tiles);
  launch.shape = {{static_cast<unsigned>(blocks), 1, 1},
                  {static_cast<unsigned>(warps * 32), 1, 1},
                  static_cast<std::size_t>(shared_bytes(warps, at_once)),
                  true};
  launch.params = {stream, static_cast<int>(groups / blocks), static_cast<int>(groups % blocks),
                   static_cast<int>(at_once), bits_stages};
  return launch;
}

/// Whether gemm_q8_tiled.cu is faster than gemm_blocks.cu pass by pass. As measured, a multiprocessor
/// multiplies so many rows of w in a pass in the time that it takes for a tile, and a pass takes as long
/// again as some rows to start and end.
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

}  // namespace

std::optional<BlockGemmLaunch> block_gemm_launch(const GemmArguments& a,
                                                 std::optional<GatedActivation> activation,
                                                 const gpu::DeviceProperties& device) {
  return choose_launch(stream_params(a, activation, kTileRows / 2), a.x.dtype, a.weight.dtype, device);
}

std::optional<BlockGemmLaunch> normed_block_gemm_launch(const NormedGemmArguments& a,
                                                        const gpu::DeviceProperties& device) {
  const DType dtype = a.gemm.out.dtype;
  if (a.gemm.x.rows > kernels::kMostNormedRows ||
      (a.norm_weight.dtype != dtype && a.norm_weight.dtype != DType::kF32))
    return {};
  std::optional<kernels::StreamParams> p = projection_params(a);
  if (!p) return {};
  p->norm_weight = gpu::rows_of(a.norm_weight);
  p->eps = a.eps;
  if (p->norm_weight.vector == 0) return {};
  return choose_launch(*p, dtype, a.gemm.weight.dtype, device);
}

BlockProducts::BlockProducts(gpu::Gpu& device, gpu::LibraryProducts* library, WgmmaProducts& wgmma)
    : gpu_(device), library_(library), wgmma_(wgmma) {}

bool BlockProducts::takes_gated_widened(const GemmArguments& a, GatedActivation activation) const {
  if (a.x.rows <= kMostRowsOfPasses || a.weight.rows % kTileRows != 0) return false;
  const std::optional<GemmArguments> widened = gpu::first_gated_widened(a);
  return widened && wgmma_.takes_gated(*widened, activation);
}

bool BlockProducts::takes_rows(const kernels::StreamParams& params, const GemmArguments& a) const {
  return a.x.rows >= kLeastRowsOfWgmma && a.x.rows <= kMostRowsOfWgmma && rows_.takes(params, a);
}

bool BlockProducts::takes_projection(const NormedGemmArguments& a) const {
  const std::optional<kernels::StreamParams> p = projection_params(a);
  return p && a.gemm.x.rows <= kernels::kMostBlockRows && takes_rows(*p, a.gemm);
}

void BlockProducts::projection(const NormedGemmArguments& a, Stream stream) {
  rows_.launch(*projection_params(a), a.gemm, stream);
}

bool BlockProducts::takes_gated(const GemmArguments& a, GatedActivation activation) const {
  if (takes_rows(stream_params(a, activation, kTileRows / 2), a) || takes_gated_widened(a, activation))
    return true;
  GemmArguments pass = a;
  pass.x.rows = pass.out.rows = std::min(a.x.rows, most_rows(a.x.dtype));
  return a.x.rows <= kMostGatedRows && block_gemm_launch(pass, activation, gpu_.properties()).has_value();
}

bool BlockProducts::gemm(const GemmArguments& a, std::optional<GatedActivation> activation, Stream stream) {
  const kernels::StreamParams params = stream_params(a, activation, kTileRows / 2);
  if (takes_rows(params, a)) {
    constexpr std::int64_t kMost = kernels::kMostBlockRows;
    for (std::int64_t begin = 0; begin < a.x.rows; begin += kMost) {
      const GemmArguments rows = gpu::rows_from(a, begin, std::min(kMost, a.x.rows - begin));
      rows_.launch(stream_params(rows, activation, kTileRows / 2), rows, stream);
    }
    return true;
  }
  if (activation && takes_gated_widened(a, *activation)) {
    const auto multiply = [&](const GemmArguments& widened) { wgmma_.gemm(widened, activation, stream); };
    gpu::multiply_gated_widened(gpu_, widened_, a, multiply, stream);
    return true;
  }
  GemmArguments pass = a;
  pass.x.rows = pass.out.rows = std::min(a.x.rows, most_rows(a.x.dtype));
  const bool fits = block_gemm_launch(pass, activation, gpu_.properties()).has_value();
  if (activation && (!fits || a.x.rows > kMostGatedRows)) return false;
  if (!fits) return false;
  if (!activation && a.x.rows > kMostRowsOfPasses && multiply_widened(a, stream)) return true;
  if (!activation && a.weight.dtype == DType::kQ8_0 && a.x.rows > most_rows(a.x.dtype) &&
      takes_tiles(a.x.dtype, divide_up(a.x.rows, most_rows(a.x.dtype)), a.weight.rows,
                  tiles_of(a, kernels::kQ8TiledMostWarps), gpu_.properties().num_multiprocessors)) {
    multiply_tiles(a, stream);
    return true;
  }
  multiply_in_passes(a, activation, stream);
  return true;
}

void BlockProducts::multiply_in_passes(const GemmArguments& a, std::optional<GatedActivation> activation,
                                       Stream stream) {
  const std::int64_t most = most_rows(a.x.dtype);
  for (std::int64_t begin = 0; begin < a.x.rows; begin += most) {
    const GemmArguments rows = gpu::rows_from(a, begin, std::min(most, a.x.rows - begin));
    launch(*block_gemm_launch(rows, activation, gpu_.properties()), stream);
  }
}

bool BlockProducts::takes_normed_gemm(const NormedGemmArguments& a) const {
  return normed_block_gemm_launch(a, gpu_.properties()).has_value();
}

void BlockProducts::normed_gemm(const NormedGemmArguments& a, Stream stream) {
  validate(a);
  const std::optional<BlockGemmLaunch> chosen = normed_block_gemm_launch(a, gpu_.properties());
  if (!chosen) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("normed_gemm: no kernel for {} rows and {} x {} weights of {}; expected a caller that "
                    "asks takes_normed_gemm() first",
                    a.gemm.x.rows, a.gemm.weight.rows, a.gemm.weight.columns,
                    dtype_name(a.gemm.weight.dtype)));
  }
  launch(*chosen, stream);
}

void BlockProducts::launch(const BlockGemmLaunch& chosen, Stream stream) {
  const gpu::Kernel& kernel = gpu_.kernels().find(chosen.module, chosen.entry, chosen.shape.shared_bytes);
  gpu::launch_kernel(gpu_, kernel, chosen.shape, stream, chosen.entry, chosen.params);
}

void BlockProducts::multiply_tiles(const GemmArguments& a, Stream stream) {
  const auto shared_bytes = [&](int warps) {
    return static_cast<std::size_t>(kernels::q8_tiled_shared_bytes(warps, a.x.dtype == DType::kF32));
  };
  int warps = kernels::kQ8TiledMostWarps;
  while (warps > 1 && shared_bytes(warps) > gpu_.properties().shared_per_block_bytes) warps /= 2;
  const std::string entry = fmt::format("gemm_q8_tiled_{}", dtype_name(a.x.dtype));
  const std::int64_t blocks = tiles_of(a, warps);
  if (blocks > std::numeric_limits<int>::max()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} would take a grid of {} blocks; expected at most {}: use fewer rows at once",
                            entry, blocks, std::numeric_limits<int>::max()));
  }
  const gpu::Kernel& kernel = gpu_.kernels().find({"sm80/gemm_q8_tiled.cu", {}}, entry, shared_bytes(warps));
  const gpu::LaunchShape shape{{static_cast<unsigned>(blocks), 1, 1},
                               {static_cast<unsigned>(warps * 32), 1, 1},
                               shared_bytes(warps),
                               true};
  gpu::launch_kernel(gpu_, kernel, shape, stream, entry, gemm_params(a, 0));
}

bool BlockProducts::multiply_widened(const GemmArguments& a, Stream stream) {
  const gpu::WidenedGemm gemm{[&](const GemmArguments& widened) {
                                return library_ != nullptr ? gpu::library_gemm(*library_, widened, stream)
                                                           : wgmma_.gemm(widened, {}, stream);
                              },
                              [&](const GemmArguments& blocks) { multiply_in_passes(blocks, {}, stream); }};
  return gpu::multiply_widened(gpu_, widened_, a, gemm, stream);
}

}  // namespace tessera::cuda
