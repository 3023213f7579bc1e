// Short convolutions and the gated delta rule against the same in fp64.
#include <cmath>
#include <numeric>
#include <optional>

#include "backends/factories.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

/// Sequences of a step, with the memory of what tells kernels of them.
class TestSequences {
 public:
  struct Sequence {
    std::int32_t rows = 0, tokens_before = 0, slot = 0;
  };

  TestSequences(std::vector<Sequence> sequences, std::int64_t num_slots) : num_slots_(num_slots) {
    for (const Sequence& sequence : sequences) {
      cu_seqlens_.push_back(cu_seqlens_.back() + sequence.rows);
      seq_lens_.push_back(sequence.rows + sequence.tokens_before);
      slots_.push_back(sequence.slot);
      longest_ = std::max<std::int64_t>(longest_, sequence.rows);
    }
  }

  std::int64_t rows() const { return cu_seqlens_.back(); }
  SequenceRows view() const {
    return {cu_seqlens_.data(), seq_lens_.data(), slots_.data(), std::ssize(slots_), longest_, num_slots_};
  }

 private:
  std::vector<std::int32_t> cu_seqlens_ = {0}, seq_lens_, slots_;
  std::int64_t longest_ = 0, num_slots_;
};

constexpr std::int64_t kSlots = 6;

/// One row and many, of sequences that begin and that go on, in slots of any order.
TestSequences mixed_sequences() {
  return TestSequences({{1, 40, 4}, {1, 0, 0}, {19, 0, 3}, {0, 3, 5}, {2, 1, 1}, {33, 17, 2}}, kSlots);
}

std::size_t size_of(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); }

/// States that hold what earlier rows left; those of sequences that begin hold NaN.
std::vector<float> earlier_states(const TestSequences& sequences, std::int64_t floats, double scale) {
  const Values values = random_values(size_of(kSlots, floats), 77, scale);
  std::vector<float> state(values.begin(), values.end());
  const SequenceRows view = sequences.view();
  for (std::int64_t b = 0; b < view.batch; ++b) {
    if (view.seq_lens[b] > view.cu_seqlens[b + 1] - view.cu_seqlens[b]) continue;
    std::fill_n(state.begin() + view.slots[b] * floats, floats, std::nanf(""));
  }
  return state;
}

Values as_values(const std::vector<float>& floats) { return {floats.begin(), floats.end()}; }

/// Slots that no sequence has stay as they are, NaN among them.
void expect_close(const std::vector<float>& state, const std::vector<float>& exact, double tolerance) {
  ASSERT_EQ(state.size(), exact.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (std::isnan(exact[i])) {
      EXPECT_TRUE(std::isnan(state[i])) << i;
    } else {
      ASSERT_NEAR(static_cast<double>(state[i]), static_cast<double>(exact[i]), tolerance) << i;
    }
  }
}

class OpsRecurrent : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype = GetParam();
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsRecurrent, ::testing::ValuesIn(kActivationDTypes),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// ---- Short convolutions

struct Conv {
  std::int64_t channels = 0, taps = 0;
  bool is_gated = false, has_bias = false, is_activated = false;
};

const std::vector<Conv> kConvs = {{8, 2, false, false, false},  {40, 3, true, false, false},
                                  {37, 4, false, true, true},   {264, 4, false, false, true},
                                  {1100, 3, true, true, false}, {24, 8, true, false, true},
                                  {13, 5, false, false, false}};

TEST_P(OpsRecurrent, ConvolutionsAreThoseOfFp64) {
  const TestSequences sequences = mixed_sequences();
  const std::int64_t rows = sequences.rows();
  for (const Conv& conv : kConvs) {
    SCOPED_TRACE(::testing::Message() << conv.channels << " channels, " << conv.taps << " taps");
    const std::int64_t n = conv.channels;
    const TestWeight weight(DType::kF32, conv.taps, n, random_values(size_of(n, conv.taps), 2));
    const TestWeight bias(DType::kF32, 1, n, random_values(size_of(n, 1), 3));
    // Three column ranges of the same rows, as a product leaves them.
    FencedMatrix packed(dtype, rows, 3 * n, random_values(size_of(rows, 3 * n), 4), 3 * n + 5);
    const std::vector<float> before = earlier_states(sequences, (conv.taps - 1) * n, 1);
    CausalConvArguments a;
    a.x = columns_of(packed.view(), 2 * n, n);
    if (conv.is_gated) {
      a.x_gate = columns_of(packed.view(), 0, n);
      a.out_gate = columns_of(packed.view(), n, n);
    }
    a.weight = weight.weight();
    if (conv.has_bias) a.bias = bias.weight();
    a.is_activated = conv.is_activated;
    a.sequences = sequences.view();

    FencedMatrix exact(DType::kF64, rows, n);
    std::vector<float> exact_state = before;
    a.out = exact.view();
    a.state = exact_state.data();
    reference->causal_conv(a, {});
    for_each_simd_target([&] {
      FencedMatrix out(dtype, rows, n, n + 3);
      std::vector<float> state = before;
      a.out = out.view();
      a.state = state.data();
      tested->causal_conv(a, {});
      // Sums of up to 9 products of about 1, each rounded, and one rounding of the result.
      const double tolerance =
          (unit_roundoff(dtype) + 16 * unit_roundoff(DType::kF32)) * max_abs(exact.values());
      EXPECT_LE(max_error(out.values(), exact.values()), tolerance);
      out.expect_fences_intact();
      expect_close(state, exact_state, 2 * unit_roundoff(DType::kF32) * 16);
    });
  }
}

TEST_P(OpsRecurrent, ConvolutionsGoOnWhereTheyStopped) {
  constexpr std::int64_t kChannels = 48, kTaps = 4;
  const TestWeight weight(DType::kF32, kTaps, kChannels, random_values(size_of(kChannels, kTaps), 2));
  const std::int32_t length = 50;
  FencedMatrix x(dtype, length, kChannels, random_values(size_of(length, kChannels), 4));
  CausalConvArguments a;
  a.weight = weight.weight();
  a.is_activated = true;
  const auto run = [&](const std::vector<std::int32_t>& pieces) {
    FencedMatrix out(dtype, length, kChannels);
    std::vector<float> state(size_of(kSlots, (kTaps - 1) * kChannels), std::nanf(""));
    std::int32_t begin = 0;
    for (const std::int32_t rows : pieces) {
      const TestSequences sequence({{rows, begin, 2}}, kSlots);
      a.x = rows_of(x.view(), begin, rows);
      a.out = rows_of(out.view(), begin, rows);
      a.state = state.data();
      a.sequences = sequence.view();
      tested->causal_conv(a, {});
      begin += rows;
    }
    EXPECT_EQ(begin, length);
    return out.values();
  };
  const Values whole = run({50});
  EXPECT_EQ(run({1, 1, 1, 1, 1, 45}), whole);
  EXPECT_EQ(run({17, 2, 31}), whole);
  EXPECT_EQ(run({2, 16, 16, 16}), whole);
}

// ---- The gated delta rule

struct Delta {
  int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  bool takes_turns = false;
};

const std::vector<Delta> kDeltas = {{1, 1, 128, 128},     {2, 4, 64, 32},  {2, 6, 24, 20},
                                    {2, 6, 24, 20, true}, {1, 3, 130, 17}, {1, 1, 256, 5}};

/// A step's arguments and their memory.
class TestDelta {
 public:
  TestDelta(const Delta& delta, DType dtype, std::int64_t rows)
      : delta_(delta),
        keys_(delta.key_heads * delta.key_dim),
        values_(delta.value_heads * delta.value_dim),
        packed_(dtype, rows, 2 * keys_ + values_ + 2 * delta.value_heads,
                random_values(size_of(rows, 2 * keys_ + values_ + 2 * delta.value_heads), 6)),
        a_log_(DType::kF32, 1, delta.value_heads, random_values(size_of(delta.value_heads, 1), 7)),
        dt_bias_(DType::kF32, 1, delta.value_heads, random_values(size_of(delta.value_heads, 1), 8)) {}

  std::int64_t state_size() const { return values_ * delta_.key_dim; }
  std::int64_t out_columns() const { return values_; }
  /// Of rows [begin, begin + count).
  GatedDeltaArguments arguments(std::int64_t begin, std::int64_t count) {
    const Matrix rows = rows_of(packed_.view(), begin, count);
    GatedDeltaArguments a;
    a.q = columns_of(rows, 0, keys_);
    a.k = columns_of(rows, keys_, keys_);
    a.v = columns_of(rows, 2 * keys_, values_);
    a.a = columns_of(rows, 2 * keys_ + values_, delta_.value_heads);
    a.b = columns_of(rows, 2 * keys_ + values_ + delta_.value_heads, delta_.value_heads);
    a.a_log = a_log_.weight();
    a.dt_bias = dt_bias_.weight();
    a.num_key_heads = delta_.key_heads;
    a.num_value_heads = delta_.value_heads;
    a.takes_turns = delta_.takes_turns;
    a.key_dim = delta_.key_dim;
    a.value_dim = delta_.value_dim;
    return a;
  }

 private:
  Delta delta_;
  std::int64_t keys_, values_;
  FencedMatrix packed_;
  TestWeight a_log_, dt_bias_;
};

TEST_P(OpsRecurrent, DeltaRulesAreThoseOfFp64) {
  const TestSequences sequences = mixed_sequences();
  const std::int64_t rows = sequences.rows();
  for (const Delta& delta : kDeltas) {
    SCOPED_TRACE(::testing::Message() << delta.key_heads << ", " << delta.value_heads << " heads of "
                                      << delta.key_dim << ", " << delta.value_dim);
    TestDelta test(delta, dtype, rows);
    GatedDeltaArguments a = test.arguments(0, rows);
    a.sequences = sequences.view();
    const std::vector<float> before = earlier_states(sequences, test.state_size(), 0.3);
    FencedMatrix exact(DType::kF64, rows, test.out_columns());
    std::vector<float> exact_state = before;
    a.out = exact.view();
    a.state = exact_state.data();
    reference->gated_delta(a, {});
    for_each_simd_target([&] {
      FencedMatrix out(dtype, rows, test.out_columns(), test.out_columns() + 3);
      std::vector<float> state = before;
      a.out = out.view();
      a.state = state.data();
      tested->gated_delta(a, {});
      // Keys of length 1 and decays below 1 let no error grow: a row adds a rounding of sums of key_dim
      // products and of exp to each number of the state.
      const double step = (delta.key_dim + 8) * unit_roundoff(DType::kF32);
      const double largest = max_abs(as_values(before)) + max_abs(exact.values()) + 4;
      const double tolerance = unit_roundoff(dtype) * max_abs(exact.values()) + 4 * step * largest;
      EXPECT_LE(max_error(out.values(), exact.values()), tolerance);
      out.expect_fences_intact();
      expect_close(state, exact_state, 4 * step * largest);
    });
  }
}

TEST_P(OpsRecurrent, DeltaRulesGoOnWhereTheyStopped) {
  const std::int32_t length = 50;
  TestDelta test({1, 2, 32, 24}, dtype, length);
  const auto run = [&](const std::vector<std::int32_t>& pieces) {
    FencedMatrix out(dtype, length, test.out_columns());
    std::vector<float> state(size_of(kSlots, test.state_size()), std::nanf(""));
    std::int32_t begin = 0;
    for (const std::int32_t rows : pieces) {
      const TestSequences sequence({{rows, begin, 5}}, kSlots);
      GatedDeltaArguments a = test.arguments(begin, rows);
      a.out = rows_of(out.view(), begin, rows);
      a.state = state.data();
      a.sequences = sequence.view();
      tested->gated_delta(a, {});
      begin += rows;
    }
    return out.values();
  };
  const Values whole = run({50});
  EXPECT_EQ(run({1, 1, 48}), whole);
  EXPECT_EQ(run({16, 17, 17}), whole);
}

TEST(OpsRecurrentArguments, AreChecked) {
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const TestSequences sequences({{2, 0, 0}, {1, 3, 1}}, 2);
  FencedMatrix x(DType::kF32, 3, 8, random_values(24, 1)), out(DType::kF32, 3, 8);
  const TestWeight weight(DType::kF32, 3, 8, random_values(24, 2));
  std::vector<float> state(32);
  CausalConvArguments valid;
  valid.x = x.view();
  valid.out = out.view();
  valid.weight = weight.weight();
  valid.state = state.data();
  valid.sequences = sequences.view();
  tested->causal_conv(valid, {});
  const auto expect_refused = [&](auto change, const std::string& message) {
    CausalConvArguments a = valid;
    change(a);
    expect_error([&] { tested->causal_conv(a, {}); }, ErrorCode::kInvalidArgument, message);
  };
  expect_refused([](auto& a) { a.weight.rows = 1; }, "weight.rows is 1; expected 2 to 8 taps");
  expect_refused([](auto& a) { a.weight.dtype = DType::kBF16; }, "weight.dtype is bf16; expected f32");
  expect_refused([](auto& a) { a.out = a.x; }, "out overlaps x");
  expect_refused([](auto& a) { a.state = nullptr; }, "state is null");
  expect_refused([](auto& a) { a.sequences.num_slots = 1; }, "sequences.num_slots is 1; expected at least 2");
  expect_refused([](auto& a) { a.sequences.seq_len_q = 4; }, "expected no more than the 3 rows");

  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
  const std::int32_t far[] = {0, 2}, few[] = {0, 1, 2};
  CausalConvArguments wrong = valid;
  wrong.sequences.slots = far;
  expect_error([&] { reference->causal_conv(wrong, {}); }, ErrorCode::kInvalidArgument,
               "sequences.slots[1] is 2; expected 0 to 1");
  wrong = valid;
  wrong.sequences.cu_seqlens = few;
  expect_error([&] { reference->causal_conv(wrong, {}); }, ErrorCode::kInvalidArgument,
               "sequences.cu_seqlens goes from 0 to 2; expected 0 to 3");
}

}  // namespace
}  // namespace tessera::testing
