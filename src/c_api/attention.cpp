// Running attention, plans and backends; each function is one of the C++ API's.

#include "tessera/attention.h"

#include <fmt/core.h>

#include "attention/backend.h"
#include "c_api/dtypes.h"
#include "c_api/memory.h"
#include "c_api/plan.h"
#include "c_api/problem.h"
#include "c_api/status.h"

namespace tessera::c_api {
namespace {

/// What tessera_get_backend_info points to.
const std::vector<BackendInfo>& backends() {
  static const std::vector<BackendInfo> all = attention_backends();
  return all;
}

template <auto kMake>
tessera_status make_plan(const tessera_attention_problem* problem, const tessera_attention_options* options,
                         tessera_attention_plan** plan) {
  return guarded([&] {
    tessera_attention_plan*& out = required(plan, "plan");
    out = nullptr;
    out = new tessera_attention_plan(kMake(attention_problem(problem), attention_options(options)));
  });
}

}  // namespace
}  // namespace tessera::c_api

using namespace tessera::c_api;

extern "C" {

tessera_status tessera_attention_validate(const tessera_attention_problem* problem) {
  return guarded([&] { tessera::validate(attention_problem(problem)); });
}

tessera_status tessera_attention_forward(const tessera_attention_problem* problem,
                                         const tessera_attention_options* options, void* stream) {
  return guarded([&] {
    tessera::attention_forward(attention_problem(problem), attention_options(options),
                               tessera::Stream{stream});
  });
}

tessera_status tessera_attention_plan_create(const tessera_attention_problem* problem,
                                             const tessera_attention_options* options,
                                             tessera_attention_plan** plan) {
  return make_plan<tessera::plan_attention>(problem, options, plan);
}

tessera_status tessera_attention_plan_prepare(const tessera_attention_problem* problem,
                                              const tessera_attention_options* options,
                                              tessera_attention_plan** plan) {
  return make_plan<tessera::prepare_attention>(problem, options, plan);
}

void tessera_attention_plan_free(tessera_attention_plan* plan) { delete plan; }

tessera_status tessera_attention_plan_get_info(const tessera_attention_plan* plan,
                                               tessera_attention_plan_info* info) {
  return guarded([&] {
    const tessera_attention_plan& made = required(plan, "plan");
    const tessera::AttentionPlan& p = made.plan;
    tessera_attention_plan_info out{};
    out.backend = p.backend.c_str();
    out.kernel = p.kernel.c_str();
    out.config = {p.config.block_m, p.config.block_n, p.config.num_warps, p.config.num_stages,
                  p.config.num_splits};
    out.num_q_tiles = p.num_q_tiles;
    out.num_kv_tiles = p.num_kv_tiles;
    out.shared_bytes = p.shared_bytes;
    out.workspace_bytes = p.workspace_bytes;
    out.notes = made.notes.data();
    out.num_notes = made.notes.size();
    out.fallback_reason = p.fallback_reason.c_str();
    out.num_parts = p.config.num_parts;
    out.narrow_weights = p.narrow_weights ? 1 : 0;
    write_struct(info, out, "info");
  });
}

tessera_status tessera_attention_plan_run(const tessera_attention_plan* plan,
                                          const tessera_attention_problem* problem, void* workspace,
                                          size_t workspace_bytes, void* stream) {
  return guarded([&] {
    tessera::attention_forward(attention_problem(problem), required(plan, "plan").plan,
                               {static_cast<std::byte*>(workspace), workspace_bytes},
                               tessera::Stream{stream});
  });
}

tessera_status tessera_attention_plan_validate(const tessera_attention_plan* plan,
                                               const tessera_attention_problem* problem) {
  return guarded([&] { tessera::validate(attention_problem(problem), required(plan, "plan").plan); });
}

tessera_status tessera_num_backends(size_t* count) {
  return guarded([&] { required(count, "count") = backends().size(); });
}

tessera_status tessera_get_backend_info(size_t index, tessera_backend_info* info) {
  return guarded([&] {
    if (index >= backends().size()) {
      throw tessera::Error(tessera::ErrorCode::kInvalidArgument,
                           fmt::format("index is {}; expected less than {}", index, backends().size()));
    }
    const tessera::BackendInfo& backend = backends()[index];
    tessera_backend_info out{};
    out.name = backend.name.c_str();
    out.description = backend.description.c_str();
    out.unavailable_reason = backend.unavailable_reason.c_str();
    out.device_kind = c_device({tessera::find_attention_backend(backend.name).device_kind(), 0}).kind;
    write_struct(info, out, "info");
  });
}

tessera_status tessera_attention_unsupported_reason(const char* backend,
                                                    const tessera_attention_problem* problem,
                                                    tessera_text* reason) {
  return guarded([&] {
    tessera_text& out = required(reason, "reason");
    out = {};
    give(out, tessera::unsupported_reason(&required(backend, "backend"), attention_problem(problem)));
  });
}

tessera_status tessera_merge_states(const tessera_merge_states_problem* problem, const char* backend,
                                    void* stream) {
  return guarded([&] {
    tessera::merge_states(merge_states_problem(problem), backend == nullptr ? "auto" : backend,
                          tessera::Stream{stream});
  });
}

}  // extern "C"
