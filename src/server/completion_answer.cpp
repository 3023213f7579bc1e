#include "server/completion_answer.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "server/fields.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

namespace {

/// As OpenAI's API has it: -inf is no JSON.
double finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

const char* finish_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kMaxTokens:
    case StopReason::kContextFull:
      return "length";
    default:
      return "stop";
  }
}

json tool_calls_json(const std::vector<ToolCall>& calls, const std::string& id, int choice, bool with_index) {
  json list = json::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    json call = json::object();
    if (with_index) call["index"] = i;
    call["id"] = fmt::format("call_{}_{}_{}", id.substr(id.find('-') + 1), choice, i);
    call["type"] = "function";
    call["function"] = {{"name", calls[i].name}, {"arguments", calls[i].arguments}};
    list.push_back(std::move(call));
  }
  return list;
}

/// A token as /v1/completions writes it; as OpenAI's does where its bytes are no text by themselves. U+FFFD
/// for all of those would be one key of a list of the likeliest for several tokens.
std::string token_name(const std::string& bytes) {
  if (is_valid_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

}  // namespace

void CharacterCount::add(std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    const bool continues = (byte & 0xc0) == 0x80;
    if (continues && missing_bytes > 0) {
      --missing_bytes;
      continue;
    }
    ++characters;
    missing_bytes = continues || byte < 0xc2 || byte > 0xf4 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  }
}

std::string json_string(const std::string& text) { return dump(json(text)); }

ApiError api_error(ErrorCode code, const std::string& message) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return {400, "invalid_request_error", message, "", ""};
    case ErrorCode::kUnsupported:
      return {400, "invalid_request_error", message, "", "unsupported"};
    default:
      return {500, "server_error", message, "", ""};
  }
}

std::string error_event(const ApiError& error) { return "data: " + error.body() + "\n\n"; }

CompletionAnswer::CompletionAnswer(std::shared_ptr<const CompletionCall> call, Identity identity,
                                   int num_choices, std::function<std::string(std::int32_t)> token_bytes,
                                   std::map<std::int32_t, std::string> call_marks)
    : call_(std::move(call)),
      identity_(std::move(identity)),
      token_bytes_(std::move(token_bytes)),
      call_marks_(std::move(call_marks)),
      choices_(static_cast<std::size_t>(num_choices)) {
  chunk_head_ = "data: " + dump(document(call_->chat ? "chat.completion.chunk" : "text_completion"));
  chunk_head_.pop_back();
  chunk_head_ += ",\"choices\":[";
  if (call_->chat && call_->tool_choice != ToolChoice::kNone) {
    for (Choice& choice : choices_) {
      choice.tool_calls =
          std::make_unique<ToolCallReader>(call_->tools, call_->tool_choice, call_->parallel_tool_calls);
    }
  }
}

json CompletionAnswer::document(const char* object) const {
  return {{"id", identity_.id}, {"object", object}, {"created", identity_.created}, {"model", call_->model}};
}

std::string CompletionAnswer::chunk(int choice, const std::string& delta, const json* logprobs,
                                    const std::string& finish_reason) const {
  return fmt::format("{}{{\"index\":{},{},\"logprobs\":{},\"finish_reason\":{}}}]{}}}\n\n", chunk_head_,
                     choice, delta, logprobs == nullptr ? "null" : dump(*logprobs),
                     finish_reason.empty() ? "null" : '"' + finish_reason + '"',
                     call_->include_usage ? ",\"usage\":null" : "");
}

std::string CompletionAnswer::text_chunk(int index, const std::string& text) {
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  const json details = logprobs(std::exchange(choice.tokens, {}));
  const std::string delta = call_->chat ? fmt::format("\"delta\":{{\"content\":{}}}", json_string(text))
                                        : "\"text\":" + json_string(text);
  return chunk(index, delta, details.is_null() ? nullptr : &details, "");
}

std::string CompletionAnswer::begin(std::vector<EchoedPrompt> echo) {
  std::string out;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (!echo.empty()) choices_[i].text_so_far.add(echo[i].text);
    if (!echo.empty() && call_->request.prompt_logprobs) {
      choices_[i].echo = std::move(echo[i]);
    } else if (!call_->stream) {
      if (!echo.empty()) choices_[i].text = echo[i].text;
    } else if (call_->chat) {
      out += chunk(index, R"("delta":{"role":"assistant","content":""})", nullptr, "");
    } else if (!echo.empty()) {
      out += text_chunk(index, echo[i].text);
    }
  }
  return out;
}

/// A token that is no part of the text, such as one that opens every text, stands where the next one does.
void CompletionAnswer::score_prompt(Choice& choice, const EchoedPrompt& prompt,
                                    const std::vector<PromptLogprob>& logprobs) const {
  std::string_view rest = prompt.text;
  CharacterCount before;
  for (std::size_t i = 0; i < prompt.tokens.size(); ++i) {
    ScoredToken& token = choice.tokens.emplace_back();
    token.token = prompt.tokens[i];
    token.text_offset = before.characters;
    if (i > 0 && i <= logprobs.size()) {
      token.logprob = logprobs[i - 1].logprob;
      token.top_logprobs = logprobs[i - 1].top_logprobs;
    }
    const std::string bytes = token_bytes_(token.token);
    std::string_view spelled = bytes;
    // SentencePiece puts a space before a text, which is not there.
    if (!rest.starts_with(spelled) && spelled.starts_with(' ')) spelled.remove_prefix(1);
    if (!rest.starts_with(spelled)) continue;
    before.add(spelled);
    rest.remove_prefix(spelled.size());
  }
}

std::string CompletionAnswer::add(int index, const Event& event) {
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  if (!choice.finish_reason.empty()) return {};
  const bool finished = event.type == Event::Type::kFinished;
  std::string echoed;
  if (choice.echo) {
    score_prompt(choice, *choice.echo, event.prompt_logprobs);
    echoed = std::move(choice.echo->text);
    choice.echo.reset();
  }
  if (!finished && call_->request.top_logprobs) {
    choice.tokens.push_back({event.token, event.logprob, event.top_logprobs, choice.text_so_far.characters});
    if (!call_->chat) choice.text_so_far.add(token_bytes_(event.token));
  }
  std::string text = event.text;
  if (choice.tool_calls) {
    text = choice.tool_calls->push(text);
    const auto mark = finished ? call_marks_.end() : call_marks_.find(event.token);
    if (mark != call_marks_.end()) text += choice.tool_calls->push(mark->second);
    if (finished) text += choice.tool_calls->finish();
  }
  if (finished) {
    ++num_finished_;
    choice.stats = event.stats;
    if (choice.tool_calls) choice.calls = choice.tool_calls->take_calls();
    choice.finish_reason = choice.calls.empty() ? finish_reason_name(event.stop_reason) : "tool_calls";
  }
  text.insert(0, echoed);
  if (!call_->stream) {
    choice.text += text;
    return {};
  }
  std::string out;
  if (!text.empty()) out = text_chunk(index, text);
  if (!finished) return out;
  if (!choice.calls.empty()) {
    out += chunk(index,
                 fmt::format("\"delta\":{{\"tool_calls\":{}}}",
                             dump(tool_calls_json(choice.calls, identity_.id, index, true))),
                 nullptr, "");
  }
  // Tokens that brought no text, such as half a character, have log-probabilities all the same.
  const json details = logprobs(std::exchange(choice.tokens, {}));
  out += chunk(index, call_->chat ? "\"delta\":{}" : "\"text\":\"\"", details.is_null() ? nullptr : &details,
               choice.finish_reason);
  return out;
}

/// Null if there are none.
json CompletionAnswer::logprobs(const std::vector<ScoredToken>& tokens) const {
  if (tokens.empty()) return nullptr;
  const auto number = [](const std::optional<float>& logprob) {
    return logprob ? json(finite(*logprob)) : json(nullptr);
  };
  if (!call_->chat) {
    json texts = json::array(), drawn = json::array(), tops = json::array(), offsets = json::array();
    for (const ScoredToken& token : tokens) {
      texts.push_back(token_name(token_bytes_(token.token)));
      drawn.push_back(number(token.logprob));
      json top = json::object();
      for (const TokenLogprob& entry : token.top_logprobs)
        top[token_name(token_bytes_(entry.token))] = finite(entry.logprob);
      // As in OpenAI's API, where a list may have one entry more than was asked for.
      if (token.logprob) top.emplace(token_name(token_bytes_(token.token)), finite(*token.logprob));
      tops.push_back(token.logprob ? std::move(top) : json(nullptr));
      offsets.push_back(token.text_offset);
    }
    return {{"tokens", texts}, {"token_logprobs", drawn}, {"top_logprobs", tops}, {"text_offset", offsets}};
  }
  const auto entry_of = [&](std::int32_t id, const std::optional<float>& logprob) {
    const std::string bytes = token_bytes_(id);
    json values = json::array();
    for (const char byte : bytes) values.push_back(static_cast<unsigned char>(byte));
    return json{{"token", bytes}, {"logprob", number(logprob)}, {"bytes", values}};
  };
  json content = json::array();
  for (const ScoredToken& token : tokens) {
    json entry = entry_of(token.token, token.logprob);
    json top = json::array();
    for (const TokenLogprob& other : token.top_logprobs) top.push_back(entry_of(other.token, other.logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

std::int64_t CompletionAnswer::prompt_tokens() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < choices_.size(); i += static_cast<std::size_t>(call_->n)) {
    sum += choices_[i].stats.prompt_tokens;
  }
  return sum;
}

std::int64_t CompletionAnswer::cached_tokens() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < choices_.size(); i += static_cast<std::size_t>(call_->n)) {
    sum += choices_[i].stats.cached_tokens;
  }
  return sum;
}

std::int64_t CompletionAnswer::generated_tokens() const {
  std::int64_t sum = 0;
  for (const Choice& choice : choices_) sum += choice.stats.generated_tokens;
  return sum;
}

/// A prompt counts once, however many choices it has.
json CompletionAnswer::usage() const {
  return {{"prompt_tokens", prompt_tokens()},
          {"completion_tokens", generated_tokens()},
          {"total_tokens", prompt_tokens() + generated_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens()}}}};
}

std::string CompletionAnswer::end() const {
  std::string out;
  if (call_->include_usage) out = chunk_head_ + "],\"usage\":" + dump(usage()) + "}\n\n";
  return out + "data: [DONE]\n\n";
}

std::string CompletionAnswer::body() const {
  json answer = document(call_->chat ? "chat.completion" : "text_completion");
  json list = json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    json entry = {{"index", i}};
    if (call_->chat) {
      json message = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      if (!choice.calls.empty()) {
        if (choice.text.empty()) message["content"] = nullptr;
        message["tool_calls"] = tool_calls_json(choice.calls, identity_.id, static_cast<int>(i), false);
      }
      entry["message"] = std::move(message);
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] = logprobs(choice.tokens);
    entry["finish_reason"] = choice.finish_reason;
    list.push_back(std::move(entry));
  }
  answer["choices"] = std::move(list);
  answer["usage"] = usage();
  return dump(answer);
}

}  // namespace tessera::server
