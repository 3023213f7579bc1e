// Writes what a tokenizer.json says as GGUF's metadata.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/gguf_pre_tokenizers.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/sentencepiece_tokenizer.h"
#include "model/tokenizer/tokenizer_json_lists.h"
#include "model/tokenizer/unicode.h"
#include "tessera/error.h"

namespace tessera {
namespace tokenizers {
namespace {

using unicode::kSpaceSymbol;

/// A text that pre-tokenizers, normalizers and merges treat in different ways.
constexpr std::string_view kProbe =
    "The heron's nest isn't far: THEY'LL see 12345 herons (or 3.14), naïve café, e\u0301te\u0301\n\n"
    "  two  spaces\tand a tab \r\n東京の雨 и ещё, \u1112\u1161\u11ab 🙂🚀 $100% <b>x_1+=y;</b>   "
    "end ";

/// The steps of a component, those of sequences in sequences, too.
void append_steps(const JsonField& field, const char* list_name, std::vector<JsonField>& steps) {
  if (field.type() != "Sequence") return steps.push_back(field);
  for (const JsonField& element : field.at(list_name).elements()) append_steps(element, list_name, steps);
}

std::vector<JsonField> steps_of(const JsonField& root, const char* name, const char* list_name) {
  std::vector<JsonField> steps;
  if (const auto field = root.find(name)) append_steps(*field, list_name, steps);
  return steps;
}

class FormWriter {
 public:
  FormWriter(const JsonField& root, TokenizerLists& lists, const Tokenizer& tokenizer,
             std::int64_t vocab_size, bool lists_merges)
      : root_(root),
        model_(root.at("model")),
        lists_(lists),
        tokenizer_(tokenizer),
        vocab_size_(vocab_size),
        lists_merges_(lists_merges),
        normalizers_(steps_of(root, "normalizer", "normalizers")),
        pre_tokenizers_(steps_of(root, "pre_tokenizer", "pretokenizers")) {}

  GgufTokenizerForm write() {
    const bool is_byte_level = std::any_of(pre_tokenizers_.begin(), pre_tokenizers_.end(),
                                           [](const JsonField& step) { return step.type() == "ByteLevel"; });
    form_.is_complete = true;
    data_.model = is_byte_level ? "gpt2" : lists_merges_ ? "gemma4" : "llama";
    if (const auto unknown = model_.find("unk_token"))
      data_.unknown_token_id = tokenizer_.find_token(unknown->string());
    read_added_tokens();
    list_tokens();
    if (is_byte_level)
      write_byte_level();
    else
      write_sentencepiece();
    read_frame();
    check();
    return std::move(form_);
  }

 private:
  // ---- tokens ----

  void read_added_tokens() {
    for (const AddedToken& token : lists_.added_tokens()) {
      if (token.content.empty()) continue;
      const auto id = tokenizer_.find_token(token.content);
      if (!id) continue;
      added_.insert_or_assign(*id, token);
      if (token.single_word || token.lstrip || token.rstrip) form_.is_complete = false;
      if (token.normalized && !normalizers_.empty() && !is_ascii(token.content)) form_.is_complete = false;
    }
  }

  static bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  }

  void list_tokens() {
    for (std::int64_t i = vocab_size_; i < tokenizer_.vocab_size(); ++i) {
      const auto id = static_cast<TokenId>(i);
      if (added_.contains(id)) {  // such as a padding token that no row was added for
        form_.is_complete = false;
      } else if (tokenizer_.contains(id)) {
        root_.unsupported(
            fmt::format("the token {} has id {}, but the model has {} tokens; a GGUF file has "
                        "no place for more",
                        quote(tokenizer_.token_text(id)), i, vocab_size_));
      }
    }
    for (std::int64_t i = 0; i < vocab_size_; ++i) {
      const auto id = static_cast<TokenId>(i);
      const bool has_token = tokenizer_.contains(id);
      data_.tokens.push_back(has_token ? std::string(tokenizer_.token_text(id)) : gguf_padding_token(id));
      if (!has_token && tokenizer_.find_token(data_.tokens.back()))
        root_.unsupported(
            fmt::format("the id {} has no token, and the name that GGUF files give it, {}, is "
                        "another token's",
                        i, quote(data_.tokens.back())));
      data_.token_types.push_back(static_cast<std::int32_t>(has_token ? type_of(id) : PieceType::kUnused));
    }
  }

  PieceType type_of(TokenId id) const {
    const bool is_pieces = data_.model != "gpt2";
    if (is_pieces && id == data_.unknown_token_id) return PieceType::kUnknown;
    const auto added = added_.find(id);
    if (added != added_.end()) return added->second.special ? PieceType::kControl : PieceType::kUserDefined;
    return is_pieces && is_byte(tokenizer_.token_text(id)) ? PieceType::kByte : PieceType::kNormal;
  }

  static bool is_byte(std::string_view text) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    return text.size() == 6 && text.starts_with("<0x") && text[5] == '>' &&
           kDigits.find(text[3]) != kDigits.npos && kDigits.find(text[4]) != kDigits.npos;
  }

  // ---- byte-level BPE ----

  void write_byte_level() {
    const bool has_all_bytes = [&] {
      for (int byte = 0; byte < 256; ++byte)
        if (!tokenizer_.find_token(byte_level::character(static_cast<std::uint8_t>(byte)))) return false;
      return true;
    }();
    for (const char* option : {"fuse_unk", "byte_fallback"})
      if (model_.boolean_or(option, false) && !has_all_bytes)
        model_.unsupported(
            fmt::format("\"{}\" together with bytes that have no token is nothing that a GGUF "
                        "file can say",
                        option));
    data_.pre = pre_tokenizer_name();
    list_merges();
  }

  void list_merges() {
    const TextList& parts = lists_.merge_parts();
    for (std::size_t i = 0; i < parts.size() / 2; ++i) {
      const std::string_view left = parts[2 * i], right = parts[2 * i + 1];
      if (left.find(' ') != left.npos || right.find(' ') != right.npos)
        model_.unsupported(
            fmt::format("merges: entry {} has a space in a token, which GGUF files put between "
                        "tokens",
                        lists_.merge_entry(i)));
      data_.merges.push_back(fmt::format("{} {}", left, right));
    }
  }

  std::string pre_tokenizer_name() const {
    for (const JsonField& step : normalizers_)
      if (step.type() != "NFC")
        step.unsupported(
            fmt::format("a GGUF file of byte-level BPE can't say that a text passes {}; it can "
                        "say NFC",
                        quote(step.type())));
    std::vector<std::string> patterns;
    for (const JsonField& step : pre_tokenizers_) {
      const std::string& type = step.type();
      if (type == "Split") {
        const auto pattern = step.at("pattern").find("Regex");
        const bool isolates = step.at("behavior").string() == "Isolated" && !step.boolean_or("invert", false);
        if (!pattern || !isolates) step.unsupported(no_name());
        patterns.push_back(pattern->string());
      } else if (type == "Digits") {
        if (!step.boolean_or("individual_digits", false)) step.unsupported(no_name());
        patterns.emplace_back(R"(\p{N})");
      } else if (type == "ByteLevel") {
        if (step.boolean_or("add_prefix_space", true))
          step.unsupported("\"add_prefix_space\" is nothing that a GGUF file can say of byte-level BPE");
        if (step.boolean_or("use_regex", true)) patterns.emplace_back(kGpt2Pattern);
      } else {
        step.unsupported(no_name());
      }
    }
    const PreTokenizerKind* kind =
        find_pre_tokenizer_kind(patterns, !normalizers_.empty(), model_.boolean_or("ignore_merges", false));
    if (kind == nullptr) root_.at("pre_tokenizer").unsupported(no_name());
    return std::string(kind->names.front());
  }

  static std::string no_name() {
    return fmt::format(
        "GGUF files name pre-tokenizers, and this is (with the normalizer and "
        "\"ignore_merges\" of this file) none of those known here: {}",
        pre_tokenizer_names());
  }

  // ---- SentencePiece ----

  void write_sentencepiece() {
    if (!model_.boolean_or("byte_fallback", false))
      model_.unsupported("is neither byte-level BPE nor has it \"byte_fallback\"; GGUF files hold these two");
    if (model_.boolean_or("ignore_merges", false))
      model_.unsupported(
          "\"ignore_merges\" is nothing that a GGUF file can say of a model with byte fallback");
    for (int byte = 0; byte < 256; ++byte)
      if (const std::string token = fmt::format("<0x{:02X}>", byte); !tokenizer_.find_token(token))
        model_.unsupported(fmt::format("the token {} is missing, which \"byte_fallback\" needs", token));
    data_.pre = lists_merges_ ? "gemma4" : "default";
    data_.add_space_prefix = read_spaces();
    if (lists_merges_) {
      if (*data_.add_space_prefix)
        model_.unsupported("a space before texts is nothing that a GGUF file of a list of merges can say");
      list_merges();
    } else {
      write_scores();
    }
    for (const auto& [id, token] : added_) {
      // SentencePiece finds these once spaces are symbols, and puts a space before the whole text only.
      const bool is_found_alike = token.content.find(kSpaceSymbol) == std::string::npos;
      if (!token.special && (*data_.add_space_prefix || !is_found_alike)) form_.is_complete = false;
      if (token.normalized && !normalizers_.empty()) form_.is_complete = false;
    }
  }

  /// Whether a space is put before texts.
  bool read_spaces() {
    bool prefix = false, replaced = false;
    for (const JsonField& step : normalizers_) {
      const std::string& type = step.type();
      if (type == "Prepend" && !prefix && !replaced && step.at("prepend").string() == kSpaceSymbol) {
        prefix = true;
      } else if (type == "Replace" && !replaced && step.at("content").string() == kSpaceSymbol &&
                 step.at("pattern").find("String") && step.at("pattern").at("String").string() == " ") {
        replaced = true;
      } else {
        step.unsupported(
            fmt::format("a GGUF file of a model with byte fallback can't say that a text passes "
                        "this {}; it can say that U+2581 is put before it and replaces spaces",
                        quote(type)));
      }
    }
    for (const JsonField& step : pre_tokenizers_) {
      if (replaced && splits_at_spaces(step)) continue;  // of which there are none by then
      if (step.type() != "Metaspace" || replaced || prefix || step.at("replacement").string() != kSpaceSymbol)
        step.unsupported(
            fmt::format("a GGUF file of a model with byte fallback can't say that texts are split "
                        "by this {}",
                        quote(step.type())));
      if (step.boolean_or("split", true) && has_space_inside())
        step.unsupported("splits at spaces that tokens span, which a GGUF file can't say");
      replaced = true;
      const auto scheme = step.find("prepend_scheme");
      prefix = scheme ? scheme->string() != "never" : step.boolean_or("add_prefix_space", true);
      if (prefix) form_.is_complete = false;  // not before a text that begins with one
    }
    if (!replaced) model_.unsupported("spaces are not replaced by U+2581, as GGUF files demand");
    return prefix;
  }

  static bool splits_at_spaces(const JsonField& step) {
    if (step.type() != "Split" || step.boolean_or("invert", false)) return false;
    const auto pattern = step.at("pattern").find("String");
    return pattern && pattern->string() == " ";
  }

  bool has_space_inside() const {
    for (std::size_t i = 0; i < data_.tokens.size(); ++i)
      if (is_piece(i) && unicode::next_word_start(data_.tokens[i], 0) < data_.tokens[i].size()) return true;
    return false;
  }

  bool is_piece(std::size_t id) const {
    return data_.token_types[id] == static_cast<std::int32_t>(PieceType::kNormal);
  }
  bool is_symbol(std::string_view text) const {
    if (unicode::utf8_length(text[0]) == text.size()) return true;
    const auto id = tokenizer_.find_token(text);
    return id && is_piece(static_cast<std::size_t>(*id));
  }

  /// SentencePiece joins any two symbols whose text is a piece, of several the pair whose piece has the
  /// highest score, of those the leftmost. Merges say the same if they list every such pair, piece by piece.
  void write_scores() {
    const JsonField merges = model_.at("merges");
    const TextList& parts = lists_.merge_parts();
    data_.scores.assign(data_.tokens.size(), 0);
    std::vector<std::size_t> num_merges(data_.tokens.size());
    std::size_t num_made = 0, before = data_.tokens.size();
    std::string joined;
    for (std::size_t i = 0; i < parts.size() / 2; ++i) {
      joined = parts[2 * i];
      joined += parts[2 * i + 1];
      const auto id = static_cast<std::size_t>(*tokenizer_.find_token(joined));
      const auto fail = [&](const char* what) {
        merges.unsupported(
            fmt::format("entry {} makes the token {}, {}; GGUF's scores of tokens can't say that",
                        lists_.merge_entry(i), quote(joined), what));
      };
      if (!is_piece(id)) fail("which is an added one");
      if (id != before && num_merges[id] != 0) fail("as an earlier one did before merges of other tokens");
      if (num_merges[id]++ == 0) data_.scores[id] = -static_cast<float>(num_made++);
      before = id;
    }
    for (std::size_t id = 0; id < data_.tokens.size(); ++id) {
      if (!is_piece(id)) continue;
      const std::string& text = data_.tokens[id];
      if (text.size() > kLongestPiece)
        model_.unsupported(fmt::format("the token {} has {} bytes; at most {} are supported", quote(text),
                                       text.size(), kLongestPiece));
      std::size_t num_pairs = 0;
      for (std::size_t at = 0; at < text.size();) {
        at += unicode::utf8_length(text[at]);
        const std::string_view left = std::string_view(text).substr(0, at),
                               right = std::string_view(text).substr(at);
        num_pairs += !right.empty() && is_symbol(left) && is_symbol(right);
      }
      if (num_pairs != num_merges[id])
        merges.unsupported(
            fmt::format("{} pairs make the token {}, of {} that could; GGUF's scores of tokens "
                        "can't say that",
                        num_merges[id], quote(text), num_pairs));
      if (num_pairs == 0) data_.scores[id] = -static_cast<float>(num_made);
    }
  }

  // ---- what is put around texts ----

  void read_frame() {
    const EncodeOptions plain{.add_special_tokens = false};
    const std::vector<TokenId> inner = tokenizer_.encode("a", plain), framed = tokenizer_.encode("a");
    const auto begin = std::search(framed.begin() + (tokenizer_.bos_token_id() ? 1 : 0), framed.end(),
                                   inner.begin(), inner.end());
    const auto read = [&](auto first, auto last, const char* where, std::optional<TokenId>& id) {
      if (last - first > 1)
        root_.at("post_processor")
            .unsupported(
                fmt::format("puts {} tokens {} a text; a GGUF file can name one", last - first, where));
      if (first == last) return false;
      if (*first >= vocab_size_)
        root_.unsupported(
            fmt::format("the token {}, which is put {} a text, has id {}, but the model has {} tokens",
                        quote(tokenizer_.token_text(*first)), where, *first, vocab_size_));
      id = *first;
      return true;
    };
    data_.add_bos_token = read(framed.begin(), begin, "before", data_.bos_token_id);
    data_.add_eos_token =
        read(begin + static_cast<std::ptrdiff_t>(inner.size()), framed.end(), "behind", data_.eos_token_id);
  }

  // ---- the whole ----

  /// Compares what was written with what it was written from: nothing that was overlooked above may pass.
  void check() {
    const auto written = make_gguf_tokenizer(data_, root_.where());
    const EncodeOptions plain{.add_special_tokens = false};
    if (written->encode(kProbe, plain) != tokenizer_.encode(kProbe, plain))
      root_.unsupported("a GGUF file's metadata would split texts into other tokens");
    for (std::int64_t i = 0; i < vocab_size_; ++i) {
      const auto id = static_cast<TokenId>(i);
      if (!tokenizer_.contains(id)) continue;
      const bool is_alike = written->is_special(id) == tokenizer_.is_special(id) &&
                            spelling(*written, id, false) == spelling(tokenizer_, id, false);
      if (!is_alike && !added_.contains(id))
        root_.unsupported(fmt::format("a GGUF file's metadata would spell the token {} in another way",
                                      quote(tokenizer_.token_text(id))));
      // No text's tokens begin with the byte of a space.
      const bool opens_texts =
          data_.token_types[static_cast<std::size_t>(i)] != static_cast<std::int32_t>(PieceType::kByte);
      const bool opens_alike = spelling(*written, id, true) == spelling(tokenizer_, id, true);
      if (!is_alike || (opens_texts && !opens_alike)) form_.is_complete = false;
    }
  }

  static std::string spelling(const Tokenizer& tokenizer, TokenId id, bool first) {
    std::string bytes;
    tokenizer.append_token_bytes(id, first, /*skip_special_tokens=*/false, bytes);
    return bytes;
  }

  const JsonField& root_;
  const JsonField model_;
  TokenizerLists& lists_;
  const Tokenizer& tokenizer_;
  const std::int64_t vocab_size_;
  const bool lists_merges_;
  const std::vector<JsonField> normalizers_, pre_tokenizers_;
  std::map<TokenId, AddedToken> added_;
  GgufTokenizerForm form_;
  GgufTokenizerData& data_ = form_.data;
};

}  // namespace
}  // namespace tokenizers

std::string gguf_padding_token(TokenId id) { return fmt::format("[PAD{}]", id); }

GgufTokenizerForm gguf_tokenizer_form(std::string_view json, const std::string& source,
                                      const Tokenizer& tokenizer, std::int64_t vocab_size,
                                      bool lists_merges) {
  using namespace tokenizers;
  TokenizerLists lists(source);
  const nlohmann::json document = parse_tokenizer_document(json, source, lists);
  const JsonField root(document, "", source);
  return FormWriter(root, lists, tokenizer, vocab_size, lists_merges).write();
}

}  // namespace tessera
