#include "model/tokenizer/gguf_pre_tokenizers.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/text.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "tessera/error.h"

namespace tessera::tokenizers {
namespace {

const std::vector<PreTokenizerKind>& pre_tokenizer_kinds() {
  static const std::vector<PreTokenizerKind> kinds = {
      {{"gpt-2", "gpt2", "mpt", "olmo", "jais", "mellum", "trillion", "a.x-4.0", "exaone4"}, {kGpt2Pattern}},
      // What files without the key are read with.
      {{"default", ""}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "midm-2.0", "pixtral", "lfm2"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       false,
       true,
       true},
      {{"smaug-bpe", "dbrx", "glm4", "chatglm-bpe"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {{"qwen2", "stablelm2"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       true},
      {{"qwen35"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       true},
      {{"deepseek-r1-qwen"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
        R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {{"seed-coder"},
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+)"
        R"(|\s+(?!\S)|\s+)"}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b", "exaone"},
       {R"(\p{N})", kGpt2Pattern}},
      {{"tekken"},
       {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
        R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       false,
       true,
       true},
      {{"gpt-4o", "llama4"},
       {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {{"deepseek-v3", "hunyuan-dense"},
       {R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
        R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
  };
  return kinds;
}

}  // namespace

const PreTokenizerKind& pre_tokenizer_kind(std::string_view name, const std::string& source) {
  std::string known;
  for (const PreTokenizerKind& kind : pre_tokenizer_kinds()) {
    if (std::find(kind.names.begin(), kind.names.end(), name) != kind.names.end()) return kind;
    for (const std::string_view other : kind.names)
      if (!other.empty()) known += (known.empty() ? "" : ", ") + std::string(other);
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: tokenizer.ggml.pre is \"{}\", which is not supported; supported are {}",
                          source, printable(name), known));
}

const PreTokenizerKind* find_pre_tokenizer_kind(std::span<const std::string> patterns, bool normalize_nfc,
                                                bool ignore_merges) {
  const auto& kinds = pre_tokenizer_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const PreTokenizerKind& kind) {
    return kind.normalize_nfc == normalize_nfc && kind.ignore_merges == ignore_merges &&
           std::equal(kind.patterns.begin(), kind.patterns.end(), patterns.begin(), patterns.end());
  });
  return found == kinds.end() ? nullptr : &*found;
}

std::string pre_tokenizer_names() {
  std::string names;
  for (const PreTokenizerKind& kind : pre_tokenizer_kinds())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.names.front());
  return names;
}

}  // namespace tessera::tokenizers
