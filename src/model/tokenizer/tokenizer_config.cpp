// Reads tokenizer_config.json in the order in which transformers' TokenizersBackend goes through it.
#include "model/tokenizer/tokenizer_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/json_parse.h"
#include "core/text.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/tokenizer_json_lists.h"
#include "model/tokenizer/vocabulary.h"
#include "tessera/error.h"

namespace tessera {

using nlohmann::json;
using tokenizers::AddedToken;
using tokenizers::JsonField;

namespace {

/// The keys of special tokens that all models have, in transformers' order.
constexpr std::array kNamedTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

/// More would only serve to make loading slow.
constexpr std::size_t kMostTokens = std::size_t{1} << 20;

bool is_named(const std::string& key) {
  return std::find(kNamedTokens.begin(), kNamedTokens.end(), key) != kNamedTokens.end();
}

/// Whether transformers takes `value` for a token: a text, or an object that says it is one.
bool is_token(const json& value) {
  return value.is_string() || (value.is_object() && value.value("__type", json()) == "AddedToken");
}

/// A list or an object of tokens, its entries in the file's order.
struct TokenContainer {
  std::string key;
  const std::string* source;
  bool is_there = false, is_object = false;
  std::vector<std::pair<std::string, json>> entries = {};

  bool has_tokens() const { return is_there && !entries.empty(); }
};

std::vector<AddedToken> read_decoder_tokens(const JsonField& field) {
  if (!field.value().is_object())
    field.fail(fmt::format("is {}, expected an object of ids and tokens", field.value().type_name()));
  std::map<TokenId, AddedToken> by_id;
  for (const auto& [key, value] : field.value().items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
        id > tokenizers::Vocabulary::kMaxId)
      field.fail(fmt::format("has the key {}, expected an id from 0 to {}", tokenizers::quote(key),
                             tokenizers::Vocabulary::kMaxId));
    by_id[id] = read_added_token(field.at(key));
  }
  std::vector<AddedToken> tokens;
  tokens.reserve(by_id.size());
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

/// Calls `change` for a component of a tokenizer.json, or for each step of its sequence, and leaves out those
/// for which it returns false.
template <class Change>
void change_steps(json& component, const char* list, const Change& change) {
  if (!component.is_object()) return;
  const auto steps = component.find(list);
  if (component.value("type", json()) != "Sequence" || steps == component.end() || !steps->is_array()) {
    if (!change(component)) component = nullptr;
    return;
  }
  for (json& step : *steps) change_steps(step, list, change);
  steps->erase(std::remove(steps->begin(), steps->end(), json()), steps->end());
}

bool has_type(const json& step, std::string_view type) {
  const auto field = step.find("type");
  return field != step.end() && field->is_string() && field->get_ref<const std::string&>() == type;
}

/// What makes two entries the same to transformers.
auto identity(const AddedToken& token, bool is_text) {
  return std::tuple(token.content, is_text, token.special, token.normalized, token.single_word, token.lstrip,
                    token.rstrip);
}

/// Whether adding `additions` makes `tokens` other ones. What has been special stays so.
bool changes_any(std::span<const AddedToken> tokens, std::span<const AddedToken> additions) {
  std::map<std::string_view, AddedToken> known;
  for (const AddedToken& token : tokens) {
    const auto [earlier, is_new] = known.try_emplace(token.content, token);
    if (is_new) continue;
    const bool is_special = token.special || earlier->second.special;
    earlier->second = token;
    earlier->second.special = is_special;
  }
  return std::any_of(additions.begin(), additions.end(), [&](AddedToken token) {
    const auto same = known.find(token.content);
    if (same == known.end()) return true;
    token.special |= same->second.special;
    return identity(token, false) != identity(same->second, false);
  });
}

/// Whether a step of a tokenizer.json puts something before texts.
bool prefixes_texts(const json& step) {
  if (!has_type(step, "Metaspace")) return has_type(step, "Prepend");
  const auto scheme = step.find("prepend_scheme");
  if (scheme == step.end() || scheme->is_null()) return step.value("add_prefix_space", json()) != false;
  return *scheme != "never";
}

}  // namespace

/// The keys of the files, as Python would hold them before it makes the tokenizer.
class TokenizerConfig::Reader {
 public:
  Reader(TokenizerConfig& config, const TokenizerConfigFiles& files) : config_(config), files_(files) {}

  void read() {
    for (const char* key : kNamedTokens) set_named({key, {}, true});
    parse(files_.config, files_.config_source, {&extra_, &additional_, &model_specific_},
          [this](const std::string& key, const json& value) { read_config_entry(key, value); });
    if (!extra_.has_tokens() && additional_.is_there)
      extra_ = std::exchange(additional_, {additional_.key, additional_.source});
    if (!config_.decoder_tokens_ && !files_.special_tokens_map.empty()) read_special_tokens_map();
    if (!config_.decoder_tokens_ && !files_.added_tokens.empty()) read_added_tokens();
    for (NamedToken& token : typed_) set_named(std::move(token));
    if (extra_.is_object) {
      for (const auto& [key, value] : extra_.entries) explicit_.push_back(read_token(key, value, extra_));
      extra_ = {extra_.key, extra_.source};
    }
    if (explicit_.empty())
      for (const auto& [key, value] : model_specific_.entries)
        explicit_.push_back(read_token(key, value, model_specific_));
    for (NamedToken& token : explicit_) set_named(std::move(token));
    const TokenContainer& list = extra_.is_there ? extra_ : additional_;
    for (const auto& [key, value] : list.entries) config_.extra_.push_back(read_token(key, value, list));
  }

 private:
  template <class OnEntry>
  static void parse(const std::string& text, const std::string& source,
                    const std::vector<TokenContainer*>& containers, OnEntry&& on_entry) {
    std::vector<JsonStream> streams = {
        {{}, [&](const std::string& key, const json& value, std::size_t) {
           for (TokenContainer* container : containers) {
             if (container->key != key) continue;
             const JsonField field(value, key, source);
             if (value.is_null()) return;
             if (!value.is_structured())
               field.fail(fmt::format("is {}, expected a list of tokens", value.type_name()));
             container->is_there = true;
             container->is_object = value.is_object();
             return;
           }
           on_entry(key, value);
         }}};
    for (TokenContainer* container : containers)
      streams.push_back(
          {{container->key}, [container, &source](const std::string& key, const json& value, std::size_t) {
             if (container->entries.size() == kMostTokens)
               JsonField(value, container->key, source)
                   .unsupported(fmt::format("has more than {} tokens", kMostTokens));
             container->entries.emplace_back(key, value);
           }});
    const json document = parse_json_bounded(text, source, {}, streams);
    if (!document.is_object())
      throw Error(ErrorCode::kCorruptFile, fmt::format("{}: is not a JSON object", source));
  }

  void read_config_entry(const std::string& key, const json& value) {
    const JsonField field(value, key, files_.config_source);
    if (key == "added_tokens_decoder") {
      config_.decoder_tokens_ = read_decoder_tokens(field);
    } else if (key == "split_special_tokens") {
      config_.split_special_tokens_ = !value.is_null() && field.boolean();
    } else if (key == "add_prefix_space") {
      if (!value.is_null()) config_.add_prefix_space_ = field.boolean();
    } else if (key == "tokenizer_class") {
      if (value.is_string()) config_.tokenizer_class_ = value.get<std::string>();
    } else if (key == "legacy") {
      config_.is_legacy_ = value == true;
    } else if (key == "chat_template") {
      if (!value.is_null()) config_.chat_template_ = std::make_shared<const json>(value);
    } else if (is_named(key)) {
      if (!value.is_null()) set_named(read_token(key, value, files_.config_source));
    } else if (key.ends_with("_token") && is_token(value)) {
      if (typed_.size() + explicit_.size() == kMostTokens)
        field.unsupported(fmt::format("is more than token {} with a name", kMostTokens));
      (value.is_string() ? explicit_ : typed_).push_back(read_token(key, value, files_.config_source));
    }
  }

  /// Older versions' file, which counts beside a tokenizer_config.json without added_tokens_decoder.
  void read_special_tokens_map() {
    const std::string& source = files_.special_tokens_map_source;
    TokenContainer extra{"extra_special_tokens", &source}, additional{"additional_special_tokens", &source};
    parse(files_.special_tokens_map, source, {&extra, &additional}, [&](const std::string& key, json value) {
      if (value.is_object()) value["special"] = true;
      if (is_named(key)) {
        set_named(value.is_null() ? NamedToken{key, {}, true} : read_token(key, value, source));
      } else if (key.ends_with("_token") && (value.is_string() || value.is_object())) {
        typed_.push_back(read_token(key, value, source));
      }
    });
    if (extra.is_there && !extra.is_object && !extra_.is_object) {
      extra_.is_there = true;
      std::set<json> seen;
      for (const auto& [key, value] : extra_.entries) seen.insert(value);
      for (auto& entry : extra.entries)
        if (seen.insert(entry.second).second) extra_.entries.push_back(std::move(entry));
    } else if (extra.is_there) {
      extra_ = std::move(extra);
    }
    if (additional.is_there) additional_ = std::move(additional);
  }

  /// The oldest versions' file of tokens and ids, which counts as special_tokens_map.json does.
  void read_added_tokens() {
    const std::string& source = files_.added_tokens_source;
    std::map<TokenId, std::string> by_id;
    parse(files_.added_tokens, source, {}, [&](const std::string& key, const json& value) {
      const JsonField field(value, printable(key), source);
      const std::int64_t id = field.integer();
      if (id < 0 || id > tokenizers::Vocabulary::kMaxId)
        field.fail(fmt::format("is {}, expected an id from 0 to {}", id, tokenizers::Vocabulary::kMaxId));
      if (key.size() > tokenizers::AddedTokenMatcher::kLongestContent)
        field.unsupported(fmt::format("has {} bytes, at most {} are supported", key.size(),
                                      tokenizers::AddedTokenMatcher::kLongestContent));
      by_id[static_cast<TokenId>(id)] = key;
    });
    for (auto& [id, content] : by_id) config_.legacy_tokens_.push_back(std::move(content));
  }

  static NamedToken read_token(const std::string& key, const json& value, const TokenContainer& container) {
    const std::string path = key.empty() ? container.key : container.key + "." + printable(key);
    return read_token(key, JsonField(value, path, *container.source));
  }

  static NamedToken read_token(const std::string& key, const json& value, const std::string& source) {
    return read_token(key, JsonField(value, printable(key), source));
  }

  static NamedToken read_token(const std::string& key, const JsonField& field) {
    const json& value = field.value();
    NamedToken token{key, {}, value.is_string()};
    if (value.is_string()) {
      token.token.content = value.get<std::string>();
      token.token.special = true;
      if (token.token.content.size() > tokenizers::AddedTokenMatcher::kLongestContent)
        field.unsupported(fmt::format("has {} bytes, at most {} are supported", token.token.content.size(),
                                      tokenizers::AddedTokenMatcher::kLongestContent));
    } else if (value.is_object()) {
      token.token = read_added_token(field);
      token.token.id = -1;
    } else {
      field.fail(
          fmt::format("is {}, expected a token's text or an object with \"content\"", value.type_name()));
    }
    return token;
  }

  void set_named(NamedToken token) {
    const auto [known, is_new] = places_.try_emplace(token.key, config_.named_.size());
    if (is_new)
      config_.named_.push_back(std::move(token));
    else
      config_.named_[known->second] = std::move(token);
  }

  TokenizerConfig& config_;
  const TokenizerConfigFiles& files_;
  TokenContainer extra_{"extra_special_tokens", &files_.config_source},
      additional_{"additional_special_tokens", &files_.config_source},
      model_specific_{"model_specific_special_tokens", &files_.config_source};
  std::vector<NamedToken> typed_, explicit_;  // with names that only this model has
  std::map<std::string, std::size_t> places_;
};

TokenizerConfig::TokenizerConfig(const TokenizerConfigFiles& files)
    : source_(files.config_source), model_type_(files.model_type) {
  Reader(*this, files).read();
}

std::map<std::string, std::string, std::less<>> TokenizerConfig::special_tokens() const {
  std::map<std::string, std::string, std::less<>> tokens;
  for (const NamedToken& token : named_)
    if (!token.token.content.empty()) tokens[token.key] = token.token.content;
  return tokens;
}

std::map<std::string, std::string, std::less<>> TokenizerConfig::chat_templates() const {
  std::map<std::string, std::string, std::less<>> templates;
  if (chat_template_ == nullptr) return templates;
  const JsonField field(*chat_template_, "chat_template", source_);
  if (chat_template_->is_string()) {
    templates["default"] = field.string();
  } else if (chat_template_->is_array()) {
    for (const JsonField& item : field.elements())
      templates[item.at("name").string()] = item.at("template").string();
  } else {
    field.fail(fmt::format("is {}, expected a string or a list of templates", chat_template_->type_name()));
  }
  return templates;
}

std::vector<AddedToken> TokenizerConfig::additions(std::span<const AddedToken> tokens) const {
  std::set<std::string_view> known, named;
  for (const AddedToken& token : tokens) known.insert(token.content);
  for (const NamedToken& token : named_) named.insert(token.token.content);
  std::vector<AddedToken> result;
  if (decoder_tokens_) {
    for (const AddedToken& token : *decoder_tokens_) {
      known.insert(token.content);
      result.push_back(token);
    }
  } else {
    for (const AddedToken& token : tokens)
      if (!token.special && named.contains(token.content)) result.push_back(token);
    std::set<std::string_view> extra;
    for (const NamedToken& token : extra_) extra.insert(token.token.content);
    for (const std::string& content : legacy_tokens_) {
      if (!known.insert(content).second) continue;
      const bool is_special = named.contains(content) || extra.contains(content);
      result.push_back({.content = content, .special = is_special, .normalized = !is_special});
    }
  }
  std::set<decltype(identity({}, true))> added;
  for (const auto* list : {&named_, &extra_})
    for (const NamedToken& token : *list) {
      if (token.token.content.empty() || known.contains(token.token.content)) continue;
      if (added.insert(identity(token.token, token.is_text)).second) result.push_back(token.token);
    }
  for (AddedToken& token : result) {
    token.id = -1;
    token.special |= named.contains(token.content);
  }
  std::erase_if(result, [](const AddedToken& token) { return token.content.empty(); });
  return changes_any(tokens, result) ? result : std::vector<AddedToken>();
}

std::string TokenizerConfig::pipeline_class(bool is_byte_level) const {
  if (model_type_ == "qwen2") return "Qwen2Tokenizer";
  if (model_type_ == "mistral") return "";
  std::string name = tokenizer_class_;
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name.empty() && model_type_ == "qwen3") return "Qwen2Tokenizer";
  return name == "LlamaTokenizer" && is_byte_level ? "" : name;
}

void TokenizerConfig::apply_prefix_space(json& document) const {
  if (!add_prefix_space_ || !document.is_object()) return;
  const bool adds = *add_prefix_space_;
  json none;
  const auto component = [&](const char* name) -> json& {
    const auto field = document.find(name);
    return field == document.end() ? none : *field;
  };
  json &normalizer = component("normalizer"), &pre_tokenizer = component("pre_tokenizer");
  bool is_byte_level = false, has_prefix = false;
  const auto look = [&](const json& step) {
    is_byte_level |= has_type(step, "ByteLevel");
    has_prefix |= prefixes_texts(step);
    return true;
  };
  change_steps(pre_tokenizer, "pretokenizers", look);
  change_steps(normalizer, "normalizers", look);
  const std::string name = pipeline_class(is_byte_level);
  const bool is_metaspace = name == "LlamaTokenizer" || name == "CodeLlamaTokenizer";
  if (!is_metaspace && name != "Qwen2Tokenizer" && name != "GPT2Tokenizer") return;
  if (!is_metaspace && is_byte_level) {
    change_steps(pre_tokenizer, "pretokenizers", [&](json& step) {
      if (has_type(step, "ByteLevel")) step["add_prefix_space"] = adds;
      return true;
    });
    return;
  }
  if (adds == has_prefix) return;
  json& decoder = component("decoder");
  const bool is_plain = pre_tokenizer.is_null() || has_type(pre_tokenizer, "Metaspace");
  const bool can_add = is_plain && decoder.is_object() && has_type(decoder, "Sequence");
  if (!is_metaspace || (adds && !can_add)) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: add_prefix_space is {}, which the pre-tokenizer of the tokenizer.json beside "
                    "it can't be made to follow; set it to {}",
                    source_, adds, !adds));
  }
  if (adds) {
    const char* scheme = is_legacy_ && name == "LlamaTokenizer" ? "always" : "first";
    document["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", scheme}, {"split", false}};
    document["decoder"]["decoders"].push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    return;
  }
  change_steps(normalizer, "normalizers", [](const json& step) { return !has_type(step, "Prepend"); });
  const auto never = [](json& step) {
    if (has_type(step, "Metaspace")) step["prepend_scheme"] = "never";
    return !has_type(step, "Strip");
  };
  change_steps(pre_tokenizer, "pretokenizers", never);
  change_steps(decoder, "decoders", never);
}

}  // namespace tessera
