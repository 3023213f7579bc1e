#include "verify/attention_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <span>

#include "attention/backend.h"
#include "core/element.h"
#include "core/infinity.h"
#include "tessera/error.h"
#include "verify/attention_bounds.h"
#include "verify/attention_judge.h"

namespace tessera {
namespace {

/// The blobs of a case in the memory of a device and the problem that points there.
class Uploaded {
 public:
  Uploaded(AttentionStorage& storage, const VerifyMemory& memory) : storage_(storage), memory_(memory) {
    for (const Blob& blob : storage.blobs) {
      copies_.push_back(memory.allocate(blob.bytes.size()));
      memory.upload(copies_.back().get(), blob.bytes.data(), blob.bytes.size());
    }
    problem = storage.problem;
    problem.device = memory.device;
    move(problem.q.data);
    move(problem.k.data);
    move(problem.v.data);
    move(problem.o.data);
    if (problem.lse) move(problem.lse->data);
    if (problem.q_scales) move(problem.q_scales->q);
    if (problem.kv_scales) {
      move(problem.kv_scales->k);
      move(problem.kv_scales->v);
    }
    if (problem.ragged_q) move(problem.ragged_q->cu_seqlens);
    if (problem.ragged_kv) move(problem.ragged_kv->cu_seqlens);
    if (problem.paged_kv) {
      move(problem.paged_kv->block_table);
      move(problem.paged_kv->seq_lens_kv);
    }
    move(problem.seq_lens_kv);
    ScoreTerms& terms = problem.scores;
    if (terms.alibi) move(terms.alibi->slopes);
    if (terms.sinks) move(terms.sinks->logits);
    if (terms.additive_mask) move(terms.additive_mask->data);
    if (terms.boolean_mask) move(terms.boolean_mask->data);
    if (terms.modifier) {
      for (CapturedTensor& tensor : terms.modifier->tensors) move(tensor.data);
    }
  }

  /// Brings the outputs back into the blobs; says what was written that should not have been.
  std::string download() {
    std::string violation;
    for (std::size_t n = 0; n < copies_.size(); ++n) {
      Blob& blob = storage_.blobs[n];
      std::vector<std::byte> now(blob.bytes.size());
      memory_.download(now.data(), copies_[n].get(), now.size());
      if (!blob.is_output && now == blob.bytes) continue;
      for (std::size_t x = 0; x < now.size() && violation.empty(); ++x) {
        if (now[x] == blob.bytes[x] || (blob.is_output && blob.written[x])) continue;
        violation = blob.is_output
                        ? fmt::format("it wrote outside its output, {} bytes from the first element",
                                      static_cast<std::int64_t>(x) - static_cast<std::int64_t>(blob.offset))
                        : "it changed an input";
      }
      if (blob.is_output) blob.bytes = std::move(now);
    }
    return violation;
  }

  AttentionProblem problem;

 private:
  /// Makes a pointer into a blob point to the same place of its copy.
  template <class T>
  void move(T*& pointer) {
    const auto* address = reinterpret_cast<const std::byte*>(pointer);
    for (std::size_t n = 0; n < copies_.size(); ++n) {
      const std::vector<std::byte>& bytes = storage_.blobs[n].bytes;
      if (address < bytes.data() || address >= bytes.data() + bytes.size()) continue;
      pointer = reinterpret_cast<T*>(copies_[n].get() + (address - bytes.data()));
      return;
    }
  }

  AttentionStorage& storage_;
  const VerifyMemory& memory_;
  std::vector<std::shared_ptr<std::byte>> copies_;
};

/// Scratch memory full of NaN with fences around it, on a device.
class PoisonedWorkspace {
 public:
  PoisonedWorkspace(std::size_t size_bytes, const VerifyMemory& memory)
      : memory_(memory),
        poison_(size_bytes + 2 * kFence, std::byte{0xff}),
        bytes_(memory.allocate(poison_.size())) {
    memory_.upload(bytes_.get(), poison_.data(), poison_.size());
  }

  std::span<std::byte> span() const { return {bytes_.get() + kFence, poison_.size() - 2 * kFence}; }

  /// What was written that should not have been.
  std::string violation() {
    memory_.download(poison_.data(), bytes_.get(), poison_.size());
    const auto is_poison = [](std::byte x) { return x == std::byte{0xff}; };
    const bool ok = std::all_of(poison_.begin(), poison_.begin() + kFence, is_poison) &&
                    std::all_of(poison_.end() - kFence, poison_.end(), is_poison);
    return ok ? "" : "it wrote outside its workspace";
  }

 private:
  static constexpr std::ptrdiff_t kFence = 256;
  const VerifyMemory& memory_;
  std::vector<std::byte> poison_;
  std::shared_ptr<std::byte> bytes_;
};

AttentionRows read_rows(AttentionStorage& storage) {
  AttentionRows rows;
  const AttentionProblem& p = storage.problem;
  Blob& o = storage.blobs[storage.o_blob];
  for (const std::int64_t offset : storage.o_offsets) {
    for (int d = 0; d < p.head_dim_v; ++d) rows.o.push_back(load_element(o.data(), p.o.dtype, offset + d));
  }
  if (p.lse) {
    Blob& lse = storage.blobs[storage.lse_blob];
    for (const std::int64_t offset : storage.lse_offsets) {
      rows.lse.push_back(load_element(lse.data(), DType::kF32, offset));
    }
  }
  return rows;
}

/// 0 if both are the same, infinities and NaN included; infinite if one is and the other is not.
double difference(double actual, double expected) {
  if (std::isnan(actual) && std::isnan(expected)) return 0;
  if (actual == expected) return 0;
  const double d = std::abs(actual - expected);
  return std::isfinite(d) ? d : kInfinity;
}

/// Of how many rows the naive computation takes one. A bound is twice the worst of its rows: the worst of
/// fewer rows makes no bound larger, and hundreds of a long prompt's thousands say as much.
std::int64_t sampled_rows(const AttentionData& data) {
  constexpr std::int64_t kWork = std::int64_t{1} << 23;  // multiply-adds of all sequences
  constexpr std::int64_t kLeastRows = 300;
  const AttentionCase& c = data.description;
  std::int64_t work = 0;
  for (const SequenceData& s : data.sequences)
    work += s.len_q * s.len_kv * c.num_heads * (c.head_dim_qk + c.head_dim_v);
  // Odd, so that rows of every head and of every place in a tile are among them.
  return std::max<std::int64_t>(1, std::min(work / kWork, data.num_rows() / kLeastRows)) | 1;
}

double largest_finite(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values)
    if (std::isfinite(value)) largest = std::max(largest, value);
  return largest;
}

double largest_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  double largest = 0;
  for (std::size_t n = 0; n < actual.size(); ++n)
    largest = std::max(largest, difference(actual[n], expected[n]));
  return largest;
}

}  // namespace

AttentionRun run_attention(const AttentionData& data, const std::string& backend, const VerifyMemory& memory,
                           const AttentionRunStyle& style) {
  AttentionStorage storage = store_attention_data(data);
  Uploaded uploaded(storage, memory);
  AttentionRun run;
  AttentionOptions options;
  options.backend = backend;
  options.config.num_splits = style.num_splits;
  if (style.workspace_memory == nullptr) {
    const AttentionPlan plan = attention_forward(uploaded.problem, options);
    run.kernel = plan.kernel;
    run.narrow_weights = plan.narrow_weights;
    run.violation = uploaded.download();
    run.rows = read_rows(storage);
    return run;
  }
  const AttentionPlan plan = plan_attention(uploaded.problem, options);
  run.kernel = plan.kernel;
  run.narrow_weights = plan.narrow_weights;
  std::size_t workspace_bytes = plan.workspace_bytes;
  std::optional<AttentionStorage> storage_before;
  std::optional<Uploaded> uploaded_before;
  AttentionPlan plan_before;
  if (style.before != nullptr) {
    storage_before.emplace(store_attention_data(*style.before));
    uploaded_before.emplace(*storage_before, memory);
    plan_before = plan_attention(uploaded_before->problem, options);
    workspace_bytes = std::max(workspace_bytes, plan_before.workspace_bytes);
  }
  PoisonedWorkspace workspace(workspace_bytes, *style.workspace_memory);
  const auto call = [&](Stream stream) {
    if (uploaded_before) attention_forward(uploaded_before->problem, plan_before, workspace.span(), stream);
    attention_forward(uploaded.problem, plan, workspace.span(), stream);
  };
  if (style.is_replayed && memory.replay) {
    memory.replay(call);
  } else {
    call({});
  }
  run.violation = uploaded.download();
  run.rows = read_rows(storage);
  if (uploaded_before) {
    if (run.violation.empty()) run.violation = uploaded_before->download();
    run.rows_before = read_rows(*storage_before);
  }
  if (run.violation.empty()) run.violation = workspace.violation();
  return run;
}

AttentionExpectation expect_attention(const AttentionData& data, const std::string& backend,
                                      bool narrow_weights) {
  const bool judges_reference = backend == "reference";
  AttentionExpectation expectation;
  AttentionMagnitudes sizes;
  AttentionRows naive;
  if (judges_reference) {
    expectation.rows = naive_attention(data, NaiveArithmetic::kExtended, &sizes);
    naive = naive_attention(data, NaiveArithmetic::kF64);
  } else {
    AttentionData wide = data;
    wide.description.dtype = DType::kF64;
    wide.description.kv_dtype.reset();
    wide.description.kv_scaling = KvScaling::kNone;
    wide.description.narrow_q = false;
    wide.description.q_scaling = KvScaling::kNone;
    wide.q_scales.clear();
    wide.k_scales.clear();
    wide.v_scales.clear();
    wide.description.with_lse = true;
    wide.description.batch_invariant = false;
    expectation.rows = run_attention(wide, "reference", VerifyMemory::cpu()).rows;
    naive = naive_attention(data, NaiveArithmetic::kF32, sizes, sampled_rows(data), expectation.rows);
  }
  const double u_o = unit_roundoff(data.description.dtype);
  const double u_32 = unit_roundoff(DType::kF32);
  const double u_s = judges_reference ? unit_roundoff(DType::kF64) : u_32;
  const double u_p = judges_reference ? u_s : narrow_weights ? unit_roundoff(DType::kF8E4M3) : u_o;
  const double score_error = 3 * u_s * (1 + sizes.score);
  expectation.bound = 2 * largest_difference(naive.o, expectation.rows.o) +
                      rounding_bound(sizes.o, u_o, sizes.weighted_v, u_p) + 5 * u_s * sizes.weighted_score_v;
  expectation.lse_bound =
      2 * largest_difference(naive.lse, expectation.rows.lse) + 2 * u_32 * sizes.lse + score_error + 4 * u_s;
  if (narrow_weights) {
    const BoundedRows bounded = bounded_attention(data, true);
    expectation.bound = std::max(expectation.bound, largest_finite(bounded.o_bound));
    expectation.lse_bound = std::max(expectation.lse_bound, largest_finite(bounded.lse_bound));
  }
  return expectation;
}

void compare_attention(const AttentionData& data, const AttentionRun& run,
                       const AttentionExpectation& expectation, VerifyResult& result) {
  const auto dim_v = static_cast<std::size_t>(data.description.head_dim_v);
  result.kernel = run.kernel;
  result.bound = expectation.bound;
  result.lse_bound = expectation.lse_bound;
  result.error = 0;
  result.lse_error = 0;
  std::size_t worst = 0, worst_lse = 0;
  for (std::size_t n = 0; n < run.rows.o.size(); ++n) {
    const bool row_is_empty = expectation.rows.lse[n / dim_v] == -kInfinity;
    double error = difference(run.rows.o[n], expectation.rows.o[n]);
    if (row_is_empty && run.rows.o[n] != 0) error = kInfinity;
    if (error > result.error) result.error = error, worst = n;
  }
  for (std::size_t n = 0; n < run.rows.lse.size(); ++n) {
    const double error = difference(run.rows.lse[n], expectation.rows.lse[n]);
    if (error > result.lse_error) result.lse_error = error, worst_lse = n;
  }
  const std::size_t heads = static_cast<std::size_t>(data.description.num_heads);
  if (!std::isfinite(result.bound) || !std::isfinite(result.lse_bound)) {
    result.message =
        "the naive computation puts NaN or infinity where the judge does not: no bound for this case";
  } else if (!run.violation.empty()) {
    result.message = run.violation;
  } else if (!(result.error <= result.bound)) {
    const std::size_t row = worst / dim_v;
    result.message =
        fmt::format("o is {} instead of {} at query {} (of all sequences), head {}, element {}",
                    run.rows.o[worst], expectation.rows.o[worst], row / heads, row % heads, worst % dim_v);
  } else if (!(result.lse_error <= result.lse_bound)) {
    result.message = fmt::format("lse is {} instead of {} at query {} (of all sequences), head {}",
                                 run.rows.lse[worst_lse], expectation.rows.lse[worst_lse], worst_lse / heads,
                                 worst_lse % heads);
  }
  result.passed = result.message.empty();
}

bool may_refuse(const std::string& backend, bool batch_invariant, bool merge) {
  return backend.find("unfused") != std::string::npos && (batch_invariant || merge);
}

bool may_refuse_modifier(const std::string& backend, const AttentionCase& c) {
  return c.modifier != ModifierExample::kNone && !find_attention_backend(backend).runs_modifiers();
}

void check_attention(JudgedCase& judged, const std::string& backend, const VerifyMemory& memory,
                     VerifyResult& result) {
  const AttentionData& data = judged.data();
  AttentionRun run;
  try {
    run = run_attention(data, backend, memory);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    result.unsupported_reason = error.message();
    result.passed = may_refuse(backend, data.description.batch_invariant, false) ||
                    may_refuse_modifier(backend, data.description);
    if (!result.passed) result.message = error.message();
    return;
  }
  compare_attention(data, run, judged.expectation(backend, run.narrow_weights), result);
}

std::string describe_bit_difference(const AttentionRows& a, std::int64_t a_row, const AttentionRows& b,
                                    std::int64_t b_row, std::int64_t num_rows, int head_dim_v) {
  const auto first_difference = [](const std::vector<double>& x, std::int64_t x_begin,
                                   const std::vector<double>& y, std::int64_t y_begin,
                                   std::int64_t count) -> std::int64_t {
    for (std::int64_t n = 0; n < count; ++n) {
      const double a = x[static_cast<std::size_t>(x_begin + n)], b = y[static_cast<std::size_t>(y_begin + n)];
      if (std::isnan(a) && std::isnan(b)) continue;
      if (std::bit_cast<std::uint64_t>(a) != std::bit_cast<std::uint64_t>(b)) return n;
    }
    return -1;
  };
  const std::int64_t o =
      first_difference(a.o, a_row * head_dim_v, b.o, b_row * head_dim_v, num_rows * head_dim_v);
  if (o >= 0) {
    return fmt::format("o of row {}, element {}: {:a} and {:a}", o / head_dim_v, o % head_dim_v,
                       a.o[static_cast<std::size_t>(a_row * head_dim_v + o)],
                       b.o[static_cast<std::size_t>(b_row * head_dim_v + o)]);
  }
  if (a.lse.empty() || b.lse.empty()) return {};
  const std::int64_t lse = first_difference(a.lse, a_row, b.lse, b_row, num_rows);
  if (lse < 0) return {};
  return fmt::format("lse of row {}: {:a} and {:a}", lse, a.lse[static_cast<std::size_t>(a_row + lse)],
                     b.lse[static_cast<std::size_t>(b_row + lse)]);
}

}  // namespace tessera
