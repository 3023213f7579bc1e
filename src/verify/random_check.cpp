#include "verify/random_check.h"

#include <fmt/core.h>

#include <cmath>

#include "core/infinity.h"
#include "tessera/error.h"
#include "verify/attention_bounds.h"
#include "verify/attention_check.h"
#include "verify/attention_variants.h"

namespace tessera {
namespace {

/// How much of its bound an error takes: at most 1 is right.
double share_of_bound(double actual, double expected, double bound) {
  if (std::isnan(bound)) return std::isfinite(actual) ? kInfinity : 0;
  if (std::isinf(bound)) return 0;
  if (actual == expected || (std::isnan(actual) && std::isnan(expected))) return 0;
  const double error = std::abs(actual - expected);
  return std::isfinite(error) && bound > 0 ? error / bound : kInfinity;
}

/// Compares all numbers and fills in the result's errors, bounds and message.
void compare_with_bounds(const AttentionData& data, const AttentionRows& rows, const BoundedRows& expected,
                         VerifyResult& result) {
  const AttentionCase& c = data.description;
  const auto dim_v = static_cast<std::size_t>(c.head_dim_v), heads = static_cast<std::size_t>(c.num_heads);
  double worst = 0;
  std::size_t at = 0;
  const auto where = [&](std::size_t row) {
    return fmt::format("query {} (of all sequences), head {}", row / heads, row % heads);
  };
  for (std::size_t n = 0; n < rows.o.size(); ++n) {
    const double share = share_of_bound(rows.o[n], expected.rows.o[n], expected.o_bound[n]);
    if (share > worst) worst = share, at = n;
  }
  if (worst > 0) {
    result.error = std::abs(rows.o[at] - expected.rows.o[at]);
    result.bound = expected.o_bound[at];
  }
  if (worst > 1) {
    result.message = fmt::format("o is {} instead of {}, {:.3g} times what is allowed, at {}, element {}",
                                 rows.o[at], expected.rows.o[at], worst, where(at / dim_v), at % dim_v);
    return;
  }
  worst = 0;
  for (std::size_t n = 0; n < rows.lse.size(); ++n) {
    const double share = share_of_bound(rows.lse[n], expected.rows.lse[n], expected.lse_bound[n]);
    if (share > worst) worst = share, at = n;
  }
  if (worst > 0) {
    result.lse_error = std::abs(rows.lse[at] - expected.rows.lse[at]);
    result.lse_bound = expected.lse_bound[at];
  }
  if (worst > 1) {
    result.message = fmt::format("lse is {} instead of {}, {:.3g} times what is allowed, at {}", rows.lse[at],
                                 expected.rows.lse[at], worst, where(at));
  }
}

/// Notes in `result` that `run` has other bits than `rows`.
void expect_bits(const AttentionData& data, const AttentionRows& rows, const AttentionRun& run,
                 std::string_view what, VerifyResult& result) {
  if (!result.message.empty()) return;
  const std::string where =
      describe_bit_difference(rows, 0, run.rows, 0, data.num_rows(), data.description.head_dim_v);
  if (!where.empty()) result.message = fmt::format("{} gives other bits: {}", what, where);
  if (where.empty() && !run.violation.empty()) result.message = fmt::format("{}: {}", what, run.violation);
}

class RandomCheck {
 public:
  RandomCheck(const RandomCase& random_case, const std::string& backend, const VerifyMemory& memory,
              VerifyResult& result)
      : case_(random_case),
        backend_(backend),
        memory_(memory),
        host_memory_(VerifyMemory::cpu()),
        tensors_(random_case.host_tensors ? host_memory_ : memory),
        result_(result),
        data_(make_attention_data(random_case.attention)) {}

  void run() {
    AttentionRun first;
    try {
      first = run_once(data_, {&memory_});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      result_.unsupported_reason = error.message();
      const bool is_f64 = case_.attention.dtype == DType::kF64;
      result_.passed = is_f64 || may_refuse(backend_, case_.attention.batch_invariant, false) ||
                       may_refuse_modifier(backend_, case_.attention);
      if (!result_.passed) result_.message = error.message();
      return;
    }
    result_.kernel = first.kernel;
    result_.message = first.violation;
    if (result_.message.empty())
      compare_with_bounds(data_, first.rows, bounded_attention(data_, first.narrow_weights), result_);
    if (case_.replayed && memory_.replay && !case_.host_tensors)
      expect_bits(data_, first.rows, run_once(data_, {&memory_, nullptr, true}), "a replayed graph", result_);
    if (case_.repeated) check_repeated(first.rows);
    if (case_.attention.batch_invariant) check_invariance(first.rows);
    result_.passed = result_.message.empty();
  }

 private:
  AttentionRun run_once(const AttentionData& data, AttentionRunStyle style) {
    const bool splits_keys = backend_ == "cpu" || backend_ == "cuda" || backend_ == "hip";
    if (splits_keys && style.num_splits == 0) style.num_splits = case_.num_splits;
    return run_attention(data, backend_, tensors_, style);
  }

  /// Two calls that share a workspace, with nothing between them.
  void check_repeated(const AttentionRows& rows) {
    if (!result_.message.empty()) return;
    AttentionCase other = case_.attention;
    ++other.seed;
    const AttentionData before = make_attention_data(other);
    const AttentionRun alone = run_once(before, {&memory_});
    AttentionRun run = run_once(data_, {&memory_, &before, case_.replayed});
    expect_bits(data_, rows, run, "a call behind another with the same workspace", result_);
    run.rows = run.rows_before;
    expect_bits(before, alone.rows, run, "a call before another with the same workspace", result_);
  }

  void check_invariance(const AttentionRows& rows) {
    AttentionRunStyle unsplit = {&memory_};
    unsplit.num_splits = 1;
    expect_bits(data_, rows, run_once(data_, unsplit), "keys that are not split", result_);
    for (const InvarianceVariant& variant : invariance_variants(data_)) {
      if (!result_.message.empty()) return;
      const AttentionRun run = run_once(variant.data, {&memory_});
      if (!run.violation.empty()) result_.message = fmt::format("{}: {}", variant.what, run.violation);
      const std::string where = describe_first_difference(data_, rows, variant, run.rows);
      if (!where.empty()) result_.message = fmt::format("{} gives other bits: {}", variant.what, where);
    }
  }

  const RandomCase& case_;
  const std::string& backend_;
  const VerifyMemory& memory_;
  VerifyMemory host_memory_;
  const VerifyMemory& tensors_;
  VerifyResult& result_;
  AttentionData data_;
};

}  // namespace

void check_random_case(const RandomCase& random_case, const std::string& backend, const VerifyMemory& memory,
                       VerifyResult& result) {
  RandomCheck(random_case, backend, memory, result).run();
}

VerifyResult run_random_case(const RandomCase& random_case, const std::string& backend,
                             const VerifyMemory& memory) {
  const VerifyCase verify_case = {
      "random", to_text(random_case), false,
      [&](const std::string& name, const VerifyMemory& device_memory, AttentionJudge&, VerifyResult& result) {
        check_random_case(random_case, name, device_memory, result);
      }};
  return run_verify_case(verify_case, backend, memory);
}

}  // namespace tessera
