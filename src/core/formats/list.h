#pragma once

/// The formats of weights that store elements in blocks: FORMAT(Name) for each. formats::Name is the format,
/// DType::kName its dtype. Read by kernels, too, so it includes nothing.
// clang-format off
#define TESSERA_BLOCK_FORMATS(FORMAT)                                    \
  FORMAT(Q4_0) FORMAT(Q4_1) FORMAT(Q5_0) FORMAT(Q5_1) FORMAT(Q8_0)       \
  FORMAT(Q2_K) FORMAT(Q3_K) FORMAT(Q4_K) FORMAT(Q5_K) FORMAT(Q6_K)       \
  FORMAT(IQ4_NL) FORMAT(IQ4_XS) FORMAT(MXFP4) FORMAT(TQ1_0) FORMAT(TQ2_0) \
  FORMAT(IQ1_S) FORMAT(IQ1_M) FORMAT(IQ2_XXS) FORMAT(IQ2_XS) FORMAT(IQ2_S) \
  FORMAT(IQ3_XXS) FORMAT(IQ3_S)
// clang-format on
