// Any bytes as blocks of weights, behind a first byte that says of which format: their numbers are the same
// by the reference, by the CPU's every SIMD target, and by eights and fours, as the GPUs' kernels take blocks
// apart.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "backends/cpu/simd_target.h"
#include "backends/factories.h"
#include "core/block_format.h"
#include "ops/backend.h"

namespace {

using namespace tessera;

constexpr std::size_t kMostBlocks = 64;

std::vector<DType> formats_of_blocks() {
  std::vector<DType> formats;
  for (const DType dtype : weight_dtypes()) {
    if (block_format(dtype).elements > 1) formats.push_back(dtype);
  }
  return formats;
}

void require_same(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) std::abort();
  }
}

std::vector<float> embedding(OpsBackend& backend, const Weight& table) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(table.rows));
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<float> out(static_cast<std::size_t>(table.rows * table.columns));
  backend.embedding(
      {tokens.data(), table, {out.data(), DType::kF32, table.rows, table.columns, table.columns}}, {});
  return out;
}

template <int kCount, class Format>
std::vector<float> decoded_in_parts(const Weight& table) {
  std::vector<float> out;
  for (std::int64_t row = 0; row < table.rows; ++row) {
    const auto* block = static_cast<const unsigned char*>(table.data) + row * Format::kBytes;
    for (int begin = 0; begin < Format::kElements; begin += kCount) {
      float part[kCount];
      Format::decode_part(block, begin, part);
      out.insert(out.end(), part, part + kCount);
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<DType> formats = formats_of_blocks();
  static const std::unique_ptr<OpsBackend> reference = make_reference_ops(), cpu = make_cpu_ops();
  if (size == 0) return 0;
  const DType dtype = formats[data[0] % formats.size()];
  const BlockFormat& format = block_format(dtype);
  const std::size_t blocks = std::min((size - 1) / format.bytes, kMostBlocks);
  if (blocks == 0) return 0;
  // At an address that every format may have, and so long that a read past the end is seen.
  const std::vector<std::uint8_t> bytes(data + 1, data + 1 + blocks * format.bytes);
  const Weight table{bytes.data(), dtype, static_cast<std::int64_t>(blocks), format.elements, nullptr};
  const std::vector<float> expected = embedding(*reference, table);
  for (const SimdTarget target : attainable_simd_targets()) {
    set_simd_target(target);
    require_same(embedding(*cpu, table), expected);
  }
  dispatch_weight(dtype, [&]<class Format>() {
    if constexpr (is_block_format<Format>) {
      require_same(decoded_in_parts<8, Format>(table), expected);
      require_same(decoded_in_parts<4, Format>(table), expected);
    }
  });
  return 0;
}
