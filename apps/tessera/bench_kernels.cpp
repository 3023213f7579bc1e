#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "attention/backend.h"
#include "backends/family.h"
#include "bench_report.h"
#include "commands.h"
#include "gpu_bench.h"
#include "ops/staged_ops.h"
#include "ops_bench.h"
#include "output.h"
#include "tessera/error.h"
#include "threads_option.h"
#include "timing.h"

namespace tessera::cli {

namespace {

struct BenchKernelsOptions {
  std::string backend = "auto";
  std::string filter;
  TimingOptions timing{0, 0.3};
  int threads = 0;
  bool json = false;
};

/// The rates that bound a kernel's time.
enum class Bound { kCompute, kMemoryRead, kMemoryCopy };

struct KernelResult {
  bench::OpsBenchCase description;
  double flops = 0;
  double bytes = 0;
  bool writes = false;
  bench::OpsCheck check;
  Timing timing;
  Ceilings ceilings;
  double copy_bytes_per_s = 0;

  double memory_bytes_per_s() const { return writes ? copy_bytes_per_s : ceilings.bytes_per_s; }
  Bound bound() const {
    if (flops / ceilings.flops_per_s > bytes / memory_bytes_per_s()) return Bound::kCompute;
    return writes ? Bound::kMemoryCopy : Bound::kMemoryRead;
  }
  double tflops() const { return flops / timing.median_ms * 1e-9; }
  double gbps() const { return bytes / timing.median_ms * 1e-6; }
  double ceiling() const {
    return bound() == Bound::kCompute ? ceilings.flops_per_s * 1e-12 : memory_bytes_per_s() * 1e-9;
  }
  double share_of_ceiling() const { return (bound() == Bound::kCompute ? tflops() : gbps()) / ceiling(); }
};

const char* bound_name(Bound bound) {
  switch (bound) {
    case Bound::kCompute:
      return "compute";
    case Bound::kMemoryRead:
      return "memory_read";
    case Bound::kMemoryCopy:
      return "memory_copy";
  }
  return "";
}

std::string case_name(const bench::OpsBenchCase& c) {
  return fmt::format("{} {} {}", c.kernel, dtype_name(c.dtype), c.shape);
}

/// The processor multiplies 16-bit floats and Q8_0 blocks in one of two ways: as pairs of bf16 or as fp32.
DType arithmetic_dtype(DType dtype) { return dtype == DType::kBF16 ? DType::kBF16 : DType::kF32; }

/// `staged`: backend, if its device is a GPU; else null.
KernelResult bench_case(const bench::OpsBenchCase& description, OpsBackend& backend, StagedOps* staged,
                        const TimingOptions& timing) {
  const bench::OpsBench kernel = description.make(backend);
  KernelResult result;
  result.description = description;
  result.flops = kernel.flops;
  result.bytes = kernel.bytes;
  result.writes = kernel.writes;
  result.check = kernel.check();
  if (!result.check.passed()) {
    throw Error(ErrorCode::kDevice,
                fmt::format("{} gives a wrong result and is not measured: error {:.3g}, bound {:.3g}",
                            case_name(description), result.check.error, result.check.bound));
  }
  if (staged == nullptr) {
    result.timing = time_calls(kernel.run, timing);
    return result;
  }
  staged->keep_copies(true);
  const OpsBackend& device = staged->device_ops();
  result.timing = time_gpu_calls(
      find_gpu(device.device()), device.stream(), 1, [&](int) { kernel.run(); }, timing);
  staged->keep_copies(false);
  return result;
}

/// Bytes read plus bytes written a second when the GPU's driver copies memory several times its cache's size.
double measure_gpu_copy_bytes_per_s(OpsBackend& ops) {
  constexpr std::size_t kBytes = std::size_t{512} << 20;
  constexpr int kCopies = 8;
  gpu::Gpu& device = find_gpu(ops.device());
  const Stream stream = ops.stream();
  const DeviceBuffer from = ops.allocate(kBytes, "the copy rate's source");
  const DeviceBuffer to = ops.allocate(kBytes, "the copy rate's destination");
  ops.fill_zero(from.data.get(), kBytes, ops.stream());
  gpu::GpuTimer timer(device);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    timer.start(stream);
    for (int n = 0; n < kCopies; ++n) device.copy(to.data.get(), from.data.get(), kBytes, stream);
    timer.stop(stream);
    best = std::max(best, 2e3 * kCopies * static_cast<double>(kBytes) / timer.elapsed_ms());
  }
  return best;
}

nlohmann::ordered_json to_json(const KernelResult& r, std::string_view backend) {
  return {{"backend", backend},
          {"kernel", r.description.kernel},
          {"dtype", dtype_name(r.description.dtype)},
          {"shape", r.description.shape},
          {"ms", r.timing.median_ms},
          {"ms_min", r.timing.min_ms},
          {"ms_max", r.timing.max_ms},
          {"samples", r.timing.samples},
          {"tflops", r.tflops()},
          {"gbps", r.gbps()},
          {"ceiling", r.ceiling()},
          {"ceiling_kind", bound_name(r.bound())},
          {"ceiling_unit", r.bound() == Bound::kCompute ? "TFLOP/s" : "GB/s"},
          {"share_of_ceiling", r.share_of_ceiling()},
          {"flops", r.flops},
          {"bytes", r.bytes},
          {"error", r.check.error},
          {"error_bound", r.check.bound}};
}

std::string to_text(const std::vector<KernelResult>& results) {
  Table table({{"kernel", Table::Align::kLeft},
               {"dtype", Table::Align::kLeft},
               {"shape", Table::Align::kLeft},
               {"ms"},
               {"min"},
               {"max"},
               {"TFLOP/s"},
               {"GB/s"},
               {"ceiling"},
               {"share"},
               {"error"},
               {"bound"}});
  for (const KernelResult& r : results) {
    table.add_row({r.description.kernel, std::string(dtype_name(r.description.dtype)), r.description.shape,
                   fmt::format("{:.3f}", r.timing.median_ms), fmt::format("{:.3f}", r.timing.min_ms),
                   fmt::format("{:.3f}", r.timing.max_ms), fmt::format("{:.4f}", r.tflops()),
                   fmt::format("{:.2f}", r.gbps()),
                   r.bound() == Bound::kCompute ? fmt::format("{:.4f} TFLOP/s", r.ceiling())
                                                : fmt::format("{:.2f} GB/s", r.ceiling()),
                   fmt::format("{:.1f} %", 100 * r.share_of_ceiling()), fmt::format("{:.1e}", r.check.error),
                   fmt::format("{:.1e}", r.check.bound)});
  }
  return table.to_string();
}

int bench_kernels(const BenchKernelsOptions& options) {
  use_threads(options.threads);
  const std::string name = options.backend == "auto" ? std::string(preferred_ops_backend()) : options.backend;
  std::unique_ptr<OpsBackend> backend = make_ops_backend(name);
  StagedOps* staged = nullptr;
  if (backend->device().kind != DeviceKind::kCpu) {
    auto on_device = std::make_unique<StagedOps>(std::move(backend));
    staged = on_device.get();
    backend = std::move(on_device);
  }
  const auto copy_rate = [&] {
    return staged != nullptr ? measure_gpu_copy_bytes_per_s(staged->device_ops())
                             : bench::measure_copy_bytes_per_s();
  };
  const AttentionBackend& machine = find_attention_backend(name);

  std::vector<bench::OpsBenchCase> cases =
      staged != nullptr ? bench::gpu_ops_bench_cases() : bench::ops_bench_cases();
  std::erase_if(cases, [&](const auto& c) { return case_name(c).find(options.filter) == std::string::npos; });
  if (cases.empty()) throw UsageError(fmt::format("no kernel has '{}' in its name", options.filter));

  std::map<DType, CeilingWatch> ceilings;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ceilings.emplace(dtype, dtype).first->second.look(machine);
  }
  double copy_bytes_per_s = copy_rate();
  std::vector<KernelResult> results;
  for (const bench::OpsBenchCase& c : cases)
    results.push_back(bench_case(c, *backend, staged, options.timing));
  for (auto& [dtype, watch] : ceilings) watch.look(machine);
  copy_bytes_per_s = std::max(copy_bytes_per_s, copy_rate());
  for (KernelResult& r : results) {
    r.ceilings = ceilings.at(arithmetic_dtype(r.description.dtype)).best();
    r.copy_bytes_per_s = copy_bytes_per_s;
  }

  if (options.json) {
    nlohmann::ordered_json document = bench_environment_json();
    document["results"] = nlohmann::ordered_json::array();
    for (const KernelResult& r : results) document["results"].push_back(to_json(r, name));
    write_json(document);
  } else {
    write_stdout(bench_environment_text() + "\n\n" + to_text(results));
  }
  return kExitDone;
}

/// Only some backends have kernels beside attention.
std::string check_ops_backend_name(const std::string& name) {
  if (name == "auto") return {};
  std::string known = "auto";
  for (const std::string_view backend : ops_backend_names()) {
    if (backend == name) return {};
    known += fmt::format(", {}", backend);
  }
  return fmt::format("there is no backend '{}' with these kernels; known: {}", name, known);
}

}  // namespace

void add_bench_kernels_command(Command& parent) {
  auto options = std::make_shared<BenchKernelsOptions>();
  Command command =
      parent.add_command("kernels", "Verify and time gemm, norms, RoPE and the other kernels of a model");
  command.add_text("--backend", options->backend,
                   "auto, or a name that 'tessera info' lists for these kernels", "NAME",
                   check_ops_backend_name);
  command.add_text("--filter", options->filter, "Only those whose \"kernel dtype shape\" contains this");
  command.add_integer("--repeat", options->timing.repeat, 0, 1000000,
                      "Samples; 0: as many as --seconds allow");
  command.add_real("--seconds", options->timing.seconds, 0.0, 3600.0,
                   "Time to sample each, at least 3 samples");
  add_threads_option(command, options->threads);
  command.add_flag("--json", options->json, "Print one JSON document");
  command.set_examples(
      {"tessera bench kernels", "tessera bench kernels --filter \"gemm bf16\" --seconds 1",
       "tessera bench kernels --filter rms_norm --json", "tessera bench kernels --backend cuda", "",
       "Kernels that write about as much as they read are compared with the rate of copying memory."});
  command.set_action([options] { return bench_kernels(*options); });
}

}  // namespace tessera::cli
