// Folders with a tokenizer.json and files beside it against what transformers' AutoTokenizer makes of them.
#include "model/tokenizer/tokenizer_config.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/hf_checkpoint.h"
#include "model/tokenizer_fixture.h"
#include "model_files.h"

namespace tessera {
namespace {

using namespace testing_files;
using nlohmann::json;

std::vector<TokenId> ids_of(const json& row) { return row.get<std::vector<TokenId>>(); }

TEST(TokenizerConfigFiles, AreReadAsTransformersReadsThem) {
  const json fixture = fixture::read("configs");
  ASSERT_GE(fixture["cases"].size(), 60u);
  for (const json& example : fixture["cases"]) {
    SCOPED_TRACE(example["name"].get<std::string>());
    const TemporaryFolder folder;
    const std::string tokenizer_json = fixture["bases"][example["base"].get<std::string>()].dump();
    folder.write(kTokenizerJson, tokenizer_json);
    for (const auto& [name, text] : example["files"].items()) folder.write(name, text.get<std::string>());
    std::vector<std::shared_ptr<const Tokenizer>> tokenizers = {open_tokenizer(folder.path())};
    const TokenizerConfig config = *read_tokenizer_config(folder.path());
    std::map<std::string, std::string, std::less<>> special_tokens = example["special_tokens"];
    std::erase_if(special_tokens, [](const auto& token) { return token.second.empty(); });
    EXPECT_EQ(config.special_tokens(), special_tokens);
    if (!config.split_special_tokens())
      tokenizers.push_back(
          parse_tokenizer_json(merged_tokenizer_json(tokenizer_json, "tokenizer.json", config), "merged"));
    for (const auto& tokenizer : tokenizers) {
      EXPECT_EQ(tokenizer->vocab_size(), example["size"]);
      for (std::size_t i = 0; i < fixture["strings"].size(); ++i) {
        const std::string string = fixture["strings"][i];
        EXPECT_EQ(tokenizer->encode(string), ids_of(example["ids"][i])) << string;
        EXPECT_EQ(tokenizer->decode(ids_of(example["ids"][i])), example["decoded"][i]) << string;
      }
    }
  }
}

class TokenizerConfigErrors : public testing::Test {
 protected:
  std::string said_of(ErrorCode code, const std::string& config, const std::string& map = "") const {
    folder_.write("tokenizer_config.json", config);
    if (!map.empty()) folder_.write("special_tokens_map.json", map);
    return error_of(code, [&] { open_tokenizer(folder_.path()); });
  }
  void SetUp() override { folder_.write(kTokenizerJson, tokenizer_json_); }

  const TemporaryFolder folder_;
  const std::string tokenizer_json_ = fixture::read("configs")["bases"]["byte_level"].dump();
};

TEST_F(TokenizerConfigErrors, NameTheFileAndTheKey) {
  const struct {
    const char *config, *part;
  } cases[] = {
      {R"([])", "tokenizer_config.json: is not a JSON object"},
      {R"({"added_tokens_decoder": null})", "added_tokens_decoder: is null, expected an object"},
      {R"({"added_tokens_decoder": []})", "added_tokens_decoder: is array, expected an object"},
      {R"({"added_tokens_decoder": {"x": {"content": "y"}}})", "added_tokens_decoder: has the key \"x\""},
      {R"({"added_tokens_decoder": {"-1": {"content": "y"}}})", "has the key \"-1\""},
      {R"({"added_tokens_decoder": {"99999999999": {"content": "y"}}})", "has the key \"99999999999\""},
      {R"({"added_tokens_decoder": {"7": "y"}})", "added_tokens_decoder.7: is string, expected an object"},
      {R"({"added_tokens_decoder": {"7": null}})", "added_tokens_decoder: has no member \"7\""},
      {R"({"added_tokens_decoder": {"7": {}}})", "added_tokens_decoder.7: has no member \"content\""},
      {R"({"added_tokens_decoder": {"7": {"content": "y", "lstrip": 1}}})", "added_tokens_decoder.7.lstrip"},
      {R"({"pad_token": 3})", "tokenizer_config.json: pad_token: is number, expected a token's text"},
      {R"({"pad_token": false})", "pad_token: is boolean"},
      {R"({"additional_special_tokens": "y"})", "additional_special_tokens: is string, expected a list"},
      {R"({"extra_special_tokens": [5]})", "extra_special_tokens: is number, expected a token's text"},
      {R"({"extra_special_tokens": [null]})", "extra_special_tokens: is null, expected a token's text"},
      {R"({"extra_special_tokens": {"a": 5}})", "extra_special_tokens.a: is number, expected a token's text"},
      {R"({"split_special_tokens": "true"})", "split_special_tokens"},
      {R"({"add_prefix_space": 1})", "add_prefix_space"},
  };
  for (const auto& [config, part] : cases) EXPECT_HAS(said_of(ErrorCode::kCorruptFile, config), part);
  EXPECT_HAS(said_of(ErrorCode::kUnsupported, json{{"eos_token", std::string(600, 'x')}}.dump()),
             "eos_token: has 600 bytes, at most 512");
  EXPECT_HAS(said_of(ErrorCode::kCorruptFile, "{}", R"({"pad_token": 3})"),
             "special_tokens_map.json: pad_token: is number");
}

TEST_F(TokenizerConfigErrors, PrefixSpacesThatThePipelineHasNoPlaceFor) {
  const json bases = fixture::read("configs")["bases"];
  json metaspace = bases["metaspace"];
  metaspace["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  folder_.write(kTokenizerJson, metaspace.dump());
  const std::string config = R"({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": true})";
  EXPECT_HAS(said_of(ErrorCode::kUnsupported, config), "tokenizer_config.json: add_prefix_space is true");
}

TEST_F(TokenizerConfigErrors, AreNoneWhereOnlyTheTokenizerFileIsOpened) {
  folder_.write("tokenizer_config.json", "no JSON");
  EXPECT_EQ(open_tokenizer(folder_.path() / kTokenizerJson)->vocab_size(), 261);
}

TEST_F(TokenizerConfigErrors, ATokenizerFileHasNoPlaceForSplitSpecialTokens) {
  const TokenizerConfig config({.config = R"({"split_special_tokens": true})", .config_source = "config"});
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { merged_tokenizer_json(tokenizer_json_, "", config); }),
             "config: split_special_tokens");
}

TEST_F(TokenizerConfigErrors, WithoutAnythingNewTheFileIsTheSame) {
  for (
      const char* text :
      {R"({"bos_token": "<s>"})",
       R"({"added_tokens_decoder": {"258": {"content": "<s>", "normalized": false}}})",
       R"({"added_tokens_decoder": {"260": {"content": "<x>", "normalized": true}}, "eos_token": "</s>"})"}) {
    const TokenizerConfig config({.config = text, .config_source = "config"});
    EXPECT_EQ(merged_tokenizer_json(tokenizer_json_, "", config), tokenizer_json_) << text;
  }
}

}  // namespace
}  // namespace tessera
