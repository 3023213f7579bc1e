// Whatever numbers a description holds, the public functions answer or throw an Error, in no time; and work
// follows the data, not the bounds that a caller gives.

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// Memory that pointers of garbage problems lead to. Large enough for arrays of kMostSequences.
constexpr int kMostSequences = 4;

/// Draws fields: mostly usual values, and now and then one that no caller means.
class Garbage {
 public:
  explicit Garbage(unsigned seed) : random_(seed) {}

  /// A usual problem with up to three parts of a garbage one.
  AttentionProblem problem() {
    AttentionProblem p;
    p.batch = p.num_heads = p.num_kv_heads = 2;
    p.seq_len_q = p.seq_len_kv = 3;
    p.head_dim_qk = p.head_dim_v = 8;
    p.q = p.k = p.v = {memory_, DType::kF32, 64, 16, 8};
    // Elsewhere; never written.
    p.o = {reinterpret_cast<void*>(std::uintptr_t{1} << 44), DType::kF32, 64, 16, 8};
    const AttentionProblem other = garbage();
    for (int n = one_of({0, 1, 1, 2, 3}); n > 0; --n) {
      switch (random_() % 10) {
        case 0:
          p.device = other.device;
          break;
        case 1:
          p.batch = other.batch;
          break;
        case 2:
          p.seq_len_q = other.seq_len_q;
          break;
        case 3:
          p.seq_len_kv = other.seq_len_kv;
          break;
        case 4:
          p.num_heads = other.num_heads, p.num_kv_heads = other.num_kv_heads;
          break;
        case 5:
          p.head_dim_qk = other.head_dim_qk, p.head_dim_v = other.head_dim_v;
          break;
        case 6:
          p.q = other.q, p.v = other.v;
          break;
        case 7:
          p.o = other.o, p.lse = other.lse;
          break;
        case 8:
          p.scores = other.scores;
          break;
        default:
          p.ragged_q = other.ragged_q, p.ragged_kv = other.ragged_kv;
          p.paged_kv = other.paged_kv, p.seq_lens_kv = other.seq_lens_kv;
      }
    }
    p.batch_invariant = other.batch_invariant;
    return p;
  }

  AttentionProblem garbage() {
    AttentionProblem p;
    p.device = {kind<DeviceKind>(2), one_of({0, 0, 0, 1, -1, 1 << 30})};
    p.batch = one_of<std::int64_t>({1, 2, 0, kMostSequences, kMostSequences});
    p.seq_len_q = size();
    p.seq_len_kv = size();
    p.num_heads = static_cast<int>(one_of<std::int64_t>({1, 4, 8, 0, -3, 1 << 20, 1 << 30}));
    p.num_kv_heads = static_cast<int>(one_of<std::int64_t>({1, 4, 2, 0, -1, 1 << 30}));
    p.head_dim_qk = static_cast<int>(one_of<std::int64_t>({8, 64, 1, 576, 577, 0, -8, 1 << 30}));
    p.head_dim_v = static_cast<int>(one_of<std::int64_t>({8, 64, 1, 512, 0, -8}));
    const DType dtype = kind<DType>(10);
    p.q = tensor<AttentionInput>(dtype);
    p.k = tensor<AttentionInput>(dtype);
    p.v = tensor<AttentionInput>(dtype);
    p.o = tensor<AttentionOutput>(dtype);
    if (coin()) p.lse = LseOutput{floats(), size(), size(), size()};
    if (coin()) p.scores.softmax_scale = number();
    if (coin()) p.scores.softcap = number();
    if (coin()) p.scores.alibi = AlibiBias{floats(), size()};
    if (coin()) p.scores.additive_mask = mask();
    if (coin()) p.scores.boolean_mask = mask();
    if (coin()) {
      p.scores.diagonal = DiagonalMask{};
      if (coin()) p.scores.diagonal->window_left = size();
      if (coin()) p.scores.diagonal->window_right = size();
      p.scores.diagonal->alignment = kind<DiagonalAlignment>(1);
    }
    if (coin()) p.scores.sinks = AttentionSinks{floats()};
    if (rarely()) p.ragged_q = RaggedTokens{numbers(), size()};
    if (rarely()) p.ragged_kv = RaggedTokens{numbers(), size()};
    if (rarely()) {
      p.paged_kv = PagedKv{numbers(),
                           numbers(),
                           one_of<std::int64_t>({0, 1, 2, -1}),
                           size(),
                           static_cast<int>(one_of<std::int64_t>({0, 1, 2, -5})),
                           static_cast<int>(one_of<std::int64_t>({1, 16, 0, -1, 1 << 30}))};
    }
    if (rarely()) p.seq_lens_kv = numbers();
    p.batch_invariant = coin();
    return p;
  }

  MergeStatesProblem merge() {
    MergeStatesProblem p;
    p.device = {kind<DeviceKind>(2), 0};
    p.batch = one_of<std::int64_t>({1, 0, -1, kMax});
    p.seq_len_q = size();
    p.num_heads = one_of({1, 0, -1, 1 << 30});
    p.head_dim = one_of({8, 0, -1, 1 << 30});
    const DType dtype = kind<DType>(10);
    p.o_a = tensor<AttentionInput>(dtype);
    p.o_b = tensor<AttentionInput>(dtype);
    p.o = tensor<AttentionOutput>(dtype);
    p.lse_a = p.lse_b = LseOutput{floats(), size(), size(), size()};
    if (coin()) p.lse = p.lse_a;
    return p;
  }

  AttentionConfig config() {
    const auto value = [&] { return one_of({0, 0, 0, 16, 64, -1, 7, 1 << 30}); };
    return {value(), value(), value(), value(), value()};
  }

  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[random_() % values.size()];
  }
  std::int64_t size() {
    return one_of<std::int64_t>({0, 1, 3, 8, 64, 100, 4096, -1, -kMax, kMax, std::int64_t{1} << 36,
                                 std::int64_t{1} << 40, std::int64_t{1} << 62});
  }

 private:
  static constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

  bool coin() { return random_() % 2 == 0; }
  bool rarely() { return random_() % 4 == 0; }

  /// One of an enumeration's 0 … last, or a number that is none.
  template <class Enum>
  Enum kind(int last) {
    return static_cast<Enum>(random_() % 8 == 0   ? 77
                             : random_() % 2 == 0 ? 0
                                                  : static_cast<int>(random_()) % (last + 1));
  }

  float number() {
    return one_of({1.0f, 0.1f, 0.0f, -1.0f, 3.4e38f, std::numeric_limits<float>::infinity(),
                   std::numeric_limits<float>::quiet_NaN()});
  }

  template <class Tensor>
  Tensor tensor(DType dtype) {
    Tensor t;
    t.data = one_of<void*>({memory_, memory_ + 64, memory_ + 1, nullptr});
    t.dtype = random_() % 8 == 0 ? kind<DType>(10) : dtype;
    t.batch_stride = size();
    t.seq_stride = size();
    t.head_stride = size();
    return t;
  }

  ScoreMask mask() {
    return {one_of<const void*>({memory_, nullptr, memory_ + 1}),
            kind<DType>(10),
            size(),
            size(),
            size(),
            size()};
  }
  float* floats() { return one_of<float*>({reinterpret_cast<float*>(memory_), nullptr}); }
  const std::int32_t* numbers() {
    return one_of<const std::int32_t*>({numbers_, numbers_, nullptr, numbers_ + 2 * kMostSequences});
  }

  std::mt19937 random_;
  alignas(64) unsigned char memory_[256] = {};
  std::int32_t numbers_[4 * kMostSequences + 4] = {0, 1, 2, 3, 4, 5, -1, 1 << 30, 0, 0, 0, 0, 0, 0, 0, 0};
};

/// Whether `f` answers; an Error is an answer too, any other exception is not.
template <class F>
bool answers(F&& f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
    return false;
  }
}

TEST(AttentionGarbage, IsAnsweredOrRefused) {
  int valid = 0;
  for (unsigned seed = 0; seed < 30000; ++seed) {
    Garbage garbage(seed);
    const AttentionProblem p = garbage.problem();
    const std::string backend = garbage.one_of<std::string>({"auto", "cpu", "unfused", "reference", "none"});
    const AttentionOptions options = {
        .backend = backend, .allow_fallback = seed % 2 == 0, .config = garbage.config()};
    const bool is_valid = answers([&] { validate(p); });
    valid += is_valid;
    answers([&] { EXPECT_FALSE(to_string(p).empty()); });
    answers([&] { unsupported_reason(backend, p); });
    answers([&] { plan_attention(p, options); });
    answers([&] { attention_forward(p, AttentionPlan{}, {}); });
    if (is_valid) {
      EXPECT_GE(attention_flops(p), 0) << to_string(p);
      EXPECT_GE(attention_bytes(p), 0) << to_string(p);
    }
    const MergeStatesProblem merge = garbage.merge();
    answers([&] { validate(merge); });
  }
  EXPECT_GT(valid, 3000) << "else only the first checks are tested";
}

TEST(AttentionGarbage, LayoutsRefuseSizesThatOverflow) {
  for (unsigned seed = 0; seed < 20000; ++seed) {
    Garbage garbage(seed);
    const auto layout = static_cast<AttentionLayout>(garbage.one_of({0, 1, 2, 77}));
    const std::int64_t seq_len = garbage.size();
    const int heads = garbage.one_of({0, 1, 8, -1, 1 << 30, std::numeric_limits<int>::min()});
    const int head_dim = garbage.one_of({0, 1, 64, -1, 1 << 30});
    answers([&] {
      const AttentionInput t =
          attention_input(layout, nullptr, DType::kF32, seq_len, heads, head_dim, garbage.size());
      EXPECT_GE(t.batch_stride, 0);
      EXPECT_GE(t.seq_stride, 0);
      EXPECT_GE(t.head_stride, 0);
    });
    answers([&] { EXPECT_GE(lse_output(nullptr, heads, seq_len).batch_stride, 0); });
  }
}

/// One query and key in ragged sequences with bounds as large as they may be.
struct OneToken {
  float q[8] = {1}, k[8] = {1}, v[8] = {3}, o[8] = {};
  std::int32_t cu_seqlens[2] = {0, 1};
  AttentionProblem p;

  OneToken() {
    p.batch = 1;
    p.seq_len_q = std::int64_t{1} << 40;
    p.seq_len_kv = std::int64_t{1} << 40;
    p.num_heads = p.num_kv_heads = 1;
    p.head_dim_qk = p.head_dim_v = 8;
    p.q = p.k = p.v = {q, DType::kF32, 8, 8, 8};
    p.k.data = k;
    p.v.data = v;
    p.o = {o, DType::kF32, 8, 8, 8};
    p.ragged_q = p.ragged_kv = RaggedTokens{cu_seqlens, 1};
    p.scores.diagonal = DiagonalMask::causal();
  }
};

TEST(AttentionWork, FollowsTheTokensNotTheirBound) {
  for (const char* backend : {"cpu", "unfused", "reference"}) {
    OneToken one;
    const AttentionOptions options = {.backend = backend, .config = {}};
    const AttentionPlan plan = plan_attention(one.p, options);
    EXPECT_LE(plan.num_q_tiles, 1) << backend;
    EXPECT_LE(plan.num_kv_tiles, 1) << backend;
    EXPECT_LE(plan.workspace_bytes, std::size_t{1} << 24) << backend;
    attention_forward(one.p, options);
    EXPECT_EQ(one.o[0], 3) << backend;
  }
}

TEST(AttentionWork, OfManyPairsIsCountedWithoutGoingThroughThem) {
  AttentionProblem p;
  p.device = {DeviceKind::kCuda, 0};
  p.batch = std::int64_t{1} << 31;
  p.seq_len_q = p.seq_len_kv = std::int64_t{1} << 36;
  p.num_heads = p.num_kv_heads = p.head_dim_qk = p.head_dim_v = 1;
  p.scores.diagonal = DiagonalMask::causal();
  // n (n + 1) / 2 pairs of 4 operations each, in every sequence.
  EXPECT_DOUBLE_EQ(attention_flops(p), 0x1p31 * 4 * 0x1p35 * (0x1p36 + 1));
  EXPECT_GT(attention_bytes(p), 0);
}

TEST(AttentionWork, OfEachBandIsTheSumOverItsQueries) {
  std::mt19937 random(1);
  for (int n = 0; n < 3000; ++n) {
    AttentionProblem p;
    p.batch = 1;
    p.seq_len_q = random() % 12;
    p.seq_len_kv = random() % 12;
    p.num_heads = p.num_kv_heads = p.head_dim_qk = p.head_dim_v = 1;
    p.scores.diagonal = DiagonalMask{};
    if (random() % 3 != 0) p.scores.diagonal->window_left = random() % 15;
    if (random() % 3 != 0) p.scores.diagonal->window_right = random() % 15;
    if (random() % 2 == 0) p.scores.diagonal->alignment = DiagonalAlignment::kTopLeft;
    const DiagonalMask& d = *p.scores.diagonal;
    const std::int64_t shift = d.alignment == DiagonalAlignment::kTopLeft ? 0 : p.seq_len_kv - p.seq_len_q;
    int pairs = 0;
    for (std::int64_t i = 0; i < p.seq_len_q; ++i) {
      for (std::int64_t j = 0; j < p.seq_len_kv; ++j) {
        pairs += (!d.window_right || j <= i + shift + *d.window_right) &&
                 (!d.window_left || j >= i + shift - *d.window_left);
      }
    }
    EXPECT_EQ(attention_flops(p), 4.0 * pairs);
  }
}

TEST(AttentionOverlap, IsRefusedWhereAByteIsShared) {
  std::vector<float> memory(4096);
  AttentionProblem p;
  p.batch = 1;
  p.seq_len_q = p.seq_len_kv = 16;
  p.num_heads = p.num_kv_heads = 2;
  p.head_dim_qk = p.head_dim_v = 8;
  // Rows of 64: q, k, v and o beside one another.
  const auto slice = [&](int first) { return memory.data() + first; };
  p.q = {slice(0), DType::kF32, 0, 64, 8};
  p.k = {slice(16), DType::kF32, 0, 64, 8};
  p.v = {slice(32), DType::kF32, 0, 64, 8};
  p.o = {slice(48), DType::kF32, 0, 64, 8};
  EXPECT_NO_THROW(validate(p));
  for (int first = 0; first < 64 * 16; ++first) {
    if (first % 64 >= 48) continue;  // between the others' rows
    p.o.data = slice(first);
    EXPECT_THROW(validate(p), Error) << first;
  }
  p.o.data = slice(64 * 15 + 48);
  EXPECT_NO_THROW(validate(p)) << "behind the last row of v";
  p.o = {slice(63), DType::kF32, 0, 64, 8};
  EXPECT_THROW(validate(p), Error) << "its rows reach the next rows of q";
  p.o = {slice(2000), DType::kF32, 0, 16, 8};
  EXPECT_NO_THROW(validate(p));
  p.v.data = slice(2000 + 16 * 15 + 15);
  EXPECT_THROW(validate(p), Error) << "the last element";
  p.v.data = slice(2000 + 16 * 16);
  EXPECT_NO_THROW(validate(p));
}

}  // namespace
}  // namespace tessera
