#include <fmt/core.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "attention/backend.h"
#include "attention/narrow.h"
#include "backends/family.h"
#include "bench_report.h"
#include "commands.h"
#include "gpu_bench.h"
#include "gpu_info.h"
#include "output.h"
#include "problem_options.h"
#include "row_check.h"
#include "tessera/error.h"
#include "threads_option.h"
#include "timing.h"

namespace tessera::cli {

namespace {

struct BenchAttentionOptions {
  ProblemOptions problem;
  std::string backends = "auto";
  std::uint64_t seed = 0;
  TimingOptions timing;
  int threads = 0;
  bool warm = false;
  bool list = false;
  bool json = false;
};

struct BenchResult {
  ProblemOptions options;
  AttentionProblem problem;  ///< the data it points to is gone
  Device device;             ///< of the tensors
  AttentionPlan plan;
  RowCheck check;
  Timing timing;
  double flops = 0;
  double bytes = 0;
  Ceilings ceilings;

  double tflops() const { return flops / timing.median_ms * 1e-9; }
  double gbps() const { return bytes / timing.median_ms * 1e-6; }
  bool compute_bound() const { return flops / ceilings.flops_per_s > bytes / ceilings.bytes_per_s; }
  /// In TFLOP/s or GB/s, whichever takes longer.
  double ceiling() const {
    return compute_bound() ? ceilings.flops_per_s * 1e-12 : ceilings.bytes_per_s * 1e-9;
  }
  double share_of_ceiling() const { return (compute_bound() ? tflops() : gbps()) / ceiling(); }
};

/// The best that each device showed, for the dtype of the multiplications.
using CeilingWatches = std::map<std::pair<DeviceKind, DType>, CeilingWatch>;

void require_passed(const BenchResult& result) {
  if (result.check.passed()) return;
  throw Error(
      ErrorCode::kDevice,
      fmt::format("{}/{} gives a wrong result and is not measured: error {:.3g}, bound {:.3g} in {} rows",
                  result.plan.backend, result.plan.kernel, result.check.error, result.check.bound,
                  result.check.rows));
}

/// Verifies and times on tensors in main memory.
void bench_on_cpu(const AttentionOptions& attention, const TimingOptions& timing, BenchResult& result) {
  const AttentionProblem& problem = result.problem;
  result.plan = plan_attention(problem, attention);
  const AttentionBackend& implementation = find_attention_backend(result.plan.backend);
  const std::size_t workspace_bytes = result.plan.workspace_bytes;
  std::shared_ptr<std::byte> workspace;
  if (workspace_bytes > 0) workspace = implementation.allocate_workspace({}, workspace_bytes, {});
  const auto call = [&] { attention_forward(problem, result.plan, {workspace.get(), workspace_bytes}); };
  call();
  result.check = check_rows(problem, result.plan.narrow_weights);
  require_passed(result);
  result.timing = time_calls(call, timing);
}

/// Verifies and times on copies of the tensors in the GPU's memory.
void bench_on_gpu(gpu::Gpu& device, const AttentionOptions& attention, const BenchAttentionOptions& options,
                  BenchResult& result) {
  result.device = device.device();
  GpuProblem tensors(result.problem, device, options.warm);
  const gpu::OwnedStream stream(device);
  result.plan = plan_attention(tensors.problem(0), attention);
  const std::size_t workspace_bytes = result.plan.workspace_bytes;
  const std::shared_ptr<std::byte> workspace =
      device.allocate(workspace_bytes, "the workspace of a benchmark", stream.handle());
  const auto call = [&](int n) {
    attention_forward(tensors.problem(n % tensors.copies()), result.plan, {workspace.get(), workspace_bytes},
                      stream.handle());
  };
  call(0);
  device.synchronize(stream.handle());
  tensors.download_outputs();
  result.check = check_rows(result.problem, result.plan.narrow_weights);
  require_passed(result);
  result.timing = time_gpu_calls(device, stream.handle(), tensors.copies(), call, options.timing);
}

/// What auto means for tensors that may be anywhere.
std::string preferred_backend(AttentionProblem problem, const AttentionOptions& options) {
  problem.device = preferred_device();
  return plan_attention(problem, options).backend;
}

BenchResult bench_backend(const ProblemOptions& problem_options, const AttentionProblem& problem,
                          const std::string& backend, const BenchAttentionOptions& options,
                          CeilingWatches& watches) {
  AttentionOptions attention;
  attention.backend = backend;
  attention.config = problem_options.config;
  BenchResult result;
  result.options = problem_options;
  result.problem = problem;
  result.flops = attention_flops(problem);
  result.bytes = attention_bytes(problem);
  const std::string named = backend == "auto" ? preferred_backend(problem, attention) : backend;
  const AttentionBackend& implementation = find_attention_backend(named);
  CeilingWatch& ceilings =
      watches.try_emplace({implementation.device_kind(), wide_dtype(problem)}, wide_dtype(problem))
          .first->second;
  if (implementation.unavailable_reason().empty()) ceilings.look(implementation);
  if (implementation.device_kind() != DeviceKind::kCpu && implementation.unavailable_reason().empty()) {
    bench_on_gpu(find_gpu({implementation.device_kind(), 0}), attention, options, result);
  } else {
    bench_on_cpu(attention, options.timing, result);
  }
  ceilings.look(implementation);
  return result;
}

nlohmann::ordered_json to_json(const BenchResult& r) {
  const ProblemOptions& o = r.options;
  const AttentionProblem& p = r.problem;
  return {{"backend", r.plan.backend},
          {"device", device_name(r.device)},
          {"kernel", r.plan.kernel},
          {"dtype", dtype_name(wide_dtype(p))},
          {"q_dtype", dtype_name(p.q.dtype)},
          {"kv_dtype", dtype_name(p.k.dtype)},
          {"batch", p.batch},
          {"seq_len_q", p.seq_len_q},
          {"seq_len_kv", p.seq_len_kv},
          {"num_heads", p.num_heads},
          {"num_kv_heads", p.num_kv_heads},
          {"head_dim", p.head_dim_qk},
          {"head_dim_v", p.head_dim_v},
          {"causal", o.causal},
          {"ms", r.timing.median_ms},
          {"ms_min", r.timing.min_ms},
          {"ms_max", r.timing.max_ms},
          {"samples", r.timing.samples},
          {"tflops", r.tflops()},
          {"gbps", r.gbps()},
          {"ceiling", r.ceiling()},
          {"ceiling_kind", r.compute_bound() ? "compute" : "memory_read"},
          {"ceiling_unit", r.compute_bound() ? "TFLOP/s" : "GB/s"},
          {"share_of_ceiling", r.share_of_ceiling()},
          {"flops", r.flops},
          {"bytes", r.bytes},
          {"error", r.check.error},
          {"error_bound", r.check.bound},
          {"verified_rows", r.check.rows},
          {"block_m", r.plan.config.block_m},
          {"block_n", r.plan.config.block_n},
          {"num_splits", r.plan.config.num_splits},
          {"num_parts", r.plan.config.num_parts},
          {"workspace_bytes", r.plan.workspace_bytes}};
}

std::string to_text(const std::vector<BenchResult>& results) {
  Table table({{"backend", Table::Align::kLeft},
               {"kernel", Table::Align::kLeft},
               {"ms"},
               {"min"},
               {"max"},
               {"samples"},
               {"TFLOP/s"},
               {"GB/s"},
               {"ceiling"},
               {"share"},
               {"error"},
               {"bound"}});
  for (const BenchResult& r : results) {
    const int digits = r.device.kind == DeviceKind::kCpu ? 3 : 4;
    table.add_row({r.plan.backend, r.plan.kernel, fmt::format("{:.{}f}", r.timing.median_ms, digits),
                   fmt::format("{:.{}f}", r.timing.min_ms, digits),
                   fmt::format("{:.{}f}", r.timing.max_ms, digits), std::to_string(r.timing.samples),
                   fmt::format("{:.4f}", r.tflops()), fmt::format("{:.2f}", r.gbps()),
                   r.compute_bound() ? fmt::format("{:.4f} TFLOP/s", r.ceiling())
                                     : fmt::format("{:.2f} GB/s", r.ceiling()),
                   fmt::format("{:.1f} %", 100 * r.share_of_ceiling()), fmt::format("{:.1e}", r.check.error),
                   fmt::format("{:.1e}", r.check.bound)});
  }
  return table.to_string();
}

/// A problem of the list and what came of it, in the order of the list.
struct BenchedProblem {
  std::string description;
  std::vector<BenchResult> results;
  std::vector<std::string> failures;
};

/// Lines of problem options, as on the command line; those not given are `defaults`.
std::vector<ProblemOptions> parse_problems(const std::string& text, const ProblemOptions& defaults) {
  std::vector<ProblemOptions> problems;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = split_words(line);
    if (words.empty()) continue;
    std::vector<const char*> arguments = {"problem"};
    for (const std::string& word : words) arguments.push_back(word.c_str());
    ProblemOptions& problem = problems.emplace_back(defaults);
    CommandLine parser("One problem", "");
    Command root = parser.root();
    add_problem_options(root, problem);
    add_kernel_options(root, problem);
    root.set_action([] { return kExitDone; });
    try {
      parser.run(static_cast<int>(arguments.size()), arguments.data());
    } catch (const UsageError& error) {
      const std::string reason = error.what();
      throw UsageError(fmt::format("problem '{}': {}", line, reason.substr(0, reason.find('\n'))));
    }
  }
  if (problems.empty()) throw UsageError("--list found no problem on standard input; expected one a line");
  return problems;
}

BenchedProblem bench_problem(const ProblemOptions& problem, const std::vector<std::string>& backends,
                             const BenchAttentionOptions& options, CeilingWatches& watches) {
  ProblemData data(problem);
  data.fill(options.seed);
  BenchedProblem benched;
  benched.description = to_string(data.problem());
  for (const std::string& backend : backends) {
    data.poison_output();
    try {
      benched.results.push_back(bench_backend(problem, data.problem(), backend, options, watches));
    } catch (const Error& error) {
      if (!options.list) throw;
      benched.failures.push_back(fmt::format("{}: {}", backend, error.message()));
    }
  }
  return benched;
}

int bench_attention(const BenchAttentionOptions& options) {
  use_threads(options.threads);
  const std::vector<std::string> backends = split_at_commas(options.backends);
  const std::vector<ProblemOptions> problems =
      options.list ? parse_problems(read_stdin(), options.problem) : std::vector{options.problem};
  CeilingWatches watches;
  std::vector<BenchedProblem> benched;
  bool has_failures = false;
  std::optional<Device> used_gpu;
  for (const ProblemOptions& problem : problems) {
    benched.push_back(bench_problem(problem, backends, options, watches));
    has_failures = has_failures || !benched.back().failures.empty();
  }
  for (BenchedProblem& b : benched) {
    for (BenchResult& r : b.results) {
      if (r.device.kind != DeviceKind::kCpu) used_gpu = r.device;
      r.ceilings = watches.at({r.device.kind, wide_dtype(r.problem)}).best();
    }
  }
  if (options.json) {
    nlohmann::ordered_json document = bench_environment_json();
    if (used_gpu) {
      document["gpu"] = gpu_environment_json(*used_gpu);
      document["warm"] = options.warm;
    }
    if (!options.list) document["problem"] = benched.front().description;
    document["results"] = nlohmann::ordered_json::array();
    if (options.list) document["failures"] = nlohmann::ordered_json::array();
    for (std::size_t index = 0; index < benched.size(); ++index) {
      const BenchedProblem& b = benched[index];
      for (const BenchResult& r : b.results) {
        nlohmann::ordered_json& result = document["results"].emplace_back(to_json(r));
        if (!options.list) continue;
        result["problem"] = b.description;
        result["problem_index"] = index;
      }
      for (const std::string& failure : b.failures) {
        document["failures"].push_back(
            {{"problem", b.description}, {"problem_index", index}, {"message", failure}});
      }
    }
    write_json(document);
  } else {
    std::string text = bench_environment_text() + '\n';
    if (used_gpu)
      text += gpu_environment_text(*used_gpu) + (options.warm ? ", inputs in its cache" : "") + '\n';
    for (const BenchedProblem& b : benched) {
      text += '\n' + b.description + '\n';
      if (!b.results.empty()) text += to_text(b.results);
      for (const std::string& failure : b.failures) text += failure + '\n';
    }
    write_stdout(text);
  }
  return has_failures ? kExitFailed : kExitDone;
}

}  // namespace

void add_bench_attention_command(Command& parent) {
  auto options = std::make_shared<BenchAttentionOptions>();
  Command command = parent.add_command(
      "attention", "Verify and time attention, beside the multiply-add or memory rate that limits it");
  const ValueCheck check_backends = [](const std::string& names) {
    for (const std::string& name : split_at_commas(names)) {
      if (std::string problem = check_backend_name(name); !problem.empty()) return problem;
    }
    return std::string();
  };
  command.add_text("--backend", options->backends,
                   "auto (on a GPU if there is one), or names that 'tessera info' lists: cpu,unfused",
                   "NAMES", check_backends);
  command.add_integer("--repeat", options->timing.repeat, 0, 1000000,
                      "Samples; 0: as many as --seconds allow");
  command.add_real("--seconds", options->timing.seconds, 0.0, 3600.0,
                   "Time to sample for, at least 3 samples");
  add_threads_option(command, options->threads);
  command.add_seed("--seed", options->seed, "Of the random q, k and v");
  command.add_flag("--warm", options->warm, "GPUs: leave the inputs in the cache between calls");
  command.add_flag(
      "--list", options->list,
      "Read problems from standard input, a line of the options below each, quoted as in a shell");
  command.add_flag("--json", options->json, "Print one JSON document");
  add_problem_options(command, options->problem);
  add_kernel_options(command, options->problem);
  command.set_examples(
      {"tessera bench attention --dtype bf16 --seq-len-q 2048 --causal",
       "tessera bench attention --backend cpu,unfused --seq-len-q 4096 --num-heads 4",
       "tessera bench attention --seq-len-q 1 --seq-len-kv 32768 --num-heads 32 --num-kv-heads 8 --json",
       "tessera bench attention --backend cuda,cuda_unfused --dtype bf16 --seq-len-q 4096 --causal",
       "printf -- '--seq-len-q 512\\n--seq-len-q 1024 --causal\\n' | tessera bench attention --list --json",
       "",
       "A result that misses the fp64 reference by more than twice the naive computation's error is not "
       "measured.",
       "ms is the median; ceilings are measured in the same run. CPU: the cache is flushed before each "
       "sample.",
       "GPU: tensors in its memory, replays of a graph of calls that take several copies in turn, more "
       "than "
       "fit into the cache."});
  command.set_action([options] { return bench_attention(*options); });
}

}  // namespace tessera::cli
