#include "backends/cuda/ops/block_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <variant>
#include <vector>

#include "backends/cuda/ops/block_stream_launch.h"
#include "backends/cuda/ops/rows_of_w.h"
#include "backends/cuda/ops/stream_products.h"
#include "backends/gpu/ops/kernel_arguments.h"
#include "backends/gpu/ops/widened_products.h"
#include "backends/gpu/runtime/kernel_library.h"
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

/// Of x, that gemm_blocks.cu takes at once.
std::int64_t most_rows(DType x) { return x == DType::kF32 ? kTileM : 2 * kTileM; }
/// Of x; with more, a kernel of its own for the activation costs little.
constexpr std::int64_t kMostGatedRows = 32;
/// Of x, up to which reading w for every most_rows() is faster than widening it.
constexpr std::int64_t kMostRowsOfPasses = 64;
/// The same of weights that none of the kernels for few rows takes, as those of 2,880 columns: beside the plain
/// kernels, which read w for every 8.
constexpr std::int64_t kMostRowsOfGemv = 8;
/// Of x, that one launch for w's rows of two types is measured to be faster for than one for each.
constexpr std::int64_t kMostRowsOfTwo = 4;
/// Of x, that sm90/gemm_few_rows_blocks.cu is the fastest for; beyond 64 it reads w again.
constexpr std::int64_t kLeastRowsOfWgmma = 9, kMostRowsOfWgmma = 128;

/// The launch for `w`, one or two; `x_dtype` is what products have of x.
std::optional<BlockGemmLaunch> choose_launch(std::span<const RowsOfW> w, DType x_dtype,
                                             const gpu::DeviceProperties& device) {
  const kernels::GemmParams& p = w.front().stream.gemm;
  const bool is_normed = w.front().is_normed();
  const std::int64_t pieces = w.front().pieces();
  const std::int64_t tiles = p.m <= kTileM ? 1 : 2;
  const bool takes_bits = tiles == 1 && x_dtype != DType::kF32;
  if (device.compute_capability < kLeastComputeCapability || p.m > most_rows(x_dtype) || p.x.vector == 0 ||
      !std::ranges::all_of(w, &RowsOfW::is_taken) || (w.size() > 1 && !takes_bits))
    return {};

  if (takes_bits) {
    if (auto streamed = block_stream_launch(w, x_dtype, device)) return streamed;
  }
  const std::int64_t groups = count_groups(w);
  const std::int64_t num_pairs = w.front().num_pairs();
  // More rows of x take the place of a buffer: then more groups share what a warp holds of x.
  const auto bits_stages = [&](const RowsOfW& rows) {
    return p.m <= kTileM / 2 ? rows.piece.bits_stages : kernels::kLeastStages;
  };
  const int x_rows = kernels::compiled_x_rows(static_cast<int>(p.m));  // if takes_bits
  const auto shared_bytes = [&](const RowsOfW& rows, std::int64_t warps,
                                std::int64_t at_once) -> std::int64_t {
    const std::int64_t warp_bytes =
        takes_bits ? rows.piece.unit * bits_stages(rows) + kernels::x_floats_of_piece(x_rows) * 4
                   : rows.piece.unit * rows.piece.stages;
    return kernels::block_gemm_shared_bytes(warp_bytes, warps, at_once, takes_bits ? x_rows : p.m,
                                            is_normed ? p.m * p.k * 2 : 0, num_pairs);
  };
  const auto most_shared_bytes = [&](std::int64_t warps, std::int64_t at_once) {
    std::int64_t most = 0;
    for (const RowsOfW& rows : w) most = std::max(most, shared_bytes(rows, warps, at_once));
    return most;
  };
  // As many warps as share the pieces evenly.
  std::int64_t most_warps =
      tiles > 1 || x_dtype == DType::kF32 ? kernels::kMostPieceWarps / 2 : kernels::kMostPieceWarps;
  const auto most_bytes = static_cast<std::int64_t>(device.shared_per_block_bytes);
  // Fewer groups at once would not be worth what x takes to be made ready.
  const std::int64_t least_at_once =
      std::min<std::int64_t>(divide_up<std::int64_t>(groups, device.num_multiprocessors), takes_bits ? 4 : 1);
  while (most_warps > 1 && most_shared_bytes(most_warps, least_at_once) > most_bytes) most_warps /= 2;
  const std::int64_t warps = divide_up(pieces, divide_up(pieces, most_warps));
  if (most_shared_bytes(warps, 1) > most_bytes) return {};
  if (!w.front().can_be_normed_by(warps * 32)) return {};

  const std::int64_t fit = static_cast<std::int64_t>(device.shared_per_multiprocessor_bytes) /
                           (most_shared_bytes(warps, 1) + kSystemSharedBytes);
  const std::int64_t resident =
      std::clamp<std::int64_t>(most_warps / warps, 1, std::max<std::int64_t>(fit, 1));
  const std::int64_t blocks = std::min(groups, resident * device.num_multiprocessors);
  if (blocks < static_cast<std::int64_t>(w.size())) return {};
  const std::int64_t bytes_of_block =
      std::min(most_bytes, static_cast<std::int64_t>(device.shared_per_multiprocessor_bytes) / resident -
                               kSystemSharedBytes);
  BlockGemmLaunch launch;
  launch.shape = {{static_cast<unsigned>(blocks), 1, 1}, {static_cast<unsigned>(warps * 32), 1, 1}, 0, true};
  const auto params_of = [&](const RowsOfW& rows, std::int64_t blocks_of_rows) {
    const std::int64_t share = divide_up(rows.groups, blocks_of_rows);
    const std::int64_t at_once = groups_at_once(
        share, [&](std::int64_t some) { return shared_bytes(rows, warps, some) <= bytes_of_block; });
    launch.shape.shared_bytes =
        std::max(launch.shape.shared_bytes, static_cast<std::size_t>(shared_bytes(rows, warps, at_once)));
    return kernels::BlockGemmParams{rows.stream, static_cast<int>(rows.groups / blocks_of_rows),
                                    static_cast<int>(rows.groups % blocks_of_rows), static_cast<int>(at_once),
                                    bits_stages(rows)};
  };
  launch.module = {takes_bits ? "sm80/gemm_block_bits.cu" : "sm80/gemm_blocks.cu",
                   {gpu::blocks_define(w.front().dtype)}};
  if (w.size() == 1) {
    launch.params = params_of(w.front(), blocks);
  } else {
    launch.module.defines.push_back(gpu::blocks_define(w.back().dtype, "TESSERA_LOWER_BLOCKS"));
    const std::int64_t of_upper = blocks_of_upper(w.front(), w.back(), blocks);
    launch.params = kernels::TwoBlockGemmParams{
        params_of(w.front(), of_upper), params_of(w.back(), blocks - of_upper), static_cast<int>(of_upper)};
  }
  if (takes_bits) launch.module.defines.push_back(fmt::format("TESSERA_X_ROWS={}", x_rows));
  launch.module.defines.push_back(fmt::format("TESSERA_ONLY={}", gpu::part_of_x(x_dtype)));
  launch.entry = is_normed    ? fmt::format("gemm_block_bits_normed_{}", dtype_name(x_dtype))
                 : takes_bits ? fmt::format("gemm_block_bits_{}", dtype_name(x_dtype))
                              : fmt::format("gemm_blocks_{}_{}", dtype_name(x_dtype), tiles);
  return launch;
}

/// w of a projection: one, two where there are lower rows, none if there is no kernel.
std::vector<RowsOfW> rows_of_projection(const NormedGemmArguments& a) {
  std::vector<NormedGemmArguments> parts;
  if (a.lower) {
    parts = {without_lower_rows(a), only_lower_rows(a)};
  } else {
    parts = {a};
  }
  std::vector<RowsOfW> w;
  for (const NormedGemmArguments& part : parts) {
    const std::optional<kernels::StreamParams> stream = projection_params(part);
    if (!stream) return {};
    w.push_back({*stream, part.gemm.weight.dtype});
  }
  return w;
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
  const RowsOfW w{stream_params(a, activation, kTileRows / 2), a.weight.dtype};
  return choose_launch({&w, 1}, a.x.dtype, device);
}

std::optional<BlockGemmLaunch> normed_block_gemm_launch(const NormedGemmArguments& a,
                                                        const gpu::DeviceProperties& device) {
  const DType dtype = a.gemm.out.dtype;
  const kernels::RowsArgument norm_weight = gpu::rows_of(a.norm_weight);
  if (a.gemm.x.rows > kernels::kMostNormedRows || norm_weight.vector == 0 ||
      (a.norm_weight.dtype != dtype && a.norm_weight.dtype != DType::kF32))
    return {};
  std::vector<RowsOfW> w = rows_of_projection(a);
  if (w.empty()) return {};
  for (RowsOfW& rows : w) {
    rows.stream.norm_weight = norm_weight;
    rows.stream.eps = a.eps;
  }
  return choose_launch(w, dtype, device);
}

std::optional<BlockGemmLaunch> lower_rows_launch(const NormedGemmArguments& a,
                                                 const gpu::DeviceProperties& device) {
  // Turns of more than kMostNormedRows rows have no place.
  if (!a.lower || a.rope) return {};
  const std::vector<RowsOfW> w = rows_of_projection(a);
  return w.empty() ? std::nullopt : choose_launch(w, a.gemm.x.dtype, device);
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
  if (a.lower) return a.gemm.x.rows <= kMostRowsOfTwo && lower_rows_launch(a, gpu_.properties()).has_value();
  const std::optional<kernels::StreamParams> p = projection_params(a);
  return p && a.gemm.x.rows <= kernels::kMostBlockRows && takes_rows(*p, a.gemm);
}

void BlockProducts::projection(const NormedGemmArguments& a, Stream stream) {
  if (const auto chosen = lower_rows_launch(a, gpu_.properties())) return launch(*chosen, stream);
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
  const std::int64_t most_rows_of_blocks = fits ? kMostRowsOfPasses : kMostRowsOfGemv;
  if (!activation && a.x.rows > most_rows_of_blocks && multiply_widened(a, stream)) return true;
  if (!fits) return false;
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
    launch(block_gemm_launch(rows, activation, gpu_.properties()).value(), stream);
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
  std::visit(
      [&](auto params) {
        if constexpr (requires { params.w; }) params.w = encode_tensor_map(chosen.maps.at(0));
        if constexpr (requires { params.upper.w; }) {
          params.upper.w = encode_tensor_map(chosen.maps.at(0));
          params.lower.w = encode_tensor_map(chosen.maps.at(1));
        }
        gpu::launch_kernel(gpu_, kernel, chosen.shape, stream, chosen.entry, params);
      },
      chosen.params);
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
                                return (library_ != nullptr &&
                                        gpu::library_gemm(*library_, widened, stream)) ||
                                       wgmma_.gemm(widened, {}, stream);
                              },
                              [&](const GemmArguments& blocks) { multiply_in_passes(blocks, {}, stream); }};
  return gpu::multiply_widened(gpu_, widened_, a, gemm, stream);
}

}  // namespace tessera::cuda
