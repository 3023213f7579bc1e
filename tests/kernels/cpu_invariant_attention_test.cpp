// batch_invariant attention of the cpu backend over keys of several segments, on every SIMD target that this
// machine has: the bits of o and lse of a row whatever else is in the call, however its prompt is cut, in
// which pages its keys lie, with as many threads as there may be, and with the segments of a row in one task
// or in one task each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/validate.h"
#include "backends/cpu/simd_target.h"
#include "core/parallel.h"
#include "sanitized.h"

namespace tessera {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Numbers of one dtype.
class Tensor {
 public:
  Tensor(DType dtype, std::size_t count) : dtype_(dtype), bytes_(dtype_bytes(dtype, count)) {}

  std::byte* at(std::int64_t i) { return bytes_.data() + dtype_bytes(dtype_, static_cast<std::size_t>(i)); }
  void set(std::int64_t i, float value) {
    if (dtype_ == DType::kF32) return put(i, value);
    if (dtype_ == DType::kF16) return put(i, Half(value));
    put(i, BFloat16(value));
  }
  void fill_normal(std::mt19937& random, float magnitude) {
    std::normal_distribution<float> normal(0, magnitude);
    const auto count = static_cast<std::int64_t>(bytes_.size() / dtype_bytes(dtype_, 1));
    for (std::int64_t i = 0; i < count; ++i) set(i, normal(random));
  }
  void copy(std::int64_t to, Tensor& from, std::int64_t i, int count) {
    std::memcpy(at(to), from.at(i), dtype_bytes(dtype_, static_cast<std::size_t>(count)));
  }

 private:
  template <class T>
  void put(std::int64_t i, T value) {
    std::memcpy(at(i), &value, sizeof(T));
  }
  DType dtype_;
  std::vector<std::byte> bytes_;
};

/// What a sequence is like.
struct Case {
  std::string name;
  std::int64_t keys = 1300;  // more than two segments, ending inside a block
  std::int64_t queries = 21;
  int num_heads = 4;
  int num_kv_heads = 1;
  int head_dim_qk = 64;
  int head_dim_v = 64;
  float magnitude = 1;
  bool alibi = false;
  bool sinks = false;
  bool additive = false;
  bool boolean = false;
  bool hides_segment = false;  // the masks hide a whole segment from all but every third query
  ScoreTerms terms;
  /// What else is done to keys and values.
  std::function<void(Tensor& k, Tensor& v)> change;
};

/// o and lse of some queries, row by row: (heads, head_dim_v) of o and heads numbers of lse.
struct Rows {
  std::vector<std::byte> o;
  std::vector<float> lse;

  bool operator==(const Rows& other) const {
    return o == other.o && lse.size() == other.lse.size() &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
  }
};

class Sequence {
 public:
  Sequence(const Case& c, DType dtype)
      : c_(c),
        dtype_(dtype),
        q_(dtype, count(c.queries, c.num_heads, c.head_dim_qk)),
        k_(dtype, count(c.keys, c.num_kv_heads, c.head_dim_qk)),
        v_(dtype, count(c.keys, c.num_kv_heads, c.head_dim_v)) {
    std::mt19937 random(17);
    q_.fill_normal(random, c.magnitude);
    k_.fill_normal(random, 1);
    v_.fill_normal(random, 1);
    if (c.change) c.change(k_, v_);
    for (int h = 0; h < c.num_heads; ++h) {
      slopes_.push_back(static_cast<float>(std::exp2(-2 * h - 3)));
      sinks_.push_back(0.5f * static_cast<float>(h));
    }
    std::normal_distribution<float> normal;
    additive_.resize(count(c.num_heads, c.queries, c.keys));
    boolean_.resize(additive_.size());
    std::size_t i = 0;
    for (std::int64_t h = 0; h < c.num_heads; ++h) {
      for (std::int64_t query = 0; query < c.queries; ++query) {
        for (std::int64_t key = 0; key < c.keys; ++key, ++i) {
          additive_[i] = random() % 10 == 0 ? -kInfinity : normal(random);
          boolean_[i] = random() % 10 != 0;
          if (c.hides_segment && query % 3 != 0 && key >= 512 && key < 1024) boolean_[i] = 0;
        }
      }
    }
  }

  /// How queries are run.
  struct Surroundings {
    AttentionConfig config = {};
    int threads = 1;
    int page_size = 0;  ///< 0: dense. Otherwise the last of three ragged sequences, with its keys in pages
    bool heads_first = false;  ///< of a page
  };

  /// Queries [begin, end), whose keys end where the causal mask ends them for the last.
  Rows run(std::int64_t begin, std::int64_t end, const Surroundings& how) {
    const std::int64_t keys = c_.terms.diagonal ? c_.keys - (c_.queries - end) : c_.keys;
    AttentionProblem p;
    p.seq_len_q = end - begin;
    p.seq_len_kv = keys;
    p.num_heads = c_.num_heads;
    p.num_kv_heads = c_.num_kv_heads;
    p.head_dim_qk = c_.head_dim_qk;
    p.head_dim_v = c_.head_dim_v;
    p.batch_invariant = true;
    p.scores = c_.terms;
    if (c_.sinks) p.scores.sinks = AttentionSinks{sinks_.data()};
    if (c_.alibi) p.scores.alibi = AlibiBias{slopes_.data(), 0};
    const ScoreMask mask{nullptr, DType::kF32, 0, c_.queries * c_.keys, c_.keys, 1};
    if (c_.additive) {
      p.scores.additive_mask = mask;
      p.scores.additive_mask->data = additive_.data() + begin * c_.keys;
    }
    if (c_.boolean) {
      p.scores.boolean_mask = mask;
      p.scores.boolean_mask->dtype = DType::kU8;
      p.scores.boolean_mask->data = boolean_.data() + begin * c_.keys;
    }
    const std::int64_t q_row = std::int64_t{c_.num_heads} * c_.head_dim_qk;
    const std::int64_t others = how.page_size == 0 ? 0 : 9;  // queries before
    Tensor q(dtype_, count(end - begin + others, 1, static_cast<int>(q_row)));
    for (std::int64_t i = 0; i < end - begin + others; ++i)
      q.copy(i * q_row, q_, std::max<std::int64_t>(begin + i - others, 0) * q_row, static_cast<int>(q_row));
    p.q = {q.at(0), dtype_, (end - begin) * q_row, q_row, c_.head_dim_qk};
    if (how.page_size == 0) {
      p.batch = 1;
      p.k = {k_.at(0), dtype_, 0, k_row(), c_.head_dim_qk};
      p.v = {v_.at(0), dtype_, 0, v_row(), c_.head_dim_v};
      return forward(p, 0, how);
    }
    return run_paged(p, how, others);
  }

 private:
  static std::size_t count(std::int64_t a, std::int64_t b, std::int64_t c) {
    return static_cast<std::size_t>(a * b * c);
  }
  std::int64_t k_row() const { return std::int64_t{c_.num_kv_heads} * c_.head_dim_qk; }
  std::int64_t v_row() const { return std::int64_t{c_.num_kv_heads} * c_.head_dim_v; }

  /// As the last of three sequences, behind one of 8 queries and one of 1, which see all that is theirs.
  Rows run_paged(AttentionProblem& p, const Surroundings& how, std::int64_t others) {
    const std::int64_t size = how.page_size;
    const std::int64_t pages = (p.seq_len_kv + size - 1) / size;
    // The others' keys are the page that all of them have, whose every number is NaN but 2 keys'.
    const std::int64_t slots = (pages + 1) * size;
    Tensor k(dtype_, count(slots, 1, k_row()));
    Tensor v(dtype_, count(slots, 1, v_row()));
    for (std::int64_t i = 0; i < slots * k_row(); ++i) k.set(i, kNan);
    for (std::int64_t i = 0; i < slots * v_row(); ++i) v.set(i, kNan);
    std::vector<std::int32_t> page_of(static_cast<std::size_t>(pages));
    std::iota(page_of.begin(), page_of.end(), 1);
    std::shuffle(page_of.begin(), page_of.end(), std::mt19937(3));
    const auto put = [&](Tensor& to, Tensor& from, int dim, std::int64_t page, std::int64_t slot,
                         std::int64_t token) {
      for (int h = 0; h < c_.num_kv_heads; ++h) {
        const std::int64_t place =
            page * size * c_.num_kv_heads + (how.heads_first ? h * size + slot : slot * c_.num_kv_heads + h);
        to.copy(place * dim, from, (token * c_.num_kv_heads + h) * dim, dim);
      }
    };
    for (std::int64_t t = 0; t < p.seq_len_kv; ++t) {
      put(k, k_, c_.head_dim_qk, page_of[static_cast<std::size_t>(t / size)], t % size, t);
      put(v, v_, c_.head_dim_v, page_of[static_cast<std::size_t>(t / size)], t % size, t);
    }
    const std::int32_t few = static_cast<std::int32_t>(std::min<std::int64_t>(2, size));
    for (std::int64_t slot = 0; slot < few; ++slot) {
      put(k, k_, c_.head_dim_qk, 0, slot, slot + 5);
      put(v, v_, c_.head_dim_v, 0, slot, slot + 5);
    }
    std::vector<std::int32_t> table(static_cast<std::size_t>(3 * pages), -1);
    table[0] = table[static_cast<std::size_t>(pages)] = 0;
    std::copy(page_of.begin(), page_of.end(), table.begin() + 2 * pages);
    const auto len = static_cast<std::int32_t>(p.seq_len_q);
    const std::int32_t cu[] = {0, 8, 9, 9 + len};
    const std::int32_t lens[] = {few, few, static_cast<std::int32_t>(p.seq_len_kv)};
    p.batch = 3;
    p.seq_len_q = std::max<std::int64_t>(len, 8);
    p.ragged_q = RaggedTokens{cu, 9 + len};
    p.paged_kv =
        PagedKv{table.data(), lens, pages, pages + 1, static_cast<int>(pages), static_cast<int>(size)};
    const std::int64_t k_step = how.heads_first ? c_.head_dim_qk : k_row();
    const std::int64_t v_step = how.heads_first ? c_.head_dim_v : v_row();
    p.k = {k.at(0), dtype_, size * k_row(), k_step, how.heads_first ? size * c_.head_dim_qk : c_.head_dim_qk};
    p.v = {v.at(0), dtype_, size * v_row(), v_step, how.heads_first ? size * c_.head_dim_v : c_.head_dim_v};
    return forward(p, others, how);
  }

  Rows forward(AttentionProblem& p, std::int64_t skipped, const Surroundings& how) {
    const std::int64_t tokens = p.ragged_q ? p.ragged_q->total_tokens : p.seq_len_q;
    Rows rows{std::vector<std::byte>(dtype_bytes(dtype_, count(tokens, c_.num_heads, c_.head_dim_v))),
              std::vector<float>(count(tokens, c_.num_heads, 1))};
    p.o = {rows.o.data(), dtype_, p.seq_len_q * c_.num_heads * c_.head_dim_v,
           std::int64_t{c_.num_heads} * c_.head_dim_v, c_.head_dim_v};
    p.lse = LseOutput{rows.lse.data(), p.seq_len_q * c_.num_heads, 1, c_.num_heads};
    set_num_threads(how.threads);
    validate(p);
    const AttentionBackend& backend = find_attention_backend("cpu");
    const AttentionPlan plan = backend.plan(p, how.config);
    last_plan = plan;
    const auto workspace = backend.allocate_workspace({}, plan.workspace_bytes, {});
    std::memset(workspace.get(), 0xff, plan.workspace_bytes);
    attention_forward(p, plan, {workspace.get(), plan.workspace_bytes});
    set_num_threads(0);
    rows.o.erase(rows.o.begin(), rows.o.begin() + static_cast<std::ptrdiff_t>(dtype_bytes(
                                                      dtype_, count(skipped, c_.num_heads, c_.head_dim_v))));
    rows.lse.erase(rows.lse.begin(), rows.lse.begin() + skipped * c_.num_heads);
    return rows;
  }

  const Case c_;
  DType dtype_;
  Tensor q_, k_, v_;
  std::vector<float> slopes_, sinks_, additive_;
  std::vector<std::uint8_t> boolean_;

 public:
  AttentionPlan last_plan;

  Rows slice(const Rows& rows, std::int64_t begin, std::int64_t end) const {
    const auto o_at = [&](std::int64_t i) {
      return rows.o.begin() +
             static_cast<std::ptrdiff_t>(dtype_bytes(dtype_, count(i, c_.num_heads, c_.head_dim_v)));
    };
    return {{o_at(begin), o_at(end)},
            {rows.lse.begin() + begin * c_.num_heads, rows.lse.begin() + end * c_.num_heads}};
  }
};

/// Sets row `token` of a tensor whose rows are `row` long.
void fill_row(Tensor& tensor, std::int64_t token, std::int64_t row, float value) {
  for (std::int64_t i = 0; i < row; ++i) tensor.set(token * row + i, value);
}

DiagonalMask causal(std::optional<std::int64_t> window_left = std::nullopt) {
  return DiagonalMask{window_left, 0, DiagonalAlignment::kBottomRight};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](Case c) { all.push_back(std::move(c)); };
  Case plain;
  plain.name = "causal";
  plain.terms.diagonal = causal();
  add(plain);

  Case c = plain;
  c.name = "not causal, MHA, two heads a task, head_dim that no vector divides";
  c.terms = {};
  c.num_heads = c.num_kv_heads = 2;
  c.head_dim_qk = 46;
  c.head_dim_v = 75;
  add(c);

  c = plain;
  c.name = "eight rows a query, large scores, sinks, softcap, ALiBi";
  c.num_heads = 8;
  c.magnitude = 6;
  c.alibi = c.sinks = true;
  c.terms.softcap = 20.0f;
  add(c);

  c = plain;
  c.name = "MHA of four heads, window over two segments, NaN before it";
  c.num_heads = c.num_kv_heads = 4;
  c.head_dim_qk = 96;
  c.head_dim_v = 32;
  c.terms.diagonal = causal(700);
  c.change = [](Tensor& k, Tensor& v) {
    for (const std::int64_t token : {0, 100, 511, 512, 570}) {  // the first query's window begins at 579
      fill_row(k, token, 4 * 96, kNan);
      fill_row(v, token, 4 * 32, kNan);
    }
  };
  add(c);

  c = plain;
  c.name = "window of less than a segment across its boundary";
  c.keys = 1030;
  c.terms.diagonal = causal(100);
  add(c);

  c = plain;
  c.name = "masks that hide a segment from most queries, sinks";
  c.terms = {};
  c.boolean = c.additive = c.hides_segment = c.sinks = true;
  c.num_heads = 3;
  add(c);

  c = plain;
  c.name = "NaN and infinities in values that a boolean mask hides from most queries, ALiBi";
  c.boolean = c.hides_segment = c.alibi = true;
  c.num_heads = 6;
  c.num_kv_heads = 2;
  c.change = [](Tensor& k, Tensor& v) {
    fill_row(k, 700, 2 * 64, kNan);
    fill_row(v, 700, 2 * 64, kNan);
    v.set(900 * 2 * 64 + 3, kInfinity);
  };
  add(c);

  c = plain;
  c.name = "an infinity in a value that only later queries see, sums beyond fp32";
  c.change = [](Tensor&, Tensor& v) {
    v.set(1290 * 64 + 7, -kInfinity);
    fill_row(v, 30, 64, 6e4f);
  };
  add(c);

  c = plain;
  c.name = "values next to the smallest numbers, one row a query";
  c.num_heads = 1;
  c.change = [](Tensor&, Tensor& v) {
    for (std::int64_t token = 0; token < 1300; ++token) {
      for (std::int64_t i = 0; i < 64; ++i)
        v.set(token * 64 + i, std::ldexp(static_cast<float>((token * 7 + i) % 11 - 5), -124));
    }
  };
  add(c);

  c = plain;
  c.name = "one segment and no key of another";
  c.keys = 512;
  add(c);

  c = plain;
  c.name = "a modifier of the score that hides a segment and some keys";
  c.terms.modifier = ScoreModifier{"score * 0.5 + 0.001 * float(kv_idx % 7)",
                                   "kv_idx % 5 != 2 && (kv_idx < 512 || kv_idx >= 1024)",
                                   {},
                                   {}};
  add(c);
  return all;
}

class CpuInvariantAttention : public testing::TestWithParam<SimdTarget> {
  void SetUp() override { set_simd_target(GetParam()); }
  void TearDown() override {
    set_simd_target(std::nullopt);
    set_num_threads(0);
  }
};

TEST_P(CpuInvariantAttention, BitsDependOnNothingButTheRow) {
  for (const Case& c : some_if_sanitized(cases())) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      Sequence sequence(c, dtype);
      const Rows whole = sequence.run(0, c.queries, {.config = {.num_splits = 1}});
      const auto check = [&](std::int64_t step, const char* how, const Sequence::Surroundings& surroundings) {
        for (std::int64_t i = 0; i < c.queries; i += step) {
          const std::int64_t end = std::min(i + step, c.queries);
          EXPECT_EQ(sequence.run(i, end, surroundings), sequence.slice(whole, i, end))
              << c.name << ", " << dtype_name(dtype) << ", " << how << ", queries " << i << " to " << end
              << ", " << sequence.last_plan.kernel;
        }
      };
      const bool has_masks = c.additive || c.boolean;
      check(1, "one at a time, segments one after the other", {.config = {.num_splits = 1}});
      check(1, "one at a time, eight threads", {.threads = 8});
      if (c.keys > 512) {
        EXPECT_GT(sequence.last_plan.config.num_splits, 1) << c.name;
      }
      check(1, "one at a time, two threads", {.threads = 2});
      check(2, "two at a time", {.threads = 2});
      check(8, "in chunks, on many threads", {.threads = 64});
      if (c.keys > 512) {
        EXPECT_GT(sequence.last_plan.config.num_splits, 1) << c.name;
      }
      check(c.queries, "whole, on many threads", {.threads = 64});
      check(c.queries, "in tiles of 5 rows", {.config = {.block_m = 5}});
      if (has_masks) continue;  // ragged sequences would need masks of their own
      check(1, "one at a time, in pages, in a batch", {.threads = 2, .page_size = 16});
      check(8, "in chunks, in pages, in a batch", {.page_size = 9, .heads_first = true});
    }
  }
}

TEST_P(CpuInvariantAttention, ForcedBlocksCutTheSegmentsAlike) {
  Case c;
  c.keys = 1500;
  c.terms.diagonal = causal();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int block_n : {8, 24, 200, 1000}) {
      Sequence sequence(c, dtype);
      const Rows whole = sequence.run(0, c.queries, {.config = {.block_n = block_n}});
      for (const std::int64_t i : {std::int64_t{0}, std::int64_t{5}, c.queries - 1}) {
        for (const int threads : {1, 8}) {
          EXPECT_EQ(sequence.run(i, i + 1, {.config = {.block_n = block_n}, .threads = threads}),
                    sequence.slice(whole, i, i + 1))
              << dtype_name(dtype) << ", block_n " << block_n << ", query " << i << ", " << threads;
        }
      }
    }
  }
}

/// Long keys and few rows are shared out among threads; the sequences of a batch don't have to be many.
TEST_P(CpuInvariantAttention, FewRowsOverLongKeysAreTasksForEveryThread) {
  AttentionProblem p;
  p.batch = 1;
  p.seq_len_q = 1;
  p.seq_len_kv = 16384;
  p.num_heads = p.num_kv_heads = 1;
  p.head_dim_qk = p.head_dim_v = 128;
  p.batch_invariant = true;
  set_num_threads(16);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    p.q = p.k = p.v = {nullptr, dtype, 16384 * 128, 128, 128};
    p.o = {nullptr, dtype, 128, 128, 128};
    const AttentionPlan plan = find_attention_backend("cpu").plan(p, {});
    EXPECT_GE(plan.config.num_splits, 16);
    const bool has_decode = GetParam() != SimdTarget::kBaseline;
    EXPECT_TRUE(plan.kernel.starts_with(has_decode ? "decode/" : "prefill/"))
        << dtype_name(dtype) << ", " << plan.kernel;
  }
}

INSTANTIATE_TEST_SUITE_P(EverySimdTarget, CpuInvariantAttention, testing::ValuesIn(attainable_simd_targets()),
                         [](const auto& info) { return std::string(simd_target_name(info.param)); });

}  // namespace
}  // namespace tessera
