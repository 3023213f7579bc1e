#include "backends/reference/attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attention/exact_row.h"
#include "attention/modifier.h"
#include "attention/token_rows.h"
#include "backends/factories.h"
#include "core/aligned_memory.h"
#include "core/element.h"
#include "core/infinity.h"
#include "core/parallel.h"
#include "tessera/error.h"

namespace tessera::reference {
namespace {

template <class T>
void merge_row(const MergeStatesProblem& p, std::int64_t b, std::int64_t i, int h) {
  const auto row = [&](const auto& rows) { return dense_row(rows, b, i, h); };
  const double lse_a = p.lse_a.data[row(p.lse_a)];
  const double lse_b = p.lse_b.data[row(p.lse_b)];
  // A part that is NaN makes the union NaN, beside a part without keys too.
  const double largest = std::isnan(lse_b) ? lse_b : std::max(lse_a, lse_b);
  const bool any_visible = largest != -kInfinity;
  const double weight_a = any_visible ? std::exp(lse_a - largest) : 0;
  const double weight_b = any_visible ? std::exp(lse_b - largest) : 0;
  const double sum = weight_a + weight_b;

  const T* a = static_cast<const T*>(p.o_a.data) + row(p.o_a);
  const T* c = static_cast<const T*>(p.o_b.data) + row(p.o_b);
  T* out = static_cast<T*>(p.o.data) + row(p.o);
  for (int d = 0; d < p.head_dim; ++d) {
    double o = 0;  // a side without keys contributes nothing, whatever its o holds
    if (weight_a != 0) o += weight_a / sum * static_cast<double>(a[d]);
    if (weight_b != 0) o += weight_b / sum * static_cast<double>(c[d]);
    out[d] = round_to<T>(o);
  }
  if (p.lse)
    p.lse->data[row(*p.lse)] = static_cast<float>(any_visible ? largest + std::log(sum) : -kInfinity);
}

/// A query of the batch, as parallel_for counts them: over batch (or all tokens if ragged) x heads x queries.
struct RowIndex {
  std::int64_t b = 0;
  std::int64_t i = 0;
  int h = 0;
};

std::size_t count_rows(const AttentionProblem& p) {
  const std::int64_t tokens = p.ragged_q ? p.ragged_q->total_tokens : p.batch * p.seq_len_q;
  return static_cast<std::size_t>(tokens * p.num_heads);
}

RowIndex row_index(const AttentionProblem& p, std::size_t row) {
  const std::int64_t token = static_cast<std::int64_t>(row) / p.num_heads;
  const int h = static_cast<int>(static_cast<std::int64_t>(row) % p.num_heads);
  if (!p.ragged_q) return {token / p.seq_len_q, token % p.seq_len_q, h};
  // The last sequence that starts at or before the token; empty ones start where the next one does.
  const std::int32_t* begins = p.ragged_q->cu_seqlens;
  const std::int64_t b = std::upper_bound(begins, begins + p.batch, token) - begins - 1;
  return {b, token - begins[b], h};
}

void attend(const AttentionProblem& p) {
  const auto program = modifier_program(p);
  parallel_for(count_rows(p), [&](std::size_t row) {
    const RowIndex index = row_index(p, row);
    attend_row_exactly(p, *program, TokenRows(p, index.b), index.i, index.h);
  });
}

void require_config(const char* field, int value, int only) {
  if (value != 0 && value != only) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("config.{} is {}; the reference backend has only {} (or 0, automatic)", field,
                            value, only));
  }
}

}  // namespace

std::string Attention::unsupported_reason(const AttentionProblem& problem) const {
  if (problem.device.kind != DeviceKind::kCpu) {
    return fmt::format("it reads CPU memory only and the problem is on {}", device_name(problem.device));
  }
  return {};
}

AttentionPlan Attention::plan(const AttentionProblem& problem, const AttentionConfig& config) const {
  require_config("block_m", config.block_m, 1);
  require_config("block_n", config.block_n, 1);
  require_config("num_splits", config.num_splits, 1);
  AttentionPlan plan;
  plan.backend = name();
  plan.kernel = "rows/fp64";
  plan.config = {.block_m = 1, .block_n = 1, .num_warps = 1, .num_stages = 1, .num_splits = 1};
  plan.num_q_tiles = static_cast<std::int64_t>(count_rows(problem));
  plan.num_kv_tiles = problem.seq_len_kv;
  plan.notes.push_back("one query of one head at a time, in fp64 and without SIMD: exact, not quick");
  plan.call = std::make_shared<AttentionCall>(
      problem, 0, [](const AttentionProblem& p, std::span<std::byte>, Stream) { attend(p); });
  return plan;
}

std::shared_ptr<std::byte> Attention::allocate_workspace(const Device&, std::size_t size_bytes,
                                                         Stream) const {
  return allocate_aligned(size_bytes, "the workspace of the reference backend");
}

std::string Attention::unsupported_reason(const MergeStatesProblem& problem) const {
  if (problem.device.kind != DeviceKind::kCpu) {
    return fmt::format("it reads CPU memory only and the problem is on {}", device_name(problem.device));
  }
  return {};
}

void Attention::merge_states(const MergeStatesProblem& p, Stream) const {
  dispatch_float(p.o.dtype, [&]<class T>() {
    parallel_for(static_cast<std::size_t>(p.batch * p.num_heads * p.seq_len_q), [&](std::size_t row) {
      const std::int64_t index = static_cast<std::int64_t>(row);
      merge_row<T>(p, index / p.seq_len_q / p.num_heads, index % p.seq_len_q,
                   static_cast<int>(index / p.seq_len_q % p.num_heads));
    });
  });
}

Ceilings Attention::ceilings(DType dtype) const {
  if (dtype != DType::kF64) return find_attention_backend("cpu").ceilings(dtype);
  // A vector holds half as many fp64 numbers as fp32 ones.
  Ceilings ceilings = find_attention_backend("cpu").ceilings(DType::kF32);
  ceilings.flops_per_s /= 2;
  return ceilings;
}

}  // namespace tessera::reference

namespace tessera {

std::unique_ptr<AttentionBackend> make_reference_attention() {
  return std::make_unique<reference::Attention>();
}

}  // namespace tessera
