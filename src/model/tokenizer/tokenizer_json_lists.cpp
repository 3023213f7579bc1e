#include "model/tokenizer/tokenizer_json_lists.h"

#include <fmt/core.h>

#include <utility>

#include "core/text.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/tokenizer.h"
#include "tessera/error.h"

namespace tessera::tokenizers {

using nlohmann::json;

namespace {

/// Beside the long lists there is little.
constexpr std::size_t kMostValues = std::size_t{1} << 20;

}  // namespace

std::vector<JsonStream> TokenizerLists::streams() {
  return {
      {{"model", "vocab"},
       [this](const std::string& text, const json& value, std::size_t) { add_token(text, value); }},
      {{"model", "merges"}, [this](const std::string&, const json& value, std::size_t) { add_merge(value); }},
      {{"added_tokens"},
       [this](const std::string&, const json& value, std::size_t) { add_added_token(value); }}};
}

void TokenizerLists::add_token(const std::string& text, const json& value) {
  const bool is_id = value.is_number_unsigned() && value.get<std::uint64_t>() <= Vocabulary::kMaxId;
  if (!is_id) fail_id(text, value.is_primitive() ? value.dump() : std::string(value.type_name()));
  tokens_.add(text);
  token_ids_.push_back(value.get<TokenId>());
}

void TokenizerLists::fail_id(std::string_view text, const std::string& id) const {
  throw Error(ErrorCode::kCorruptFile,
              fmt::format("{}: model.vocab: token {} has id {}, expected an integer from 0 to {}", source_,
                          quote(text), printable(id, kQuotedBytes), Vocabulary::kMaxId));
}

/// A merge is written as "a b" or as ["a", "b"].
void TokenizerLists::add_merge(const json& value) {
  const std::size_t entry = num_merge_entries_++;
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    merge_parts_.add(value[0].get_ref<const std::string&>());
    merge_parts_.add(value[1].get_ref<const std::string&>());
    return;
  }
  if (value.is_string()) {
    const std::string_view text = value.get_ref<const std::string&>();
    if (text.starts_with("#version")) {
      comments_.push_back(entry);
      return;
    }
    const std::size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      merge_parts_.add(text.substr(0, space));
      merge_parts_.add(text.substr(space + 1));
      return;
    }
  }
  throw Error(
      ErrorCode::kCorruptFile,
      fmt::format("{}: model.merges: entry {} is {}, expected \"left right\" or [\"left\", "
                  "\"right\"]",
                  source_, entry, printable(value.dump(-1, ' ', false, json::error_handler_t::replace))));
}

std::size_t TokenizerLists::num_comments_before(std::size_t merge) const {
  std::size_t count = 0;
  while (count < comments_.size() && comments_[count] <= merge + count) ++count;
  return count;
}

void TokenizerLists::add_added_token(const json& value) {
  const std::string path = fmt::format("added_tokens[{}]", added_tokens_.size());
  added_tokens_.push_back(read_added_token(JsonField(value, path, source_)));
}

AddedToken read_added_token(const JsonField& field) {
  AddedToken token;
  token.content = field.at("content").string();
  token.special = field.boolean_or("special", false);
  token.normalized = field.boolean_or("normalized", !token.special);
  token.single_word = field.boolean_or("single_word", false);
  token.lstrip = field.boolean_or("lstrip", false);
  token.rstrip = field.boolean_or("rstrip", false);
  if (const auto id = field.find("id")) {
    if (id->integer() < 0 || id->integer() > Vocabulary::kMaxId)
      id->fail(fmt::format("is {}, expected an integer from 0 to {}", id->integer(), Vocabulary::kMaxId));
    token.id = static_cast<TokenId>(id->integer());
  }
  if (token.content.size() > AddedTokenMatcher::kLongestContent)
    field.unsupported(fmt::format("\"content\" has {} bytes, at most {} are supported", token.content.size(),
                                  AddedTokenMatcher::kLongestContent));
  return token;
}

json parse_tokenizer_document(std::string_view text, const std::string& source, TokenizerLists& lists) {
  if (text.size() > kLongestTokenizerJson)
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: has {} bytes; a tokenizer has at most {}", source,
                                                     text.size(), kLongestTokenizerJson));
  json document = parse_json_bounded(text, source, {.max_values = kMostValues}, lists.streams());
  if (!document.is_object())
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: is not a JSON object", source));
  return document;
}

}  // namespace tessera::tokenizers
