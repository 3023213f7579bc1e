#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer/added_tokens.h"

namespace tessera {

/// What is beside a tokenizer.json.
struct TokenizerConfigFiles {
  std::string config = {};              ///< text of tokenizer_config.json
  std::string config_source = {};       ///< names it in errors
  std::string special_tokens_map = {};  ///< text of special_tokens_map.json, empty if there is none
  std::string special_tokens_map_source = {};
  std::string added_tokens = {};  ///< text of added_tokens.json, empty if there is none
  std::string added_tokens_source = {};
  std::string model_type = {};  ///< of config.json, on which the class that transformers takes depends
};

/// What a tokenizer_config.json, and older versions' files, say of a tokenizer.json's tokens and of chat
/// templates, as transformers 5 reads them. Keys that it ignores beside a tokenizer.json (add_bos_token,
/// add_eos_token) are ignored here.
class TokenizerConfig {
 public:
  /// Throws Error{kCorruptFile} naming file and key.
  explicit TokenizerConfig(const TokenizerConfigFiles& files);

  /// What has to be added, in this order, to a tokenizer that has `tokens` already: tokens that it lacks
  /// (whose ids follow) and such as get other flags. Without ids.
  std::vector<tokenizers::AddedToken> additions(std::span<const tokenizers::AddedToken> tokens) const;

  /// Changes the normalizer, pre-tokenizer and decoder of a tokenizer.json. Throws Error{kUnsupported} naming
  /// the key that can't be followed.
  void apply_prefix_space(nlohmann::json& document) const;

  /// Whether texts never make special tokens.
  bool split_special_tokens() const { return split_special_tokens_; }
  const std::string& source() const { return source_; }

  /// Special tokens by the names that chat templates know them by: "bos_token", …
  std::map<std::string, std::string, std::less<>> special_tokens() const;
  /// The field chat_template: one template, "default", or several by name. Throws Error{kCorruptFile} if it
  /// is neither.
  std::map<std::string, std::string, std::less<>> chat_templates() const;

 private:
  /// A token as the file gives it: bare texts have no flags of their own.
  struct NamedToken {
    std::string key;
    tokenizers::AddedToken token;
    bool is_text = true;
  };

  class Reader;

  /// The class whose pipeline transformers puts in the place of the file's; empty: it takes the file's.
  std::string pipeline_class(bool is_byte_level) const;

  std::string source_, tokenizer_class_, model_type_;
  std::optional<std::vector<tokenizers::AddedToken>> decoder_tokens_;  // added_tokens_decoder's, by id
  std::vector<std::string> legacy_tokens_;                             // added_tokens.json's, by id
  std::vector<NamedToken> named_;  // bos_token, … in transformers' order
  std::vector<NamedToken> extra_;
  std::shared_ptr<const nlohmann::json> chat_template_;  // null: there is none
  std::optional<bool> add_prefix_space_;
  bool is_legacy_ = false;  // spaces go behind added tokens, too
  bool split_special_tokens_ = false;
};

}  // namespace tessera
