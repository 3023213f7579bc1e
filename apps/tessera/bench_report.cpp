#include "bench_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "backends/cpu/simd_target.h"
#include "build_info.h"
#include "core/parallel.h"
#include "machine.h"
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

}  // namespace tessera::cli
