// Embeddings, and texts as tokens and back.
#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_server.h"
#include "server/fields.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

namespace {

constexpr int kMaxInputs = 2048;  // as in OpenAI's API
/// Of one request's inputs that the engine has at a time.
constexpr std::size_t kInputsAtOnce = 16;

/// fp32, little endian.
std::string base64(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

}  // namespace

struct ApiServer::Embeddings {
  CallPtr call;
  std::string model;
  bool as_base64 = false;
  std::vector<EmbeddingRequest> requests;
  std::size_t num_submitted = 0, num_done = 0;
  std::vector<std::vector<float>> results;
  std::int64_t prompt_tokens = 0;
};

std::function<void()> ApiServer::prepare_embeddings(const CallPtr& call, const std::string& body) {
  const json document = parse_body(body);
  const Fields fields(document);
  auto embeddings = std::make_shared<Embeddings>();
  embeddings->call = call;
  embeddings->model = check_model_name(document, options_.defaults);
  const std::string format = fields.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    fields.fail("encoding_format", document["encoding_format"], "\"float\" or \"base64\"");
  }
  embeddings->as_base64 = format == "base64";
  const auto dimensions = fields.integer("dimensions", 1, std::int64_t{1} << 31);
  if (dimensions && *dimensions != model_.info().hidden_size) {
    throw unsupported_field("dimensions", fmt::format("dimensions is {}; this model's embeddings have {}",
                                                      *dimensions, model_.info().hidden_size));
  }
  const json* input = fields.find("input");
  if (input == nullptr) throw wrong_field("input", "input is missing; expected a text or a list of texts");
  std::vector<std::string> texts;
  std::vector<std::vector<std::int32_t>> tokens;
  parse_prompts(*input, "input", kMaxInputs, texts, tokens);
  for (const std::string& text : texts) tokens.push_back(model_.encode(text, true));
  for (auto& prompt : tokens) {
    EmbeddingRequest request;
    request.prompt = check_prompt(std::move(prompt), "input");
    if (request.prompt.empty()) throw wrong_field("input", "input has a text without tokens");
    embeddings->prompt_tokens += static_cast<std::int64_t>(request.prompt.size());
    embeddings->requests.push_back(std::move(request));
  }
  embeddings->results.resize(embeddings->requests.size());
  return [this, embeddings] { submit_some(embeddings); };
}

void ApiServer::submit_some(const std::shared_ptr<Embeddings>& embeddings) {
  Call& call = *embeddings->call;
  if (call.gone) return;
  try {
    while (embeddings->num_submitted < embeddings->requests.size() &&
           embeddings->num_submitted < embeddings->num_done + kInputsAtOnce) {
      const std::size_t input = embeddings->num_submitted;
      const RequestId id = model_.submit(embeddings->requests[input]);
      ++embeddings->num_submitted;
      call.ids.push_back(id);
      active_.emplace(
          id, [this, embeddings, input](Event event) { deliver(embeddings, input, std::move(event)); });
    }
  } catch (const QueueFull&) {
    // There is room when one of ours is done.
    if (embeddings->num_submitted > embeddings->num_done) return;
    fail(call, queue_full());
  } catch (const Error& error) {
    forget(call, true);
    fail(call, api_error(error.code(), error.message()));
  }
}

void ApiServer::deliver(const std::shared_ptr<Embeddings>& embeddings, std::size_t input, Event event) {
  Call& call = *embeddings->call;
  if (event.type == Event::Type::kError) {
    forget(call, true);
    return fail(call, api_error(event.error_code, event.error_message));
  }
  embeddings->results[input] = std::move(event.embedding);
  if (++embeddings->num_done < embeddings->requests.size()) return submit_some(embeddings);
  forget(call, false);
  json list = json::array();
  for (std::size_t i = 0; i < embeddings->results.size(); ++i) {
    const std::vector<float>& result = embeddings->results[i];
    list.push_back({{"object", "embedding"},
                    {"index", i},
                    {"embedding", embeddings->as_base64 ? json(base64(result)) : json(result)}});
  }
  const json document = {
      {"object", "list"},
      {"data", std::move(list)},
      {"model", embeddings->model},
      {"usage", {{"prompt_tokens", embeddings->prompt_tokens}, {"total_tokens", embeddings->prompt_tokens}}}};
  HttpResponse response;
  response.body = dump(document);  // the model's name may be no UTF-8
  reply(call, std::move(response));
}

std::function<void()> ApiServer::prepare_tokenize(const CallPtr& call, const std::string& body) {
  const json document = parse_body(body);
  const Fields fields(document);
  const bool special =
      fields.boolean("add_special_tokens").value_or(fields.boolean("add_special").value_or(true));
  std::vector<std::int32_t> tokens;
  if (fields.find("messages") != nullptr) {
    tokens = model_.encode_chat(parse_conversation(document));
  } else {
    const auto text = fields.text(fields.find("content") != nullptr ? "content" : "prompt");
    if (!text) throw wrong_field("prompt", "prompt is missing; expected a text, or messages");
    tokens = model_.encode(*text, special);
  }
  const json answer = {{"tokens", tokens}, {"count", tokens.size()}, {"max_model_len", model_.max_seq_len()}};
  return [this, call, text = answer.dump()] {
    HttpResponse response;
    response.body = text;
    reply(*call, std::move(response));
  };
}

std::function<void()> ApiServer::prepare_detokenize(const CallPtr& call, const std::string& body) {
  const json document = parse_body(body);
  const Fields fields(document);
  const json* tokens = fields.list("tokens");
  if (tokens == nullptr) throw wrong_field("tokens", "tokens is missing; expected a list of token ids");
  std::vector<std::string> texts;
  std::vector<std::vector<std::int32_t>> ids(1);
  if (!tokens->empty()) {
    ids.clear();
    parse_prompts(*tokens, "tokens", 1, texts, ids);
    if (ids.size() != 1) fields.fail("tokens", *tokens, "a list of token ids");
  }
  check_tokens(ids.front(), "tokens");
  const std::string text = model_.decode(ids.front(), fields.boolean("skip_special_tokens").value_or(false));
  const json answer = {{"prompt", text}, {"content", text}};
  return [this, call, body_text = dump(answer)] {
    HttpResponse response;
    response.body = body_text;
    reply(*call, std::move(response));
  };
}

}  // namespace tessera::server
