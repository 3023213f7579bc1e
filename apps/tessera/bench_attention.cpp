#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "attention/backend.h"
#include "bench_report.h"
#include "commands.h"
#include "core/parallel.h"
#include "output.h"
#include "problem_options.h"
#include "row_check.h"
#include "tessera/error.h"
#include "timing.h"

namespace tessera::cli {

namespace {

struct BenchAttentionOptions {
  ProblemOptions problem;
  std::string backends = "auto";
  std::uint64_t seed = 0;
  TimingOptions timing;
  int threads = 0;
  bool json = false;
};

struct BenchResult {
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

BenchResult bench_backend(const AttentionProblem& problem, const std::string& backend,
                          const BenchAttentionOptions& options, CeilingWatch& ceilings) {
  AttentionOptions attention;
  attention.backend = backend;
  attention.config = options.problem.config;
  BenchResult result;
  result.plan = plan_attention(problem, attention);
  const AttentionBackend& implementation = find_attention_backend(result.plan.backend);
  const std::size_t workspace_bytes = result.plan.workspace_bytes;
  std::shared_ptr<std::byte> workspace;
  if (workspace_bytes > 0) workspace = implementation.allocate_workspace({}, workspace_bytes, {});
  const auto call = [&] { attention_forward(problem, result.plan, {workspace.get(), workspace_bytes}); };
  call();
  result.check = check_rows(problem);
  if (!result.check.passed()) {
    throw Error(
        ErrorCode::kDevice,
        fmt::format("{}/{} gives a wrong result and is not measured: error {:.3g}, bound {:.3g} in {} rows",
                    result.plan.backend, result.plan.kernel, result.check.error, result.check.bound,
                    result.check.rows));
  }
  result.flops = attention_flops(problem);
  result.bytes = attention_bytes(problem);
  ceilings.look(implementation);
  result.timing = time_calls(call, options.timing);
  ceilings.look(implementation);
  return result;
}

nlohmann::ordered_json to_json(const BenchResult& r, const ProblemOptions& o, const AttentionProblem& p) {
  return {{"backend", r.plan.backend},
          {"kernel", r.plan.kernel},
          {"dtype", dtype_name(p.q.dtype)},
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
          {"workspace_bytes", r.plan.workspace_bytes}};
}

std::string to_text(const std::vector<BenchResult>& results, const AttentionProblem& problem) {
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
    table.add_row({r.plan.backend, r.plan.kernel, fmt::format("{:.3f}", r.timing.median_ms),
                   fmt::format("{:.3f}", r.timing.min_ms), fmt::format("{:.3f}", r.timing.max_ms),
                   std::to_string(r.timing.samples), fmt::format("{:.4f}", r.tflops()),
                   fmt::format("{:.2f}", r.gbps()),
                   r.compute_bound() ? fmt::format("{:.4f} TFLOP/s", r.ceiling())
                                     : fmt::format("{:.2f} GB/s", r.ceiling()),
                   fmt::format("{:.1f} %", 100 * r.share_of_ceiling()), fmt::format("{:.1e}", r.check.error),
                   fmt::format("{:.1e}", r.check.bound)});
  }
  return to_string(problem) + '\n' + bench_environment_text() + "\n\n" + table.to_string();
}

int bench_attention(const BenchAttentionOptions& options) {
  set_num_threads(options.threads);
  const std::vector<std::string> backends = split_at_commas(options.backends);
  ProblemData data(options.problem);
  data.fill(options.seed);
  std::vector<BenchResult> results;
  CeilingWatch ceilings(data.problem().q.dtype);
  for (const std::string& backend : backends) {
    data.poison_output();
    results.push_back(bench_backend(data.problem(), backend, options, ceilings));
  }
  for (BenchResult& result : results) result.ceilings = ceilings.best();
  if (options.json) {
    nlohmann::ordered_json document = bench_environment_json();
    document["problem"] = to_string(data.problem());
    document["results"] = nlohmann::ordered_json::array();
    for (const BenchResult& r : results) {
      document["results"].push_back(to_json(r, options.problem, data.problem()));
    }
    write_json(document);
  } else {
    write_stdout(to_text(results, data.problem()));
  }
  return kExitDone;
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
  command.add_text("--backend", options->backends, "auto, or names that 'tessera info' lists: cpu,unfused",
                   "NAMES", check_backends);
  command.add_integer("--repeat", options->timing.repeat, 0, 1000000,
                      "Samples; 0: as many as --seconds allow");
  command.add_real("--seconds", options->timing.seconds, 0.0, 3600.0,
                   "Time to sample for, at least 3 samples");
  command.add_integer("--threads", options->threads, 0, 4096, "0: all cores");
  command.add_seed("--seed", options->seed, "Of the random q, k and v");
  command.add_flag("--json", options->json, "Print one JSON document");
  add_problem_options(command, options->problem);
  command.set_examples(
      {"tessera bench attention --dtype bf16 --seq-len-q 2048 --causal",
       "tessera bench attention --backend cpu,unfused --seq-len-q 4096 --num-heads 4",
       "tessera bench attention --seq-len-q 1 --seq-len-kv 32768 --num-heads 32 --num-kv-heads 8 --json", "",
       "A result that misses the fp64 reference by more than twice the naive computation's error is not "
       "measured.",
       "The cache is flushed before each sample; ms is the median. Ceilings are measured in the same run."});
  command.set_action([options] { return bench_attention(*options); });
}

}  // namespace tessera::cli
