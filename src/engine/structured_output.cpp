#include "tessera/structured_output.h"

#include <fmt/core.h>

#include <functional>
#include <list>
#include <mutex>
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
  explicit Implementation(const Model& model) : tokens_(token_trie(model)) {}

  const std::shared_ptr<const TokenTrie>& tokens() const { return tokens_; }

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
