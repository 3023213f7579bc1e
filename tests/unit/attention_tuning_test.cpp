// Classes of shapes, tables of tuned shapes as text, and which of several measurements wins.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention/tuning.h"
#include "gpu/dense_problem.h"
#include "tessera/error.h"

namespace tessera {
namespace {

AttentionProblem decode(std::int64_t batch, std::int64_t seq_len_kv) {
  AttentionProblem p = testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 1, seq_len_kv, 32, 8, 128);
  p.batch = batch;
  return p;
}

TEST(ShapeClass, SaysInWordsWhatAnEntryIsFor) {
  AttentionProblem p = decode(8, 4096);
  EXPECT_EQ(shape_class(p), "bf16 d128 group4 dense q1 kv4096 kvheads64");
  p.paged_kv.emplace().page_size = 16;
  p.scores.diagonal = DiagonalMask::causal();
  EXPECT_EQ(shape_class(p), "bf16 d128 group4 paged16 q1 kv4096 kvheads64") << "one query sees all keys";
  p.seq_len_q = 2;
  EXPECT_EQ(shape_class(p), "bf16 d128 group4 causal paged16 q2 kv4096 kvheads64");
  p.paged_kv->page_size = 192;
  p.scores.diagonal = DiagonalMask::sliding_window_keys(1000);
  p.k.dtype = p.v.dtype = DType::kF8E4M3;
  p.head_dim_v = 60;
  p.scores.softcap = 30.0f;
  p.scores.sinks.emplace();
  EXPECT_EQ(shape_class(p),
            "bf16 kv-f8e4m3 d128/64 group4 causal window1024 softcap sinks paged64+ q2 kv4096 kvheads64");
  p.q.dtype = DType::kF8E4M3;
  EXPECT_EQ(shape_class(p),
            "bf16 q-f8e4m3 kv-f8e4m3 d128/64 group4 causal window1024 softcap sinks paged64+ q2 kv4096 "
            "kvheads64");
}

TEST(ShapeClass, NeighboursShareTheNearestPowerOfTwo) {
  // 4096 / sqrt(2) is 2896.3, 4096 * sqrt(2) is 5792.6.
  for (const std::int64_t seq_len_kv : {2897, 4000, 4096, 5792})
    EXPECT_EQ(shape_class(decode(8, seq_len_kv)), shape_class(decode(8, 4096))) << seq_len_kv;
  for (const std::int64_t seq_len_kv : {0, 1, 2896, 5793, 8192})
    EXPECT_NE(shape_class(decode(8, seq_len_kv)), shape_class(decode(8, 4096))) << seq_len_kv;
  EXPECT_EQ(shape_class(decode(7, 4096)), shape_class(decode(8, 4096)));
  EXPECT_NE(shape_class(decode(5, 4096)), shape_class(decode(8, 4096)));
  EXPECT_EQ(shape_class(decode(0, 0)), "bf16 d128 group4 dense q1 kv0 kvheads0");
}

TEST(ShapeClass, FollowsFromTheDescriptionAndNotFromPointersOrSize) {
  AttentionProblem p = decode(1, std::int64_t{1} << 40);
  EXPECT_EQ(shape_class(p), "bf16 d128 group4 dense q1 kv1099511627776 kvheads8");
  AttentionProblem elsewhere = p;
  elsewhere.k.data = &elsewhere;
  elsewhere.k.seq_stride += 64;
  EXPECT_EQ(shape_class(elsewhere), shape_class(p));
}

TuningTable table() {
  TuningTable t;
  t.device = "NVIDIA H200";
  t.entries["bf16 d128 group4 dense q1 kv4096 kvheads64"] = {
      {"sm80/decode", {.num_warps = 8, .num_splits = 4}}, 64, 14.25, "sm90/decode", 16.125, 9, "2026-11-23"};
  t.entries["bf16 d64 group4 dense q1 kv512 kvheads8"] = {{}, 8, 5.5, "sm80/decode", 5.5, 4, "2026-11-23"};
  return t;
}

TEST(TuningTable, IsReadBackAsItWasWritten) {
  EXPECT_EQ(parse_tuning(tuning_to_json(table()), "test"), table());
  EXPECT_EQ(parse_tuning(tuning_to_json({"a GPU", {}}), "test"), (TuningTable{"a GPU", {}}));
}

/// The document with `from` replaced by `to`.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = tuning_to_json(table());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TuningTable, AHostileTextIsAnErrorThatNamesItsSource) {
  const std::vector<std::string> texts = {
      "",
      "[]",
      "{}",
      "null",
      "{\"tessera_tuning\":2}",
      "{\"tessera_tuning\":2,\"device\":\"x\",\"entries\":{}}",
      "{\"tessera_tuning\":2,\"device\":\"x\",\"entries\":[1]}",
      "{\"tessera_tuning\":2,\"device\":\"x\",\"entries\":[{}]}",
      "{\"tessera_tuning\":9,\"device\":\"x\",\"entries\":[]}",
      std::string(100'000, '['),
      std::string(std::size_t{5} << 20, ' '),
      changed("\"num_splits\":4", "\"num_splits\":-4"),
      changed("\"num_splits\":4", "\"num_splits\":1e99"),
      changed("\"num_splits\":4", "\"num_splits\":18446744073709551615"),
      changed("\"num_splits\":4", "\"num_splits\":\"4\""),
      changed("\"us\":14.25", "\"us\":-1"),
      changed("\"us\":14.25", "\"us\":null"),
      changed("\"kernel\":\"sm80/decode\"", "\"kernel\":\"\\u0000\""),
      changed("\"kernel\":\"sm80/decode\"", "\"kernel\":[]"),
      changed("\"date\":\"2026-11-23\"", "\"date\":\"\\n\""),
      changed("\"device\":\"NVIDIA H200\"", "\"device\":\"" + std::string(1000, 'x') + "\""),
      changed("\"config\":{", "\"config\":[{"),
  };
  for (const std::string& text : texts) {
    try {
      parse_tuning(text, "the source");
      ADD_FAILURE() << text.substr(0, 300);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruptFile);
      EXPECT_NE(error.message().find("the source"), std::string::npos) << error.message();
    }
  }
}

TEST(TuningTable, TextsCutAnywhereAreErrors) {
  const std::string text = tuning_to_json(table());
  for (std::size_t size = 0; size + 2 < text.size(); ++size)
    EXPECT_THROW(parse_tuning(text.substr(0, size), "test"), Error) << size;
}

TEST(FastestInRounds, NeedsThreePercentAndThreeOfFourRounds) {
  using Samples = std::vector<std::vector<double>>;
  EXPECT_EQ(fastest_in_rounds(Samples{{10, 10, 10, 10}}), 0u);
  EXPECT_EQ(fastest_in_rounds(Samples{{10, 10, 10, 10}, {9.8, 9.8, 9.8, 9.8}}), 0u) << "2 % is noise";
  EXPECT_EQ(fastest_in_rounds(Samples{{10, 10, 10, 10}, {9.6, 9.6, 9.6, 9.6}}), 1u);
  EXPECT_EQ(fastest_in_rounds(Samples{{10, 10, 10, 10}, {9, 9, 9, 9}, {8, 8, 8, 8}, {8.5, 8.5, 8.5, 8.5}}),
            2u);
  // Its median is lower by half, but in two rounds of five it was slower.
  EXPECT_EQ(fastest_in_rounds(Samples{{10, 10, 10, 10, 10}, {5, 11, 5, 11, 5}}), 0u);
  EXPECT_EQ(fastest_in_rounds(Samples{{10, 10, 10, 10, 10}, {5, 11, 5, 5, 5}}), 1u)
      << "one outlier changes nothing";
}

TEST(FastestInRounds, MediansOfEvenNumbersLieBetween) {
  EXPECT_EQ(median_of({3}), 3);
  EXPECT_EQ(median_of({4, 1, 3, 2}), 2.5);
}

}  // namespace
}  // namespace tessera
