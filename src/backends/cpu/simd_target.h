#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera {

/// Instruction sets that the CPU kernels are compiled for, the better later.
enum class SimdTarget : std::uint8_t {
  kBaseline,    ///< whatever the compiler may assume; one number at a time
  kNeon,        ///< Arm, 128-bit vectors
  kAvx2,        ///< AVX2, FMA and F16C
  kAvx512,      ///< AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  ///< the same with dot products of bf16 pairs
  kAmxBf16,     ///< the same with products of tiles of bf16 pairs
};

/// "baseline", "neon", "avx2", "avx512", "avx512_bf16", "amx_bf16".
std::string_view simd_target_name(SimdTarget target) noexcept;

/// The inverse of simd_target_name. Throws Error{kInvalidArgument} that lists the names.
SimdTarget parse_simd_target(std::string_view name);

/// Those that this program holds kernels for and this machine can run, the best last.
std::vector<SimdTarget> attainable_simd_targets();

/// The best of them, but for one that is emulated (TESSERA_EMULATE_AMX), which only a test asks for.
SimdTarget best_simd_target();

/// The target that plans are made for: set_simd_target's, else the environment variable TESSERA_SIMD's, else
/// best_simd_target(). Throws Error{kInvalidArgument} if TESSERA_SIMD is no target's name,
/// Error{kUnsupported} if this machine can't run it.
SimdTarget simd_target();

/// Whether simd_target() is what set_simd_target or TESSERA_SIMD asks for. If not, a kernel may take a lower
/// one that serves it better.
bool simd_target_is_forced();

/// Whether dot products of bf16 pairs are quicker here than fp32's multiply-adds. Intel's processors take one
/// a cycle for two multiply-adds, so that converting and rearranging is lost; AMD's take two.
bool bf16_pairs_pay();

/// How far ahead of its use a stream of weights is asked for, in bytes; 0: not at all.
struct FetchAhead {
  std::size_t near = 0;  ///< into the first-level cache
  std::size_t far = 0;   ///< into the second-level cache
};

/// The distances that are quickest here. A core of Intel's waits for few lines of its first-level cache at a
/// time, of the second more; on AMD's Zen 4 asking for lines of the first delays the stream.
FetchAhead fetch_ahead_distances();

/// Forces a target for the whole process; none: back to the automatic choice. Throws Error{kUnsupported} if
/// it is not attainable here.
void set_simd_target(std::optional<SimdTarget> target);

}  // namespace tessera
