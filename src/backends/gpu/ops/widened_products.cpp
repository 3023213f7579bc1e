#include "backends/gpu/ops/widened_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/gpu/runtime/kernel_library.h"
#include "common/gemv_blocks_traits.h"
#include "common/ops_params.h"
#include "core/block_format.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

// As much as stays in the last cache between being written and read.
constexpr std::int64_t kScratchBytes = std::int64_t{32} << 20;
constexpr std::int64_t kRowsTogether = 256;

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

/// Whether rounding weights to bf16 changes little, and their blocks stand where the kernel reads them.
bool can_widen(const GemmArguments& a) {
  return a.x.dtype == DType::kBF16 && a.out.dtype == DType::kBF16 &&
         reinterpret_cast<std::uintptr_t>(a.weight.data) % kernels::kMovedBytes == 0;
}

std::size_t bytes_as_bf16(const Weight& weight, std::int64_t rows) {
  return static_cast<std::size_t>(rows * weight.columns * 2);
}

/// Of w, at once: as many each time as will go round.
std::int64_t rows_that_fit(const Weight& weight) {
  const std::int64_t most_rows =
      std::max(kRowsTogether, kScratchBytes / (weight.columns * 2) / kRowsTogether * kRowsTogether);
  const std::int64_t rounds = divide_up(weight.rows, most_rows);
  return std::min(round_up(divide_up(weight.rows, rounds), kRowsTogether), weight.rows);
}

GemmArguments with_widened(const GemmArguments& part, const std::byte* scratch) {
  GemmArguments widened = part;
  widened.weight.data = scratch;
  widened.weight.dtype = DType::kBF16;
  return widened;
}

}  // namespace

std::string blocks_define(DType weight, std::string_view macro) {
  switch (weight) {
#define TESSERA_CASE(Format) \
  case DType::k##Format:     \
    return fmt::format("{}=" #Format, macro);
    TESSERA_BLOCK_FORMATS(TESSERA_CASE)
#undef TESSERA_CASE
    default:
      throw_no_weight_dtype(weight);
  }
}

void widen(Gpu& gpu, const Weight& weight, std::byte* out, Stream stream) {
  const void* blocks = weight.data;
  void* destination = out;
  kernels::int64 units = weight.rows * weight.columns / kernels::kUnitColumns;
  const std::array<void*, 3> parameters = {&blocks, &destination, &units};
  const Kernel& kernel =
      gpu.kernels().find({"common/widen_blocks.cu", {blocks_define(weight.dtype)}}, "widen_blocks_bf16");
  const auto num_blocks = static_cast<unsigned>(divide_up<std::int64_t>(units, kernels::kWidenThreads));
  gpu.launch(kernel, {{num_blocks, 1, 1}, {kernels::kWidenThreads, 1, 1}, 0, true}, parameters, stream,
             "widen_blocks_bf16");
}

bool multiply_widened(Gpu& gpu, StreamWorkspaces& workspaces, const GemmArguments& a, const WidenedGemm& gemm,
                      Stream stream) {
  if (!can_widen(a)) return false;
  const std::int64_t rows_at_once = rows_that_fit(a.weight);
  std::byte* const scratch = workspaces.get(bytes_as_bf16(a.weight, rows_at_once), stream);
  for (std::int64_t begin = 0; begin < a.weight.rows; begin += rows_at_once) {
    const GemmArguments part = columns_of(a, begin, std::min(rows_at_once, a.weight.rows - begin));
    widen(gpu, part.weight, scratch, stream);
    if (gemm.multiply(with_widened(part, scratch))) continue;
    if (begin == 0) return false;
    gemm.otherwise(part);
  }
  return true;
}

std::optional<GemmArguments> first_gated_widened(const GemmArguments& a) {
  if (!can_widen(a) || a.bias) return {};
  GemmArguments part = columns_of(a, 0, std::min(rows_that_fit(a.weight) / 2, a.out.columns));
  part.weight.rows *= 2;
  return with_widened(part, static_cast<const std::byte*>(a.weight.data));
}

void multiply_gated_widened(Gpu& gpu, StreamWorkspaces& workspaces, const GemmArguments& a,
                            const std::function<void(const GemmArguments&)>& multiply, Stream stream) {
  const std::int64_t rows_at_once = rows_that_fit(a.weight) / 2;
  std::byte* const scratch = workspaces.get(bytes_as_bf16(a.weight, 2 * rows_at_once), stream);
  for (std::int64_t begin = 0; begin < a.out.columns; begin += rows_at_once) {
    GemmArguments gate = columns_of(a, begin, std::min(rows_at_once, a.out.columns - begin));
    const std::int64_t rows = gate.weight.rows;
    widen(gpu, gate.weight, scratch, stream);
    widen(gpu, columns_of(a, a.out.columns + begin, rows).weight, scratch + bytes_as_bf16(a.weight, rows),
          stream);
    gate.weight.rows = 2 * rows;
    multiply(with_widened(gate, scratch));
  }
}

}  // namespace tessera::gpu
