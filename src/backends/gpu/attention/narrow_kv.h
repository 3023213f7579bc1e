#pragma once

#include <fmt/core.h>

#include <string>

#include "attention/narrow.h"
#include "backends/gpu/runtime/kernel.h"
#include "tessera/attention.h"

// Keys and values of 8 bits beside a wider q, which tuned kernels widen on the way to the matrix units.

namespace tessera::gpu {

inline bool has_page_scales(const AttentionProblem& p) {
  return p.kv_scales && p.paged_kv && p.kv_scales->batch_stride != 0;
}

/// Empty if all keys of a head have the same scale, else why kernels that multiply it in once don't take
/// them.
inline std::string reason_against_scales(const AttentionProblem& p) {
  return has_page_scales(p) ? "it takes one scale a head, not one a page" : "";
}

inline void add_narrow_define(const AttentionProblem& p, ModuleSpec& module) {
  if (has_narrow_kv(p)) module.defines.push_back(fmt::format("TESSERA_KV_DTYPE={}", dtype_name(p.k.dtype)));
}

inline AttentionProblem with_narrow_kv(AttentionProblem p) {
  p.k.dtype = p.v.dtype = DType::kF8E4M3;
  return p;
}

}  // namespace tessera::gpu
