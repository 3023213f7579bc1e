// The cpu attention backend on every SIMD target that this machine has: random problems against fp64, hidden
// NaN, batch invariance bit for bit, splits, and the vector functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/validate.h"
#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/ceilings.h"
#include "backends/cpu/simd_target.h"
#include "core/parallel.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();

double rounded_to(DType dtype, double value) {
  switch (dtype) {
    case DType::kF16:
      return static_cast<double>(Half(static_cast<float>(value)));
    case DType::kBF16:
      return static_cast<double>(BFloat16(static_cast<float>(value)));
    default:
      return dtype == DType::kF32 ? static_cast<double>(static_cast<float>(value)) : value;
  }
}

/// Numbers stored as one dtype, one element past an aligned address so that nothing may rely on alignment.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const std::vector<double>& values)
      : dtype_(dtype), count_(values.size()), bytes_(dtype_bytes(dtype, count_ + 1)) {
    for (std::size_t i = 0; i < count_; ++i) set(i, values[i]);
  }
  std::byte* data() { return bytes_.data() + dtype_bytes(dtype_, 1); }
  std::size_t size() const { return count_; }

  void set(std::size_t i, double value) {
    std::byte* at = data() + dtype_bytes(dtype_, i);
    if (dtype_ == DType::kF64) {
      std::memcpy(at, &value, 8);
    } else if (dtype_ == DType::kF32) {
      const float x = static_cast<float>(value);
      std::memcpy(at, &x, 4);
    } else if (dtype_ == DType::kF16) {
      const Half x(static_cast<float>(value));
      std::memcpy(at, &x, 2);
    } else {
      const BFloat16 x(static_cast<float>(value));
      std::memcpy(at, &x, 2);
    }
  }
  double get(std::size_t i) const {
    const std::byte* at = bytes_.data() + dtype_bytes(dtype_, i + 1);
    if (dtype_ == DType::kF64) return load<double>(at);
    if (dtype_ == DType::kF32) return load<float>(at);
    if (dtype_ == DType::kF16) return static_cast<double>(load<Half>(at));
    return static_cast<double>(load<BFloat16>(at));
  }

 private:
  template <class T>
  static T load(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
  }
  DType dtype_ = DType::kF32;
  std::size_t count_ = 0;
  std::vector<std::byte> bytes_;
};

enum class Batching { kDense, kSeqLens, kPaged, kRagged, kRaggedQueriesPagedKeys };

struct Case {
  DType dtype = DType::kF32;
  Batching batching = Batching::kDense;
  std::vector<std::int64_t> lens_q{8};
  std::vector<std::int64_t> lens_kv{8};
  int num_heads = 2;
  int num_kv_heads = 1;
  int head_dim_qk = 16;
  int head_dim_v = 16;
  int page_size = 4;
  bool head_major = false;
  bool additive = false;
  bool boolean = false;
  bool alibi = false;
  bool sinks = false;
  bool poison_hidden = false;  // NaN in keys that the masks hide from every query
  double magnitude = 1;
  ScoreTerms terms;
  bool batch_invariant = false;
  AttentionConfig config;
  unsigned seed = 0;
};

/// The data of a case, in its dtype and in fp64.
class Fixture {
 public:
  explicit Fixture(const Case& c) : c_(c), random_(c.seed) {
    batch_ = static_cast<std::int64_t>(c.lens_q.size());
    max_q_ = *std::max_element(c.lens_q.begin(), c.lens_q.end());
    max_kv_ = *std::max_element(c.lens_kv.begin(), c.lens_kv.end());
    for (std::int64_t b = 0; b < batch_; ++b) {
      cu_q_.push_back(static_cast<std::int32_t>(cu_q_.back() + c.lens_q[b]));
      cu_kv_.push_back(static_cast<std::int32_t>(cu_kv_.back() + c.lens_kv[b]));
      seq_lens_.push_back(static_cast<std::int32_t>(c.lens_kv[b]));
    }
    const bool ragged_q = c.batching == Batching::kRagged || c.batching == Batching::kRaggedQueriesPagedKeys;
    tokens_q_ = ragged_q ? cu_q_.back() : batch_ * max_q_;
    max_pages_ = static_cast<int>((max_kv_ + c.page_size - 1) / c.page_size) + 1;
    make_block_table();
    mask_.resize(static_cast<std::size_t>(batch_ * c.num_heads * max_q_ * max_kv_));
    visible_.resize(mask_.size());
    std::normal_distribution<float> normal;
    for (float& m : mask_) m = uniform() < 0.1 ? -std::numeric_limits<float>::infinity() : normal(random_);
    for (std::uint8_t& v : visible_) v = uniform() < 0.8 ? 1 : 0;
    for (int h = 0; h < c.num_heads; ++h) {
      slopes_.push_back(static_cast<float>(std::exp2(-h - 1)));
      sinks_.push_back(normal(random_));
    }
    if (c.poison_hidden) hide_poisoned_keys();
    q_ = random_values(tokens_q_ * c.num_heads * c.head_dim_qk);
    k_ = keys_or_values(c.head_dim_qk);
    v_ = keys_or_values(c.head_dim_v);
  }

  /// Runs a backend with everything in `dtype` (the case's, or fp64) and returns o, followed by lse.
  std::vector<double> run(const std::string& backend_name, DType dtype) {
    AttentionProblem p = problem(dtype);
    validate(p);
    const AttentionBackend& backend = find_attention_backend(backend_name);
    const AttentionPlan plan = backend.plan(p, backend_name == "cpu" ? c_.config : AttentionConfig{});
    const auto workspace = backend.allocate_workspace({}, plan.workspace_bytes, {});
    // NaN, to be read by nobody.
    if (plan.workspace_bytes > 0) std::memset(workspace.get(), 0xff, plan.workspace_bytes);
    attention_forward(p, plan, {workspace.get(), plan.workspace_bytes});
    std::vector<double> result;
    for (std::size_t i = 0; i < o_out_.size(); ++i) result.push_back(o_out_.get(i));
    for (const float x : lse_out_) result.push_back(x);
    return result;
  }

  void set_block_n(int block_n) { c_.config.block_n = block_n; }

  /// The problem over tensors that live as long as this object or until the next call.
  AttentionProblem problem(DType dtype) { return make_problem(dtype); }

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  std::vector<double> random_values(std::int64_t count) {
    std::normal_distribution<double> normal(0, c_.magnitude);
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& x : values) x = rounded_to(c_.dtype, normal(random_));
    return values;
  }

  void make_block_table() {
    std::int32_t next = 0;
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (int i = 0; i < max_pages_; ++i) {
        const bool used = i < (c_.lens_kv[b] + c_.page_size - 1) / c_.page_size;
        table_.push_back(used ? next++ : -1);
      }
    }
    num_pages_ = next + 1;
    std::vector<std::int32_t> order(static_cast<std::size_t>(num_pages_));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    for (std::int32_t& page : table_) {
      if (page >= 0) page = order[page];
    }
  }

  bool paged() const {
    return c_.batching == Batching::kPaged || c_.batching == Batching::kRaggedQueriesPagedKeys;
  }

  /// Row of a key's token in k and v: page * page_size + offset, or token, or batch * length + token.
  std::int64_t kv_token(std::int64_t b, std::int64_t key) const {
    if (paged()) {
      return std::int64_t{table_[b * max_pages_ + key / c_.page_size]} * c_.page_size + key % c_.page_size;
    }
    return c_.batching == Batching::kRagged ? cu_kv_[b] + key : b * kv_capacity() + key;
  }

  std::int64_t kv_capacity() const { return c_.batching == Batching::kSeqLens ? max_kv_ + 3 : max_kv_; }

  /// k or v with NaN wherever no token is.
  std::vector<double> keys_or_values(int head_dim) {
    std::int64_t tokens = batch_ * kv_capacity();
    if (paged()) tokens = num_pages_ * c_.page_size;
    if (c_.batching == Batching::kRagged) tokens = cu_kv_.back();
    const std::int64_t row = std::int64_t{c_.num_kv_heads} * head_dim;
    std::vector<double> values(static_cast<std::size_t>(tokens * row), kNan);
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t key = 0; key < c_.lens_kv[b]; ++key) {
        if (c_.poison_hidden && poisoned(key)) continue;
        const std::vector<double> token = random_values(row);
        for (int h = 0; h < c_.num_kv_heads; ++h) {
          for (int i = 0; i < head_dim; ++i) {
            values[static_cast<std::size_t>(kv_element(kv_token(b, key), h, i, head_dim, tokens))] =
                token[static_cast<std::size_t>(h * head_dim + i)];
          }
        }
      }
    }
    return values;
  }

  std::int64_t kv_element(std::int64_t token, int head, int i, int head_dim, std::int64_t tokens) const {
    return c_.head_major ? (head * tokens + token) * head_dim + i
                         : (token * c_.num_kv_heads + head) * head_dim + i;
  }

  static bool poisoned(std::int64_t key) { return key % 5 == 2; }

  void hide_poisoned_keys() {
    for (std::size_t i = 0; i < mask_.size(); ++i) {
      const std::int64_t key = static_cast<std::int64_t>(i) % max_kv_;
      if (!poisoned(key)) continue;
      mask_[i] = -std::numeric_limits<float>::infinity();
      visible_[i] = 0;
    }
  }

  AttentionInput kv_input(Tensor& tensor, DType dtype, int head_dim, std::int64_t tokens) {
    AttentionInput input{tensor.data(), dtype, 0, 0, 0};
    input.seq_stride = c_.head_major ? head_dim : std::int64_t{c_.num_kv_heads} * head_dim;
    input.head_stride = c_.head_major ? tokens * head_dim : head_dim;
    input.batch_stride = (paged() ? c_.page_size : kv_capacity()) * input.seq_stride;
    return input;
  }

  AttentionProblem make_problem(DType dtype) {
    AttentionProblem p;
    p.batch = batch_;
    p.seq_len_q = max_q_;
    p.seq_len_kv = kv_capacity();
    p.num_heads = c_.num_heads;
    p.num_kv_heads = c_.num_kv_heads;
    p.head_dim_qk = c_.head_dim_qk;
    p.head_dim_v = c_.head_dim_v;
    q_in_ = Tensor(dtype, q_);
    k_in_ = Tensor(dtype, k_);
    v_in_ = Tensor(dtype, v_);
    o_out_ = Tensor(
        dtype, std::vector<double>(static_cast<std::size_t>(tokens_q_ * c_.num_heads * c_.head_dim_v), kNan));
    lse_out_.assign(static_cast<std::size_t>(tokens_q_ * c_.num_heads), -7);
    p.q = {q_in_.data(), dtype, max_q_ * c_.num_heads * c_.head_dim_qk,
           std::int64_t{c_.num_heads} * c_.head_dim_qk, c_.head_dim_qk};
    p.o = {o_out_.data(), dtype, max_q_ * c_.num_heads * c_.head_dim_v,
           std::int64_t{c_.num_heads} * c_.head_dim_v, c_.head_dim_v};
    p.k = kv_input(k_in_, dtype, c_.head_dim_qk,
                   static_cast<std::int64_t>(k_.size()) / c_.head_dim_qk / c_.num_kv_heads);
    p.v = kv_input(v_in_, dtype, c_.head_dim_v,
                   static_cast<std::int64_t>(v_.size()) / c_.head_dim_v / c_.num_kv_heads);
    p.lse = LseOutput{lse_out_.data(), max_q_ * c_.num_heads, 1, c_.num_heads};
    p.scores = c_.terms;
    const ScoreMask strides{nullptr,          DType::kF32, c_.num_heads * max_q_ * max_kv_,
                            max_q_ * max_kv_, max_kv_,     1};
    if (c_.additive) {
      p.scores.additive_mask = strides;
      p.scores.additive_mask->data = mask_.data();
    }
    if (c_.boolean) {
      p.scores.boolean_mask = strides;
      p.scores.boolean_mask->data = visible_.data();
      p.scores.boolean_mask->dtype = DType::kU8;
    }
    if (c_.alibi) p.scores.alibi = AlibiBias{slopes_.data(), 0};
    if (c_.sinks) p.scores.sinks = AttentionSinks{sinks_.data()};
    if (c_.batching == Batching::kRagged || c_.batching == Batching::kRaggedQueriesPagedKeys) {
      p.ragged_q = RaggedTokens{cu_q_.data(), cu_q_.back()};
    }
    if (c_.batching == Batching::kRagged) p.ragged_kv = RaggedTokens{cu_kv_.data(), cu_kv_.back()};
    if (paged()) {
      p.paged_kv = PagedKv{table_.data(), seq_lens_.data(), max_pages_, num_pages_, max_pages_, c_.page_size};
    }
    if (c_.batching == Batching::kSeqLens) p.seq_lens_kv = seq_lens_.data();
    p.batch_invariant = c_.batch_invariant;
    return p;
  }

  Case c_;
  std::mt19937 random_;
  std::int64_t batch_ = 0;
  std::int64_t max_q_ = 0;
  std::int64_t max_kv_ = 0;
  std::int64_t tokens_q_ = 0;
  std::int64_t num_pages_ = 0;
  int max_pages_ = 0;
  std::vector<std::int32_t> cu_q_{0}, cu_kv_{0}, seq_lens_, table_;
  std::vector<float> mask_, slopes_, sinks_;
  std::vector<std::uint8_t> visible_;
  std::vector<double> q_, k_, v_;
  Tensor q_in_, k_in_, v_in_, o_out_;
  std::vector<float> lse_out_;
};

/// Largest difference; infinity where one is NaN or infinite and the other is not the same.
double max_error(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i]) && actual[i] == expected[i]) continue;
    const double error = std::abs(actual[i] - expected[i]);
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }
  return worst;
}

std::string describe(const Case& c) {
  std::string text = std::string(dtype_name(c.dtype)) + " batching " +
                     std::to_string(static_cast<int>(c.batching)) + " heads " + std::to_string(c.num_heads) +
                     "/" + std::to_string(c.num_kv_heads) + " dims " + std::to_string(c.head_dim_qk) + "/" +
                     std::to_string(c.head_dim_v) + " seed " + std::to_string(c.seed) + " lens";
  for (std::size_t i = 0; i < c.lens_q.size(); ++i) {
    text += " " + std::to_string(c.lens_q[i]) + "x" + std::to_string(c.lens_kv[i]);
  }
  text += " splits " + std::to_string(c.config.num_splits) + " block_m " + std::to_string(c.config.block_m) +
          " block_n " + std::to_string(c.config.block_n) + (c.additive ? " additive" : "") +
          (c.boolean ? " boolean" : "") + (c.alibi ? " alibi" : "") + (c.sinks ? " sinks" : "") +
          (c.terms.softcap ? " softcap" : "") + (c.poison_hidden ? " poison" : "") +
          (c.terms.diagonal ? " diagonal" : "") + (c.batch_invariant ? " invariant" : "");
  return text;
}

/// Runs the body with every SIMD target, for tests whose targets share what they are compared with.
template <class F>
void for_each_simd_target(F&& body) {
  for (const SimdTarget target : attainable_simd_targets()) {
    SCOPED_TRACE(std::string(simd_target_name(target)));
    set_simd_target(target);
    body();
  }
  set_simd_target(std::nullopt);
}

class EverySimdTarget : public testing::TestWithParam<SimdTarget> {
 protected:
  void SetUp() override { set_simd_target(GetParam()); }
  void TearDown() override {
    set_simd_target({});
    set_num_threads(0);
  }
};

Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto chance = [&](int percent) { return pick(1, 100) <= percent; };
  Case c;
  c.seed = seed;
  c.dtype = std::array{DType::kF32, DType::kF16, DType::kBF16}[pick(0, 2)];
  c.batching = static_cast<Batching>(pick(0, 4));
  const int batch = pick(1, 3);
  const bool decode = chance(40);
  c.lens_q.assign(batch, decode ? pick(1, 3) : pick(1, 150));
  c.lens_kv.assign(batch, pick(1, 300));
  if (c.batching != Batching::kDense) {
    for (auto& len : c.lens_kv) len = pick(0, 300);
    c.lens_kv[0] = std::max<std::int64_t>(c.lens_kv[0], 1);
  }
  if (c.batching == Batching::kRagged || c.batching == Batching::kRaggedQueriesPagedKeys) {
    for (auto& len : c.lens_q) len = chance(30) ? pick(0, 4) : pick(0, 150);
    c.lens_q[0] = std::max<std::int64_t>(c.lens_q[0], 1);
  }
  c.num_kv_heads = pick(1, 3);
  c.num_heads = c.num_kv_heads * std::array{1, 1, 2, 3, 4, 8}[pick(0, 5)];
  c.head_dim_qk = chance(50) ? 16 * pick(1, 8) : pick(1, 140);
  c.head_dim_v = chance(50) ? c.head_dim_qk : pick(1, 140);
  c.page_size = pick(1, 40);
  c.head_major = chance(30) && c.batching != Batching::kDense && c.batching != Batching::kSeqLens;
  c.additive = chance(20);
  c.boolean = chance(20);
  c.alibi = chance(20);
  c.sinks = chance(20);
  c.poison_hidden = (c.additive || c.boolean) && chance(50);
  c.batch_invariant = chance(20);
  if (chance(20)) c.terms.softcap = 2.0f;
  if (chance(20)) c.terms.softmax_scale = chance(50) ? 0.3f : -0.2f;
  if (chance(60)) {
    c.terms.diagonal = DiagonalMask{};
    if (chance(80)) c.terms.diagonal->window_right = chance(70) ? 0 : pick(0, 40);
    if (chance(40)) c.terms.diagonal->window_left = pick(0, 90);
    if (chance(30)) c.terms.diagonal->alignment = DiagonalAlignment::kTopLeft;
  }
  if (chance(20)) c.config.block_m = pick(1, 200);
  if (chance(20)) c.config.block_n = 8 * pick(1, 16);
  if (chance(30) && !c.batch_invariant) c.config.num_splits = pick(1, 5);
  if (chance(15)) c.magnitude = 4;
  return c;
}

/// A few queries against enough keys for several blocks.
Case random_decode_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Case c = random_case(seed);
  c.lens_q.assign(c.lens_q.size(), pick(1, 2));
  for (auto& len : c.lens_kv) len = pick(100, 900);
  if (c.batching == Batching::kDense) c.lens_kv.assign(c.lens_kv.size(), c.lens_kv[0]);
  c.num_heads = c.num_kv_heads * std::array{1, 2, 3, 4, 8}[pick(0, 4)];
  c.head_dim_qk = 32 * pick(1, 5);
  c.head_dim_v = pick(0, 1) != 0 ? c.head_dim_qk : 32 * pick(1, 5);
  c.batch_invariant = false;
  return c;
}

TEST(CpuAttention, ErrorIsAtMostTwiceThatOfUnfusedAttentionInTheSamePrecision) {
  for (unsigned seed = 0; seed < 250; ++seed) {
    const Case c = seed % 5 < 3 ? random_case(seed) : random_decode_case(seed);
    Fixture fixture(c);
    const std::vector<double> exact = fixture.run("reference", DType::kF64);
    const double naive = max_error(fixture.run("unfused", c.dtype), exact);
    // A floor for cases so small that the unfused result is exact by luck: rounding of the outputs, and of
    // scores as large as the largest lse.
    double largest_lse = 0;
    for (const double x : exact) largest_lse = std::max(largest_lse, std::isfinite(x) ? std::abs(x) : 0.0);
    const double floor =
        c.magnitude * (2 * unit_roundoff(c.dtype) + 3 * unit_roundoff(DType::kF32) * (1 + largest_lse));
    for_each_simd_target(
        [&] { EXPECT_LE(max_error(fixture.run("cpu", c.dtype), exact), 2 * naive + floor) << describe(c); });
  }
}

/// One sequence in a dtype, of which any stretch of queries can be run in different surroundings.
class InvariantSequence {
 public:
  static constexpr std::int64_t kLength = 150;
  static constexpr int kHeads = 6, kKvHeads = 2, kDimQk = 40, kDimV = 72, kPageSize = 7;

  explicit InvariantSequence(DType dtype) : dtype_(dtype) {
    q_ = Tensor(dtype, random(kLength * kHeads * kDimQk));
    k_ = Tensor(dtype, random(kLength * kKvHeads * kDimQk));
    v_ = Tensor(dtype, random(kLength * kKvHeads * kDimV));
    for (int h = 0; h < kHeads; ++h) {
      slopes_.push_back(static_cast<float>(std::exp2(-h - 1)));
      sinks_.push_back(0.5f * static_cast<float>(h));
    }
    terms_.diagonal = DiagonalMask{90, 0, DiagonalAlignment::kBottomRight};
    terms_.softcap = 5.0f;
  }

  bool with_alibi = false;  // makes scores pass another way through the kernels

  /// Queries [begin, end) as bytes of o, rows one after another; the keys up to the last query's own are
  /// there.
  std::vector<std::byte> run(std::int64_t begin, std::int64_t end, const AttentionConfig& config = {}) {
    AttentionProblem p = problem(begin, end);
    p.k = {k_.data(), dtype_, 0, kKvHeads * kDimQk, kDimQk};
    p.v = {v_.data(), dtype_, 0, kKvHeads * kDimV, kDimV};
    return forward(p, config);
  }

  /// The same with keys in pages of another layout (heads before tokens), as the second of two ragged
  /// sequences.
  std::vector<std::byte> run_paged_behind_another(std::int64_t begin, std::int64_t end) {
    const std::int64_t pages = (end + kPageSize - 1) / kPageSize;
    const std::vector<double> noise(static_cast<std::size_t>((pages + 1) * kPageSize * kKvHeads * kDimV),
                                    kNan);
    Tensor k(dtype_,
             std::vector<double>(noise.begin(), noise.begin() + (pages + 1) * kPageSize * kKvHeads * kDimQk));
    Tensor v(dtype_, noise);
    std::vector<std::int32_t> table(static_cast<std::size_t>(2 * pages), -1);
    for (std::int64_t i = 0; i < pages; ++i) table[pages + i] = static_cast<std::int32_t>(pages - i);
    table[0] = 0;  // the first sequence's only page
    const auto copy = [&](Tensor& to, const Tensor& from, int dim, std::int64_t page, std::int64_t slot,
                          std::int64_t token) {
      for (int h = 0; h < kKvHeads; ++h) {
        for (int i = 0; i < dim; ++i) {
          to.set(static_cast<std::size_t>(((page * kKvHeads + h) * kPageSize + slot) * dim + i),
                 from.get(static_cast<std::size_t>((token * kKvHeads + h) * dim + i)));
        }
      }
    };
    for (std::int64_t t = 0; t < end; ++t) {
      copy(k, k_, kDimQk, table[pages + t / kPageSize], t % kPageSize, t);
      copy(v, v_, kDimV, table[pages + t / kPageSize], t % kPageSize, t);
    }
    for (std::int64_t slot = 0; slot < 3; ++slot) {
      copy(k, k_, kDimQk, 0, slot, slot + 5);
      copy(v, v_, kDimV, 0, slot, slot + 5);
    }
    AttentionProblem p = problem(begin, end);
    const std::int64_t len = end - begin;
    std::vector<double> queries;
    for (std::int64_t i = 0; i < (len + 2) * kHeads * kDimQk; ++i) {
      queries.push_back(q_.get(static_cast<std::size_t>(
          std::max<std::int64_t>(begin * kHeads * kDimQk + i - 2 * kHeads * kDimQk, 0))));
    }
    Tensor q(dtype_, queries);
    p.q.data = q.data();
    const std::vector<std::int32_t> cu{0, 2, static_cast<std::int32_t>(len + 2)};
    const std::vector<std::int32_t> lens{3, static_cast<std::int32_t>(end)};
    p.batch = 2;
    p.seq_len_q = std::max<std::int64_t>(len, 2);
    p.ragged_q = RaggedTokens{cu.data(), len + 2};
    p.paged_kv = PagedKv{table.data(), lens.data(), pages, pages + 1, static_cast<int>(pages), kPageSize};
    p.k = {k.data(), dtype_, kPageSize * kKvHeads * kDimQk, kDimQk, kPageSize * kDimQk};
    p.v = {v.data(), dtype_, kPageSize * kKvHeads * kDimV, kDimV, kPageSize * kDimV};
    std::vector<std::byte> all = forward(p, {});
    all.erase(all.begin(), all.begin() + 2 * row_bytes());
    return all;
  }

  std::int64_t row_bytes() const { return static_cast<std::int64_t>(dtype_bytes(dtype_, kHeads * kDimV)); }

 private:
  std::vector<double> random(std::int64_t count) {
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& x : values) x = normal(random_);
    return values;
  }

  AttentionProblem problem(std::int64_t begin, std::int64_t end) {
    AttentionProblem p;
    p.batch = 1;
    p.seq_len_q = end - begin;
    p.seq_len_kv = end;
    p.num_heads = kHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim_qk = kDimQk;
    p.head_dim_v = kDimV;
    p.scores = terms_;
    p.scores.sinks = AttentionSinks{sinks_.data()};
    if (with_alibi) p.scores.alibi = AlibiBias{slopes_.data(), 0};
    p.batch_invariant = true;
    p.q = {q_.data() + dtype_bytes(dtype_, static_cast<std::size_t>(begin * kHeads * kDimQk)), dtype_, 0,
           kHeads * kDimQk, kDimQk};
    return p;
  }

  std::vector<std::byte> forward(AttentionProblem& p, const AttentionConfig& config) {
    const std::int64_t rows = p.ragged_q ? p.ragged_q->total_tokens : p.seq_len_q;
    std::vector<std::byte> o(static_cast<std::size_t>(rows * row_bytes()));
    p.o = {o.data(), dtype_, 0, kHeads * kDimV, kDimV};
    validate(p);
    const AttentionBackend& backend = find_attention_backend("cpu");
    const AttentionPlan plan = backend.plan(p, config);
    const auto workspace = backend.allocate_workspace({}, plan.workspace_bytes, {});
    std::memset(workspace.get(), 0xff, plan.workspace_bytes);
    attention_forward(p, plan, {workspace.get(), plan.workspace_bytes});
    return o;
  }

  DType dtype_;
  std::mt19937 random_{7};
  Tensor q_, k_, v_;
  std::vector<float> slopes_, sinks_;
  ScoreTerms terms_;
};

TEST_P(EverySimdTarget, BatchInvariantBitsDependOnNothingButTheRow) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool with_alibi : {false, true}) {
      InvariantSequence sequence(dtype);
      sequence.with_alibi = with_alibi;
      const std::int64_t length = InvariantSequence::kLength;
      const std::vector<std::byte> whole = sequence.run(0, length);
      const auto expect_rows = [&](std::int64_t begin, std::int64_t end, const std::vector<std::byte>& rows,
                                   const char* how) {
        const auto first = whole.begin() + begin * sequence.row_bytes();
        EXPECT_TRUE(std::equal(rows.begin(), rows.end(), first, first + (end - begin) * sequence.row_bytes()))
            << dtype_name(dtype) << (with_alibi ? " with alibi, " : ", ") << how << ", queries " << begin
            << " to " << end;
      };
      for (std::int64_t i = 0; i < length; ++i)
        expect_rows(i, i + 1, sequence.run(i, i + 1), "one at a time");
      for (std::int64_t i = 0; i < length; i += 37) {
        const std::int64_t end = std::min(i + 37, length);
        expect_rows(i, end, sequence.run(i, end), "in chunks");
        expect_rows(i, end, sequence.run_paged_behind_another(i, end), "in pages, in a batch");
      }
      expect_rows(0, length, sequence.run(0, length, {/*block_m=*/17}), "in tiles of 17 rows");
      set_num_threads(1);
      expect_rows(0, length, sequence.run(0, length), "on one thread");
      set_num_threads(0);
    }
  }
}

/// Distance in units in the last place of the exact result.
double ulps(float actual, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::abs(static_cast<double>(actual) - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

TEST_P(EverySimdTarget, ExpAndTanhAreWithinAFewUlps) {
  const cpu::KernelTable& kernels = cpu::kernel_table(GetParam());
  constexpr std::int64_t kCount = 16;  // a multiple of every target's lanes
  double worst_exp = 0, worst_tanh = 0;
  for (float first = -86.9f; first < 10; first += kCount * 0.00037f) {
    float x[kCount], small[kCount], y[kCount];
    for (int i = 0; i < kCount; ++i) {
      x[i] = first + static_cast<float>(i) * 0.00037f;
      small[i] = x[i] * 0.1f;
    }
    kernels.exp(x, y, kCount);
    for (int i = 0; i < kCount; ++i)
      worst_exp = std::max(worst_exp, ulps(y[i], std::exp(static_cast<double>(x[i]))));
    kernels.tanh(small, y, kCount);
    for (int i = 0; i < kCount; ++i)
      worst_tanh = std::max(worst_tanh, ulps(y[i], std::tanh(static_cast<double>(small[i]))));
  }
  EXPECT_LE(worst_exp, 2);
  EXPECT_LE(worst_tanh, 3);
  const float special[kCount] = {-88.0f, -1e30f, -std::numeric_limits<float>::infinity(), kNanF};
  float y[kCount];
  kernels.exp(special, y, kCount);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 0);
  EXPECT_TRUE(std::isnan(y[3]));
  const float arguments[kCount] = {0.0f, -std::numeric_limits<float>::infinity(), 1e30f, kNanF};
  kernels.tanh(arguments, y, kCount);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], -1);
  EXPECT_EQ(y[2], 1);
  EXPECT_TRUE(std::isnan(y[3]));
}

/// Keys, or else rows, of a mask lie next to one another, or neither.
TEST_P(EverySimdTarget, MasksOfAnyStridesGiveTheSameBits) {
  constexpr std::int64_t kKeys = 75;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::int64_t queries : {1, 3, 4, 53}) {
    const auto count = static_cast<std::size_t>(kKeys * 16);
    std::vector<float> q(static_cast<std::size_t>(queries * 16)), k(count), v(count);
    for (auto* numbers : {&q, &k, &v}) {
      for (float& x : *numbers) x = normal(random);
    }
    const auto masked = [&](std::int64_t q_stride, std::int64_t kv_stride) {
      std::vector<float> additive(static_cast<std::size_t>(3 * queries * kKeys), kNanF), o(q.size());
      std::vector<std::uint8_t> boolean(additive.size());
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t j = 0; j < kKeys; ++j) {
          const auto at = static_cast<std::size_t>(i * q_stride + j * kv_stride);
          additive[at] = 0.01f * static_cast<float>((i * 31 + j * 17) % 101);
          boolean[at] = (i + 2 * j) % 5 != 0;
        }
      }
      AttentionProblem p;
      p.batch = 1;
      p.seq_len_q = queries;
      p.seq_len_kv = kKeys;
      p.num_heads = p.num_kv_heads = 1;
      p.head_dim_qk = p.head_dim_v = 16;
      p.q = {q.data(), DType::kF32, 0, 16, 16};
      p.k = {k.data(), DType::kF32, 0, 16, 16};
      p.v = {v.data(), DType::kF32, 0, 16, 16};
      p.o = {o.data(), DType::kF32, 0, 16, 16};
      p.scores.additive_mask = ScoreMask{additive.data(), DType::kF32, 0, 0, q_stride, kv_stride};
      p.scores.boolean_mask = ScoreMask{boolean.data(), DType::kBool, 0, 0, q_stride, kv_stride};
      attention_forward(p);
      return o;
    };
    const std::vector<float> rows = masked(kKeys, 1);
    EXPECT_EQ(masked(1, queries), rows) << queries << " queries, transposed";
    EXPECT_EQ(masked(3 * kKeys, 3), rows) << queries << " queries, keys apart";
  }
}

TEST_P(EverySimdTarget, PlansNameTheTargetAndHonourForcedValues) {
  Case c;
  c.lens_q = {300};
  c.lens_kv = {5000};
  Fixture fixture(c);
  AttentionProblem p = fixture.problem(DType::kF32);
  const AttentionBackend& backend = find_attention_backend("cpu");
  // What runs, not what the processor could do for other problems.
  const std::string target(simd_target_name(GetParam()));
  const std::string plain = target.starts_with("avx512") || target == "amx_bf16" ? "avx512" : target;
  const std::string decode = target == "avx512_bf16" ? target : plain;
  EXPECT_EQ(backend.plan(p, {}).kernel, "prefill/" + plain);
  EXPECT_EQ(backend.plan(fixture.problem(DType::kBF16), {}).kernel, "prefill/" + target);
  if (plain != "baseline") {
    Case few;
    few.lens_q = {1};
    few.lens_kv = {5000};
    Fixture few_queries(few);
    EXPECT_EQ(backend.plan(few_queries.problem(DType::kF32), {}).kernel, "decode/" + plain);
    EXPECT_EQ(backend.plan(few_queries.problem(DType::kBF16), {}).kernel, "decode/" + decode);
  }
  AttentionConfig config;
  config.block_m = 100;
  config.block_n = 24;
  config.num_splits = 3;
  const AttentionPlan plan = backend.plan(p, config);
  EXPECT_EQ(plan.config.block_m, 100);
  EXPECT_EQ(plan.config.block_n, 24);
  EXPECT_EQ(plan.config.num_splits, 3);
  EXPECT_EQ(plan.num_q_tiles, (300 * 2 + 99) / 100);
  EXPECT_EQ(plan.num_kv_tiles, (5000 + 23) / 24);
  for (AttentionConfig bad : {AttentionConfig{-1}, AttentionConfig{1 << 20}, AttentionConfig{0, 12},
                              AttentionConfig{0, 8, 0, 0, -2}, AttentionConfig{0, 0, 0, 0, 1 << 20}}) {
    EXPECT_THROW(backend.plan(p, bad), Error);
  }
  p.batch_invariant = true;
  EXPECT_THROW(backend.plan(p, config), Error);
}

// Eight tasks for two threads, of which one takes as long as all others together.
TEST(CpuAttention, SplitsTheKeysOfSequencesOfWhichOneIsLongest) {
  for (const Batching batching : {Batching::kSeqLens, Batching::kPaged, Batching::kRagged}) {
    Case c;
    c.batching = batching;
    c.lens_q.assign(8, 1);
    c.lens_kv.assign(8, 4000);
    set_num_threads(2);
    EXPECT_EQ(find_attention_backend("cpu").plan(Fixture(c).problem(c.dtype), {}).config.num_splits, 1);
    c.lens_kv.assign(8, 80);
    c.lens_kv[5] = 4000;
    Fixture fixture(c);
    EXPECT_GE(find_attention_backend("cpu").plan(fixture.problem(c.dtype), {}).config.num_splits, 4);
    const std::vector<double> exact = fixture.run("reference", DType::kF64);
    EXPECT_LE(max_error(fixture.run("cpu", c.dtype), exact),
              2 * max_error(fixture.run("unfused", c.dtype), exact));
    set_num_threads(0);
  }
}

TEST(CpuAttention, DecodesWithEveryBlockN) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int heads : {1, 3, 8}) {
      Case c;
      c.dtype = dtype;
      c.lens_q = {1};
      c.lens_kv = {300};
      c.num_heads = heads;
      c.num_kv_heads = heads == 8 ? 8 : 1;
      c.head_dim_qk = c.head_dim_v = 64;
      Fixture fixture(c);
      const std::vector<double> exact = fixture.run("reference", DType::kF64);
      for (int block_n = 8; block_n <= 320; block_n += 8) {
        fixture.set_block_n(block_n);
        // Rounded inputs are exact here; weights and o are rounded to the dtype, and numbers are of the order
        // of 1.
        for_each_simd_target([&] {
          EXPECT_LE(max_error(fixture.run("cpu", dtype), exact), 8 * unit_roundoff(dtype))
              << describe(c) << ", block_n " << block_n;
        });
      }
    }
  }
}

TEST(CpuAttentionMemory, DoesNotGrowWithTheSequence) {
  AttentionProblem p;
  p.batch = 1;
  p.num_heads = p.num_kv_heads = 8;
  p.head_dim_qk = p.head_dim_v = 128;
  const AttentionBackend& backend = find_attention_backend("cpu");
  std::size_t before = 0;
  for (const std::int64_t length : {4096, 32768, 1 << 20}) {
    p.seq_len_q = p.seq_len_kv = length;
    const std::size_t workspace = backend.plan(p, {}).workspace_bytes;
    EXPECT_LE(workspace, std::size_t{1} << 20 << (num_threads() > 16 ? 10 : 4));
    if (before != 0) {
      EXPECT_EQ(workspace, before);
    }
    before = workspace;
  }
}

TEST(CpuCeilings, ArithmeticIsMeasuredWithTilesWhereThereAreAny) {
  if (best_simd_target() < SimdTarget::kAmxBf16) GTEST_SKIP() << "no AMX";
  // A product of tiles has 16 times the rate of fp32's multiply-adds, dot products of pairs twice at most.
  const double f32 = measure_ceilings(DType::kF32, 0.1).flops_per_s;
  EXPECT_GT(measure_ceilings(DType::kBF16, 0.1).flops_per_s, 3 * f32);
  EXPECT_GT(measure_ceilings(DType::kF16, 0.1).flops_per_s, f32);
}

TEST(SimdTargets, ParseTheirNamesAndRefuseOthers) {
  for (const SimdTarget target : attainable_simd_targets()) {
    EXPECT_EQ(parse_simd_target(simd_target_name(target)), target);
  }
  EXPECT_THROW(parse_simd_target("sse9"), Error);
#if defined(__x86_64__)
  EXPECT_THROW(set_simd_target(SimdTarget::kNeon), Error);
#endif
}

INSTANTIATE_TEST_SUITE_P(CpuAttention, EverySimdTarget, testing::ValuesIn(attainable_simd_targets()),
                         [](const auto& info) { return std::string(simd_target_name(info.param)); });

}  // namespace
}  // namespace tessera
