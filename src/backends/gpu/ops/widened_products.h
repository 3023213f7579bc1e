#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "backends/gpu/ops/stream_workspaces.h"
#include "backends/gpu/runtime/gpu.h"
#include "ops/arguments.h"

namespace tessera::gpu {

/// What kernels for a format of blocks are compiled with: "TESSERA_BLOCKS=", or another macro, and the name
/// of its struct. Throws Error{kUnsupported} for other dtypes.
std::string blocks_define(DType weight, std::string_view macro = "TESSERA_BLOCKS");

/// Weights of blocks as bf16 at `out`, row by row, from a multiple of 16 bytes on (common/widen_blocks.cu).
void widen(Gpu& gpu, const Weight& weight, std::byte* out, Stream stream);

/// Products with weights of blocks as products with bf16 ones (common/widen_blocks.cu), for many rows.
struct WidenedGemm {
  /// False if it does not take the product of some of w's rows, widened.
  std::function<bool(const GemmArguments& widened)> multiply;
  /// The product of w's rows that multiply() did not take although it took the first ones. Null if it takes
  /// all of them or none.
  std::function<void(const GemmArguments& blocks)> otherwise = {};
};

/// False if x or out is not bf16: fp16 might not hold the weights, and an fp32 result would show that they
/// were rounded; or if WidenedGemm::multiply does not take the first rows of w.
bool multiply_widened(Gpu& gpu, StreamWorkspaces& workspaces, const GemmArguments& arguments,
                      const WidenedGemm& gemm, Stream stream);

/// The first of the products that multiply_gated_widened() makes of a gated one: some columns of out, of rows
/// of the gate and then as many of up. Nothing for types as above, and for a bias.
std::optional<GemmArguments> first_gated_widened(const GemmArguments& arguments);

/// The same of gated products, of valid arguments of which `multiply` takes the first and so all.
void multiply_gated_widened(Gpu& gpu, StreamWorkspaces& workspaces, const GemmArguments& arguments,
                            const std::function<void(const GemmArguments& widened)>& multiply, Stream stream);

}  // namespace tessera::gpu
