// Malformed files, hostile texts and the properties that no fixture shows.
#include <gtest/gtest.h>

#include "cpu_time.h"
#include "model/tokenizer/regex.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer_fixture.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using nlohmann::json;

const std::string kSource = "test";

/// A whole tokenizer with the tokens a, b, c, ab and abc.
json small_tokenizer() {
  return json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": ["a b", "ab c"]}})");
}

struct BadFile {
  const char* pointer;      // of the value that is replaced
  const char* replacement;  // JSON
  ErrorCode code;
  const char* phrase;  // in the message
};

constexpr ErrorCode kCorrupt = ErrorCode::kCorruptFile, kUnsupported = ErrorCode::kUnsupported;

const BadFile kBadFiles[] = {
    {"", "[]", kCorrupt, "is not a JSON object"},
    {"/model", "null", kCorrupt, "has no member \"model\""},
    {"/model", "7", kCorrupt, "model: is number, expected an object"},
    {"/model/type", "\"Unigram\"", kUnsupported, "model.type: \"Unigram\" models"},
    {"/model/dropout", "0.1", kUnsupported, "model.dropout"},
    {"/model/end_of_word_suffix", "\"</w>\"", kUnsupported, "model.end_of_word_suffix"},
    {"/model/continuing_subword_prefix", "\"##\"", kUnsupported, "model.continuing_subword_prefix"},
    {"/model/vocab", "[]", kCorrupt, "model.vocab: expected an object"},
    {"/model/vocab/a", "-1", kCorrupt, "model.vocab: token \"a\" has id -1"},
    {"/model/vocab/a", "1", kCorrupt, "have the same id 1"},
    {"/model/vocab/a", "16777216", kCorrupt, "has id 16777216"},
    {"/model/vocab/a", "16777215", kCorrupt, "has id 16777215"},
    {"/model/vocab/a", "18446744073709551615", kCorrupt, "has id 18446744073709551615"},
    {"/model/vocab/a", "1e30", kCorrupt, "has id 1e+30"},
    {"/model/vocab/a", "\"0\"", kCorrupt, "expected an integer"},
    {"/model/merges", "{}", kCorrupt, "model.merges: expected an array"},
    {"/model/merges/1", "\"abc\"", kCorrupt, "model.merges: entry 1 is \"abc\""},
    {"/model/merges/1", "\"a b c\"", kCorrupt, "entry 1"},
    {"/model/merges/1", "[\"a\"]", kCorrupt, "entry 1"},
    {"/model/merges/1", "[1, 2]", kCorrupt, "entry 1"},
    {"/model/merges/1", "\"a x\"", kCorrupt, "entry 1 needs the token \"x\""},
    {"/model/merges/1", "\"b c\"", kCorrupt, "entry 1 needs the token \"bc\""},
    {"/model/unk_token", "\"?\"", kCorrupt, "model.unk_token: \"?\" is not in the vocabulary"},
    {"/model/fuse_unk", "1", kCorrupt, "model.fuse_unk: is number, expected true or false"},
    {"/added_tokens", "{}", kCorrupt, "added_tokens: is object, expected an array"},
    {"/added_tokens", "[{}]", kCorrupt, "added_tokens[0]: has no member \"content\""},
    {"/added_tokens", R"([{"content": "x", "id": -3}])", kCorrupt, "added_tokens[0].id: is -3"},
    {"/added_tokens", R"([{"content": "x", "id": 99999999}])", kCorrupt, "added_tokens[0].id"},
    {"/normalizer", R"({"type": "Precompiled"})", kUnsupported, "normalizer: the normalizer \"Precompiled\""},
    {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})",
     kUnsupported, "normalizer.normalizers[1]: the normalizer \"Nmt\""},
    {"/normalizer", R"({"type": "Replace", "content": ""})", kCorrupt, "has no member \"pattern\""},
    {"/normalizer", R"({"type": "Replace", "pattern": {}, "content": ""})", kCorrupt, "expected {\"String\""},
    {"/pre_tokenizer", R"({"type": "BertPreTokenizer"})", kUnsupported,
     "the pre-tokenizer \"BertPreTokenizer\""},
    {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})",
     kUnsupported, "pre_tokenizer.pattern.Regex: the regular expression \"(\" can't be compiled"},
    {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"})",
     kUnsupported, "an intersection"},
    {"/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Sometimes"})", kCorrupt,
     "pre_tokenizer.behavior: is \"Sometimes\""},
    {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})", kCorrupt, "expected one character"},
    {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "x"})", kCorrupt,
     "pre_tokenizer.prepend_scheme: is \"x\""},
    {"/post_processor", R"({"type": "BertProcessing"})", kUnsupported,
     "the post-processor \"BertProcessing\""},
    {"/post_processor", R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]})", kCorrupt,
     "post_processor.single[0].Sequence"},
    {"/post_processor",
     R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}]})",
     kUnsupported, "repeats the text"},
    {"/post_processor", R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}],
      "special_tokens": {"x": {"ids": [77]}}})",
     kCorrupt, "special_tokens.x.ids[0]: is 77"},
    {"/decoder", R"({"type": "WordPiece"})", kUnsupported, "the decoder \"WordPiece\""},
    {"/decoder", R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ",
      "start": 1, "stop": 2}]})",
     kUnsupported, "decoder.decoders[1]: strips more"},
    {"/decoder", R"({"type": "Strip", "content": "a", "start": -1, "stop": 0})", kCorrupt, "start: is -1"},
};

TEST(TokenizerErrors, NameTheFileTheFieldAndWhatIsWrong) {
  EXPECT_NO_THROW(parse_tokenizer_json(small_tokenizer().dump(), "file"));
  for (const BadFile& bad : kBadFiles) {
    json file = small_tokenizer();
    file[json::json_pointer(bad.pointer)] = json::parse(bad.replacement);
    try {
      parse_tokenizer_json(file.dump(), "tokenizer.json");
      ADD_FAILURE() << bad.pointer << " = " << bad.replacement << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), bad.code) << error.what();
      EXPECT_EQ(error.message().find("tokenizer.json: "), 0u) << error.what();
      EXPECT_NE(error.message().find(bad.phrase), std::string::npos)
          << error.what() << "\n  not: " << bad.phrase;
    }
  }
}

void expect_corrupt(const std::string& text, const char* phrase) {
  try {
    parse_tokenizer_json(text, "tokenizer.json");
    ADD_FAILURE() << "accepted: " << text.substr(0, 100);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), kCorrupt) << error.what();
    EXPECT_EQ(error.message().find("tokenizer.json: "), 0u) << error.what();
    EXPECT_NE(error.message().find(phrase), std::string::npos) << error.what();
  }
}

TEST(TokenizerErrors, TextThatIsNoJson) {
  expect_corrupt("", "invalid JSON at byte 0");
  expect_corrupt("{\"model\": ", "invalid JSON at byte 10");
  expect_corrupt("{\"model\": \"\xC3\x28\"}", "ill-formed UTF-8");
  expect_corrupt(std::string("\0\1\2", 3), "a zero byte");
  expect_corrupt(std::string(1000000, '['), "values are nested deeper than 64");
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{\"a\":";
  expect_corrupt(nested, "values are nested deeper than 64");
  // Every prefix of a file is a truncated file.
  const std::string whole = small_tokenizer().dump();
  for (std::size_t size = 0; size < whole.size(); ++size)
    expect_corrupt(whole.substr(0, size), "tokenizer.json");
}

TEST(TokenizerErrors, MissingFile) {
  try {
    load_tokenizer_json("/nonexistent/tokenizer.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(error.message().find("/nonexistent/tokenizer.json"), std::string::npos);
  }
}

std::string repeat(std::string_view text, std::size_t size) {
  std::string out;
  while (out.size() < size) out += text;
  return out;
}

// Of texts without word breaks, too: 16 times as much takes 256 times as long if the encoding is quadratic.
TEST(TokenizerSpeed, LongTextsTakeTimeInProportion) {
  constexpr std::size_t kSize = 1 << 19;
  constexpr std::size_t kPart = kSize / 16;
  const auto sentencepiece = fixture::read("sentencepiece");
  GgufTokenizerData data;
  data.model = "llama";
  sentencepiece["tokens"].get_to(data.tokens);
  sentencepiece["scores"].get_to(data.scores);
  sentencepiece["types"].get_to(data.token_types);
  std::vector<std::shared_ptr<const Tokenizer>> tokenizers = {make_gguf_tokenizer(data, "sentencepiece")};
  for (const char* name : {"gpt2", "llama3", "qwen2", "llama2"})
    tokenizers.push_back(fixture::tokenizer(name));
  const std::string texts[] = {repeat("a", kSize),
                               repeat("😀", kSize),
                               repeat("ab", kSize),
                               repeat(" ", kSize),
                               repeat("\n", kSize),
                               repeat(" \n", kSize),
                               repeat("e\u0301", kSize),
                               repeat("\u0301\u0323", kSize),
                               repeat("漢字", kSize),
                               repeat("\xFF", kSize),
                               repeat("<|endoftext", kSize),
                               repeat("'s", kSize),
                               repeat("<s>", kSize),
                               repeat("12", kSize),
                               repeat("!", kSize)};
  for (const auto& tokenizer : tokenizers) {
    for (const std::string& text : texts) {
      std::vector<TokenId> ids;
      const double part = cpu_seconds([&] { ids = tokenizer->encode(text.substr(0, kPart)); });
      constexpr double kClock = 1e-3;  // what the part's time may be off by
      EXPECT_LT(cpu_seconds([&] { ids = tokenizer->encode(text); }), 100 * (part + kClock))
          << text.substr(0, 12);
      EXPECT_GT(ids.size(), text.size() / 1000);
    }
  }
}

TEST(TokenizerSpeed, CatastrophicPatternsAreGivenUp) {
  for (const char* pattern : {"(a+)+$", "(a*)*b", "(a|aa)+$", "((a?){30}){30}b"}) {
    const tokenizers::Regex regex(pattern, "test");
    std::vector<TextRange> matches;
    try {
      tokenizers::WorkBudget budget(kSource, 5001);
      regex.find_all(repeat("a", 5000) + "c", budget, matches);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), kUnsupported);
      EXPECT_NE(error.message().find("can't be matched"), std::string::npos) << error.what();
    }
  }
}

TEST(TokenizerSpeed, FilesThatMakeTextsGrowAreGivenUp) {
  const json grow = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaa"}};
  json file = small_tokenizer();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  for (int i = 0; i < 20; ++i) file["normalizer"]["normalizers"].push_back(grow);
  const auto tokenizer = parse_tokenizer_json(file.dump(), "file");
  EXPECT_THROW(tokenizer->encode(std::string(1000, 'a')), Error);
  file = small_tokenizer();
  file["decoder"] = {{"type", "Sequence"}, {"decoders", json::array()}};
  for (int i = 0; i < 20; ++i) file["decoder"]["decoders"].push_back(grow);
  EXPECT_THROW(parse_tokenizer_json(file.dump(), "file"), Error);
}

TEST(Regex, MatchesFromLeftToRight) {
  const auto find = [](const char* pattern, std::string_view text) {
    std::vector<TextRange> matches;
    tokenizers::WorkBudget budget(kSource, text.size());
    tokenizers::Regex(pattern, "test").find_all(text, budget, matches);
    return matches;
  };
  using Ranges = std::vector<TextRange>;
  EXPECT_EQ(find("a+", "baab a"), (Ranges{{1, 3}, {5, 6}}));
  EXPECT_EQ(find("x*", "ab"), (Ranges{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(find("(?<=a)b", "abb"), (Ranges{{1, 2}}));
  EXPECT_EQ(find("^b$", "a\nb\nc"), (Ranges{{2, 3}}));
  EXPECT_EQ(find("\\s", "a\u180Eb\u3000"), (Ranges{{5, 8}}));
  EXPECT_EQ(find("(?i:'S)", "it's 'ſ"), (Ranges{{2, 4}, {5, 8}}));
  EXPECT_EQ(find("a", ""), Ranges{});
  for (const char* pattern :
       {"(?<n>a)", "a(?i)b", "(*ACCEPT)", "\\Ka", "\\Qa\\E", "[a[b]]", "(?R)", "(?s:a)", "\\", "["})
    EXPECT_THROW(tokenizers::Regex(pattern, "test"), Error) << pattern;
  EXPECT_THROW(tokenizers::Regex(std::string(100000, 'a'), "test"), Error);
}

// What the tokenizers package matches, which uses Oniguruma.
TEST(Regex, MeansWhatOnigurumaMeansWherePcre2Differs) {
  using Texts = std::vector<std::string>;
  const auto find = [](const char* pattern, const std::string& text) {
    std::vector<TextRange> matches;
    tokenizers::WorkBudget budget(kSource, text.size());
    tokenizers::Regex(pattern, "test").find_all(text, budget, matches);
    Texts found;
    for (const TextRange& match : matches) found.push_back(text.substr(match.begin, match.end - match.begin));
    return found;
  };
  // A character belongs to one script, also where it is used with several.
  EXPECT_EQ(find(R"(\p{Han}+)", "漢字、漢"), (Texts{"漢字", "漢"}));
  EXPECT_EQ(find(R"(\P{Han}+)", "a、漢"), Texts{"a、"});
  EXPECT_EQ(find(R"(\p{^Han}+)", "a、漢"), Texts{"a、"});
  EXPECT_EQ(find(R"([^\p{Katakana}]+)", "カナーa"), Texts{"ーa"});
  // A pair of braces is what makes it a property.
  EXPECT_EQ(find(R"(\pL)", "pLa"), Texts{"pL"});
  EXPECT_EQ(find(R"(\V)", "Va"), Texts{"V"});
  // Between words there is what \w doesn't match.
  EXPECT_EQ(find(R"(\bé\b)", "é e\u0301é é_ é"), (Texts{"é", "é"}));
  EXPECT_EQ(find(R"(\be)", "e e\u0301e \u203Fe"), (Texts{"e", "e"}));
  EXPECT_EQ(find(R"(\B.)", "ab\u0301 c"), (Texts{"b", "\u0301"}));
  EXPECT_EQ(find(R"(\w+)", "a².b"), (Texts{"a²", "b"}));
  // In a class \w lacks the superscripts and fractions.
  EXPECT_EQ(find(R"([\w.]+)", "a².b¼_\u203F"), (Texts{"a", ".b", "_\u203F"}));
  EXPECT_EQ(find(R"([^\w\s]+)", "a²! ½"), (Texts{"²!", "½"}));
  EXPECT_EQ(find("[[:word:]]+", "a²b"), (Texts{"a", "b"}));
  EXPECT_EQ(find(R"([^\S]+)", "a\u180E "), Texts{" "});
  EXPECT_EQ(find(R"([\S]+)", "a\u180E b"), (Texts{"a\u180E", "b"}));
  // '+' behind an interval repeats it, '?' behind a number makes it optional.
  EXPECT_EQ(find(R"(\d{1,3}+)", "1234567 8"), (Texts{"1234567", "8"}));
  EXPECT_EQ(find(R"(\d{1,3}+)", std::string(1 << 22, '7')), Texts{std::string(1 << 22, '7')});
  EXPECT_EQ(find("a{1,2}+a", "aaaa"), Texts{"aaaa"});
  EXPECT_EQ(find("a{,2}+b", "aaab"), Texts{"aaab"});
  EXPECT_EQ(find("(?:a{2}){1,2}+a", "aaaa aaaaa"), (Texts{"aaa", "aaaaa"}));
  EXPECT_EQ(find("a{2,}+b", "aaab"), Texts{"aaab"});
  EXPECT_EQ(find(R"(\x{61}{2}+)", "aaaaa"), Texts{"aaaa"});
  EXPECT_EQ(find("(?:a|(b)){2}?c", "abcbc"), (Texts{"abc", "c"}));
  EXPECT_EQ(find("[^b]{2}?b", "aabb"), (Texts{"aab", "b"}));
  EXPECT_EQ(find("a{,2}b", "aaab"), Texts{"aab"});
  EXPECT_EQ(find("a++a", "aa"), Texts{});
}

TEST(Unicode, IllFormedSequencesAreReplacedByMaximalSubparts) {
  // The table of Unicode 15, section 3.9 (U+FFFD Substitution of Maximal Subparts), and its neighbours.
  const std::string kR = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {
      {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
       "a" + kR + kR + kR + "b" + kR + "c" + kR + kR + "d"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", kR + kR + kR + kR + kR + kR + kR + kR + "A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", kR + kR + kR + kR + kR + kR + kR + kR + "A"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", kR + kR + kR + kR + kR + "A" + kR + kR + "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", kR + kR + kR + kR + "A"},
      {"\xE2\x82", kR},
      {"", ""}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(unicode::replace_invalid_utf8(bytes), text);
}

TEST(Unicode, CodePointsSurviveTheWayThroughUtf8) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    unicode::append_utf8(c, text);
    std::size_t position = 0;
    ASSERT_TRUE(unicode::is_valid_utf8(text));
    ASSERT_EQ(unicode::utf8_length(text[0]), text.size());
    ASSERT_EQ(unicode::next_code_point(text, position), c);
    ASSERT_EQ(position, text.size());
  }
}

}  // namespace
}  // namespace tessera
