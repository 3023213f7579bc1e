#include "verify/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "attention/backend.h"
#include "backends/cuda/runtime/device.h"
#include "bench_report.h"
#include "commands.h"
#include "core/parallel.h"
#include "output.h"
#include "tessera/attention.h"

namespace tessera::cli {

namespace {

struct VerifyCommandOptions {
  std::string backend = "all";
  VerifyOptions verify;
  int threads = 0;
  bool json = false;
};

struct Counts {
  int passed = 0;
  int failed = 0;
  int unsupported = 0;  ///< cases that a backend rightly does not take
};

enum class Outcome { kPassed, kFailed, kUnsupported };

Outcome outcome_of(const VerifyResult& r) {
  if (!r.passed) return Outcome::kFailed;
  return r.unsupported_reason.empty() ? Outcome::kPassed : Outcome::kUnsupported;
}

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kUnsupported:
      return "unsupported";
  }
  return "";
}

std::string line_of(const VerifyResult& r) {
  std::string line = fmt::format("{:<11}  {:<9}  {:<52}", outcome_name(outcome_of(r)), r.backend, r.name);
  if (r.unsupported_reason.empty()) {
    line += fmt::format("  error {:8.2e}  bound {:8.2e}  {}", r.error, r.bound, r.kernel);
  } else {
    line += "  " + r.unsupported_reason;
  }
  if (!r.message.empty()) line += "\n             " + r.message;
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

nlohmann::ordered_json to_json(const VerifyResult& r) {
  return {{"group", r.group},
          {"name", r.name},
          {"backend", r.backend},
          {"kernel", r.kernel},
          {"outcome", outcome_name(outcome_of(r))},
          {"error", r.error},
          {"bound", r.bound},
          {"lse_error", r.lse_error},
          {"lse_bound", r.lse_bound},
          {"passed", r.passed},
          {"unsupported_reason", r.unsupported_reason},
          {"message", r.message},
          {"ms", r.ms}};
}

std::vector<std::string> backends_to_verify(const std::string& name) {
  if (name != "all") return {name};
  std::vector<std::string> names;
  for (const BackendInfo& backend : attention_backends()) {
    if (backend.unavailable_reason.empty()) names.push_back(backend.name);
  }
  return names;
}

/// Where a backend wants its tensors.
VerifyMemory memory_of(const std::string& backend) {
  if (find_attention_backend(backend).device_kind() != DeviceKind::kCuda) return VerifyMemory::cpu();
  cuda::GpuDevice& gpu = cuda::gpu_device(0);
  VerifyMemory memory;
  memory.device = gpu.device();
  memory.allocate = [&gpu](std::size_t size_bytes) {
    return gpu.allocate(std::max<std::size_t>(size_bytes, 1), "verify");
  };
  memory.upload = [&gpu](void* destination, const void* source, std::size_t size_bytes) {
    gpu.upload(destination, source, size_bytes, nullptr);
    gpu.synchronize(nullptr);
  };
  memory.download = [&gpu](void* destination, const void* source, std::size_t size_bytes) {
    gpu.download(destination, source, size_bytes, nullptr);
  };
  return memory;
}

int verify(const VerifyCommandOptions& options) {
  set_num_threads(options.threads);
  Counts counts;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  const auto on_result = [&](const VerifyResult& result) {
    switch (outcome_of(result)) {
      case Outcome::kPassed:
        ++counts.passed;
        break;
      case Outcome::kFailed:
        ++counts.failed;
        break;
      case Outcome::kUnsupported:
        ++counts.unsupported;
        break;
    }
    if (options.json) {
      results.push_back(to_json(result));
    } else {
      write_stdout(line_of(result));
    }
  };
  for (const std::string& backend : backends_to_verify(options.backend)) {
    run_verify(backend, memory_of(backend), options.verify, on_result);
  }
  if (counts.passed + counts.failed + counts.unsupported == 0) {
    throw UsageError(fmt::format("no case has '{}' in its name", options.verify.filter));
  }
  if (options.json) {
    nlohmann::ordered_json document = bench_environment_json();
    document["passed"] = counts.passed;
    document["failed"] = counts.failed;
    document["unsupported"] = counts.unsupported;
    document["results"] = results;
    write_json(document);
  } else {
    write_stdout(fmt::format("{} passed, {} failed, {} not supported by the backend\n", counts.passed,
                             counts.failed, counts.unsupported));
  }
  return counts.failed == 0 ? kExitDone : kExitFailed;
}

}  // namespace

void add_verify_command(Command& parent) {
  auto options = std::make_shared<VerifyCommandOptions>();
  Command command =
      parent.add_command("verify", "Compare every backend with the fp64 reference on this machine");
  const ValueCheck check_backend = [](const std::string& name) {
    return name == "all" ? std::string() : check_backend_name(name);
  };
  command.add_text("--backend", options->backend, "all, or a name that 'tessera info' lists", "NAME",
                   check_backend);
  command.add_flag("--quick", options->verify.quick, "A selection that takes seconds");
  command.add_text("--filter", options->verify.filter, "Only cases whose name contains this");
  command.add_integer("--threads", options->threads, 0, 4096, "0: all cores");
  command.add_flag("--json", options->json, "Print one JSON document");
  command.set_examples(
      {"tessera verify", "tessera verify --quick --backend cpu", "tessera verify --filter paged", "",
       "One line a case: what came of it, error and bound. The exit code is 1 if any failed."});
  command.set_action([options] { return verify(*options); });
}

}  // namespace tessera::cli
