#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/pushdown.h"
#include "grammar/token_trie.h"

namespace tessera::grammar {

/// White space between JSON's tokens.
enum class JsonSpacing {
  kCompact,  ///< none
  kReadable  ///< a space, or a new line and its indentation, where printers put them
};

/// Which tokens may come from a state on, as far as the rule that it belongs to says.
struct StateMask {
  std::vector<std::uint32_t> words;    ///< a bit a token; empty: `tokens` has them
  std::vector<std::int32_t> tokens;    ///< few of them
  std::vector<std::uint32_t> returns;  ///< nodes of the trie, with children, behind which the caller goes on
};

/// What texts may be, with the tokens of one vocabulary. Immutable; may be shared by any number of matchers
/// in any threads, which also share the masks that they have made.
class Grammar {
 public:
  Grammar(Pushdown pushdown, std::shared_ptr<const TokenTrie> tokens);

  const Pushdown& pushdown() const { return pushdown_; }
  const TokenTrie& tokens() const { return *tokens_; }

  /// The mask of a state, or null if it is not made yet; and takes one that was made.
  std::shared_ptr<const StateMask> find_mask(StateId state) const;
  void keep_mask(StateId state, std::shared_ptr<const StateMask> mask) const;

 private:
  static constexpr std::size_t kMaskMemory = std::size_t{64}
                                             << 20;  // beyond it masks are made again each time

  Pushdown pushdown_;
  std::shared_ptr<const TokenTrie> tokens_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<StateId, std::shared_ptr<const StateMask>> masks_;
  mutable std::size_t mask_bytes_ = 0;
};

/// JSON that fits a schema: docs/structured_output.md says which keywords are understood. Throws
/// Error{kInvalidArgument} for text that is no schema, or that nothing fits, and Error{kUnsupported} with
/// keyword and path for what can't be guaranteed, or is too large.
std::shared_ptr<const Grammar> compile_json_schema(std::string_view schema,
                                                   std::shared_ptr<const TokenTrie> tokens,
                                                   JsonSpacing spacing = JsonSpacing::kReadable);

/// The same and then `close`; before and behind the JSON a space or a new line may stand.
std::shared_ptr<const Grammar> compile_json_schema_before(std::string_view close, std::string_view schema,
                                                          std::shared_ptr<const TokenTrie> tokens,
                                                          JsonSpacing spacing = JsonSpacing::kReadable);

/// Any JSON object, as OpenAI's response format "json_object".
std::shared_ptr<const Grammar> compile_json_object(std::shared_ptr<const TokenTrie> tokens,
                                                   JsonSpacing spacing = JsonSpacing::kReadable);

/// Texts that match the whole of `pattern` (regex_syntax.h). Throws like parse_regex, and
/// Error{kInvalidArgument} if none does.
std::shared_ptr<const Grammar> compile_regex(std::string_view pattern,
                                             std::shared_ptr<const TokenTrie> tokens);

}  // namespace tessera::grammar
