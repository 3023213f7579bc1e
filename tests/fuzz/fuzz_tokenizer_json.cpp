// Fuzzes tokenizer.json: what loads must encode any text and decode its own ids. The input is the file, and
// behind the first zero byte the text; without one a text that has everything is encoded.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/tokenizer/tokenizer.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  const std::string_view text =
      zero == input.npos
          ? "Hello  world's 123\r\n\t\xC3\xA9 e\xCC\x81 \xF0\x9F\x98\x80 <s> \xE2\x96\x81\xFF aaaaaaaa"
          : input.substr(zero + 1);
  try {
    const auto tokenizer = tessera::parse_tokenizer_json(input.substr(0, zero), "fuzz");
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
