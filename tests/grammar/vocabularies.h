#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grammar/token_trie.h"

namespace tessera::testing {

inline constexpr std::int32_t kEndToken = 0;

/// Token 0 ends a text; all single bytes follow, and some longer tokens as vocabularies have them: across
/// JSON's punctuation, parts of characters, spaces, and one that two ids spell.
inline std::shared_ptr<const grammar::TokenTrie> small_vocabulary() {
  std::vector<std::string> tokens = {""};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* text :
       {"{\"",         "\":",  "\",\"", "\"}",   "\"]",      "},{\"",  "\": \"",   "\": ",    "\", ", "true",
        "false",       "null", "}]",    "[[",    "]]",       "1234",   "0.",       "-1",      "12",   "e+",
        "\\\"",        "\\n",  "\\u",   "\\u00", "\xe2\x82", "\xac\"", "\xc3\xa9", "\xc3",    "name", " name",
        "na",          "the",  " the",  "  ",    "    ",     "\n",     "\n\n",     "\n  ",    ", ",   ",\"",
        ": ",          "abc",  "ab",    "ab",    "a\"",      "red",    "green",    "\"red\"", "\"a",  "{}",
        "[]",          "[1",   "1,",    ",1",    "-0",       ".5",     "2024",     "-02",     "-29",  "T12",
        "ab\",\"ab\"", "}}",   "}}}",   "\"\"",  "\":{\"",   "\":[",   "😀",        "日本"}) {
    tokens.push_back(text);
  }
  tokens.push_back("");  // an id that is no text
  return std::make_shared<const grammar::TokenTrie>(std::move(tokens), std::vector<std::int32_t>{kEndToken});
}

}  // namespace tessera::testing
