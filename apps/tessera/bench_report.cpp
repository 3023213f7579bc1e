#include "bench_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "backends/cpu/ceilings.h"
#include "backends/cpu/simd_target.h"
#include "build_info.h"
#include "machine.h"
#include "tessera/threads.h"
#include "tessera/version.h"

namespace tessera::cli {

nlohmann::ordered_json bench_environment_json() {
  return {{"version", version()},
          {"commit", build_commit()},
          {"device", machine_info().cpu_model},
          {"threads", num_threads()},
          {"simd_target", simd_target_name(simd_target())}};
}

std::string bench_environment_text() {
  return fmt::format("{}, {} threads, {}, tessera {}", machine_info().cpu_model, num_threads(),
                     simd_target_name(simd_target()), version_text());
}

void CeilingWatch::look(const AttentionBackend& backend) {
  constexpr double kSeconds = 0.3;
  // A backend measures once and remembers; later looks ask the processor again. Nobody else works on a GPU.
  const bool again = looked_ && dtype_ != DType::kF64 && backend.device_kind() == DeviceKind::kCpu;
  const Ceilings now = again ? measure_ceilings(dtype_, kSeconds) : backend.ceilings(dtype_);
  best_.flops_per_s = std::max(best_.flops_per_s, now.flops_per_s);
  best_.bytes_per_s = std::max(best_.bytes_per_s, now.bytes_per_s);
  looked_ = true;
}

}  // namespace tessera::cli
