#include <memory>
#include <nlohmann/json.hpp>

#include "attention/backend.h"
#include "backends/family.h"
#include "commands.h"
#include "output.h"
#include "problem_options.h"
#include "threads_option.h"

namespace tessera::cli {

namespace {

struct ExplainOptions {
  ProblemOptions problem;
  std::string backend = "auto";
  std::string memory = "auto";
  bool allow_fallback = false;
  int threads = 0;
  bool json = false;
};

nlohmann::ordered_json to_json(const AttentionExplanation& e) {
  nlohmann::ordered_json rejected = nlohmann::ordered_json::array();
  for (const RejectedBackend& r : e.rejected) {
    rejected.push_back({{"backend", r.backend}, {"reason", r.reason}});
  }
  return {{"problem", e.problem},
          {"backend", e.plan.backend},
          {"kernel", e.plan.kernel},
          {"block_m", e.plan.config.block_m},
          {"block_n", e.plan.config.block_n},
          {"num_warps", e.plan.config.num_warps},
          {"num_stages", e.plan.config.num_stages},
          {"num_splits", e.plan.config.num_splits},
          {"num_parts", e.plan.config.num_parts},
          {"num_q_tiles", e.plan.num_q_tiles},
          {"num_kv_tiles", e.plan.num_kv_tiles},
          {"shared_bytes", e.plan.shared_bytes},
          {"workspace_bytes", e.plan.workspace_bytes},
          {"notes", e.plan.notes},
          {"kernels", e.kernels},
          {"modifier", e.modifier},
          {"fallback_reason", e.plan.fallback_reason},
          {"rejected", rejected},
          {"flops", e.flops},
          {"bytes", e.bytes},
          {"ceiling_tflops", e.ceilings.flops_per_s * 1e-12},
          {"ceiling_gbps", e.ceilings.bytes_per_s * 1e-9},
          {"bound", e.compute_bound ? "compute" : "memory"},
          {"predicted_ms", e.predicted_ms}};
}

/// Where the tensors are; auto: in the memory of what the named backend runs on, or of the best device.
Device device_of(const ExplainOptions& options) {
  if (options.memory == "auto") {
    if (options.backend == "auto") return preferred_device();
    return {find_attention_backend(options.backend).device_kind(), 0};
  }
  if (options.memory == "cpu") return {};
  if (options.backend != "auto") {
    const DeviceKind kind = find_attention_backend(options.backend).device_kind();
    if (kind != DeviceKind::kCpu) return {kind, 0};
  }
  return {preferred_gpu_kind(), 0};
}

int explain_attention(const ExplainOptions& options) {
  use_threads(options.threads);
  const ProblemData data(options.problem);
  // Only described: what its pointers lead to is never read, but for a modifier's tensors in CPU memory.
  AttentionProblem problem = data.problem();
  problem.device = device_of(options);
  AttentionOptions attention;
  attention.backend = options.backend;
  attention.allow_fallback = options.allow_fallback;
  attention.config = options.problem.config;
  const AttentionExplanation explanation = explain(problem, attention);
  if (options.json) {
    write_json(to_json(explanation));
  } else {
    std::string text = explanation.to_string();
    if (text.empty() || text.back() != '\n') text += '\n';
    write_stdout(text);
  }
  return kExitDone;
}

}  // namespace

void add_explain_command(Command& parent) {
  auto options = std::make_shared<ExplainOptions>();
  Command command = parent.add_command(
      "attention", "Say which attention kernel would run a problem, why, and how long it must at least take");
  command.add_text("--backend", options->backend, "auto, or a name that 'tessera info' lists", "NAME",
                   check_backend_name);
  command.add_choice(
      "--memory", options->memory, {"auto", "cpu", "gpu"},
      "Where the tensors are; auto: where the named backend runs, or on a GPU if there is one");
  command.add_flag("--allow-fallback", options->allow_fallback,
                   "Let a backend that can't run the problem give way to one that can");
  add_threads_option(command, options->threads);
  command.add_flag("--json", options->json, "Print one JSON document");
  add_problem_options(command, options->problem);
  add_kernel_options(command, options->problem);
  command.set_examples(
      {"tessera explain attention --dtype bf16 --seq-len-q 4096 --causal",
       "tessera explain attention --memory gpu --dtype bf16 --seq-len-q 4096",
       "tessera explain attention --seq-len-q 1 --seq-len-kv 32768 --num-heads 32 --num-kv-heads 8",
       "tessera explain attention --head-dim 80 --window-left 1023 --page-size 16 --json"});
  command.set_action([options] { return explain_attention(*options); });
}

}  // namespace tessera::cli
