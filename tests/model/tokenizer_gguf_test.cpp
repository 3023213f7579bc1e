// Tokenizers from GGUF metadata against sentencepiece's encoder and the `tokenizers` package.
#include <gtest/gtest.h>

#include "model/tokenizer_fixture.h"
#include "tessera/error.h"

namespace tessera {
namespace {

GgufTokenizerData sentencepiece_data(const nlohmann::json& model) {
  GgufTokenizerData data;
  data.model = "llama";
  data.pre = "default";
  model.at("tokens").get_to(data.tokens);
  model.at("scores").get_to(data.scores);
  model.at("types").get_to(data.token_types);
  data.bos_token_id = 1;
  data.eos_token_id = 2;
  data.unknown_token_id = 0;
  data.add_bos_token = false;
  data.add_space_prefix = model.at("add_space_prefix").get<bool>();
  return data;
}

/// What a converter to GGUF writes for a byte-level tokenizer.json.
GgufTokenizerData byte_level_data(const std::string& name, const std::string& pre) {
  const nlohmann::json file = fixture::read(name);
  GgufTokenizerData data;
  data.model = "gpt2";
  data.pre = pre;
  std::size_t count = file["model"]["vocab"].size();
  for (const auto& token : file["added_tokens"]) count = std::max(count, token["id"].get<std::size_t>() + 1);
  data.tokens.resize(count);
  data.token_types.resize(count, 1);
  for (const auto& [text, id] : file["model"]["vocab"].items()) data.tokens[id.get<std::size_t>()] = text;
  for (const auto& token : file["added_tokens"]) {
    data.tokens[token["id"].get<std::size_t>()] = token["content"].get<std::string>();
    data.token_types[token["id"].get<std::size_t>()] = token["special"].get<bool>() ? 3 : 4;
  }
  for (const auto& merge : file["model"]["merges"])
    data.merges.push_back(merge[0].get<std::string>() + ' ' + merge[1].get<std::string>());
  return data;
}

class SentencePiece : public testing::TestWithParam<const char*> {};

// sentencepiece never finds control tokens in a text.
constexpr EncodeOptions kAsSentencePiece{.add_special_tokens = false, .parse_special_tokens = false};

TEST_P(SentencePiece, EncodesAndDecodesAsSentencePieceDoes) {
  const nlohmann::json model = fixture::read(GetParam());
  const auto data = sentencepiece_data(model);
  const auto tokenizer = make_gguf_tokenizer(data, "test");
  for (std::size_t i = 0; i < model["ids"].size(); ++i) {
    const std::string& string = fixture::strings()[i];
    const auto ids = fixture::unpack(model["ids"][i].get<std::string>());
    EXPECT_EQ(tokenizer->encode(string, kAsSentencePiece), ids) << nlohmann::json(string).dump();
    const bool has_unknown = std::count(ids.begin(), ids.end(), *data.unknown_token_id) > 0;
    if (!has_unknown) {
      EXPECT_EQ(tokenizer->decode(ids), fixture::decoded(model, i, string));
    }
    StreamDecoder stream(*tokenizer);
    std::string text;
    for (const TokenId id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.finish(), tokenizer->decode(ids));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePiece,
                         testing::Values("sentencepiece", "sentencepiece_user_defined"),
                         [](const auto& info) { return info.param; });

TEST(SentencePieceOptions, ControlTokensAreFoundOnlyIfAsked) {
  auto data = sentencepiece_data(fixture::read("sentencepiece"));
  data.add_bos_token = std::nullopt;  // the default is to add it
  const auto tokenizer = make_gguf_tokenizer(data, "test");
  EXPECT_EQ(tokenizer->bos_token_id(), 1);
  EXPECT_EQ(tokenizer->encode("</s>"), (std::vector<TokenId>{1, 2}));
  EXPECT_GT(tokenizer->encode("</s>", kAsSentencePiece).size(), 1u);
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{1, 2}), "");
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{1, 2}, false), "<s></s>");
  data.add_eos_token = true;
  EXPECT_EQ(make_gguf_tokenizer(data, "test")->encode(""), (std::vector<TokenId>{1, 2}));
}

TEST(SentencePieceOptions, TypesAreGuessedFromSpellingsIfMissing) {
  const nlohmann::json model = fixture::read("sentencepiece");
  auto data = sentencepiece_data(model);
  data.token_types.clear();
  const auto tokenizer = make_gguf_tokenizer(data, "test");
  for (std::size_t i = 0; i < model["ids"].size(); ++i)
    EXPECT_EQ(tokenizer->encode(fixture::strings()[i], kAsSentencePiece),
              fixture::unpack(model["ids"][i].get<std::string>()));
}

// An unused piece takes part in joining, and what it was made of is output in its place: sentencepiece's
// rule.
TEST(SentencePieceOptions, UnusedPiecesAreTakenApart) {
  GgufTokenizerData data;
  data.model = "llama";
  data.tokens = {"<unk>", "a", "b", "c", "d", "ab", "abc", "abcd"};
  data.scores = {0, -9, -9, -9, -9, -1, -2, -3};
  data.token_types = {2, 1, 1, 1, 1, 1, 5, 5};
  data.add_space_prefix = false;
  const auto encode = [&](std::string_view text) { return make_gguf_tokenizer(data, "test")->encode(text); };
  EXPECT_EQ(encode("abc"), (std::vector<TokenId>{5, 3}));
  EXPECT_EQ(encode("abcd"), (std::vector<TokenId>{5, 3, 4}));
  data.token_types[7] = 1;
  EXPECT_EQ(encode("abcd"), (std::vector<TokenId>{7}));
}

class ByteLevelGguf : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(ByteLevelGguf, EncodesAndDecodesAsTheTokenizerJsonDoes) {
  const auto [name, pre] = GetParam();
  auto data = byte_level_data(name, pre);
  const auto from_json = fixture::tokenizer(name);
  data.bos_token_id = from_json->bos_token_id();
  const auto tokenizer = make_gguf_tokenizer(data, "test");
  const nlohmann::json expected = fixture::read("expected").at(name);
  for (std::size_t i = 0; i < fixture::strings().size(); ++i) {
    const auto ids = fixture::unpack(expected["ids"][i].get<std::string>());
    EXPECT_EQ(tokenizer->encode(fixture::strings()[i]), ids) << fixture::strings()[i];
    EXPECT_EQ(tokenizer->decode(ids), fixture::decoded(expected, i, fixture::strings()[i]));
  }
  EXPECT_EQ(tokenizer->vocab_size(), from_json->vocab_size());
  for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
    EXPECT_EQ(tokenizer->token_text(id), from_json->token_text(id));
    EXPECT_EQ(tokenizer->is_special(id), from_json->is_special(id));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ByteLevelGguf,
                         testing::Values(std::pair{"gpt2", "gpt-2"}, std::pair{"llama3", "llama-bpe"},
                                         std::pair{"qwen2", "qwen2"}));

TEST(ByteLevelGgufPatterns, EveryKnownNameCompilesAndLosesNothing) {
  for (const char* pre : {"smollm", "tekken", "gpt-4o", "llama4", "deepseek-v3", "deepseek-r1-qwen",
                          "starcoder", "stablelm2", "olmo", "exaone4", "glm4", "seed-coder"}) {
    const auto tokenizer = make_gguf_tokenizer(byte_level_data("gpt2", pre), "test");
    const std::string text = "Don't 12345 x+=1;\r\n\n  naïve 漢字かな 😀 UPPER lower";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << pre;
  }
}

TEST(ByteLevelGgufPatterns, SeedsDigitsStandAloneAndItsLinesEndByThemselves) {
  const auto gpt2 = make_gguf_tokenizer(byte_level_data("gpt2", "gpt-2"), "test");
  const auto tokenizer = make_gguf_tokenizer(byte_level_data("gpt2", "seed-coder"), "test");
  std::string text;
  std::vector<TokenId> ids;
  for (const char* piece : {"It", "'s", " ", "1", "2", "3", " +=", "\n\n", "b", "!?", "\r\n", " ", " x"}) {
    text += piece;
    for (const TokenId id : gpt2->encode(piece)) ids.push_back(id);
  }
  EXPECT_EQ(tokenizer->encode(text), ids);
}

// llama.cpp's rule.
TEST(ByteLevelGgufPatterns, ANameThatIsMissingOrDefaultSplitsAtPunctuationAndAfterThreeDigits) {
  const auto gpt2 = make_gguf_tokenizer(byte_level_data("gpt2", "gpt-2"), "test");
  for (const char* pre : {"default", ""}) {
    const auto tokenizer = make_gguf_tokenizer(byte_level_data("gpt2", pre), "test");
    std::string text;
    std::vector<TokenId> ids;
    for (const char* piece :
         {"It", "'", "s", " ", "123", "456", "7", "+=", "b", "!?", " ", "123", " €", "  ", " x"}) {
      text += piece;
      for (const TokenId id : gpt2->encode(piece)) ids.push_back(id);
    }
    EXPECT_EQ(tokenizer->encode(text), ids);
  }
}

// As in llama.cpp: files without the key were written before it was there.
TEST(ByteLevelGgufPatterns, NamesSayWhetherATextBeginsWithItsTokenIfTheFileDoesNot) {
  for (const auto& [pre, begins] : {std::pair{"llama-bpe", true}, std::pair{"tekken", true},
                                    std::pair{"qwen2", false}, std::pair{"gpt-2", false}}) {
    auto data = byte_level_data("llama3", pre);
    data.bos_token_id = 7;
    data.add_bos_token = std::nullopt;
    EXPECT_EQ(make_gguf_tokenizer(data, "test")->encode("").size(), begins ? 1u : 0u) << pre;
    data.add_bos_token = false;
    EXPECT_EQ(make_gguf_tokenizer(data, "test")->encode("").size(), 0u) << pre;
  }
}

TEST(CharacterGguf, MergesCharactersAndSpellsTheRestByBytes) {
  GgufTokenizerData data;
  data.model = "gemma4";
  data.tokens = {"<unk>", "<bos>", "▁", "a", "b", "▁a", "▁▁", "\n", "\n\n", "<|turn>", "<think>"};
  data.token_types = {2, 3, 1, 1, 1, 1, 1, 1, 1, 3, 4};
  const auto first_byte = static_cast<TokenId>(data.tokens.size());
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    data.tokens.push_back(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">");
    data.token_types.push_back(6);
  }
  data.merges = {"▁ ▁", "▁ a", "\n \n"};
  data.bos_token_id = 1;
  data.unknown_token_id = 0;
  const auto tokenizer = make_gguf_tokenizer(data, "test");
  const auto expect = [&](const std::string& text, std::vector<TokenId> ids) {
    EXPECT_EQ(tokenizer->decode(ids), text);
    ids.insert(ids.begin(), 1);  // which a file needn't ask for
    EXPECT_EQ(tokenizer->encode(text), ids) << text;
  };
  expect("a a", {3, 5});
  expect("  a", {6, 3});
  expect("b\n\na", {4, 8, 3});
  expect(" é", {2, first_byte + 0xc3, first_byte + 0xa9});
  expect("a<think> a", {3, 10, 5});
  EXPECT_EQ(tokenizer->encode("<|turn>"), (std::vector<TokenId>{1, 9}));
  EXPECT_TRUE(tokenizer->is_special(9) && !tokenizer->is_special(10));
}

struct BadData {
  const char* model;
  const char* phrase;  // in the message
  ErrorCode code;
  void (*spoil)(GgufTokenizerData&);
};

class GgufErrors : public testing::TestWithParam<BadData> {};

TEST_P(GgufErrors, NameTheKeyAndWhatIsWrong) {
  const BadData& bad = GetParam();
  auto data = std::string_view(bad.model) == "gpt2" ? byte_level_data("gpt2", "gpt-2")
                                                    : sentencepiece_data(fixture::read("sentencepiece"));
  EXPECT_NO_THROW(make_gguf_tokenizer(data, "model.gguf"));
  bad.spoil(data);
  try {
    make_gguf_tokenizer(data, "model.gguf");
    ADD_FAILURE() << "no error with " << bad.phrase;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), bad.code) << error.what();
    EXPECT_EQ(error.message().find("model.gguf: "), 0u) << error.what();
    EXPECT_NE(error.message().find(bad.phrase), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tables, GgufErrors,
    testing::Values(
        BadData{"gpt2", "tokenizer.ggml.model", ErrorCode::kUnsupported, [](auto& d) { d.model = "bert"; }},
        BadData{"gpt2", "tokenizer.ggml.pre is \"klingon\"", ErrorCode::kUnsupported,
                [](auto& d) { d.pre = "klingon"; }},
        BadData{"gpt2", "tokens: is missing or empty", ErrorCode::kCorruptFile,
                [](auto& d) { d.tokens.clear(); }},
        BadData{"gpt2", "tokens: entry 7 is not UTF-8", ErrorCode::kCorruptFile,
                [](auto& d) { d.tokens[7] = "\xC3"; }},
        BadData{"llama", "scores: has 3 entries", ErrorCode::kCorruptFile,
                [](auto& d) { d.scores.assign(3, 0); }},
        BadData{"llama", "scores: entry 9 is not a number", ErrorCode::kCorruptFile,
                [](auto& d) {
                  d.scores.resize(d.tokens.size());
                  d.scores[9] = std::numeric_limits<float>::quiet_NaN();
                }},
        BadData{"llama", "scores: is missing", ErrorCode::kCorruptFile, [](auto& d) { d.scores.clear(); }},
        BadData{"gpt2", "token_type: has 1 entries", ErrorCode::kCorruptFile,
                [](auto& d) { d.token_types.assign(1, 1); }},
        BadData{"gpt2", "token_type: entry 4 is 77", ErrorCode::kCorruptFile,
                [](auto& d) { d.token_types[4] = 77; }},
        BadData{"gpt2", "merges: entry 0 has no two parts", ErrorCode::kCorruptFile,
                [](auto& d) { d.merges = {"ab"}; }},
        BadData{"gpt2", "merges: entry 0 needs a token", ErrorCode::kCorruptFile,
                [](auto& d) { d.merges = {"no such"}; }},
        BadData{"gpt2", "bos_token_id: is -1", ErrorCode::kCorruptFile, [](auto& d) { d.bos_token_id = -1; }},
        BadData{"gpt2", "bos_token_id: is missing", ErrorCode::kCorruptFile,
                [](auto& d) {
                  d.bos_token_id = std::nullopt;
                  d.add_bos_token = true;
                }},
        BadData{"gpt2", "eos_token_id: is 2000000000", ErrorCode::kCorruptFile,
                [](auto& d) { d.eos_token_id = 2000000000; }},
        BadData{"gpt2", "entry 5 has 5000 bytes", ErrorCode::kUnsupported,
                [](auto& d) {
                  d.tokens[5] = std::string(5000, 'x');
                  d.token_types[5] = 4;
                }},
        BadData{"llama", "entry 5 has 5000 bytes", ErrorCode::kUnsupported,
                [](auto& d) { d.tokens[5] = std::string(5000, 'x'); }}));

}  // namespace
}  // namespace tessera
