#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenizers {

/// What a name in GGUF's tokenizer.ggml.pre stands for: what the models' own tokenizer.json files have, or
/// what llama.cpp takes it for.
struct PreTokenizerKind {
  std::vector<std::string_view> names;     ///< the first is the one that is written
  std::vector<std::string_view> patterns;  ///< each splits what the one before left
  bool normalize_nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  ///< unless the file says otherwise
};

/// The kind of that name. Throws Error{kUnsupported} naming `source` and the known names.
const PreTokenizerKind& pre_tokenizer_kind(std::string_view name, const std::string& source);

/// The kind that splits texts so, null if there is none.
const PreTokenizerKind* find_pre_tokenizer_kind(std::span<const std::string> patterns, bool normalize_nfc,
                                                bool ignore_merges);

/// The kinds' first names, "gpt-2, llama-bpe, ...".
std::string pre_tokenizer_names();

}  // namespace tessera::tokenizers
