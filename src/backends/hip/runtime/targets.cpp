#include "backends/hip/runtime/targets.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace tessera::hip {
namespace {

// EF_AMDGPU_MACH: LLVM's AMDGPU backend guide, "ELF header"; what differs between targets of one generation:
// its lists of features and of generic targets. gfx1100 has gfx1101's registers, and its code avoids one
// hazard more. gfx1102's code avoids all that gfx1103's has to (and one hazard more), gfx1151's all that the
// others of gfx115x have to; gfx1200 and gfx1201 are the same.
constexpr std::array kTargets = {
    Target{"gfx90a", "", 0x3f, MatrixUnit::kMfma, true},
    Target{"gfx942", "", 0x4c, MatrixUnit::kMfma},
    Target{"gfx1100", "", 0x41, MatrixUnit::kWmma11},
    Target{"gfx1101", "gfx1100", 0x46, MatrixUnit::kWmma11},
    Target{"gfx1102", "", 0x47, MatrixUnit::kWmma11},
    Target{"gfx1103", "gfx1102", 0x44, MatrixUnit::kWmma11},
    Target{"gfx1150", "gfx1151", 0x43, MatrixUnit::kWmma11},
    Target{"gfx1151", "", 0x4a, MatrixUnit::kWmma11},
    Target{"gfx1152", "gfx1151", 0x55, MatrixUnit::kWmma11},
    Target{"gfx1200", "gfx1201", 0x48, MatrixUnit::kWmma12},
    Target{"gfx1201", "", 0x4e, MatrixUnit::kWmma12},
};

constexpr std::size_t kNameBytes = 256;    // hipDeviceProp_t::name
constexpr std::size_t kElfFlagsAt = 0x30;  // e_flags of a 64-bit ELF header
constexpr std::size_t kElfHeaderBytes = 64;

}  // namespace

const Target* find_target(std::string_view architecture) {
  const auto found = std::ranges::find(kTargets, architecture, &Target::name);
  return found == kTargets.end() ? nullptr : &*found;
}

MatrixUnit matrix_unit(std::string_view architecture) {
  const Target* target = find_target(architecture);
  return target != nullptr ? target->matrix_unit : MatrixUnit::kNone;
}

bool flushes_f16(std::string_view architecture) {
  const Target* target = find_target(architecture);
  return target != nullptr && target->flushes_f16;
}

std::string reason_against_matrix_unit(std::string_view architecture, DType dtype) {
  const MatrixUnit unit = matrix_unit(architecture);
  if (unit == MatrixUnit::kNone)
    return fmt::format("it is for the matrix units of CDNA, RDNA3 and RDNA4, which {} is not known to have",
                       architecture);
  if (dtype == DType::kF32 && unit != MatrixUnit::kMfma)
    return fmt::format("{}'s matrix units take f16 and bf16, not f32", architecture);
  return {};
}

std::string_view without_features(std::string_view target_id) {
  return target_id.substr(0, target_id.find(':'));
}

std::string_view target_id_in(std::span<const char> properties) {
  const std::string_view all(properties.data(), properties.size());
  for (std::size_t at = all.find("gfx", kNameBytes); at != std::string_view::npos;
       at = all.find("gfx", at + 1)) {
    const std::string_view rest = all.substr(at);
    const std::string_view text = rest.substr(0, rest.find('\0'));
    if (text.size() > 3 && text[3] >= '0' && text[3] <= '9') return text;
  }
  return {};
}

bool runs_code_for(std::string_view device, std::string_view built_for) {
  if (device == built_for) return true;
  const Target* target = find_target(device);
  return target != nullptr && !target->same_isa.empty() && target->same_isa == built_for;
}

bool is_code_for(std::span<const std::byte> image, const Target& target) {
  return image.size() >= kElfHeaderBytes && std::memcmp(image.data(), "\177ELF", 4) == 0 &&
         std::to_integer<unsigned>(image[kElfFlagsAt]) == target.elf_machine;
}

std::vector<std::byte> relabelled_code(std::span<const std::byte> image, const Target& from,
                                       const Target& to) {
  std::vector<std::byte> code(image.begin(), image.end());
  code[kElfFlagsAt] = static_cast<std::byte>(to.elf_machine);
  // The metadata names the target, too: "amdgcn-amd-amdhsa--gfx1102".
  const std::string old_id = fmt::format("amdhsa--{}", from.name);
  const std::string new_id = fmt::format("amdhsa--{}", to.name);
  const auto bytes_of = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  const auto old_bytes = bytes_of(old_id);
  auto at = code.begin();
  while ((at = std::search(at, code.end(), old_bytes.begin(), old_bytes.end())) != code.end())
    at = std::ranges::copy(bytes_of(new_id), at).out;
  return code;
}

}  // namespace tessera::hip
