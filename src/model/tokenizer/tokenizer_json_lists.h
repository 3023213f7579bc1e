#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_parse.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/vocabulary.h"

namespace tessera::tokenizers {

class JsonField;

/// The object of an added token, with the id that it gives or -1.
AddedToken read_added_token(const JsonField& field);

/// What of a tokenizer.json is as long as its vocabulary, read entry by entry: a JSON value takes many times
/// the memory of its text. Only for .cpp files, as JsonField.
class TokenizerLists {
 public:
  explicit TokenizerLists(const std::string& source) : source_(source) {}

  std::vector<JsonStream> streams();

  const TextList& tokens() const { return tokens_; }
  std::span<const TokenId> token_ids() const { return token_ids_; }  ///< one a token
  /// The left and the right part of each merge, one behind the other.
  const TextList& merge_parts() const { return merge_parts_; }
  /// Merge i is entry merge_entry(i) of the file: some are comments.
  std::size_t merge_entry(std::size_t i) const { return i + num_comments_before(i); }
  /// With the file's ids, -1 where it has none.
  std::vector<AddedToken>& added_tokens() { return added_tokens_; }

 private:
  void add_token(const std::string& text, const nlohmann::json& value);
  [[noreturn]] void fail_id(std::string_view text, const std::string& id) const;
  void add_merge(const nlohmann::json& value);
  void add_added_token(const nlohmann::json& value);
  std::size_t num_comments_before(std::size_t merge) const;

  const std::string& source_;
  TextList tokens_, merge_parts_;
  std::vector<TokenId> token_ids_;
  std::vector<std::size_t> comments_;  // entries of the merges
  std::size_t num_merge_entries_ = 0;
  std::vector<AddedToken> added_tokens_;
};

/// The object of a tokenizer.json without its long lists, which `lists` gets. Throws Error{kCorruptFile}
/// naming `source`.
nlohmann::json parse_tokenizer_document(std::string_view text, const std::string& source,
                                        TokenizerLists& lists);

}  // namespace tessera::tokenizers
