// Completions of texts and chats: from a request's body to the engine, and from its events to the answer.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_server.h"
#include "server/fields.h"

namespace tessera::server {

struct ApiServer::Completion {
  CallPtr call;
  std::shared_ptr<const CompletionCall> wanted;
  std::unique_ptr<CompletionAnswer> answer;
  std::vector<EchoedPrompt> echo;
  bool has_begun = false;  ///< to give out text
};

std::vector<std::vector<std::int32_t>> ApiServer::prompts_of(const CompletionCall& wanted, bool chat) {
  if (chat) return {model_.encode_chat(wanted.conversation)};
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& text : wanted.texts) prompts.push_back(model_.encode(text, true));
  prompts.insert(prompts.end(), wanted.tokens.begin(), wanted.tokens.end());
  return prompts;
}

std::function<std::shared_ptr<TokenConstraint>()> ApiServer::constraints_of(const CompletionCall& wanted) {
  const bool may_call = wanted.tool_choice == ToolChoice::kAuto;
  std::string schema = wanted.json_schema;
  if (wanted.tool_choice == ToolChoice::kRequired || wanted.tool_choice == ToolChoice::kOne) {
    schema = tool_call_schema(wanted.tools);
  } else if (may_call && !schema.empty()) {
    schema = tool_call_or_response_schema(wanted.tools, schema);
  }
  if (!schema.empty() && !wanted.request.stop_at_eos) {
    throw wrong_field("ignore_eos", "ignore_eos is true, but a text that is held to a schema has an end");
  }
  if (schema.empty() && may_call) {
    return [&] { return model_.tool_call_constraint(wanted.tools, wanted.parallel_tool_calls); };
  }
  if (schema.empty()) return [] { return nullptr; };

  const auto hold_to = [this](const std::string& text, const char* field) {
    try {
      return model_.json_schema_constraint(text);
    } catch (const Error& error) {
      ApiError told = api_error(error.code(), fmt::format("{}: {}", field, error.message()));
      told.param = field;
      throw RequestError(told);
    }
  };
  // Of both in one the response's part is looked at alone first, to tell whose fault it is.
  if (may_call) hold_to(wanted.json_schema, "response_format");
  const char* const field = wanted.tool_choice == ToolChoice::kNone ? "response_format" : "tools";
  return [=] { return hold_to(schema, field); };
}

std::map<std::int32_t, std::string> ApiServer::call_marks() {
  std::map<std::int32_t, std::string> marks;
  for (const std::string_view mark : {kToolCallOpen, kMistralCalls, kMistralArguments, kMistralCallId}) {
    const std::vector<std::int32_t> tokens = model_.encode(mark, false);
    if (tokens.size() == 1 && model_.token_bytes(tokens[0]).empty()) marks.emplace(tokens[0], mark);
  }
  return marks;
}

std::function<void()> ApiServer::prepare_completion(const CallPtr& call, bool chat, const std::string& body) {
  const nlohmann::ordered_json document = parse_body(body);
  auto wanted = std::make_shared<CompletionCall>(chat ? parse_chat_completion(document, options_.defaults)
                                                      : parse_completion(document, options_.defaults));
  for (const auto& [token, bias] : wanted->request.sampling.logit_bias) {
    check_tokens(std::span(&token, 1), "logit_bias");
  }
  std::vector<std::vector<std::int32_t>> prompts = prompts_of(*wanted, chat);
  const std::function<std::shared_ptr<TokenConstraint>()> make_constraint = constraints_of(*wanted);

  auto completion = std::make_shared<Completion>();
  std::vector<Request> requests;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<std::int32_t> prompt = check_prompt(std::move(prompts[p]));
    for (int i = 0; i < wanted->n; ++i) {
      Request request = wanted->request;
      request.prompt = prompt;
      request.max_tokens = wanted->max_tokens.value_or(model_.max_seq_len());
      request.sampling.seed += requests.size();
      request.constraint = make_constraint();
      requests.push_back(std::move(request));
      if (wanted->echo) {
        completion->echo.push_back(
            {wanted->texts.empty() ? model_.decode(prompt, true) : wanted->texts[p], prompt});
      }
    }
  }
  completion->call = call;
  completion->wanted = wanted;
  completion->answer = std::make_unique<CompletionAnswer>(
      wanted,
      CompletionAnswer::Identity{
          fmt::format("{}-{}{:08x}", chat ? "chatcmpl" : "cmpl", id_prefix_, num_ids_++),
          std::chrono::duration_cast<std::chrono::seconds>(
              std::chrono::system_clock::now().time_since_epoch())
              .count()},
      static_cast<int>(requests.size()), [this](std::int32_t token) { return model_.token_bytes(token); },
      call_marks());
  return [this, completion, requests = std::move(requests)]() mutable {
    start(completion, std::move(requests));
  };
}

void ApiServer::start(const std::shared_ptr<Completion>& completion, std::vector<Request> requests) {
  Call& call = *completion->call;
  if (call.gone) return;
  try {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const RequestId id = model_.submit(std::move(requests[i]));
      call.ids.push_back(id);
      active_.emplace(id, [this, completion, choice = static_cast<int>(i)](const Event& event) {
        deliver(completion, choice, event);
      });
    }
  } catch (const QueueFull&) {
    forget(call, true);
    return fail(call, queue_full());
  } catch (const Error& error) {
    forget(call, true);
    return fail(call, api_error(error.code(), error.message()));
  }
  const std::string text = completion->answer->begin(std::move(completion->echo));
  if (!completion->wanted->stream) return;
  call.exchange->begin_stream(cors_headers());
  call.exchange->write(text);
}

void ApiServer::deliver(const std::shared_ptr<Completion>& completion, int choice, const Event& event) {
  Call& call = *completion->call;
  if (event.type == Event::Type::kError) {
    const ApiError error = api_error(event.error_code, event.error_message);
    forget(call, true);
    if (!completion->wanted->stream) return fail(call, error);
    count(call, error.status);
    call.exchange->write(error_event(error));
    return call.exchange->end_stream();
  }
  if (!completion->has_begun) {
    completion->has_begun = true;
    metrics_.first_token_time.add(std::chrono::duration<double>(Clock::now() - call.begun).count());
  }
  CompletionAnswer& answer = *completion->answer;
  const std::string text = answer.add(choice, event);
  if (completion->wanted->stream) call.exchange->write(text);
  if (!answer.finished() || call.gone) return;
  forget(call, false);
  if (completion->wanted->stream) {
    count(call, 200);
    call.exchange->write(answer.end());
    call.exchange->end_stream();
  } else {
    HttpResponse response;
    response.body = answer.body();
    reply(call, std::move(response));
  }
}

}  // namespace tessera::server
