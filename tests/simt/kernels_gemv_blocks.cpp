// A source that is compiled for one format at a time: once for each, in a namespace of its own.
#include "common/expert_gemv_blocks_combined.cuh"
#include "simt/kernel_table.h"

namespace of_Q4_0 {
#define TESSERA_BLOCKS Q4_0
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q4_0
namespace of_Q4_1 {
#define TESSERA_BLOCKS Q4_1
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q4_1
namespace of_Q5_0 {
#define TESSERA_BLOCKS Q5_0
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q5_0
namespace of_Q5_1 {
#define TESSERA_BLOCKS Q5_1
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q5_1
namespace of_Q8_0 {
#define TESSERA_BLOCKS Q8_0
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q8_0
namespace of_Q2_K {
#define TESSERA_BLOCKS Q2_K
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q2_K
namespace of_Q3_K {
#define TESSERA_BLOCKS Q3_K
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q3_K
namespace of_Q4_K {
#define TESSERA_BLOCKS Q4_K
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q4_K
namespace of_Q5_K {
#define TESSERA_BLOCKS Q5_K
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q5_K
namespace of_Q6_K {
#define TESSERA_BLOCKS Q6_K
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_Q6_K
namespace of_IQ4_NL {
#define TESSERA_BLOCKS IQ4_NL
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ4_NL
namespace of_IQ4_XS {
#define TESSERA_BLOCKS IQ4_XS
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ4_XS
namespace of_MXFP4 {
#define TESSERA_BLOCKS MXFP4
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_MXFP4
namespace of_TQ2_0 {
#define TESSERA_BLOCKS TQ2_0
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_TQ2_0
#if TESSERA_WARP_SIZE == 32  // with larger warps, codebooks are left to gemv_any
namespace of_IQ1_S {
#define TESSERA_BLOCKS IQ1_S
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ1_S
namespace of_IQ1_M {
#define TESSERA_BLOCKS IQ1_M
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ1_M
namespace of_IQ2_XXS {
#define TESSERA_BLOCKS IQ2_XXS
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ2_XXS
namespace of_IQ2_XS {
#define TESSERA_BLOCKS IQ2_XS
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ2_XS
namespace of_IQ2_S {
#define TESSERA_BLOCKS IQ2_S
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ2_S
namespace of_IQ3_XXS {
#define TESSERA_BLOCKS IQ3_XXS
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ3_XXS
namespace of_IQ3_S {
#define TESSERA_BLOCKS IQ3_S
#include "common/expert_gemv_blocks.cu"
#include "common/gemv_blocks.cu"
#undef TESSERA_BLOCKS
}  // namespace of_IQ3_S
#endif

/// FORMAT(Name) for each of them.
// clang-format off
#define BLOCKS_WITHOUT_CODEBOOKS(FORMAT)                                                     \
  FORMAT(Q4_0) FORMAT(Q4_1) FORMAT(Q5_0) FORMAT(Q5_1) FORMAT(Q8_0) FORMAT(Q2_K) FORMAT(Q3_K) \
  FORMAT(Q4_K) FORMAT(Q5_K) FORMAT(Q6_K) FORMAT(IQ4_NL) FORMAT(IQ4_XS) FORMAT(MXFP4) FORMAT(TQ2_0)
#if TESSERA_WARP_SIZE == 32
#define BLOCKS_WITH_CODEBOOKS(FORMAT)                                                        \
  FORMAT(IQ1_S) FORMAT(IQ1_M) FORMAT(IQ2_XXS) FORMAT(IQ2_XS) FORMAT(IQ2_S) FORMAT(IQ3_XXS)   \
  FORMAT(IQ3_S)
#else
#define BLOCKS_WITH_CODEBOOKS(FORMAT)
#endif
// clang-format on

namespace {

/// Entries that the executor's tests call: a name for each format.
#define BLOCKS_ENTRY(Format, kernel)                           \
  {std::string(tessera::formats::Format::kName) + "_" #kernel, \
   tessera::simt::host_kernel(of_##Format::kernel, TESSERA_WARP_SIZE)},
#define BLOCKS_ENTRIES(Format, x)           \
  BLOCKS_ENTRY(Format, gemv_blocks_##x##_1) \
  BLOCKS_ENTRY(Format, gemv_blocks_##x##_2) \
  BLOCKS_ENTRY(Format, gemv_blocks_##x##_4) \
  BLOCKS_ENTRY(Format, gemv_blocks_##x##_8) \
  BLOCKS_ENTRY(Format, expert_gemv_blocks_##x) BLOCKS_ENTRY(Format, expert_gemv_blocks_combined_##x)
#define FORMAT_ENTRIES(Format) \
  BLOCKS_ENTRIES(Format, f32) BLOCKS_ENTRIES(Format, f16) BLOCKS_ENTRIES(Format, bf16)

const tessera::simt::AddKernels kernels({BLOCKS_WITHOUT_CODEBOOKS(FORMAT_ENTRIES)
                                             BLOCKS_WITH_CODEBOOKS(FORMAT_ENTRIES)});

}  // namespace
