// tokenizer.json files against what the `tokenizers` package makes of the same strings.
#include <gtest/gtest.h>

#include <thread>

#include "model/tokenizer_fixture.h"
#include "tessera/error.h"

namespace tessera {
namespace {

class TokenizerJson : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = fixture::tokenizer(GetParam());
  nlohmann::json expected_ = fixture::read("expected").at(GetParam());
};

TEST_P(TokenizerJson, EncodesEveryStringAsTheTokenizersPackageDoes) {
  const auto& strings = fixture::strings();
  ASSERT_GE(strings.size(), 2000u);
  ASSERT_EQ(expected_["ids"].size(), strings.size());
  for (std::size_t i = 0; i < strings.size(); ++i)
    EXPECT_EQ(tokenizer_->encode(strings[i]), fixture::unpack(expected_["ids"][i].get<std::string>()))
        << "string " << i << ": " << strings[i];
}

TEST_P(TokenizerJson, DecodesEveryStringAsTheTokenizersPackageDoes) {
  const auto& strings = fixture::strings();
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const auto ids = fixture::unpack(expected_["ids"][i].get<std::string>());
    EXPECT_EQ(tokenizer_->decode(ids), fixture::decoded(expected_, i, strings[i])) << "string " << i;
  }
}

TEST_P(TokenizerJson, DecodesRandomIdsAsTheTokenizersPackageDoes) {
  for (const auto& sample : expected_["random"]) {
    const auto ids = fixture::unpack(sample[0].get<std::string>());
    EXPECT_EQ(tokenizer_->decode(ids, sample[1].get<bool>()), sample[2].get<std::string>());
  }
}

std::string stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special_tokens) {
  StreamDecoder decoder(tokenizer, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) {
    const std::string piece = decoder.push(id);
    // A piece that ended inside a character would not survive JSON's check of UTF-8.
    EXPECT_NO_THROW(nlohmann::json(piece).dump());
    text += piece;
  }
  return text + decoder.finish();
}

TEST_P(TokenizerJson, StreamedTextIsTheDecodedText) {
  for (const auto& packed : expected_["ids"]) {
    const auto ids = fixture::unpack(packed.get<std::string>());
    for (const bool skip : {true, false})
      EXPECT_EQ(stream(*tokenizer_, ids, skip), tokenizer_->decode(ids, skip));
  }
  for (const auto& sample : expected_["random"]) {
    const auto ids = fixture::unpack(sample[0].get<std::string>());
    EXPECT_EQ(stream(*tokenizer_, ids, true), tokenizer_->decode(ids, true));
  }
}

TEST_P(TokenizerJson, TokensAreFoundByTheirText) {
  int found = 0;
  for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id, ++found)
    EXPECT_EQ(tokenizer_->find_token(tokenizer_->token_text(id)), id);
  EXPECT_GT(found, 1000);
  EXPECT_EQ(tokenizer_->find_token("no token is called this"), std::nullopt);
  for (const TokenId id : {-1, static_cast<TokenId>(tokenizer_->vocab_size()), INT32_MAX, INT32_MIN}) {
    const std::vector<TokenId> ids = {id};
    EXPECT_THROW(tokenizer_->decode(ids), Error);
    EXPECT_THROW(tokenizer_->token_text(id), Error);
    EXPECT_FALSE(tokenizer_->is_special(id));
  }
}

TEST_P(TokenizerJson, ThreadsGetTheSameIds) {
  std::vector<std::thread> threads;
  std::vector<int> differences(4);
  for (std::size_t t = 0; t < differences.size(); ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < fixture::strings().size(); i += 3)
        if (tokenizer_->encode(fixture::strings()[i]) !=
            fixture::unpack(expected_["ids"][i].get_ref<const std::string&>()))
          ++differences[t];
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differences, std::vector<int>(4, 0));
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerJson, testing::Values("gpt2", "llama3", "qwen2", "llama2"),
                         [](const auto& info) { return info.param; });

// The numbers of U+FFFD are sentencepiece's, and those of the tokenizers package where it keeps whole
// characters.
TEST(TokenizerJsonBytes, EachByteThatFormsNoTextIsReplaced) {
  const auto tokenizer = fixture::tokenizer("llama2");
  const auto ids_of = [&](std::string_view bytes) {
    std::vector<TokenId> ids;
    for (const char c : bytes) {
      char spelling[8];
      std::snprintf(spelling, sizeof spelling, "<0x%02X>",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      ids.push_back(tokenizer->find_token(spelling).value());
    }
    return ids;
  };
  const std::string kR = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {{"\xE2\x82", kR + kR},
                                                       {"\xE2\x82\xAC", "\xE2\x82\xAC"},
                                                       {"\xC3\xA9\xE2", "\xC3\xA9" + kR},
                                                       {"\xED\xA0\x80", kR + kR + kR},
                                                       {"\xF0\x9F\x98\xC3\xA9", kR + kR + kR + "\xC3\xA9"},
                                                       {"\xF0\x9F\x98z", kR + kR + kR + "z"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(tokenizer->decode(ids_of(bytes)), text);
    EXPECT_EQ(stream(*tokenizer, ids_of(bytes), true), text);
  }
}

/// The base file with some parts replaced, as apply_changes in the script does it.
nlohmann::json changed(nlohmann::json data, const nlohmann::json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (key == "model.merges") {
      for (auto& merge : data["model"]["merges"])
        merge = merge[0].get<std::string>() + ' ' + merge[1].get<std::string>();
    } else if (key.starts_with("model.")) {
      data["model"][key.substr(6)] = value;
    } else {
      data[key] = value;
    }
  }
  return data;
}

TEST(TokenizerJsonParts, EachComponentDoesWhatTheTokenizersPackageDoes) {
  const nlohmann::json variants = fixture::read("variants");
  ASSERT_GE(variants["cases"].size(), 40u);
  const nlohmann::json expected = fixture::read("expected");
  for (const auto& variant : variants["cases"]) {
    const std::string name = variant["name"];
    const auto& ids_of_base = expected[variant["base"].get<std::string>()]["ids"];
    const auto data = changed(fixture::read(variant["base"]), variant["changes"]);
    const auto tokenizer = parse_tokenizer_json(data.dump(), name);
    int failures = 0;
    for (std::size_t i = 0; i < variants["strings"].size(); ++i) {
      const auto number = variants["strings"][i].get<std::size_t>();
      const std::string& string = fixture::strings()[number];
      const auto& stored = variant["ids"][i].is_string() ? variant["ids"][i] : ids_of_base[number];
      const auto ids = fixture::unpack(stored.get<std::string>());
      const auto ours = tokenizer->encode(string);
      if (ours != ids && ++failures <= 5) {
        EXPECT_EQ(ours, ids) << name << ": " << nlohmann::json(string).dump();
      }
      EXPECT_EQ(tokenizer->decode(ids), fixture::decoded(variant, i, string)) << name;
    }
    EXPECT_EQ(failures, 0) << name;
  }
}

TEST(TokenizerJsonInput, InvalidUtf8IsReadAsReplacementCharacters) {
  const auto gpt2 = fixture::tokenizer("gpt2"), llama2 = fixture::tokenizer("llama2");
  for (const auto& sample : fixture::read("invalid")) {
    const std::string bytes = fixture::from_hex(sample[0].get<std::string>());
    EXPECT_EQ(gpt2->encode(bytes), fixture::unpack(sample[1].get<std::string>())) << sample[0];
    EXPECT_EQ(llama2->encode(bytes), fixture::unpack(sample[2].get<std::string>())) << sample[0];
  }
}

/// As the tokenizers package does, which in the third text fails for a token that strips to its left alone.
TEST(TokenizerJsonInput, WhiteSpaceThatATokenStrippedIsNoTokenThatStripsToItsLeft) {
  const auto ids = [](bool lstrip, bool rstrip, std::string_view text) {
    const nlohmann::json document = {
        {"model",
         {{"vocab", {{"a", 0}, {"\n", 1}, {" ", 2}, {"<s>", 3}}}, {"merges", nlohmann::json::array()}}},
        {"added_tokens",
         {{{"content", "\n"}, {"special", true}, {"lstrip", lstrip}, {"rstrip", rstrip}},
          {{"content", "<s>"}, {"special", true}, {"rstrip", true}}}}};
    return parse_tokenizer_json(document.dump(), "tokenizer.json")->encode(text);
  };
  using Ids = std::vector<TokenId>;
  for (const bool rstrip : {false, true}) {
    EXPECT_EQ(ids(true, rstrip, "<s>\na"), (Ids{3, 0}));
    EXPECT_EQ(ids(true, rstrip, "<s> \n"), (Ids{3}));
    EXPECT_EQ(ids(true, rstrip, "<s> \n a"), (Ids{3, 0}));
    EXPECT_EQ(ids(false, rstrip, "<s>\na"), (Ids{3, 1, 0}));
  }
  EXPECT_EQ(ids(true, true, "a\n\na"), (Ids{0, 1, 0}));
  EXPECT_EQ(ids(true, false, "a\n\na"), (Ids{0, 1, 1, 0}));
}

/// As the tokenizers package does.
TEST(TokenizerJsonInput, SpaceSymbolsMergeAcrossACharacterThatHasNoToken) {
  nlohmann::json document = {
      {"model", {{"vocab", {{"▁", 0}, {"▁▁", 1}, {"a", 2}, {"?", 3}}}, {"merges", {"▁ ▁"}}}},
      {"added_tokens", nlohmann::json::array()}};
  const auto ids = [&] { return parse_tokenizer_json(document.dump(), "tokenizer.json")->encode("▁x▁a"); };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(ids(), (Ids{1, 2}));
  document["model"]["unk_token"] = "?";
  EXPECT_EQ(ids(), (Ids{0, 3, 0, 2}));
}

TEST(TokenizerJsonInput, OptionsTurnSpecialTokensOff) {
  const auto tokenizer = fixture::tokenizer("llama3");
  const TokenId bos = *tokenizer->find_token("<|begin_of_text|>"), eot = *tokenizer->find_token("<|eot_id|>");
  EXPECT_EQ(tokenizer->bos_token_id(), bos);
  EXPECT_TRUE(tokenizer->is_special(eot));
  EXPECT_EQ(tokenizer->encode("<|eot_id|>"), (std::vector<TokenId>{bos, eot}));
  EXPECT_EQ(tokenizer->encode("<|eot_id|>", {.add_special_tokens = false}), (std::vector<TokenId>{eot}));
  const auto spelled =
      tokenizer->encode("<|eot_id|>", {.add_special_tokens = false, .parse_special_tokens = false});
  EXPECT_GT(spelled.size(), 1u);
  EXPECT_EQ(tokenizer->decode(spelled), "<|eot_id|>");
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{bos, eot}), "");
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{bos, eot}, false), "<|begin_of_text|><|eot_id|>");
}

}  // namespace
}  // namespace tessera
