#include <string>
#include <utility>
#include <vector>

#include "c_api/memory.h"
#include "c_api/plan.h"
#include "c_api/problem.h"
#include "c_api/status.h"
#include "c_api/structs.h"
#include "tessera/attention.h"

using namespace tessera::c_api;

/// An explanation and what its info points to. At one place as long as it lives.
struct tessera_attention_explanation {
  explicit tessera_attention_explanation(tessera::AttentionExplanation&& made)
      : explanation(std::move(made)),
        text(explanation.to_string()),
        plan(tessera::AttentionPlan(explanation.plan)),
        kernels(c_strings(explanation.kernels)),
        modifier_lines(c_strings(explanation.modifier)) {
    for (const tessera::RejectedBackend& r : explanation.rejected) {
      rejected.push_back({r.backend.c_str(), r.reason.c_str()});
    }
  }
  tessera_attention_explanation(const tessera_attention_explanation&) = delete;
  tessera_attention_explanation& operator=(const tessera_attention_explanation&) = delete;

  const tessera::AttentionExplanation explanation;
  const std::string text;
  const tessera_attention_plan plan;
  const std::vector<const char*> kernels;
  const std::vector<const char*> modifier_lines;
  std::vector<tessera_rejected_backend> rejected;
};

namespace {

/// The problem, which the functions that look at nothing but it don't check themselves.
tessera::AttentionProblem checked_problem(const tessera_attention_problem* given) {
  tessera::AttentionProblem problem = attention_problem(given);
  tessera::validate(problem);
  return problem;
}

}  // namespace

extern "C" {

tessera_status tessera_attention_explain(const tessera_attention_problem* problem,
                                         const tessera_attention_options* options,
                                         tessera_attention_explanation** explanation) {
  return guarded([&] {
    tessera_attention_explanation*& out = required(explanation, "explanation");
    out = nullptr;
    out = new tessera_attention_explanation(
        tessera::explain(attention_problem(problem), attention_options(options)));
  });
}

void tessera_attention_explanation_free(tessera_attention_explanation* explanation) { delete explanation; }

tessera_status tessera_attention_explanation_get_info(const tessera_attention_explanation* explanation,
                                                      tessera_attention_explanation_info* info) {
  return guarded([&] {
    const tessera_attention_explanation& made = required(explanation, "explanation");
    const tessera::AttentionExplanation& e = made.explanation;
    tessera_attention_explanation_info out{};
    out.text = made.text.c_str();
    out.problem = e.problem.c_str();
    out.plan = &made.plan;
    out.kernels = made.kernels.data();
    out.num_kernels = made.kernels.size();
    out.rejected = made.rejected.data();
    out.num_rejected = made.rejected.size();
    out.flops = e.flops;
    out.bytes = e.bytes;
    out.ceiling_flops_per_s = e.ceilings.flops_per_s;
    out.ceiling_bytes_per_s = e.ceilings.bytes_per_s;
    out.predicted_ms = e.predicted_ms;
    out.compute_bound = e.compute_bound ? 1 : 0;
    out.modifier_lines = made.modifier_lines.data();
    out.num_modifier_lines = made.modifier_lines.size();
    write_struct(info, out, "info");
  });
}

tessera_status tessera_attention_describe(const tessera_attention_problem* problem, tessera_text* text) {
  return guarded([&] {
    tessera_text& out = required(text, "text");
    out = {};
    give(out, tessera::to_string(checked_problem(problem)));
  });
}

tessera_status tessera_attention_flops(const tessera_attention_problem* problem, double* flops) {
  return guarded([&] {
    double& out = required(flops, "flops");
    out = tessera::attention_flops(checked_problem(problem));
  });
}

tessera_status tessera_attention_bytes(const tessera_attention_problem* problem, double* bytes) {
  return guarded([&] {
    double& out = required(bytes, "bytes");
    out = tessera::attention_bytes(checked_problem(problem));
  });
}

}  // extern "C"
