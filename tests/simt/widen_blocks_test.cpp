// Weights of blocks as bf16 (common/widen_blocks.cu): each number is the nearest, whatever the format,
// whichever block is the first, and however many there are; nothing is written behind the last.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/ops_testing.h"
#define TESSERA_BLOCKS Q4_K
#include "common/widen_blocks.cu"
#include "simt/executor.h"

namespace tessera::testing {
namespace {

class WidenBlocks : public ::testing::TestWithParam<DType> {
 protected:
  const DType w_dtype = GetParam();
};

std::vector<DType> block_dtypes() {
  std::vector<DType> dtypes;
  for (const DType dtype : weight_dtypes())
    if (block_format(dtype).elements > 1) dtypes.push_back(dtype);
  return dtypes;
}
INSTANTIATE_TEST_SUITE_P(Weights, WidenBlocks, ::testing::ValuesIn(block_dtypes()),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

float float_of_bf16(std::uint16_t bits) {
  const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

TEST_P(WidenBlocks, RoundsEachNumberToTheNearest) {
  constexpr std::uint16_t kFence = 0xabcd;
  const BlockFormat format = block_format(w_dtype);
  // A block of threads takes 8192 columns.
  for (const std::int64_t columns : {256, 8192, 8192 + 1792, 3 * 8192 + 256}) {
    const TestWeight w(w_dtype, 1, columns, random_values(static_cast<std::size_t>(columns), 5));
    const std::size_t bytes = dtype_bytes(w_dtype, static_cast<std::size_t>(columns));
    for (const std::size_t shift : {std::size_t{0}, static_cast<std::size_t>(format.bytes)}) {
      SCOPED_TRACE(::testing::Message() << columns << " columns, " << shift << " bytes further");
      // Blocks in a vector of their own, so that a sanitizer sees what is read beside them.
      std::vector<std::byte> memory(bytes + shift);
      std::memcpy(memory.data() + shift, w.weight().data, bytes);
      std::vector<std::uint16_t> out(static_cast<std::size_t>(columns) + 8, kFence);
      const std::int64_t units = columns / kernels::kUnitColumns;
      simt::Grid grid;
      grid.kernel = "widen_blocks_bf16";
      grid.blocks = {static_cast<int>((units + kernels::kWidenThreads - 1) / kernels::kWidenThreads), 1, 1};
      grid.threads = kernels::kWidenThreads;
      dispatch_weight(w_dtype, [&]<class Format>() {
        if constexpr (is_block_format<Format>) {
          simt::run_grid(grid, [&] {
            kernels::widen_blocks<Format>(reinterpret_cast<const unsigned char*>(memory.data() + shift),
                                          out.data(), units);
          });
        }
      });
      const Values exact = w.values();
      for (std::size_t i = 0; i < exact.size(); ++i) {
        // Half a bf16's last place, and what fp32 rounded before.
        ASSERT_NEAR(float_of_bf16(out[i]), exact[i], std::abs(exact[i]) * (0x1p-8 + 0x1p-20) + 0x1p-30) << i;
      }
      for (std::size_t i = exact.size(); i < out.size(); ++i) ASSERT_EQ(out[i], kFence) << i;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
