#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/stop_strings.h"
#include "model/tokenizer/tokenizer.h"

namespace tessera {

/// Whether what goes on from `prompt` begins a text of its own: behind a control token. Elsewhere it is the
/// prompt's text that goes on, spaces included.
bool opens_text(const Tokenizer* tokenizer, std::span<const std::int32_t> prompt);

/// The text of a sequence's new tokens, as it may be given out: whole characters, and nothing that may yet
/// become a stop string.
class TextOutput {
 public:
  /// Without a tokenizer there is no text. opens_text: as StreamDecoder has it. Throws
  /// Error{kInvalidArgument} if there are stop strings without a tokenizer, and like StopStrings.
  TextOutput(const Tokenizer* tokenizer, std::vector<std::string> stop, bool opens_text);

  /// What is certain now that `token` is drawn. is_last: nothing comes after it.
  std::string push(std::int32_t token, bool is_last);
  /// What is left when the text ends without another token.
  std::string finish();
  /// Whether a stop string was found.
  bool stopped() const { return stop_.stopped(); }

 private:
  const Tokenizer* tokenizer_;
  std::optional<StreamDecoder> decoder_;
  StopStrings stop_;
};

}  // namespace tessera
