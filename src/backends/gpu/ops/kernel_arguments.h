#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ops_params.h"
#include "ops/arguments.h"
#include "tessera/dtype.h"

namespace tessera::gpu {

/// kernels::ElementType of a dtype that weights and activations have.
int element_type(DType dtype);

inline bool is_16_bit(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

/// The part of a source (TESSERA_ONLY) that has the kernels for x of a type: f32, f16, bf16.
inline int part_of_x(DType x) { return x == DType::kF32 ? 1 : x == DType::kF16 ? 2 : 3; }

/// Whether rows that start at `data` and stand `stride` elements apart are all at multiples of 16 bytes.
bool is_aligned(const void* data, DType dtype, std::int64_t stride);

kernels::RowsArgument rows_of(const Matrix& matrix);
kernels::RowsArgument rows_of(const Weight& weight);

/// What the kernels of products take; `gated` as GemmParams has it.
kernels::GemmParams gemm_params(const GemmArguments& arguments, int gated);

/// Of a routing of `rows` rows.
kernels::RoutingParams routing_params(const ExpertRouting& routing, std::int64_t rows);
kernels::ExpertGemmParams expert_gemm_params(const ExpertGemmArguments& arguments);

/// Slots up to which each reads its expert's weight by itself: beyond, experts have several.
inline std::int64_t most_slots_apart(const ExpertGemmArguments& a) {
  constexpr std::int64_t kRows = 4, kSlotsOfExpert = 2;
  return std::max<std::int64_t>(kRows * a.routing.num_slots, kSlotsOfExpert * a.routing.num_experts);
}

/// Tiles of up to `tile` slots of one expert that there may be: whole ones, and one that isn't for each
/// expert that has slots.
inline std::int64_t most_expert_tiles(const ExpertGemmArguments& a, std::int64_t tile) {
  return a.out.rows / tile + std::min<std::int64_t>(a.out.rows, a.routing.num_experts);
}

/// The product of `count` rows of x from `begin` on.
GemmArguments rows_from(const GemmArguments& arguments, std::int64_t begin, std::int64_t count);

kernels::RopeRotation rotation_of(const std::int32_t* positions, const float* inverse_frequencies,
                                  int num_pairs, int head_dim, RopePairing pairing, float attention_factor);

/// Rows whose heads must stand at multiples of 16 bytes, too.
kernels::RowsArgument heads_of(const Matrix& matrix, std::int64_t head_stride);

kernels::RopeAppendParams rope_append_params(const RopeAppendArguments& arguments);

}  // namespace tessera::gpu
