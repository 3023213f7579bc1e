#include <fmt/core.h>

#include <algorithm>

#include "attention/backend.h"
#include "attention/cost.h"
#include "attention/modifier.h"
#include "attention/narrow.h"
#include "attention/require.h"
#include "attention/validate.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// A backend and its plan for a valid problem.
struct Planned {
  BackendChoice choice;
  AttentionPlan plan;
};

void check_config(const AttentionConfig& config) {
  const auto require_value = [](std::string_view field, int value) {
    require(value >= 0, field, value, "0, which is chosen, or more");
  };
  require_value("config.block_m", config.block_m);
  require_value("config.block_n", config.block_n);
  require_value("config.num_warps", config.num_warps);
  require_value("config.num_stages", config.num_stages);
  require_value("config.num_splits", config.num_splits);
  require_value("config.num_parts", config.num_parts);
}

Planned choose_and_plan(const AttentionProblem& given, const AttentionOptions& options) {
  validate(given);
  check_config(options.config);
  const AttentionProblem problem = with_tight_bounds(given);
  Planned planned;
  planned.choice = choose_backend(problem, options, all_attention_backends());
  planned.plan = planned.choice.backend->plan(problem, options.config);
  planned.plan.fallback_reason = planned.choice.fallback_reason;
  return planned;
}

const AttentionCall& call_of(const AttentionPlan& plan) {
  if (plan.call == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the plan has nothing to run; expected one from plan_attention or prepare_attention");
  }
  return *plan.call;
}

const AttentionBackend& choose_merge_backend(const MergeStatesProblem& problem, const std::string& name) {
  if (name != "auto") {
    const AttentionBackend& backend = find_attention_backend(name);
    std::string reason = backend.unavailable_reason();
    if (reason.empty()) reason = backend.unsupported_reason(problem);
    if (!reason.empty()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("backend '{}' can't merge these states: {}", name, reason));
    }
    return backend;
  }
  std::string reasons;
  for (const auto& backend : all_attention_backends()) {
    std::string reason = backend->unavailable_reason();
    if (reason.empty()) reason = backend->unsupported_reason(problem);
    if (reason.empty()) return *backend;
    reasons += fmt::format("\n  {}: {}", backend->name(), reason);
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("no backend can merge these states:{}", reasons));
}

}  // namespace

AttentionPlan plan_attention(const AttentionProblem& problem, const AttentionOptions& options) {
  return choose_and_plan(problem, options).plan;
}

AttentionPlan prepare_attention(const AttentionProblem& problem, const AttentionOptions& options) {
  AttentionPlan plan = plan_attention(problem, options);
  plan.call->load();
  return plan;
}

AttentionPlan attention_forward(const AttentionProblem& problem, const AttentionOptions& options,
                                Stream stream) {
  Planned planned = choose_and_plan(problem, options);
  const std::size_t size_bytes = planned.plan.workspace_bytes;
  std::shared_ptr<std::byte> workspace;
  if (size_bytes > 0)
    workspace = planned.choice.backend->allocate_workspace(problem.device, size_bytes, stream);
  planned.plan.call->forward(problem, {workspace.get(), size_bytes}, stream);
  return std::move(planned.plan);
}

void attention_forward(const AttentionProblem& problem, const AttentionPlan& plan,
                       std::span<std::byte> workspace, Stream stream) {
  call_of(plan).forward(problem, workspace, stream);
}

void validate(const AttentionProblem& problem, const AttentionPlan& plan) { call_of(plan).checked(problem); }

AttentionExplanation explain(const AttentionProblem& problem, const AttentionOptions& options) {
  Planned planned = choose_and_plan(problem, options);
  AttentionExplanation e;
  e.problem = to_string(problem);
  e.plan = std::move(planned.plan);
  e.kernels = planned.choice.backend->explain_plan(with_tight_bounds(problem), options.config);
  const ModifierTiles tiles = modifier_tiles(with_tight_bounds(problem));
  if (problem.scores.modifier) e.modifier = explain_modifier(problem, tiles);
  e.rejected =
      reasons_against_others(with_tight_bounds(problem), options, planned.choice, all_attention_backends());
  e.flops = attention_flops(problem, tiles);
  e.bytes = attention_bytes(problem, tiles);
  e.ceilings = planned.choice.backend->ceilings(wide_dtype(problem));
  const double compute_s = e.flops / e.ceilings.flops_per_s;
  const double memory_s = e.bytes / e.ceilings.bytes_per_s;
  e.compute_bound = compute_s > memory_s;
  e.predicted_ms = std::max(compute_s, memory_s) * 1e3;
  return e;
}

void merge_states(const MergeStatesProblem& problem, const std::string& backend, Stream stream) {
  validate(problem);
  choose_merge_backend(problem, backend).merge_states(problem, stream);
}

}  // namespace tessera
