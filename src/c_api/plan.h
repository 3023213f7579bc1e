#pragma once

#include <vector>

#include "c_api/structs.h"
#include "tessera/attention.h"

/// A plan and pointers to its notes. At one place as long as it lives.
struct tessera_attention_plan {
  explicit tessera_attention_plan(tessera::AttentionPlan&& made)
      : plan(std::move(made)), notes(tessera::c_api::c_strings(plan.notes)) {}
  tessera_attention_plan(const tessera_attention_plan&) = delete;
  tessera_attention_plan& operator=(const tessera_attention_plan&) = delete;

  const tessera::AttentionPlan plan;
  const std::vector<const char*> notes;
};
