#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::grammar {

/// A model's tokens as bytes, and the same as a trie: what grammars are matched against. Immutable; one a
/// model, shared by all grammars.
class TokenTrie {
 public:
  /// A node in depth-first order; its subtree is the nodes from it up to `end`.
  struct Node {
    std::uint32_t end = 0;
    std::int32_t token = -1;  ///< the first that ends here, or -1
    std::uint16_t depth = 0;  ///< bytes from the root, whose depth is 0
    std::uint8_t byte = 0;    ///< the last of them
  };
  /// Tokens that are longer can't be drawn while a grammar is on.
  static constexpr std::size_t kMaxTokenBytes = 4096;

  /// token_bytes[i] is what token i adds to the text; empty: the token is none of text (special tokens, ids
  /// without a token), and comes in no grammar. `end_tokens` end a text.
  TokenTrie(std::vector<std::string> token_bytes, std::vector<std::int32_t> end_tokens);

  std::size_t vocab_size() const { return token_bytes_.size(); }
  std::size_t mask_words() const { return (token_bytes_.size() + 31) / 32; }
  std::string_view bytes(std::int32_t token) const { return token_bytes_[static_cast<std::size_t>(token)]; }
  std::span<const std::int32_t> end_tokens() const { return end_tokens_; }
  bool is_end(std::int32_t token) const;

  std::span<const Node> nodes() const { return nodes_; }
  /// Calls body(token) for all tokens that end at a node.
  template <class Body>
  void for_each_token(const Node& node, Body&& body) const {
    for (std::int32_t token = node.token; token >= 0; token = same_bytes_[static_cast<std::size_t>(token)])
      body(token);
  }
  std::size_t max_token_bytes() const { return max_token_bytes_; }

 private:
  std::vector<std::string> token_bytes_;
  std::vector<std::int32_t> end_tokens_;
  std::vector<Node> nodes_;               // [0]: the root
  std::vector<std::int32_t> same_bytes_;  // the next token with the same bytes, or -1
  std::size_t max_token_bytes_ = 0;
};

}  // namespace tessera::grammar
