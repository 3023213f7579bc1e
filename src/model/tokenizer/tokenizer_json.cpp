// Reads Hugging Face's tokenizer.json into a pipeline.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "core/json_parse.h"
#include "core/mapped_file.h"
#include "core/text.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/pipeline_tokenizer.h"
#include "model/tokenizer/tokenizer_config.h"
#include "model/tokenizer/tokenizer_json_lists.h"
#include "tessera/error.h"

namespace tessera {
namespace tokenizers {
namespace {

/// More would only serve to make loading or encoding slow.
constexpr std::size_t kMostSteps = 64;

template <class Steps>
void check_step_count(const JsonField& field, const Steps& steps) {
  if (steps.size() > kMostSteps) field.unsupported(fmt::format("has more than {} steps", kMostSteps));
}

// ---- model ----

Vocabulary read_vocabulary(const JsonField& field, const TokenizerLists& lists) {
  if (!field.value().is_object()) field.fail("expected an object of tokens and ids");
  const std::size_t count = lists.tokens().size();
  Vocabulary vocabulary;
  vocabulary.reserve(count, lists.tokens().size_bytes());
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view text = lists.tokens()[i];
    const TokenId id = lists.token_ids()[i];
    if (!Vocabulary::is_valid_id(id, count))
      field.fail(fmt::format("token {} has id {}, which is no id that a vocabulary of {} tokens may have",
                             quote(text), id, count));
    if (vocabulary.add(id, text)) continue;
    if (!vocabulary.contains(id)) field.fail(fmt::format("token {} stands there twice", quote(text)));
    field.fail(
        fmt::format("tokens {} and {} have the same id {}", quote(text), quote(vocabulary.text(id)), id));
  }
  return vocabulary;
}

std::vector<BpeMerge> read_merges(const JsonField& field, const TokenizerLists& lists,
                                  const Vocabulary& vocabulary) {
  if (!field.value().is_array()) field.fail("expected an array of merges");
  const TextList& parts = lists.merge_parts();
  std::vector<BpeMerge> merges;
  merges.reserve(parts.size() / 2);
  std::string joined;
  for (std::size_t i = 0; i < parts.size() / 2; ++i) {
    const auto id_of = [&](std::string_view text) {
      const auto id = vocabulary.find(text);
      if (!id)
        field.fail(fmt::format("entry {} needs the token {}, which is not in the vocabulary",
                               lists.merge_entry(i), quote(text)));
      return *id;
    };
    joined = parts[2 * i];
    joined += parts[2 * i + 1];
    merges.push_back({id_of(parts[2 * i]), id_of(parts[2 * i + 1]), id_of(joined)});
  }
  return merges;
}

std::unique_ptr<const BpeModel> read_model(const JsonField& field, const TokenizerLists& lists) {
  if (const auto type = field.find("type"); type && type->string() != "BPE")
    type->unsupported(fmt::format("{} models are not supported, only \"BPE\"", quote(type->string())));
  if (const auto dropout = field.find("dropout"); dropout && dropout->value() != 0)
    dropout->unsupported("dropout is for training only; set it to null");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const auto affix = field.find(name); affix && !affix->string().empty())
      affix->unsupported(fmt::format("is {}; only models without one are supported", quote(affix->string())));
  Vocabulary vocabulary = read_vocabulary(field.at("vocab"), lists);
  const std::vector<BpeMerge> merges = read_merges(field.at("merges"), lists, vocabulary);
  BpeOptions options;
  options.fuse_unknown = field.boolean_or("fuse_unk", false);
  options.byte_fallback = field.boolean_or("byte_fallback", false);
  options.ignore_merges = field.boolean_or("ignore_merges", false);
  if (const auto unknown = field.find("unk_token")) {
    options.unknown_id = vocabulary.find(unknown->string());
    if (!options.unknown_id)
      unknown->fail(fmt::format("{} is not in the vocabulary", quote(unknown->string())));
  }
  return std::make_unique<const BpeModel>(std::move(vocabulary), merges, options);
}

// ---- added tokens ----

/// As the tokenizers package does, a token that the model has keeps the model's id, and the others get the
/// ids that follow, whatever the file says.
std::vector<AddedToken> read_added_tokens(const JsonField& field, TokenizerLists& lists,
                                          const Vocabulary& vocabulary) {
  if (!field.value().is_array())
    field.fail(fmt::format("is {}, expected an array", field.value().type_name()));
  std::vector<AddedToken> tokens;
  tokens.reserve(lists.added_tokens().size());
  std::map<std::string, std::size_t> by_content;
  auto next_id = static_cast<TokenId>(vocabulary.count());
  const std::size_t most_tokens = vocabulary.count() + lists.added_tokens().size();
  for (std::size_t i = 0; i < lists.added_tokens().size(); ++i) {
    AddedToken& token = lists.added_tokens()[i];
    if (token.id >= 0 && !Vocabulary::is_valid_id(token.id, most_tokens))
      field.fail(fmt::format("entry {} has id {}, which is no id that a vocabulary of {} tokens may have", i,
                             token.id, most_tokens));
    if (token.content.empty()) continue;
    const auto [known, is_new] = by_content.try_emplace(token.content, tokens.size());
    if (!is_new) {
      AddedToken& earlier = tokens[known->second];
      token.id = earlier.id;
      token.special |= earlier.special;
      earlier = token;
      continue;
    }
    const auto id = vocabulary.find(token.content);
    token.id = id ? *id : next_id++;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void add_tokens(nlohmann::json& document, const TokenizerConfig& config, TokenizerLists& lists) {
  std::vector<AddedToken> additions = config.additions(lists.added_tokens());
  if (additions.empty()) return;
  auto& tokens = lists.added_tokens();
  tokens.insert(tokens.end(), std::make_move_iterator(additions.begin()),
                std::make_move_iterator(additions.end()));
  if (nlohmann::json& list = document["added_tokens"]; list.is_null()) list = nlohmann::json::array();
}

// ---- normalizer ----

Matcher read_pattern(const JsonField& field) {
  if (const auto literal = field.find("String")) return literal_matcher(literal->string());
  if (const auto regex = field.find("Regex")) return regex_matcher(Regex(regex->string(), regex->where()));
  field.fail("expected {\"String\": …} or {\"Regex\": …}");
}

void read_normalizer(const JsonField& field, std::vector<NormalizerStep>& steps) {
  using unicode::NormalizationForm;
  check_step_count(field, steps);
  const std::string& type = field.type();
  if (type == "Sequence") {
    for (const JsonField& element : field.at("normalizers").elements()) read_normalizer(element, steps);
  } else if (type == "Prepend") {
    steps.push_back(prepend_step(field.at("prepend").string()));
  } else if (type == "Replace") {
    steps.push_back(replace_step(read_pattern(field.at("pattern")), field.at("content").string()));
  } else if (type == "Strip") {
    steps.push_back(strip_step(field.boolean_or("strip_left", true), field.boolean_or("strip_right", true)));
  } else if (type == "Lowercase") {
    steps.push_back(lowercase_step());
  } else if (type == "ByteLevel") {
    steps.push_back(byte_level_step());
  } else if (type == "NFC") {
    steps.push_back(unicode_step(NormalizationForm::kNfc));
  } else if (type == "NFD") {
    steps.push_back(unicode_step(NormalizationForm::kNfd));
  } else if (type == "NFKC") {
    steps.push_back(unicode_step(NormalizationForm::kNfkc));
  } else if (type == "NFKD") {
    steps.push_back(unicode_step(NormalizationForm::kNfkd));
  } else {
    field.unsupported(fmt::format("the normalizer {} is not supported", quote(type)));
  }
}

// ---- pre-tokenizer ----

SplitBehavior read_behavior(const JsonField& field) {
  const std::string& name = field.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.fail(fmt::format(
      "is {}, expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous", quote(name)));
}

PrependScheme read_prepend_scheme(const JsonField& field) {
  const auto scheme = field.find("prepend_scheme");
  // Files from before there were schemes say add_prefix_space.
  if (!scheme)
    return field.boolean_or("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
  if (scheme->string() == "always") return PrependScheme::kAlways;
  if (scheme->string() == "first") return PrependScheme::kFirst;
  if (scheme->string() == "never") return PrependScheme::kNever;
  scheme->fail(fmt::format("is {}, expected \"always\", \"first\" or \"never\"", quote(scheme->string())));
}

void read_pre_tokenizer(const JsonField& field, PreTokenizer& out) {
  check_step_count(field, out.steps);
  const std::string& type = field.type();
  if (type == "Sequence") {
    for (const JsonField& element : field.at("pretokenizers").elements()) read_pre_tokenizer(element, out);
    return;
  }
  // Only the last ByteLevel may leave its alphabet to the model: others read what it writes.
  if (std::exchange(out.words_are_bytes, false)) out.steps.push_back(byte_alphabet_step());
  if (type == "Split") {
    out.steps.push_back(split_step(read_pattern(field.at("pattern")), read_behavior(field.at("behavior")),
                                   field.boolean_or("invert", false)));
  } else if (type == "ByteLevel") {
    if (field.boolean_or("add_prefix_space", true)) out.steps.push_back(prefix_space_step());
    if (field.boolean_or("use_regex", true))
      out.steps.push_back(
          split_step(regex_matcher(Regex(kGpt2Pattern, field.where())), SplitBehavior::kIsolated, false));
    out.words_are_bytes = true;
  } else if (type == "Metaspace") {
    const std::string replacement = field.character("replacement");
    out.steps.push_back(metaspace_step(replacement, read_prepend_scheme(field)));
    if (field.boolean_or("split", true))
      out.steps.push_back(split_step(literal_matcher(replacement), SplitBehavior::kMergedWithNext, false));
  } else if (type == "Digits") {
    const bool individual = field.boolean_or("individual_digits", false);
    out.steps.push_back(split_step(character_matcher(unicode::is_numeric),
                                   individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                                   false));
  } else if (type == "Punctuation") {
    const auto behavior = field.find("behavior");
    out.steps.push_back(split_step(character_matcher(unicode::is_punctuation),
                                   behavior ? read_behavior(*behavior) : SplitBehavior::kIsolated, false));
  } else if (type == "Whitespace") {
    out.steps.push_back(split_step(word_matcher(), SplitBehavior::kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    out.steps.push_back(
        split_step(character_matcher(unicode::is_whitespace), SplitBehavior::kRemoved, false));
  } else {
    field.unsupported(fmt::format("the pre-tokenizer {} is not supported", quote(type)));
  }
}

// ---- post-processor ----

void read_template(const JsonField& field, PipelineParts& parts) {
  const auto special_tokens = field.find("special_tokens");
  std::vector<TokenId> before, after;
  bool seen_text = false;
  for (const JsonField& piece : field.at("single").elements()) {
    if (const auto sequence = piece.find("Sequence")) {
      if (sequence->at("id").string() != "A") sequence->fail("has an id other than \"A\" in a single text");
      if (seen_text) piece.unsupported("repeats the text");
      seen_text = true;
      continue;
    }
    const JsonField token = piece.at("SpecialToken").at("id");
    if (!special_tokens) field.fail("has no member \"special_tokens\"");
    for (const JsonField& element : special_tokens->at(token.string()).at("ids").elements()) {
      if (before.size() + after.size() == kMostSteps)
        field.unsupported(fmt::format("adds more than {} tokens", kMostSteps));
      const std::int64_t id = element.integer();
      const auto is_added = [&](const AddedToken& added) { return added.id == id; };
      const auto& added = parts.added_tokens;
      if (id < 0 || id > Vocabulary::kMaxId ||
          (!parts.model->vocabulary().contains(static_cast<TokenId>(id)) &&
           std::none_of(added.begin(), added.end(), is_added)))
        element.fail(fmt::format("is {}, which is not in the vocabulary", id));
      (seen_text ? after : before).push_back(static_cast<TokenId>(id));
    }
  }
  if (!seen_text) field.unsupported("the template leaves the text out");
  if (parts.prefix.size() + parts.suffix.size() + before.size() + after.size() > kMostSteps)
    field.unsupported(fmt::format("adds more than {} tokens", kMostSteps));
  parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
  parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
}

void read_post_processor(const JsonField& field, PipelineParts& parts) {
  const std::string& type = field.type();
  if (type == "Sequence") {
    for (const JsonField& element : field.at("processors").elements()) read_post_processor(element, parts);
  } else if (type == "TemplateProcessing") {
    read_template(field, parts);
  } else if (type != "ByteLevel") {  // which only moves offsets
    field.unsupported(fmt::format("the post-processor {} is not supported", quote(type)));
  }
}

// ---- decoder ----

struct DecoderReader {
  TokenDecoder decoder;
  bool fused = false;  // whether what follows applies to the whole text

  void read(const JsonField& field) {
    check_step_count(field, decoder.steps);
    const std::string& type = field.type();
    if (type == "Sequence") {
      for (const JsonField& element : field.at("decoders").elements()) read(element);
    } else if (type == "Fuse") {
      fused = true;
    } else if (type == "Strip" && fused) {
      strip_text(field);
    } else if (fused || decoder.byte_fallback) {
      if (!(fused && type == "ByteFallback"))
        field.unsupported(
            fmt::format("the decoder {} is not supported behind one that joins tokens", quote(type)));
    } else if (type == "ByteLevel") {
      decoder.byte_level = fused = true;
    } else if (type == "ByteFallback") {
      decoder.byte_fallback = true;
    } else if (type == "Metaspace") {
      const bool drop_first = read_prepend_scheme(field) != PrependScheme::kNever;
      decoder.steps.push_back(metaspace_token_step(field.character("replacement"), drop_first));
    } else if (type == "Replace") {
      decoder.steps.push_back(
          [matcher = read_pattern(field.at("pattern")), content = field.at("content").string()](
              std::string text, bool, WorkBudget& budget) {
            return replace_all(text, matcher, content, budget);
          });
    } else if (type == "Strip") {
      decoder.steps.push_back(
          strip_token_step(field.character("content"), count(field, "start"), count(field, "stop")));
    } else {
      field.unsupported(fmt::format("the decoder {} is not supported", quote(type)));
    }
  }

  static std::size_t count(const JsonField& field, const char* name) {
    const JsonField member = field.at(name);
    const std::int64_t value = member.integer();
    if (value < 0) member.fail(fmt::format("is {}, expected 0 or more", value));
    return static_cast<std::size_t>(value);
  }

  /// A stream knows the start of its text, but neither its end nor, at a token, how much was stripped before.
  void strip_text(const JsonField& field) {
    const std::size_t start = count(field, "start"), stop = count(field, "stop");
    if (start > 1 || stop > 0 || (start == 1 && !decoder.stripped_at_start.empty()))
      field.unsupported("strips more from a whole text than one character at its start");
    if (start == 1) decoder.stripped_at_start = field.character("content");
  }
};

}  // namespace
}  // namespace tokenizers

std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& source,
                                                      const TokenizerConfig* config) {
  using namespace tokenizers;
  PipelineParts parts;
  parts.source = source;
  std::optional<TokenizerLists> lists(source);
  nlohmann::json document = parse_tokenizer_document(json, source, *lists);
  if (config != nullptr) {
    config->apply_prefix_space(document);
    add_tokens(document, *config, *lists);
    parts.split_special_tokens = config->split_special_tokens();
  }
  const JsonField root(document, "", source);
  parts.model = read_model(root.at("model"), *lists);
  if (const auto field = root.find("added_tokens"))
    parts.added_tokens = read_added_tokens(*field, *lists, parts.model->vocabulary());
  lists.reset();
  if (const auto field = root.find("normalizer")) {
    std::vector<NormalizerStep> steps;
    read_normalizer(*field, steps);
    parts.normalizer = Normalizer(std::move(steps));
  }
  if (const auto field = root.find("pre_tokenizer")) read_pre_tokenizer(*field, parts.pre_tokenizer);
  if (const auto field = root.find("post_processor")) read_post_processor(*field, parts);
  if (!parts.prefix.empty()) parts.bos_token_id = parts.prefix.front();
  if (const auto field = root.find("decoder")) {
    DecoderReader reader;
    reader.read(*field);
    parts.decoder = std::move(reader.decoder);
  } else {
    parts.decoder.separator = " ";
  }
  return make_pipeline_tokenizer(std::move(parts));
}

std::string merged_tokenizer_json(const std::string& json, const std::string& source,
                                  const TokenizerConfig& config) {
  using namespace tokenizers;
  if (config.split_special_tokens())
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: split_special_tokens has no place in a tokenizer.json", config.source()));
  TokenizerLists lists(source);
  nlohmann::json document = parse_tokenizer_document(json, source, lists);
  const nlohmann::json before = document;
  config.apply_prefix_space(document);
  const std::vector<AddedToken> additions = config.additions(lists.added_tokens());
  if (additions.empty() && document == before) return json;
  document = parse_json_bounded(json, source);
  config.apply_prefix_space(document);
  nlohmann::json& tokens = document["added_tokens"];
  if (!tokens.is_null() && !tokens.is_array())
    JsonField(tokens, "added_tokens", source).fail("expected an array");
  for (const AddedToken& token : additions)
    tokens.push_back({{"content", token.content},
                      {"special", token.special},
                      {"normalized", token.normalized},
                      {"single_word", token.single_word},
                      {"lstrip", token.lstrip},
                      {"rstrip", token.rstrip}});
  return document.dump();
}

std::shared_ptr<const Tokenizer> load_tokenizer_json(const std::filesystem::path& path) {
  return parse_tokenizer_json(read_file(path, kLongestTokenizerJson), path.string());
}

}  // namespace tessera
