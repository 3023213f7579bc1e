#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"

namespace tessera {

class Tokenizer;

/// What a checkpoint says about conversations.
struct ChatTemplateData {
  /// Jinja sources by name; "default" is the one that is taken if none is asked for.
  std::map<std::string, std::string, std::less<>> templates;
  /// Special tokens by the names that templates know them by: "bos_token", "eos_token", …
  std::map<std::string, std::string, std::less<>> special_tokens;
  std::string source;  ///< the folder or file, for errors
};

/// A conversation to be written as a model was trained to read it. Everything is JSON, as in OpenAI's API.
struct ChatRequest {
  std::string messages = "[]";  ///< objects with "role" and "content", and whatever else the template knows
  std::string tools;            ///< a list of tools; empty: none
  std::string variables;        ///< an object with further variables of the template; empty: none
  bool add_generation_prompt = true;  ///< end where the assistant's next message begins
  std::string template_name;  ///< empty: "tool_use" if there are tools and such a template, else "default"
};

/// A rendered conversation.
struct ChatText {
  std::string text;
  std::vector<TextRange> foreign;  ///< what came from the request's strings: it must not make control tokens
  std::string literals;            ///< all text that the template itself holds
};

/// Renders `request`. Strings of the request are foreign, but for the usual names of roles, of which
/// templates make control tokens ("<|user|>"). Reasoning is handed over under all of its names
/// ("reasoning_content", "thinking", "reasoning"), as transformers does. Throws Error{kUnsupported} if there
/// is no such template; Error{kInvalidArgument} for a request that is no JSON of this form; and like
/// jinja::Template, with the template's line.
ChatText render_chat(const ChatTemplateData& data, const ChatRequest& request);

/// Tokens of a rendered conversation: control tokens are found in the template's text alone.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& chat);

}  // namespace tessera
