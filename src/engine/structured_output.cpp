#include "tessera/structured_output.h"

#include <fmt/core.h>

#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/loaded_model.h"
#include "grammar/matcher.h"

namespace tessera {
namespace {

using grammar::Grammar;
using grammar::TokenTrie;

class GrammarConstraint final : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const Grammar> grammar) : matcher_(std::move(grammar)) {}

  bool allowed_tokens(std::span<std::uint32_t> mask) override {
    matcher_.fill_mask(mask);
    return true;
  }

  void accept(std::int32_t token) override {
    if (!matcher_.accept(token)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("token {} was drawn, which the request's grammar does not allow here", token));
    }
  }

 private:
  grammar::Matcher matcher_;
};

/// Lets any token come until `open` has; from there on a grammar's, until that has ended.
class ConstraintBehind final : public TokenConstraint {
 public:
  /// open_token: a control token that does as `open` does.
  ConstraintBehind(std::string_view open, std::optional<std::int32_t> open_token,
                   std::shared_ptr<const Grammar> grammar)
      : open_(open), open_token_(open_token), grammar_(std::move(grammar)) {}

  bool allowed_tokens(std::span<std::uint32_t> mask) override {
    if (!matcher_) return false;
    matcher_->fill_mask(mask);
    return true;
  }

  void accept(std::int32_t token) override {
    if (matcher_) {
      if (!matcher_->accept(token)) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("token {} was drawn, which may not follow \"{}\" here", token, open_));
      }
      if (matcher_->is_terminated()) matcher_.reset();
      return;
    }
    if (token == open_token_) return begin("");
    seen_ += grammar_->tokens().bytes(token);
    const std::size_t found = seen_.find(open_);
    if (found != seen_.npos) {
      const std::string behind = seen_.substr(found + open_.size());
      return begin(behind);
    }
    if (seen_.size() >= open_.size()) seen_.erase(0, seen_.size() - open_.size() + 1);
  }

 private:
  /// `behind` came in the token that completed `open`: text that doesn't fit is nothing to hold to.
  void begin(std::string_view behind) {
    seen_.clear();
    matcher_.emplace(grammar_);
    if (!matcher_->accept_text(behind) || matcher_->is_terminated()) matcher_.reset();
  }

  std::string open_;
  std::optional<std::int32_t> open_token_;
  std::shared_ptr<const Grammar> grammar_;
  std::string seen_;  // the end of the text, as far as `open` may begin in it
  std::optional<grammar::Matcher> matcher_;
};

std::shared_ptr<const TokenTrie> token_trie(const Model& model) {
  model.loaded()->require_tokenizer();
  std::vector<std::string> bytes;
  const auto count = static_cast<std::int32_t>(model.info().vocab_size);
  for (std::int32_t token = 0; token < count; ++token) bytes.push_back(model.token_bytes(token));
  return std::make_shared<const TokenTrie>(
      std::move(bytes), std::vector<std::int32_t>(model.end_tokens().begin(), model.end_tokens().end()));
}

/// Grammars kept, the last used first.
constexpr std::size_t kMostKept = 32;

}  // namespace

class StructuredOutput::Implementation {
 public:
  explicit Implementation(const Model& model) : model_(model), tokens_(token_trie(model)) {}

  const std::shared_ptr<const TokenTrie>& tokens() const { return tokens_; }

  /// The token that is all of `text` and, as control tokens do, adds nothing to an answer.
  std::optional<std::int32_t> control_token(std::string_view text) const {
    const std::vector<std::int32_t> ids = model_.encode(text, /*add_special_tokens=*/false);
    if (ids.size() != 1 || !tokens_->bytes(ids[0]).empty()) return std::nullopt;
    return ids[0];
  }

  /// The grammar of `key`, compiled unless it is kept.
  std::shared_ptr<const Grammar> find_or(const std::string& key,
                                         const std::function<std::shared_ptr<const Grammar>()>& compile) {
    {
      const std::lock_guard lock(mutex_);
      if (auto kept = take(key)) return kept;
    }
    std::shared_ptr<const Grammar> grammar = compile();  // others need not wait for it
    const std::lock_guard lock(mutex_);
    if (auto kept = take(key)) return kept;
    kept_.emplace_front(key, grammar);
    if (kept_.size() > kMostKept) kept_.pop_back();
    return grammar;
  }

 private:
  std::shared_ptr<const Grammar> take(const std::string& key) {
    for (auto entry = kept_.begin(); entry != kept_.end(); ++entry) {
      if (entry->first != key) continue;
      kept_.splice(kept_.begin(), kept_, entry);
      return entry->second;
    }
    return nullptr;
  }

  Model model_;
  std::shared_ptr<const TokenTrie> tokens_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const Grammar>>> kept_;
};

StructuredOutput::StructuredOutput(const Model& model)
    : implementation_(std::make_shared<Implementation>(model)) {}

std::shared_ptr<TokenConstraint> StructuredOutput::json_schema(std::string_view schema) const {
  return std::make_shared<GrammarConstraint>(implementation_->find_or("schema:" + std::string(schema), [&] {
    return grammar::compile_json_schema(schema, implementation_->tokens());
  }));
}

std::shared_ptr<TokenConstraint> StructuredOutput::json_between(std::string_view open,
                                                                std::string_view schema,
                                                                std::string_view close) const {
  if (open.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "open is empty; expected the text that JSON follows");
  }
  const std::string key = fmt::format("before:{}:{}{}", close.size(), close, schema);
  return std::make_shared<ConstraintBehind>(
      open, implementation_->control_token(open), implementation_->find_or(key, [&] {
        return grammar::compile_json_schema_before(close, schema, implementation_->tokens());
      }));
}

std::shared_ptr<TokenConstraint> StructuredOutput::json_object() const {
  return std::make_shared<GrammarConstraint>(implementation_->find_or(
      "object", [&] { return grammar::compile_json_object(implementation_->tokens()); }));
}

std::shared_ptr<TokenConstraint> StructuredOutput::regex(std::string_view pattern) const {
  return std::make_shared<GrammarConstraint>(implementation_->find_or("regex:" + std::string(pattern), [&] {
    return grammar::compile_regex(pattern, implementation_->tokens());
  }));
}

}  // namespace tessera
