#include "verify/attention_properties.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element.h"
#include "core/infinity.h"
#include "core/parallel.h"
#include "tessera/error.h"
#include "verify/attention_check.h"
#include "verify/attention_judge.h"

namespace tessera {
namespace {

/// Sets result from an Error{kUnsupported}; rethrows anything else.
void note_refusal(const Error& error, bool permissible, VerifyResult& result) {
  if (error.code() != ErrorCode::kUnsupported) throw error;
  result.unsupported_reason = error.message();
  result.passed = permissible;
  if (!permissible) result.message = error.message();
}

// ---- Batch invariance

/// Runs `data`, whose sequences are [b_begin, b_begin + n) of `base` from query q_begin on, and compares the
/// bits.
void expect_same_bits(const AttentionData& base, const AttentionRows& base_rows, std::int64_t b_begin,
                      std::int64_t q_begin, const AttentionData& data, std::string_view what,
                      const std::string& backend, const VerifyMemory& memory, VerifyResult& result,
                      int num_splits = 0) {
  if (!result.message.empty()) return;
  AttentionRunStyle style;
  style.num_splits = num_splits;
  const AttentionRun run = run_attention(data, backend, memory, style);
  const std::int64_t row = base.first_row(b_begin) + q_begin * base.description.num_heads;
  const std::string where =
      describe_bit_difference(base_rows, row, run.rows, 0, data.num_rows(), base.description.head_dim_v);
  if (!where.empty()) {
    result.message = fmt::format("{} gives other bits: {}", what, where);
  } else if (!run.violation.empty()) {
    result.message = run.violation;
  }
}

/// Queries of each sequence in pieces of `piece`.
void expect_same_bits_in_pieces(const AttentionData& base, const AttentionRows& rows, std::int64_t piece,
                                const std::string& backend, const VerifyMemory& memory,
                                VerifyResult& result) {
  for (std::size_t b = 0; b < base.sequences.size(); ++b) {
    const std::int64_t len_q = base.sequences[b].len_q, sequence = static_cast<std::int64_t>(b);
    for (std::int64_t q = 0; q < len_q && result.message.empty(); q += piece) {
      const std::int64_t end = std::min(len_q, q + piece);
      expect_same_bits(base, rows, sequence, q, slice_attention_data(base, sequence, q, end),
                       fmt::format("sequence {} alone, queries {} to {}", b, q, end - 1), backend, memory,
                       result);
    }
  }
}

/// Limits the library to some threads for a while.
class LimitedThreads {
 public:
  explicit LimitedThreads(int count) : before_(num_threads()) { set_num_threads(count); }
  ~LimitedThreads() { set_num_threads(before_); }
  LimitedThreads(const LimitedThreads&) = delete;
  LimitedThreads& operator=(const LimitedThreads&) = delete;

 private:
  int before_;
};

/// `c` with its keys in pages, and with other strides; the names say which.
std::vector<AttentionCase> other_storage(const AttentionCase& c) {
  std::vector<AttentionCase> others;
  for (const int page_size : {1, 16, 48}) {
    AttentionCase& paged = others.emplace_back(c);
    paged.name = fmt::format("paged storage with page_size {}", page_size);
    paged.kv_storage = KvStorage::kPaged;
    paged.page_size = page_size;
  }
  for (const StrideStyle strides : {StrideStyle::kBatchHeadsSeq, StrideStyle::kPacked, StrideStyle::kOdd}) {
    AttentionCase& strided = others.emplace_back(c);
    strided.name = "another layout";
    strided.strides = strides;
  }
  return others;
}

/// The base case is ragged with a bottom-right diagonal and window_right = 0.
void check_batch_invariance(const AttentionCase& c, const std::string& backend, const VerifyMemory& memory,
                            AttentionJudge& judge, VerifyResult& result) {
  JudgedCase& judged = judge.of(c);
  const AttentionData& base = judged.data();
  check_attention(judged, backend, memory, result);
  if (!result.passed || !result.unsupported_reason.empty()) return;
  const AttentionRows rows = run_attention(base, backend, memory).rows;

  for (const AttentionCase& other : other_storage(base.description)) {
    AttentionData stored = base;
    stored.description = other;
    expect_same_bits(base, rows, 0, 0, stored, other.name, backend, memory, result);
  }
  expect_same_bits(base, rows, 0, 0, base, "keys that are not split", backend, memory, result, 1);
  if (memory.device.kind == DeviceKind::kCpu) {
    const LimitedThreads one_thread(1);
    expect_same_bits(base, rows, 0, 0, base, "running on one thread", backend, memory, result);
  }
  for (const std::int64_t piece :
       {std::int64_t{1} << 40, std::int64_t{16}, std::int64_t{7}, std::int64_t{1}}) {
    expect_same_bits_in_pieces(base, rows, piece, backend, memory, result);
  }
  result.passed = result.message.empty();
}

// ---- Merging

/// Keys [begin, end) of every sequence. Only for dense cases without diagonal and alibi.
AttentionData slice_keys(const AttentionData& data, std::int64_t begin, std::int64_t end) {
  AttentionData part = data;
  AttentionCase& c = part.description;
  c.seq_len_kv = end - begin;
  for (SequenceData& s : part.sequences) {
    const auto slice = [&](std::vector<double>& rows, std::int64_t width) {
      rows = std::vector<double>(rows.begin() + begin * width, rows.begin() + end * width);
    };
    s.len_kv = end - begin;
    slice(s.k, c.num_kv_heads * c.head_dim_qk);
    slice(s.v, c.num_kv_heads * c.head_dim_v);
  }
  MaskValues& mask = part.boolean_mask;
  mask.keys = end - begin;
  mask.values.clear();
  for (std::int64_t b = 0; b < mask.batches; ++b) {
    for (std::int64_t h = 0; h < mask.heads; ++h) {
      for (std::int64_t i = 0; i < mask.queries; ++i) {
        for (std::int64_t j = begin; j < end; ++j) mask.values.push_back(data.boolean_mask.at(b, h, i, j));
      }
    }
  }
  return part;
}

/// Contiguous o (batch, seq, heads, head_dim) and lse (batch, seq, heads) of one side on the device.
struct DeviceRows {
  std::shared_ptr<std::byte> o, lse;
};

DeviceRows upload_rows(const AttentionRows& rows, DType dtype, const VerifyMemory& memory) {
  std::vector<std::byte> o(dtype_bytes(dtype, rows.o.size()));
  for (std::size_t n = 0; n < rows.o.size(); ++n) {
    store_element(o.data(), dtype, static_cast<std::int64_t>(n), rows.o[n]);
  }
  const std::vector<float> lse(rows.lse.begin(), rows.lse.end());
  DeviceRows device{memory.allocate(o.size()), memory.allocate(lse.size() * sizeof(float))};
  memory.upload(device.o.get(), o.data(), o.size());
  memory.upload(device.lse.get(), lse.data(), lse.size() * sizeof(float));
  return device;
}

AttentionRows download_rows(const DeviceRows& device, const AttentionRows& like, DType dtype,
                            const VerifyMemory& memory) {
  std::vector<std::byte> o(dtype_bytes(dtype, like.o.size()));
  std::vector<float> lse(like.lse.size());
  memory.download(o.data(), device.o.get(), o.size());
  memory.download(lse.data(), device.lse.get(), lse.size() * sizeof(float));
  AttentionRows rows;
  for (std::size_t n = 0; n < like.o.size(); ++n) {
    rows.o.push_back(load_element(o.data(), dtype, static_cast<std::int64_t>(n)));
  }
  rows.lse.assign(lse.begin(), lse.end());
  return rows;
}

AttentionRows run_merge(const AttentionCase& c, const AttentionRows& a, const AttentionRows& b, bool in_place,
                        const std::string& backend, const VerifyMemory& memory) {
  const DeviceRows a_device = upload_rows(a, c.dtype, memory), b_device = upload_rows(b, c.dtype, memory);
  AttentionRows nothing = a;
  std::fill(nothing.o.begin(), nothing.o.end(), std::numeric_limits<double>::quiet_NaN());
  std::fill(nothing.lse.begin(), nothing.lse.end(), std::numeric_limits<double>::quiet_NaN());
  const DeviceRows out = in_place ? a_device : upload_rows(nothing, c.dtype, memory);

  MergeStatesProblem merge;
  merge.device = memory.device;
  merge.batch = c.batch;
  merge.seq_len_q = c.seq_len_q;
  merge.num_heads = c.num_heads;
  merge.head_dim = c.head_dim_v;
  constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
  merge.o_a = attention_input(kLayout, a_device.o.get(), c.dtype, c.seq_len_q, c.num_heads, c.head_dim_v);
  merge.o_b = attention_input(kLayout, b_device.o.get(), c.dtype, c.seq_len_q, c.num_heads, c.head_dim_v);
  merge.o = attention_output(kLayout, out.o.get(), c.dtype, c.seq_len_q, c.num_heads, c.head_dim_v);
  const auto lse = [&](const DeviceRows& rows) {
    return LseOutput{reinterpret_cast<float*>(rows.lse.get()), c.seq_len_q * c.num_heads, 1, c.num_heads};
  };
  merge.lse_a = lse(a_device);
  merge.lse_b = lse(b_device);
  merge.lse = lse(out);
  merge_states(merge, backend);
  return download_rows(out, a, c.dtype, memory);
}

double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double x : values) {
    if (std::isfinite(x)) result = std::max(result, std::abs(x));
  }
  return result;
}

/// The merge by its equation, unrounded.
AttentionRows merged_exactly(const AttentionRows& a, const AttentionRows& b, std::size_t head_dim) {
  AttentionRows rows;
  for (std::size_t row = 0; row < a.lse.size(); ++row) {
    const bool has_a = a.lse[row] != -kInfinity, has_b = b.lse[row] != -kInfinity;
    const double lse = !has_b   ? a.lse[row]
                       : !has_a ? b.lse[row]
                                : a.lse[row] + std::log1p(std::exp(b.lse[row] - a.lse[row]));
    for (std::size_t d = 0; d < head_dim; ++d) {
      double o = 0;
      if (has_a) o += std::exp(a.lse[row] - lse) * a.o[row * head_dim + d];
      if (has_b) o += std::exp(b.lse[row] - lse) * b.o[row * head_dim + d];
      rows.o.push_back(o);
    }
    rows.lse.push_back(lse);
  }
  return rows;
}

/// Attention over two sets of keys, merged, against the equation and against attention over all keys at once.
void check_merge(const AttentionCase& c, bool in_place, const std::string& backend,
                 const VerifyMemory& memory, VerifyResult& result) {
  const AttentionData whole = make_attention_data(c);
  const AttentionData part_a = slice_keys(whole, 0, c.seq_len_kv / 3);
  const AttentionData part_b = slice_keys(whole, c.seq_len_kv / 3, c.seq_len_kv);
  const AttentionRun a = run_attention(part_a, backend, memory), b = run_attention(part_b, backend, memory);
  AttentionRun merged{{}, "merge_states", {}, {}};
  try {
    merged.rows = run_merge(c, a.rows, b.rows, in_place, backend, memory);
  } catch (const Error& error) {
    note_refusal(error, may_refuse(backend, false, true), result);
    return;
  }
  // exp(x) of a difference x that is rounded once: w (|x| + 2) u <= 3 u where w = exp(x); two such weights,
  // their products, the sum and a division make (2 * 3 + 4) u of the larger side.  lse: one rounding and a
  // logarithm.
  const double u_32 = unit_roundoff(DType::kF32), u_o = unit_roundoff(c.dtype);
  AttentionExpectation expectation;
  const double o_size = std::max(largest(a.rows.o), largest(b.rows.o));
  expectation.rows = merged_exactly(a.rows, b.rows, static_cast<std::size_t>(c.head_dim_v));
  expectation.bound = u_o * largest(expectation.rows.o) + 10 * u_32 * o_size;
  expectation.lse_bound = u_32 * (2 * largest(expectation.rows.lse) + 4);
  compare_attention(whole, merged, expectation, result);
  if (!result.passed) return;

  // Each side's errors count with its share; an error of its lse moves weight between the sides.
  const AttentionExpectation of_a = expect_attention(part_a, backend),
                             of_b = expect_attention(part_b, backend);
  AttentionExpectation of_whole = expect_attention(whole, backend);
  of_whole.bound =
      std::max(of_a.bound, of_b.bound) + 2 * o_size * (of_a.lse_bound + of_b.lse_bound) + expectation.bound;
  of_whole.lse_bound = std::max(of_a.lse_bound, of_b.lse_bound) + expectation.lse_bound;
  compare_attention(whole, merged, of_whole, result);
}

VerifyCase invariance_case(AttentionCase c, std::string_view name, bool quick) {
  c.name = fmt::format("batch_invariant/{}/{}", name, dtype_name(c.dtype));
  c.batch_invariant = true;
  c.kv_storage = KvStorage::kRagged;
  std::vector<AttentionCase> attention = other_storage(c);
  attention.push_back(c);
  return {"attention",
          c.name,
          quick,
          [c](const std::string& backend, const VerifyMemory& memory, AttentionJudge& judge,
              VerifyResult& r) { check_batch_invariance(c, backend, memory, judge, r); },
          attention,
          c};
}

VerifyCase merge_case(AttentionCase c, std::string_view name, bool in_place, bool quick) {
  c.name = fmt::format("merge_states/{}/{}", name, dtype_name(c.dtype));
  return {"attention",
          c.name,
          quick,
          [c, in_place](const std::string& backend, const VerifyMemory& memory, AttentionJudge&,
                        VerifyResult& r) { check_merge(c, in_place, backend, memory, r); },
          {c}};
}

}  // namespace

std::vector<VerifyCase> attention_property_cases() {
  std::vector<VerifyCase> cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AttentionCase c;
    c.dtype = dtype;
    c.batch = 3;
    c.lens_q = {37, 1, 20};
    c.lens_kv = {83, 90, 20};
    c.seq_len_q = 37;
    c.seq_len_kv = 90;
    c.diagonal = DiagonalMask::causal();
    cases.push_back(invariance_case(c, "causal", true));
    c.content = Content::kNanInLastKeys;  // of rows of one tile some see the NaN
    cases.push_back(invariance_case(c, "causal, NaN in keys that some queries see", true));
    c.content = Content::kNormal;
    c.head_dim_qk = 80;
    c.head_dim_v = 40;
    c.num_heads = 6;
    c.softcap = 5.0f;
    c.alibi = c.alibi_per_batch = c.sinks = true;
    c.diagonal = DiagonalMask::sliding_window(30, 0);
    cases.push_back(invariance_case(c, "window, softcap, alibi, sinks", false));
    c.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.2, 1};
    c.additive_mask = MaskRecipe{DType::kF32, true, false, true, 0.1, 1};
    cases.push_back(invariance_case(c, "all terms", false));

    AttentionCase decode;  // long enough for the keys to be split
    decode.dtype = dtype;
    decode.batch = 2;
    decode.lens_q = {2, 1};
    decode.lens_kv = {2500, 700};
    decode.seq_len_q = 2;
    decode.seq_len_kv = 2500;
    decode.head_dim_qk = decode.head_dim_v = 128;
    decode.diagonal = DiagonalMask::causal();
    cases.push_back(invariance_case(decode, "decode", false));

    AttentionCase merge;
    merge.dtype = dtype;
    merge.seq_len_q = 21;
    merge.seq_len_kv = 60;
    // Each query misses most keys: some see none of the first part, some none at all.
    merge.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.93, 1};
    merge.head_dim_v = 48;
    cases.push_back(merge_case(merge, "hidden sides", false, true));
    merge.boolean_mask->hidden_share = 0;
    cases.push_back(merge_case(merge, "in place", true, false));
    merge.logit_spread = 20;
    cases.push_back(merge_case(merge, "large logits", false, false));
  }
  return cases;
}

}  // namespace tessera
