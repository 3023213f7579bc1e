// Two ways to say the same thing must give the same result, on every backend. Where the exact results are
// equal, the computed ones may differ by what each may be off by.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/usable_backends.h"
#include "tessera/attention.h"
#include "verify/attention_check.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class AttentionIdentity : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }

  AttentionCase base() const {
    AttentionCase c;
    c.dtype = std::get<1>(GetParam());
    c.seq_len_q = 21;
    c.seq_len_kv = 50;
    c.head_dim_qk = 40;
    c.head_dim_v = 24;
    return c;
  }

  /// Runs both and compares o, and lse + lse_shift.
  void expect_equal(const AttentionData& a, const AttentionData& b, double lse_shift = 0) const {
    const AttentionRows rows_a = run_attention(a, backend(), VerifyMemory::cpu()).rows;
    const AttentionRows rows_b = run_attention(b, backend(), VerifyMemory::cpu()).rows;
    const AttentionExpectation of_a = expect_attention(a, backend()), of_b = expect_attention(b, backend());
    ASSERT_EQ(rows_a.o.size(), rows_b.o.size());
    for (std::size_t n = 0; n < rows_a.o.size(); ++n) {
      ASSERT_NEAR(rows_a.o[n], rows_b.o[n], of_a.bound + of_b.bound) << "element " << n;
    }
    for (std::size_t n = 0; n < rows_a.lse.size(); ++n) {
      if (rows_a.lse[n] == -kInfinity || rows_b.lse[n] == -kInfinity) {
        ASSERT_EQ(rows_a.lse[n], rows_b.lse[n]) << "row " << n;
      } else {
        ASSERT_NEAR(rows_a.lse[n] + lse_shift, rows_b.lse[n], of_a.lse_bound + of_b.lse_bound) << "row " << n;
      }
    }
  }

  /// A copy with an additive mask whose entries value(b, h, i, j) gives.
  template <class Value>
  static AttentionData with_additive_mask(AttentionData data, Value&& value) {
    AttentionCase& c = data.description;
    c.additive_mask = MaskRecipe{DType::kF32, true, true, true, 0, 1};
    data.additive_mask = {c.batch, c.num_heads, c.seq_len_q, c.seq_len_kv, {}};
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (int h = 0; h < c.num_heads; ++h) {
        for (std::int64_t i = 0; i < c.seq_len_q; ++i) {
          for (std::int64_t j = 0; j < c.seq_len_kv; ++j)
            data.additive_mask.values.push_back(value(b, h, i, j));
        }
      }
    }
    return data;
  }
};

TEST_P(AttentionIdentity, ABooleanMaskIsAnAdditiveMaskOfMinusInfinity) {
  AttentionCase c = base();
  c.boolean_mask = MaskRecipe{DType::kBool, true, true, true, 0.7, 1};
  const AttentionData boolean = make_attention_data(c);
  AttentionData additive = boolean;
  additive.description.boolean_mask.reset();
  expect_equal(boolean,
               with_additive_mask(additive, [&](std::int64_t b, int h, std::int64_t i, std::int64_t j) {
                 return boolean.boolean_mask.at(b, h, i, j) == 0 ? -kInfinity : 0.0;
               }));
}

TEST_P(AttentionIdentity, AWindowIsAMask) {
  for (const DiagonalMask& diagonal :
       {DiagonalMask::causal(), DiagonalMask::causal(DiagonalAlignment::kTopLeft),
        DiagonalMask::sliding_window(9, 4)}) {
    AttentionCase c = base();
    c.diagonal = diagonal;
    const AttentionData window = make_attention_data(c);
    AttentionData mask = window;
    mask.description.diagonal.reset();
    const std::int64_t shift = diagonal.alignment == DiagonalAlignment::kTopLeft ? 0 : 50 - 21;
    expect_equal(window, with_additive_mask(mask, [&](std::int64_t, int, std::int64_t i, std::int64_t j) {
                   const bool after = diagonal.window_right && j > i + shift + *diagonal.window_right;
                   const bool before = diagonal.window_left && j < i + shift - *diagonal.window_left;
                   return after || before ? -kInfinity : 0.0;
                 }));
  }
}

TEST_P(AttentionIdentity, AlibiIsAnAdditiveMask) {
  AttentionCase c = base();
  c.alibi = true;
  AttentionData alibi = make_attention_data(c);
  for (float& slope : alibi.alibi_slopes)
    slope = std::round(slope * 64) / 64;  // so that its products are exact
  AttentionData mask = alibi;
  mask.description.alibi = false;
  expect_equal(alibi, with_additive_mask(mask, [&](std::int64_t, int h, std::int64_t i, std::int64_t j) {
                 const double distance = std::abs(static_cast<double>(i + 29 - j));
                 return -static_cast<double>(alibi.alibi_slopes[static_cast<std::size_t>(h)]) * distance;
               }));
}

TEST_P(AttentionIdentity, AConstantAddedToAllScoresOnlyMovesTheLse) {
  const AttentionData data = make_attention_data(base());
  expect_equal(data, with_additive_mask(data, [](auto...) { return 3.5; }), 3.5);
}

TEST_P(AttentionIdentity, TheOrderOfKeysDoesNotMatter) {
  const AttentionData data = make_attention_data(base());
  AttentionData reversed = data;
  const auto reverse_rows = [](std::vector<double>& rows, std::size_t width) {
    std::reverse(rows.begin(), rows.end());
    for (std::size_t n = 0; n < rows.size(); n += width) {
      std::reverse(rows.begin() + static_cast<std::ptrdiff_t>(n),
                   rows.begin() + static_cast<std::ptrdiff_t>(n + width));
    }
  };
  for (SequenceData& s : reversed.sequences) {
    reverse_rows(s.k, 2 * 40);
    reverse_rows(s.v, 2 * 24);
  }
  expect_equal(data, reversed);
}

TEST_P(AttentionIdentity, GroupedHeadsAreRepeatedKvHeads) {
  AttentionCase c = base();
  c.num_heads = 6;
  const AttentionData grouped = make_attention_data(c);
  AttentionData repeated = grouped;
  repeated.description.num_kv_heads = 6;
  const auto repeat = [](const std::vector<double>& rows, std::int64_t dim) {
    std::vector<double> wide;
    for (auto row = rows.begin(); row != rows.end(); row += dim) {
      for (int n = 0; n < 3; ++n) wide.insert(wide.end(), row, row + dim);
    }
    return wide;
  };
  for (SequenceData& s : repeated.sequences) {
    s.k = repeat(s.k, 40);
    s.v = repeat(s.v, 24);
  }
  expect_equal(grouped, repeated);
}

TEST_P(AttentionIdentity, ASinkIsAKeyWithoutAValue) {
  AttentionCase c = base();
  c.num_heads = c.num_kv_heads = 1;
  c.softmax_scale = 1.0f;
  c.sinks = true;
  AttentionData sink = make_attention_data(c);
  sink.sinks[0] = 1.5f;
  // One more dimension carries the sink's logit: 1 in each q, 1.5 in the extra key, 0 in the others.
  AttentionData key = sink;
  key.description.sinks = false;
  key.description.head_dim_qk = 41;
  key.description.seq_len_kv = 51;
  for (std::size_t b = 0; b < key.sequences.size(); ++b) {
    SequenceData& s = key.sequences[b];
    s.len_kv = 51;
    s.q.clear();
    s.k.clear();
    const SequenceData& old = sink.sequences[b];
    for (std::size_t row = 0; row < old.q.size(); row += 40) {
      s.q.insert(s.q.end(), old.q.begin() + static_cast<std::ptrdiff_t>(row),
                 old.q.begin() + static_cast<std::ptrdiff_t>(row + 40));
      s.q.push_back(1);
    }
    for (std::size_t row = 0; row < old.k.size(); row += 40) {
      s.k.insert(s.k.end(), old.k.begin() + static_cast<std::ptrdiff_t>(row),
                 old.k.begin() + static_cast<std::ptrdiff_t>(row + 40));
      s.k.push_back(0);
    }
    s.k.resize(s.k.size() + 40, 0.0);
    s.k.push_back(1.5);
    s.v.resize(s.v.size() + 24, 0.0);
  }
  expect_equal(sink, key);
}

TEST_P(AttentionIdentity, ACausalPromptIsItsTokensOneByOne) {
  AttentionCase c = base();
  c.diagonal = DiagonalMask::causal();
  const AttentionData prompt = make_attention_data(c);
  const AttentionRows rows = run_attention(prompt, backend(), VerifyMemory::cpu()).rows;
  const AttentionExpectation of_prompt = expect_attention(prompt, backend());
  for (const std::int64_t i : {0, 1, 7, 20}) {
    const AttentionData token = slice_attention_data(prompt, 1, i, i + 1);
    const AttentionRows row = run_attention(token, backend(), VerifyMemory::cpu()).rows;
    const double bound = of_prompt.bound + expect_attention(token, backend()).bound;
    const auto begin = static_cast<std::size_t>((prompt.first_row(1) + i * c.num_heads) * c.head_dim_v);
    for (std::size_t n = 0; n < row.o.size(); ++n) ASSERT_NEAR(row.o[n], rows.o[begin + n], bound) << i;
  }
}

TEST_P(AttentionIdentity, AHighSoftcapChangesNothing) {
  AttentionCase c = base();
  const AttentionData plain = make_attention_data(c);
  AttentionData capped = plain;
  capped.description.softcap =
      0x1p20f;  // tanh(x) = x - x^3 / 3: off by |s|^3 / 3 / 2^40, below any rounding here
  expect_equal(plain, capped);
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionIdentity,
                         testing::Combine(testing::ValuesIn(usable_backends()),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::string(dtype_name(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace tessera
