// Any text as a JSON schema, or behind a first byte 'r' as a regular expression: an Error, or a grammar whose
// masks are never empty and allow what they say.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/matcher.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::grammar;
  static const auto tokens = [] {
    std::vector<std::string> bytes = {""};
    for (int byte = 0; byte < 256; ++byte) bytes.push_back(std::string(1, static_cast<char>(byte)));
    for (const char* text : {"{\"", "\":", "\",\"", "\"}", "true", "12", "\xc3\xa9", "ab", "}]"})
      bytes.push_back(text);
    return std::make_shared<const TokenTrie>(bytes, std::vector<std::int32_t>{0});
  }();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.size() > 4096) return 0;
  try {
    const auto compiled =
        text.starts_with('r') ? compile_regex(text.substr(1), tokens) : compile_json_schema(text, tokens);
    Matcher matcher(compiled);
    std::vector<std::uint32_t> mask(tokens->mask_words());
    std::uint32_t random = static_cast<std::uint32_t>(size);
    for (int step = 0; step < 24 && !matcher.is_terminated(); ++step) {
      matcher.fill_mask(mask);
      std::vector<std::int32_t> allowed;
      for (std::size_t token = 0; token < tokens->vocab_size(); ++token) {
        if (mask[token / 32] >> (token % 32) & 1) allowed.push_back(static_cast<std::int32_t>(token));
      }
      if (allowed.empty()) std::abort();
      random = random * 1664525 + 1013904223;
      if (!matcher.accept(allowed[(random >> 8) % allowed.size()])) std::abort();
    }
  } catch (const tessera::Error&) {
  }
  return 0;
}
