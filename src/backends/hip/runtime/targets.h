#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"

namespace tessera::hip {

/// Instructions that multiply small matrices.
enum class MatrixUnit {
  kNone,
  kMfma,    ///< CDNA: a wave of 64 lanes
  kWmma11,  ///< RDNA 3: a wave of 32, operands twice, in both halves
  kWmma12,  ///< RDNA 4: a wave of 32, each operand once
};

/// What is known of an architecture beyond what its device says.
struct Target {
  std::string_view name;  ///< "gfx942"
  /// Whose code objects it runs, too: the same instructions, with no hazard that the other is compiled
  /// without. Empty: none.
  std::string_view same_isa;
  unsigned elf_machine;  ///< EF_AMDGPU_MACH of its code objects
  MatrixUnit matrix_unit;
  bool flushes_f16 = false;  ///< its matrix units take f16 below 2^-14 as 0
};

/// Null for one that is not in the table: it has no tuned kernels, but hipRTC compiles the plain ones.
const Target* find_target(std::string_view architecture);

/// kNone for one that is not in the table.
MatrixUnit matrix_unit(std::string_view architecture);

/// Target::flushes_f16, of one that is in the table.
bool flushes_f16(std::string_view architecture);

/// Empty if the architecture's matrix units are known and multiply `dtype`; otherwise why not, for users.
std::string reason_against_matrix_unit(std::string_view architecture, DType dtype);

/// The target's name without what is on or off in this device: "gfx90a" of "gfx90a:sramecc+:xnack-". Code
/// compiled without naming features runs with either setting.
std::string_view without_features(std::string_view target_id);

/// The target's name, features included, in a hipDeviceProp_t of any version of HIP: its fields stand at
/// other places in each, but no other text in it starts with "gfx" and a digit, and the first 256 bytes are
/// the device's name. Empty if there is none.
std::string_view target_id_in(std::span<const char> properties);

/// Whether a device of architecture `device` runs code objects for `built_for`, made its own if need be.
bool runs_code_for(std::string_view device, std::string_view built_for);

/// Whether `image` is a code object for `target`.
bool is_code_for(std::span<const std::byte> image, const Target& target);

/// A code object for `from` with its architecture's name and number replaced by those of `to`, which must
/// run it: loaders compare them.
/// Precondition: is_code_for(image, from), names of one length.
std::vector<std::byte> relabelled_code(std::span<const std::byte> image, const Target& from,
                                       const Target& to);

}  // namespace tessera::hip
