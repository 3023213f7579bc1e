// The language of score modifiers: which graph a text is, which texts are refused, and where the fault is.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "modifier/parse_cache.h"
#include "modifier/ranges.h"
#include "tessera/error.h"

namespace tessera::modifier {
namespace {

constexpr Lengths kLengths = {
    .batch = 2, .seq_len_q = 4096, .seq_len_kv = 4096, .num_heads = 8, .num_kv_heads = 4};

CapturedTensor tensor(std::string name, DType dtype, std::vector<std::int64_t> sizes) {
  CapturedTensor result;
  result.name = std::move(name);
  result.dtype = dtype;
  result.strides.assign(sizes.size(), 1);
  result.sizes = std::move(sizes);
  return result;
}

/// What the tests' texts may name.
ScoreModifier names() {
  ScoreModifier m;
  m.tensors = {tensor("doc", DType::kI32, {4096}),   tensor("slope", DType::kF32, {8}),
               tensor("tree", DType::kI32, {2, 64}), tensor("bias", DType::kBF16, {8, 32}),
               tensor("keep", DType::kBool, {4096}), tensor("temperature", DType::kF32, {}),
               tensor("kind", DType::kU8, {4096})};
  m.scalars = {{"w", 128}, {"cap", 30.5}, {"none", 0}};
  return m;
}

ScoreModifier with(std::string score, std::string visible = "") {
  ScoreModifier m = names();
  m.score = std::move(score);
  m.visible = std::move(visible);
  return m;
}
ScoreModifier visible(std::string text) { return with("", std::move(text)); }

Parsed checked(const ScoreModifier& m, const Lengths& lengths = kLengths) {
  Parsed parsed = parse(m);
  check_ranges(m, parsed, lengths);
  return parsed;
}

std::string refusal(const ScoreModifier& m, const Lengths& lengths = kLengths) {
  try {
    checked(m, lengths);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  ADD_FAILURE() << m.score << " | " << m.visible << " was taken";
  return {};
}

TEST(ModifierText, BecomesAGraphWithTypesAndRanks) {
  EXPECT_EQ(canonical_text(checked(visible("kv_idx <= q_idx + shift")).program),
            "%0 = kv_idx : int32 kv\n"
            "%1 = q_idx : int32 q\n"
            "%2 = shift : int32 uniform\n"
            "%3 = add %1 %2 : int32 q\n"
            "%4 = less_equal %0 %3 : bool pair\n"
            "visible %4\n");
  EXPECT_EQ(canonical_text(checked(with("cap * tanh(score / cap)", "keep[kv_idx]")).program),
            "%0 = scalar 1 : fp32 uniform\n"
            "%1 = score : fp32 score\n"
            "%2 = divide %1 %0 : fp32 score\n"
            "%3 = tanh %2 : fp32 score\n"
            "%4 = multiply %0 %3 : fp32 score\n"
            "%5 = kv_idx : int32 kv\n"
            "%6 = load 4 bool %5 : bool kv\n"
            "score %4\n"
            "visible %6\n");
}

TEST(ModifierText, OfAllListedExamplesIsTaken) {
  for (const char* text :
       {"kv_idx <= q_idx + shift", "abs(q_idx + shift - kv_idx) <= w", "doc[q_idx] == doc[kv_idx]",
        "kv_idx <= q_idx || kv_idx < kind[b]", "kv_idx <= q_idx && (q_idx - kv_idx < w || kv_idx < 4)",
        "kv_idx <= q_idx && (q_idx - kv_idx) % 4 == 0",
        "abs(q_idx%w-kv_idx%w)<=3 && abs(q_idx/w-kv_idx/w)<=3", "q_idx/w == kv_idx/w && kv_idx <= q_idx",
        "kv_idx < shift || bit(tree[b,q_idx], kv_idx - shift) == 1"})
    checked(visible(text));
  for (const char* text : {"score - slope[h]*float(abs(q_idx + shift - kv_idx))", "cap*tanh(score/cap)",
                           "let d=max(q_idx+shift-kv_idx,0); score + bias[h, d<16 ? d : min(31, "
                           "int(16.0+16.0*log(float(d)/16.0)/log(8.0)))]"})
    checked(with(text));
}

TEST(ModifierText, GivesEqualExpressionsOneNodeAndDropsWhatIsNotUsed) {
  const Program program = checked(visible("let d = q_idx - kv_idx; let unused = h * 7; "
                                          "q_idx - kv_idx >= 0 && d < w && d >= 0"))
                              .program;
  EXPECT_EQ(program.nodes.size(), 9u);  // q_idx kv_idx d 0 0<=d w d<w and and
}

TEST(ModifierText, DiffersNotByNamesBlanksOrScalars) {
  ScoreModifier a = with("score*cap", "kv_idx<w"), b = with("score *\n cap", "let limit = w; kv_idx < limit");
  b.scalars[0].second = 77;
  b.tensors[0].name = "document";
  EXPECT_EQ(canonical_text(parse(a).program), canonical_text(parse(b).program));
  EXPECT_NE(canonical_text(parse(a).program), canonical_text(parse(with("score*cap", "kv_idx<=w")).program));
  EXPECT_NE(canonical_text(parse(with("score*0.5")).program),
            canonical_text(parse(with("score*0.25")).program));
}

TEST(ModifierText, GivesNumbersTheTypeOfWhatTheyMeet) {
  const auto type_of_scalar = [](const ScoreModifier& m) {
    for (const Node& node : checked(m).program.nodes)
      if (node.op == Op::kScalar) return node.type;
    return Type::kBool;
  };
  EXPECT_EQ(type_of_scalar(visible("kv_idx < 2 * w")), Type::kInt32);
  EXPECT_EQ(type_of_scalar(with("score * (2 * w)")), Type::kFloat32);
  EXPECT_EQ(type_of_scalar(with("score * (h == 0 ? 1 : w)")), Type::kFloat32);
  EXPECT_EQ(type_of_scalar(with("float(w + 1)")), Type::kFloat32);
}

TEST(ModifierText, BindsAsCDoes) {
  const auto same = [](const char* a, const char* b) {
    EXPECT_EQ(canonical_text(parse(visible(a)).program), canonical_text(parse(visible(b)).program)) << a;
  };
  same("h == 1 || h == 2 && b == 0", "(h == 1) || ((h == 2) && (b == 0))");
  same("h - 1 - 2 < b * 3 % 2", "((h - 1) - 2) < ((b * 3) % 2)");
  same("h < 1 == b < 2", "(h < 1) == (b < 2)");
  same("h == 0 ? b == 0 : h == 1 ? b == 1 : b == 2", "h == 0 ? b == 0 : (h == 1 ? (b == 1) : (b == 2))");
  same("-h * 2 < 1", "(-h) * 2 < 1");
  same("h > b", "b < h");
  same("h >= b", "b <= h");
}

struct Wrong {
  ScoreModifier modifier;
  std::string message;  ///< a part of it
};

TEST(ModifierText, ThatIsWrongIsRefusedWithThePlaceAndWhatWasExpected) {
  const std::vector<Wrong> wrongs = {
      {visible("q_idx < kv_id"),
       "scores.modifier.visible:1:9: unknown name 'kv_id'; did you mean kv_idx? expected one of b, h, kv_h, "
       "q_idx, kv_idx, len_q, len_kv, shift, num_heads, "},
      {visible("q_idx < kv_id"), "\n  q_idx < kv_id\n          ^"},
      {visible("q_idx < 3 &&\n  zebra == 1"), "visible:2:3: unknown name 'zebra'; expected one of"},
      {visible("score < 1.0"), "visible:1:1: visible can't use score"},
      {visible("q_idx"), "visible:1:1: the text is int32; expected bool; a comparison such as x != 0 is one"},
      {with("q_idx"), "score:1:1: the text is int32; expected fp32; float(x) converts"},
      {with("score + kv_idx"), "score:1:7: '+' is of fp32 and int32; expected both of one type"},
      {with("score + cap % 2.0"), "'%' is of fp32; expected int32"},
      {with("score + float(cap % 2)"), "'%' is of fp32; expected int32"},
      {with("keep[q_idx] + 1"), "'+' is of bool; expected int32"},
      {with("score && keep[h]"), "'&&' is of fp32; expected bool"},
      {with("bias[h]"), "bias has 2 dimensions and is read with 1 index; expected as many in [ ]"},
      {with("temperature[0]"), "temperature has 0 dimensions and is read with 1 index; expected no index"},
      {with("bias[h, score]"), "an index is fp32; expected int32"},
      {with("exp(1, 2)"), "exp takes 1 argument, found 2"},
      {with("exp h"), "expected '(', found 'h'"},
      {with("score +"), "score:1:8: expected a number, a name or '(', found the end of the text"},
      {with("score score"), "expected an operator or the end of the text, found 'score'"},
      {with("(score"), "expected ')', found the end of the text"},
      {with("score & 1"), "'&' begins nothing in this language; 'and' is '&&'"},
      {with("score \xff"), "'\\xff' begins nothing in this language"},
      {visible("q_idx ≤ 3 \xff"),
       "visible:1:7: '≤' begins nothing in this language\n  q_idx ≤ 3 ?\n        ^"},
      {with("let h = 1; score"), "'h' has a meaning already"},
      {with("let x = 1; let x = 2; score"), "score:1:16: 'x' has a meaning already"},
      {with("let 3 = 1; score"), "expected a name after let, found '3'"},
      {with("--score"), "expected a number, a name or '(', found '-'"},
      {with("1e39"), "beyond fp32's range"},
      {with("1e999"), "beyond fp32's range"},
      {visible("kv_idx < 3000000000"), "3000000000 is int32 here and beyond its range"},
      {visible("kv_idx < cap"), "cap is int32 here and its value is 30.5; expected a whole number"},
      {visible("kv_idx % none == 0"), "visible:1:8: the divisor is 0"},
      {visible("kv_idx / h == 0"),
       "the divisor may be 0: it is from 0 to 7 here; expected one that can't be 0"},
      {visible("kv_idx / doc[h] == 0"), "the divisor may be 0: it is from -2147483648 to 2147483647 here"},
      {visible("q_idx * kv_idx * 256 < 4"),
       "visible:1:16: this reaches 2^32 at these lengths (seq_len_q 4096, "
       "seq_len_kv 4096), beyond int32"},
  };
  for (const Wrong& wrong : wrongs)
    EXPECT_NE(refusal(wrong.modifier).find(wrong.message), std::string::npos)
        << wrong.message << "\nis no part of\n"
        << refusal(wrong.modifier);
}

TEST(ModifierText, IsRefusedBeyondItsLimits) {
  std::string sum = "score";
  for (int i = 0; i < 300; ++i) sum += " + " + std::to_string(i) + ".5";
  EXPECT_NE(refusal(with(sum)).find("more than 256 operations"), std::string::npos);
  std::string nested(200, '(');
  EXPECT_NE(refusal(with(nested)).find("more than 64 expressions within each other"), std::string::npos);
  EXPECT_NE(refusal(with(std::string(20000, ' ') + "score")).find("20005 bytes; expected at most 16384"),
            std::string::npos);
  ScoreModifier m = with("score");
  m.tensors.resize(9, m.tensors[0]);
  EXPECT_NE(refusal(m).find("has 9 tensors; expected at most 8"), std::string::npos);
  m = with("score");
  m.scalars.resize(17, m.scalars[0]);
  EXPECT_NE(refusal(m).find("has 17 scalars; expected at most 16"), std::string::npos);
  m = with("score");
  m.tensors[1].name = "doc";
  EXPECT_NE(refusal(m).find("tensors[1] is called 'doc' as another is"), std::string::npos);
  for (const char* name : {"", "1a", "a b", "q_idx", "let", "exp", "score"}) {
    m.tensors[1].name = name;
    EXPECT_NE(refusal(m).find("scores.modifier.tensors[1] is called"), std::string::npos) << name;
  }
  EXPECT_NE(refusal(m).find("is called 'score'; the language has that name itself; expected another"),
            std::string::npos);
  m = with("score");
  m.tensors[0].dtype = DType::kI64;
  EXPECT_NE(refusal(m).find("(doc) is i64; expected f32, f16, bf16, i32, u8 or bool"), std::string::npos);
}

// let doubles what it holds, and a number's type is found late: neither may take time that grows so.
TEST(ModifierText, TakesTimeThatItsLengthBounds) {
  std::string text = "let a0 = w;";
  for (int i = 1; i < 200; ++i) {
    const std::string before = "a" + std::to_string(i - 1);
    text += "let a" + std::to_string(i) + " = " + before + " + " + before + ";";
  }
  EXPECT_EQ(parse(with(text + "score + a100")).program.nodes.size(), 103u);
  EXPECT_NE(refusal(visible(text + "kv_idx < a100")).find("beyond int32"), std::string::npos);
}

TEST(ModifierText, IsParsedOnceForAllThatDifferInWhatParsingDoesNotSee) {
  ScoreModifier m = with("score + w * slope[h]", "doc[q_idx] == doc[kv_idx]");
  const auto first = parse_once(m);
  EXPECT_EQ(first->program, parse(m).program);
  m.tensors[0].data = &m;
  m.tensors[0].sizes = {7};
  m.tensors[0].strides = {3};
  EXPECT_EQ(parse_once(m), first);

  std::vector<ScoreModifier> others(7, m);
  others[0].score = "score + w * slope[kv_h]";
  others[1].visible = "doc[q_idx] <= doc[kv_idx]";
  others[2].scalars[0].second = 129.5;
  others[3].tensors[0].dtype = DType::kF32;
  std::swap(others[4].tensors[0], others[4].tensors[1]);
  std::swap(others[5].scalars[0].second, others[5].scalars[1].second);
  others[6].tensors[5].name = "t";
  for (const ScoreModifier& other : others) {
    EXPECT_NE(parse_once(other), first);
    EXPECT_EQ(parse_once(other)->program, parse(other).program);
    EXPECT_EQ(parse_once(m), first);
  }
  ScoreModifier wrong = m;
  wrong.tensors[0].name = "documents";
  for (int i = 0; i < 2; ++i) EXPECT_THROW(parse_once(wrong), Error);
  wrong = m;
  wrong.tensors[0].sizes = {4, 4};
  EXPECT_THROW(parse_once(wrong), Error);

  for (int i = 0; i < 20; ++i) {
    const ScoreModifier one = with("score + " + std::to_string(i) + ".5");
    EXPECT_EQ(parse_once(one)->program, parse(one).program);
  }
  EXPECT_EQ(parse_once(m)->program, first->program);
  EXPECT_EQ(first->program, parse(m).program);  // what was given out stays
}

TEST(ModifierRanges, FollowTheLengths) {
  const ScoreModifier m = visible("q_idx * kv_idx < 4");
  checked(m);
  EXPECT_NE(refusal(m, {1, 1 << 20, 1 << 20, 1, 1}).find("this reaches 2^40 at these lengths"),
            std::string::npos);
  EXPECT_NE(refusal(m, {1, std::int64_t{1} << 33, 4, 1, 1}).find("expected at most 2147483647"),
            std::string::npos);
}

TEST(ModifierRanges, LetWhatTensorsHoldWrapAround) {
  checked(visible("doc[q_idx] * doc[kv_idx] + 1 < 4"));
  checked(visible("int(slope[h]) * 1000 < 4"));
  checked(visible("kv_idx / max(doc[h], 1) < 4 && kv_idx % (kind[h] + 1) < 3"));
}

}  // namespace
}  // namespace tessera::modifier
