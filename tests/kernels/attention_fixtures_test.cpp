// Every backend against what PyTorch and transformers compute (tests/fixtures/attention).

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/json_parse.h"
#include "core/mapped_file.h"
#include "kernels/usable_backends.h"
#include "tessera/attention.h"

namespace tessera {
namespace {

struct Tensor {
  std::vector<float> values;
  std::vector<std::int64_t> shape;

  /// Stride of dimension d, 0 where the tensor broadcasts it.
  std::int64_t stride(std::size_t d) const {
    if (shape[d] == 1) return 0;
    std::int64_t stride = 1;
    for (std::size_t n = d + 1; n < shape.size(); ++n) stride *= shape[n];
    return stride;
  }
};

class Fixtures {
 public:
  Fixtures()
      : json_file_(std::filesystem::path(TESSERA_FIXTURES) / "attention/cases.json"),
        tensors_file_(std::filesystem::path(TESSERA_FIXTURES) / "attention/tensors.bin"),
        json_(parse_json_bounded(
            {reinterpret_cast<const char*>(json_file_.bytes().data()), json_file_.bytes().size()},
            "cases.json")) {}

  const nlohmann::json& cases() const { return json_.at("cases"); }

  Tensor tensor(const nlohmann::json& where) const {
    Tensor t;
    t.shape = where.at("shape").get<std::vector<std::int64_t>>();
    std::size_t count = 1;
    for (const std::int64_t extent : t.shape) count *= static_cast<std::size_t>(extent);
    const std::size_t offset = where.at("offset").get<std::size_t>();
    EXPECT_LE((offset + count) * sizeof(float), tensors_file_.bytes().size());
    t.values.resize(count);
    std::memcpy(t.values.data(), tensors_file_.bytes().data() + offset * sizeof(float),
                count * sizeof(float));
    return t;
  }

 private:
  MappedFile json_file_;
  MappedFile tensors_file_;
  nlohmann::json json_;
};

/// The largest finite magnitude.
float largest(const std::vector<float>& values) {
  float result = 0;
  for (const float x : values) {
    if (std::isfinite(x)) result = std::max(result, std::abs(x));
  }
  return result;
}

/// A case's tensors and the problem that points to them.
struct Loaded {
  Tensor q, k, v, o, lse, additive, slopes, sinks;
  std::vector<std::uint8_t> boolean;
  std::vector<float> o_out, lse_out;
  AttentionProblem problem;

  Loaded(const Fixtures& fixtures, const nlohmann::json& c)
      : q(fixtures.tensor(c.at("q"))),
        k(fixtures.tensor(c.at("k"))),
        v(fixtures.tensor(c.at("v"))),
        o(fixtures.tensor(c.at("o"))) {
    AttentionProblem& p = problem;
    p.batch = q.shape[0];
    p.num_heads = static_cast<int>(q.shape[1]);
    p.num_kv_heads = static_cast<int>(k.shape[1]);
    p.seq_len_q = q.shape[2];
    p.seq_len_kv = k.shape[2];
    p.head_dim_qk = static_cast<int>(q.shape[3]);
    p.head_dim_v = static_cast<int>(v.shape[3]);
    constexpr auto kLayout = AttentionLayout::kBatchHeadsSeq;
    p.q = attention_input(kLayout, q.values.data(), DType::kF32, p.seq_len_q, p.num_heads, p.head_dim_qk);
    p.k = attention_input(kLayout, k.values.data(), DType::kF32, p.seq_len_kv, p.num_kv_heads, p.head_dim_qk);
    p.v = attention_input(kLayout, v.values.data(), DType::kF32, p.seq_len_kv, p.num_kv_heads, p.head_dim_v);
    o_out.assign(o.values.size(), std::numeric_limits<float>::quiet_NaN());
    p.o = attention_output(kLayout, o_out.data(), DType::kF32, p.seq_len_q, p.num_heads, p.head_dim_v);
    lse_out.assign(static_cast<std::size_t>(p.batch * p.num_heads * p.seq_len_q),
                   std::numeric_limits<float>::quiet_NaN());
    p.lse = lse_output(lse_out.data(), p.num_heads, p.seq_len_q);

    if (c.contains("lse")) lse = fixtures.tensor(c.at("lse"));
    if (c.contains("softmax_scale")) p.scores.softmax_scale = c.at("softmax_scale").get<float>();
    if (c.contains("softcap")) p.scores.softcap = c.at("softcap").get<float>();
    if (c.contains("alibi")) {
      slopes = fixtures.tensor(c.at("alibi"));
      p.scores.alibi = AlibiBias{slopes.values.data()};
    }
    if (c.contains("sinks")) {
      sinks = fixtures.tensor(c.at("sinks"));
      p.scores.sinks = AttentionSinks{sinks.values.data()};
    }
    if (c.contains("additive_mask")) {
      additive = fixtures.tensor(c.at("additive_mask"));
      p.scores.additive_mask = mask(additive, additive.values.data(), DType::kF32);
    }
    if (c.contains("boolean_mask")) {
      const Tensor visible = fixtures.tensor(c.at("boolean_mask"));
      boolean.assign(visible.values.begin(), visible.values.end());
      p.scores.boolean_mask = mask(visible, boolean.data(), DType::kBool);
    }
    if (c.contains("alignment")) {
      DiagonalMask diagonal;
      diagonal.alignment =
          c.at("alignment") == "top_left" ? DiagonalAlignment::kTopLeft : DiagonalAlignment::kBottomRight;
      if (c.contains("window_left")) diagonal.window_left = c.at("window_left").get<std::int64_t>();
      if (c.contains("window_right")) diagonal.window_right = c.at("window_right").get<std::int64_t>();
      p.scores.diagonal = diagonal;
    }
  }

  static ScoreMask mask(const Tensor& t, const void* data, DType dtype) {
    return {data, dtype, t.stride(0), t.stride(1), t.stride(2), 1};
  }

  /// Bound on the scores' size: the norms of the longest q and k, and what is added.
  double score_size() const {
    const auto longest = [](const Tensor& t) {
      double longest = 0;
      const auto dim = static_cast<std::size_t>(t.shape[3]);
      for (std::size_t row = 0; row < t.values.size(); row += dim) {
        double squares = 0;
        for (std::size_t d = 0; d < dim; ++d)
          squares += static_cast<double>(t.values[row + d]) * t.values[row + d];
        longest = std::max(longest, std::sqrt(squares));
      }
      return longest;
    };
    const double scale =
        problem.scores.softmax_scale.value_or(1 / std::sqrt(static_cast<float>(problem.head_dim_qk)));
    const double bias =
        largest(slopes.values) * static_cast<double>(problem.seq_len_kv) + largest(additive.values);
    return longest(q) * longest(k) * scale + bias;
  }
};

class AttentionFixtures : public testing::TestWithParam<std::string> {};

TEST_P(AttentionFixtures, AgreesWithOtherTools) {
  const Fixtures fixtures;
  AttentionOptions options;
  options.backend = GetParam();
  ASSERT_GE(fixtures.cases().size(), 15u);
  for (const nlohmann::json& c : fixtures.cases()) {
    SCOPED_TRACE(c.at("name").get<std::string>() + ", " + c.at("source").get<std::string>());
    Loaded loaded(fixtures, c);
    attention_forward(loaded.problem, options);
    // One rounding of the file's numbers and one of ours. In fp32 also: each score as a sum of head_dim
    // products and a few terms, each weight from two of them, then a sum over the keys.
    const double u = 0x1p-24;
    double score_error = 0, sums = 0;
    if (GetParam() != "reference") {
      score_error = (loaded.problem.head_dim_qk + 6) * u * loaded.score_size();
      sums = (static_cast<double>(loaded.problem.seq_len_kv) + 4) * u;
    }
    const double o_bound =
        2 * u * largest(loaded.o.values) + (2 * score_error + 2 * sums) * largest(loaded.v.values);
    for (std::size_t n = 0; n < loaded.o_out.size(); ++n) {
      ASSERT_NEAR(loaded.o_out[n], loaded.o.values[n], o_bound) << "element " << n;
    }
    for (std::size_t n = 0; n < loaded.lse.values.size(); ++n) {
      ASSERT_NEAR(loaded.lse_out[n], loaded.lse.values[n],
                  2 * u * std::abs(loaded.lse.values[n]) + score_error + sums)
          << "row " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionFixtures, testing::ValuesIn(usable_backends()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera
