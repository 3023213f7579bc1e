#include "backends/cpu/simd_target.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "backends/cpu/highway_targets.h"
// After the list of targets.
#include <hwy/highway.h>

#include "tessera/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tessera {
namespace {

constexpr std::array<std::pair<SimdTarget, std::string_view>, 6> kNames = {{
    {SimdTarget::kBaseline, "baseline"},
    {SimdTarget::kNeon, "neon"},
    {SimdTarget::kAvx2, "avx2"},
    {SimdTarget::kAvx512, "avx512"},
    {SimdTarget::kAvx512Bf16, "avx512_bf16"},
    {SimdTarget::kAmxBf16, "amx_bf16"},
}};

constexpr int kAutomatic = -1;
std::atomic<int> forced_target{kAutomatic};

bool has_avx512_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

/// Whether the processor has tiles of bf16 and the system lets this process use their registers, which it has
/// to be asked for.
bool has_amx_bf16() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vbmi") == 0) return false;  // which work beside tiles uses
#endif
#if defined(TESSERA_EMULATE_AMX)
  return true;
#elif defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  // __builtin_cpu_supports of clang 14 does not know the name.
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0 &&
         (edx & kAmxTile) != 0 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::vector<SimdTarget> detect_targets() {
  std::vector<SimdTarget> targets{SimdTarget::kBaseline};
  [[maybe_unused]] const std::int64_t supported = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_NEON
  if (supported & HWY_NEON) targets.push_back(SimdTarget::kNeon);
#endif
#if HWY_TARGETS & HWY_AVX2
  if (supported & HWY_AVX2) targets.push_back(SimdTarget::kAvx2);
#endif
#if HWY_TARGETS & HWY_AVX3
  if (supported & HWY_AVX3) {
    targets.push_back(SimdTarget::kAvx512);
    if (has_avx512_bf16()) {
      targets.push_back(SimdTarget::kAvx512Bf16);
      if (has_amx_bf16()) targets.push_back(SimdTarget::kAmxBf16);
    }
  }
#endif
  return targets;
}

std::string names(const std::vector<SimdTarget>& targets) {
  std::string list;
  for (const SimdTarget t : targets)
    list += fmt::format("{}{}", list.empty() ? "" : ", ", simd_target_name(t));
  return list;
}

void require_attainable(SimdTarget target, std::string_view source) {
  const std::vector<SimdTarget> targets = attainable_simd_targets();
  if (std::find(targets.begin(), targets.end(), target) != targets.end()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} asks for SIMD target '{}', which this machine can't run; "
                          "expected one of {}",
                          source, simd_target_name(target), names(targets)));
}

/// What TESSERA_SIMD says; empty if nothing.
std::string_view environment_target() {
  const char* wanted = std::getenv("TESSERA_SIMD");
  return wanted == nullptr ? std::string_view() : wanted;
}

/// What TESSERA_SIMD says, else the best; looked at once.
SimdTarget automatic_target() {
  static const SimdTarget target = [] {
    const std::string_view wanted = environment_target();
    if (wanted.empty()) return best_simd_target();
    constexpr std::string_view kSource = "the environment variable TESSERA_SIMD";
    SimdTarget parsed{};
    try {
      parsed = parse_simd_target(wanted);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", kSource, error.message()));
    }
    require_attainable(parsed, kSource);
    return parsed;
  }();
  return target;
}

}  // namespace

std::string_view simd_target_name(SimdTarget target) noexcept {
  for (const auto& [t, name] : kNames) {
    if (t == target) return name;
  }
  return "";
}

SimdTarget parse_simd_target(std::string_view name) {
  std::string known;
  for (const auto& [target, known_name] : kNames) {
    if (known_name == name) return target;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", known_name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown SIMD target '{}'; expected one of {}", name, known));
}

std::vector<SimdTarget> attainable_simd_targets() {
  static const std::vector<SimdTarget> targets = detect_targets();
  return targets;
}

SimdTarget best_simd_target() {
  const SimdTarget best = attainable_simd_targets().back();
#if defined(TESSERA_EMULATE_AMX)
  if (best == SimdTarget::kAmxBf16) return SimdTarget::kAvx512Bf16;
#endif
  return best;
}

SimdTarget simd_target() {
  const int forced = forced_target.load(std::memory_order_relaxed);
  return forced == kAutomatic ? automatic_target() : static_cast<SimdTarget>(forced);
}

bool simd_target_is_forced() {
  return forced_target.load(std::memory_order_relaxed) != kAutomatic || !environment_target().empty();
}

bool bf16_pairs_pay() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") == 0;
#else
  return true;
#endif
}

FetchAhead fetch_ahead_distances() {
  constexpr FetchAhead kNear{8192, 0};  // less comes too late, more is gone again
#if defined(__x86_64__)
  static const FetchAhead distances = [&]() -> FetchAhead {
    if (__builtin_cpu_is("intel") != 0) return {1088, 4160};
    constexpr unsigned kFamilyBits = 0x0ff00f00, kFamily19h = 0x00a00f00;  // base 0xf and extended 0xa
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    const bool is_zen4 = __builtin_cpu_is("amd") != 0 && __builtin_cpu_supports("avx512f") != 0 &&
                         __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kFamilyBits) == kFamily19h;
    return is_zen4 ? FetchAhead{0, 8192} : kNear;
  }();
  return distances;
#else
  return kNear;
#endif
}

void set_simd_target(std::optional<SimdTarget> target) {
  if (target) require_attainable(*target, "set_simd_target");
  forced_target.store(target ? static_cast<int>(*target) : kAutomatic, std::memory_order_relaxed);
}

}  // namespace tessera
