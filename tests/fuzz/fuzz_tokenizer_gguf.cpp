// Fuzzes tokenizers from GGUF metadata. The input's lines are fields: "m" model, "p" pre-tokenizer, "t" a
// token with its type and score ("t1 -2.5 text"), "g" a merge, "b", "e", "u" special ids, "o" options, and
// "x" the text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "model/tokenizer/tokenizer.h"
#include "tessera/error.h"

namespace {

tessera::TokenId read_id(std::string_view line) {
  return static_cast<tessera::TokenId>(std::strtol(std::string(line).c_str(), nullptr, 10));
}

void add_token(std::string_view line, tessera::GgufTokenizerData& data) {
  const std::string text(line);
  char* end = nullptr;
  data.token_types.push_back(static_cast<std::int32_t>(std::strtol(text.c_str(), &end, 10)));
  data.scores.push_back(std::strtof(end, &end));
  data.tokens.emplace_back(*end == '\0' ? end : end + 1);
}

void read_line(std::string_view line, tessera::GgufTokenizerData& data, std::string& text) {
  if (line.empty()) return;
  const std::string_view rest = line.substr(1);
  switch (line[0]) {
    case 'm':
      data.model = rest;
      break;
    case 'p':
      data.pre = rest;
      break;
    case 't':
      add_token(rest, data);
      break;
    case 'g':
      data.merges.emplace_back(rest);
      break;
    case 'b':
      data.bos_token_id = read_id(rest);
      break;
    case 'e':
      data.eos_token_id = read_id(rest);
      break;
    case 'u':
      data.unknown_token_id = read_id(rest);
      break;
    case 'o':
      data.add_bos_token = rest.find('b') != rest.npos;
      data.add_eos_token = rest.find('e') != rest.npos;
      data.add_space_prefix = rest.find('s') != rest.npos;
      if (rest.find('t') != rest.npos) data.token_types.clear();
      break;
    default:
      text += rest;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(bytes), size);
  tessera::GgufTokenizerData data;
  std::string text;
  while (!input.empty()) {
    const std::size_t end = std::min(input.find('\n'), input.size());
    read_line(input.substr(0, end), data, text);
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  try {
    const auto tokenizer = tessera::make_gguf_tokenizer(data, "fuzz");
    for (const bool special : {true, false}) {
      const auto ids =
          tokenizer->encode(text, {.add_special_tokens = special, .parse_special_tokens = special});
      const std::string decoded = tokenizer->decode(ids, special);
      tessera::StreamDecoder stream(*tokenizer, special);
      std::string streamed;
      for (const tessera::TokenId id : ids) streamed += stream.push(id);
      if (streamed + stream.finish() != decoded) __builtin_trap();
    }
  } catch (const tessera::Error&) {
  }
  return 0;
}
