#include "verify/random_verify.h"

#include <algorithm>
#include <chrono>

#include "core/rounding.h"
#include "verify/prepare_cases.h"
#include "verify/random_check.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Leaves `count` sequences.
void set_batch(AttentionCase& c, std::int64_t count) {
  c.batch = count;
  const auto shorten = [&](std::vector<std::int64_t>& lens) {
    if (!lens.empty()) lens.resize(static_cast<std::size_t>(count));
  };
  shorten(c.lens_q);
  shorten(c.lens_kv);
}

void limit(std::vector<std::int64_t>& lens, std::int64_t most) {
  for (std::int64_t& len : lens) len = std::min(len, most);
}

void set_len_q(AttentionCase& c, std::int64_t len) {
  c.seq_len_q = len;
  limit(c.lens_q, len);
}

void set_len_kv(AttentionCase& c, std::int64_t len) {
  c.seq_len_kv = len;
  limit(c.lens_kv, len);
}

/// Steps towards a smaller or plainer case; one that changes nothing is passed over.
std::vector<std::function<void(RandomCase&)>> steps() {
  std::vector<std::function<void(RandomCase&)>> all;
  const auto add = [&](auto change) { all.push_back([change](RandomCase& r) { change(r.attention); }); };
  all.push_back([](RandomCase& r) { r.host_tensors = false; });
  all.push_back([](RandomCase& r) { r.replayed = false; });
  all.push_back([](RandomCase& r) { r.repeated = false; });
  all.push_back([](RandomCase& r) { r.num_splits = 0; });
  add([](AttentionCase& c) { c.batch_invariant = false; });
  add([](AttentionCase& c) { set_batch(c, std::min<std::int64_t>(c.batch, 1)); });
  add([](AttentionCase& c) {  // the last sequence only
    if (c.batch < 2) return;
    if (!c.lens_q.empty()) c.lens_q = {c.lens_q.back()};
    if (!c.lens_kv.empty()) c.lens_kv = {c.lens_kv.back()};
    c.batch = 1;
  });
  add([](AttentionCase& c) { set_batch(c, divide_up(c.batch, 2)); });
  add([](AttentionCase& c) { set_batch(c, std::max<std::int64_t>(c.batch - 1, 0)); });
  for (const int heads : {1, 2}) {
    add([heads](AttentionCase& c) {
      if (heads < c.num_heads) c.num_heads = heads, c.num_kv_heads = 1;
    });
  }
  add([](AttentionCase& c) { c.num_heads = c.num_heads / c.num_kv_heads, c.num_kv_heads = 1; });
  add([](AttentionCase& c) {
    if (c.num_kv_heads == 1) c.num_heads = divide_up(c.num_heads, 2);
  });
  for (const double part : {0.0, 0.5, 0.9}) {
    const auto shorter = [part](std::int64_t len) {
      return std::min(static_cast<std::int64_t>(static_cast<double>(len) * part) + (part == 0 ? 1 : 0), len);
    };
    add([shorter](AttentionCase& c) { set_len_q(c, shorter(c.seq_len_q)); });
    add([shorter](AttentionCase& c) { set_len_kv(c, shorter(c.seq_len_kv)); });
    add([shorter](AttentionCase& c) {
      c.head_dim_qk = static_cast<int>(std::max<std::int64_t>(shorter(c.head_dim_qk), 1));
      if (c.values_in_keys) c.head_dim_v = std::min(c.head_dim_v, c.head_dim_qk);
    });
    add([shorter](AttentionCase& c) {
      c.head_dim_v = static_cast<int>(std::max<std::int64_t>(shorter(c.head_dim_v), 1));
    });
  }
  add([](AttentionCase& c) { set_len_q(c, std::max<std::int64_t>(c.seq_len_q - 1, 0)); });
  add([](AttentionCase& c) { set_len_kv(c, std::max<std::int64_t>(c.seq_len_kv - 1, 0)); });
  add([](AttentionCase& c) { c.lens_q.clear(); });
  add([](AttentionCase& c) { c.kv_storage = KvStorage::kDense, c.lens_kv.clear(); });
  add([](AttentionCase& c) {
    if (c.kv_storage != KvStorage::kDense) c.kv_storage = KvStorage::kRagged;
  });
  add([](AttentionCase& c) { c.strides = StrideStyle::kBatchSeqHeads; });
  add([](AttentionCase& c) { c.shared_kv = false; });
  add([](AttentionCase& c) { c.values_in_keys = false; });
  add([](AttentionCase& c) { c.q_scaling = KvScaling::kNone; });
  add([](AttentionCase& c) { c.narrow_q = false, c.q_scaling = KvScaling::kNone; });
  add([](AttentionCase& c) { c.kv_scaling = KvScaling::kNone; });
  add([](AttentionCase& c) {
    c.kv_dtype.reset();
    c.narrow_q = false;
    c.kv_scaling = c.q_scaling = KvScaling::kNone;
  });
  add([](AttentionCase& c) { c.softmax_scale.reset(); });
  add([](AttentionCase& c) { c.softcap.reset(); });
  add([](AttentionCase& c) { c.alibi = c.alibi_per_batch = false; });
  add([](AttentionCase& c) { c.alibi_per_batch = false; });
  add([](AttentionCase& c) { c.sinks = false; });
  add([](AttentionCase& c) { c.additive_mask.reset(); });
  add([](AttentionCase& c) { c.boolean_mask.reset(); });
  add([](AttentionCase& c) { c.diagonal.reset(); });
  add([](AttentionCase& c) { c.modifier = ModifierExample::kNone; });
  add([](AttentionCase& c) {
    if (c.diagonal) c.diagonal = DiagonalMask::causal();
  });
  add([](AttentionCase& c) { c.content = Content::kNormal; });
  add([](AttentionCase& c) { c.logit_spread = 1; });
  add([](AttentionCase& c) { c.k_spread = 1; });
  add([](AttentionCase& c) { c.v_spread = 1; });
  add([](AttentionCase& c) { c.exponent_spread = 0; });
  add([](AttentionCase& c) { c.exponent_spread /= 2; });
  add([](AttentionCase& c) { c.with_lse = false; });
  return all;
}

}  // namespace

RandomCase shrink_random_case(const RandomCase& from, const std::function<bool(const RandomCase&)>& fails,
                              double seconds) {
  const Clock::time_point begin = Clock::now();
  const auto all = steps();
  RandomCase smallest = from;
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (const auto& step : all) {
      // Again as long as it helps: halving does several times.
      while (seconds_since(begin) < seconds) {
        RandomCase smaller = smallest;
        step(smaller);
        if (to_text(smaller) == to_text(smallest) || !fails(smaller)) break;
        smallest = smaller;
        has_changed = true;
      }
    }
  }
  return smallest;
}

RandomVerifyReport run_random_verify(const std::string& backend, const VerifyMemory& memory,
                                     const RandomVerifyOptions& options,
                                     const std::function<void(const RandomFailure&)>& on_failure) {
  constexpr double kShrinkSeconds = 10;
  constexpr std::uint64_t kPreparedAtOnce = 64;
  const Clock::time_point begin = Clock::now();
  RandomVerifyReport report;
  for (std::uint64_t index = options.first;
       report.cases < options.max_cases && seconds_since(begin) < options.seconds; ++index) {
    if ((index - options.first) % kPreparedAtOnce == 0) {
      std::vector<AttentionCase> next;
      for (std::uint64_t n = 0; n < kPreparedAtOnce; ++n)
        next.push_back(draw_random_case(options.seed, index + n, options.limits).attention);
      prepare_cases(next, backend, memory);
    }
    const RandomCase random_case = draw_random_case(options.seed, index, options.limits);
    VerifyResult result = run_random_case(random_case, backend, memory);
    ++report.cases;
    if (!result.unsupported_reason.empty() && result.passed) ++report.unsupported;
    if (result.passed) {
      if (result.bound > 0)
        report.largest_share = std::max(report.largest_share, result.error / result.bound);
      continue;
    }
    ++report.failed;
    RandomFailure failure;
    failure.index = index;
    failure.shrunk = shrink_random_case(
        random_case,
        [&](const RandomCase& smaller) { return !run_random_case(smaller, backend, memory).passed; },
        std::min(kShrinkSeconds, options.seconds / 4));
    failure.shrunk_result = run_random_case(failure.shrunk, backend, memory);
    failure.result = std::move(result);
    on_failure(failure);
  }
  return report;
}

}  // namespace tessera
