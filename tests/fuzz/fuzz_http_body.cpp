// Any bytes as the body of a request, the first of them says of which: a call within its limits or a
// RequestError with a body that is JSON, and an answer that is JSON whatever text the model writes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "server/completion_answer.h"
#include "server/completion_call.h"
#include "server/fields.h"
#include "server/request_error.h"

namespace {

using namespace tessera;
using namespace tessera::server;

void require(bool holds) {
  if (!holds) std::abort();
}

/// Lets the model answer with the request's own text, in pieces.
void answer(CompletionCall parsed, const std::string& text) {
  const auto call = std::make_shared<const CompletionCall>(std::move(parsed));
  CompletionAnswer answer(call, {"chatcmpl-1", 1}, 1,
                          [](std::int32_t id) { return std::string(1, static_cast<char>(id)); });
  std::string stream = answer.begin({});
  for (std::size_t at = 0; at < text.size(); at += 7) {
    Event event;
    event.token = static_cast<unsigned char>(text[at]);
    event.text = text.substr(at, 7);
    stream += answer.add(0, event);
  }
  Event last;
  last.type = Event::Type::kFinished;
  stream += answer.add(0, last);
  require(answer.finished());
  if (!call->stream) return require(nlohmann::json::accept(answer.body()));
  stream += answer.end();
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t end = stream.find("\n\n", at);
    require(end != stream.npos && stream.compare(at, 6, "data: ") == 0);
    const std::string data = stream.substr(at + 6, end - at - 6);
    require(data == "[DONE]" || nlohmann::json::accept(data));
    at = end + 2;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  CallDefaults defaults;
  defaults.model_name = "model";
  try {
    const nlohmann::ordered_json document = parse_body(body);
    CompletionCall call =
        data[0] % 2 == 0 ? parse_chat_completion(document, defaults) : parse_completion(document, defaults);
    require(call.n >= 1 && call.n <= defaults.max_choices && call.request.sampling.top_p > 0);
    if (!call.tools.empty()) require(nlohmann::json::accept(tool_call_schema(call.tools)));
    answer(std::move(call), body);
  } catch (const RequestError& error) {
    require(error.error().status >= 400 && nlohmann::json::accept(error.error().body()));
  }
  return 0;
}
