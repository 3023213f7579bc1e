// Decoding of single tokens.
#include "model/tokenizer/token_decoder.h"

#include <fmt/core.h>

#include <optional>

#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/normalizer.h"
#include "tessera/error.h"

namespace tessera::tokenizers {
namespace {

/// The byte that a token like <0x0A> stands for.
std::optional<char> fallback_byte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int byte = 0;
  for (const char c : text.substr(3, 2)) {
    if (c >= '0' && c <= '9')
      byte = 16 * byte + (c - '0');
    else if (c >= 'A' && c <= 'F')
      byte = 16 * byte + (c - 'A') + 10;
    else if (c >= 'a' && c <= 'f')
      byte = 16 * byte + (c - 'a') + 10;
    else
      return std::nullopt;
  }
  return static_cast<char>(static_cast<unsigned char>(byte));
}

}  // namespace

std::string TokenDecoder::decode(std::string_view text, bool first, WorkBudget& budget) const {
  std::string out(text);
  for (const Step& step : steps) {
    out = step(std::move(out), first, budget);
    if (out.size() > Normalizer::kMaxGrowth * text.size() + Normalizer::kFreeGrowth)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: the decoder makes a token of {} bytes more than {} times longer",
                              budget.source(), text.size(), Normalizer::kMaxGrowth));
  }
  if (byte_fallback) {
    if (const auto byte = fallback_byte(out)) out = std::string(1, *byte);
  }
  if (byte_level) {
    if (auto bytes = byte_level::decode(out)) out = std::move(*bytes);
  }
  if (first && !stripped_at_start.empty() && out.starts_with(stripped_at_start))
    out.erase(0, stripped_at_start.size());
  if (!first) out.insert(0, separator);
  return out;
}

TokenDecoder::Step strip_token_step(std::string content, std::size_t start, std::size_t stop) {
  return [content = std::move(content), start, stop](std::string text, bool, WorkBudget&) {
    std::size_t begin = 0, end = text.size();
    for (std::size_t i = 0; i < start && text.compare(begin, content.size(), content) == 0; ++i)
      begin += content.size();
    for (std::size_t i = 0; i < stop && end - begin >= content.size() &&
                            text.compare(end - content.size(), content.size(), content) == 0;
         ++i)
      end -= content.size();
    return text.substr(begin, end - begin);
  };
}

TokenDecoder::Step metaspace_token_step(std::string replacement, bool drop_first) {
  return [replacement = std::move(replacement), drop_first](std::string text, bool first, WorkBudget&) {
    std::string out;
    std::size_t done = 0;
    for (std::size_t at = text.find(replacement); at != text.npos; at = text.find(replacement, done)) {
      out += text.substr(done, at - done);
      if (!(first && drop_first)) out += ' ';
      done = at + replacement.size();
    }
    out += text.substr(done);
    return out;
  };
}

}  // namespace tessera::tokenizers
