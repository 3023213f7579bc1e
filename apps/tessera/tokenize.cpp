#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "model/checkpoint/checkpoint.h"
#include "model/tokenizer/tokenizer.h"
#include "output.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text;
  std::optional<std::string> decode_ids;
  bool plain = false;
  bool json = false;
};

struct ModelTokenizer {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::int64_t vocab_size = 0;  ///< of the model, which may have more ids; 0 without a model
};

/// The tokenizer of a model, or one by itself.
ModelTokenizer open_model_tokenizer(const std::string& path) {
  ModelTokenizer opened{open_tokenizer(path)};
  try {
    opened.vocab_size = open_checkpoint(path, {.load_tokenizer = false}).config.vocab_size;
  } catch (const Error&) {  // a vocabulary without a model, or with one that isn't whole: its ids are enough
  }
  return opened;
}

nlohmann::ordered_json to_json(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                               const std::string& text) {
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (const TokenId id : ids) pieces.push_back(tokenizer.contains(id) ? tokenizer.token_text(id) : "");
  return {{"tokens", ids}, {"pieces", pieces}, {"text", text}};
}

int tokenize(const TokenizeOptions& options) {
  if (options.text.has_value() == options.decode_ids.has_value()) {
    throw UsageError("give either TEXT (- reads standard input) or --decode IDS");
  }
  if (options.decode_ids) {
    const std::vector<TokenId> ids =
        parse_token_ids("--decode", *options.decode_ids == "-" ? read_stdin() : *options.decode_ids);
    const auto [tokenizer, vocab_size] = open_model_tokenizer(options.model);
    const std::string text = tokenizer->decode(ids_with_tokens(*tokenizer, ids, vocab_size), !options.plain);
    if (options.json) {
      write_json(to_json(*tokenizer, ids, text));
    } else {
      write_stdout(text + '\n');
    }
    return kExitDone;
  }
  const std::string text = *options.text == "-" ? read_stdin() : *options.text;
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(options.model);
  const std::vector<TokenId> ids =
      tokenizer->encode(text, {.add_special_tokens = !options.plain, .parse_special_tokens = true});
  if (options.json) {
    write_json(to_json(*tokenizer, ids, text));
    return kExitDone;
  }
  Table table({{"id"}, {"token", Table::Align::kLeft}});
  for (const TokenId id : ids) table.add_row({std::to_string(id), std::string(tokenizer->token_text(id))});
  write_stdout(table.to_string() + counted(std::ssize(ids), "token", "tokens") + '\n');
  return kExitDone;
}

}  // namespace

void add_tokenize_command(Command& parent) {
  auto options = std::make_shared<TokenizeOptions>();
  Command command = parent.add_command("tokenize", "Turn text into a model's tokens, or tokens into text");
  command.add_required_text("-m,--model", options->model,
                            "Hugging Face folder, .gguf file (weights or not) or tokenizer.json", "PATH");
  command.add_optional_text("text", options->text, "Text to split; - reads standard input");
  command.add_optional_text("--decode", options->decode_ids,
                            "Token ids such as 1,2,3 to turn into text; - reads standard input", "IDS");
  command.add_flag("--no-special-tokens", options->plain,
                   "Add none around the text; with --decode: also print those in IDS");
  command.add_flag("--json", options->json, "Print one JSON document");
  command.set_examples({"tessera tokenize --model models/demo \"Once upon a time\"",
                        "tessera tokenize --model models/demo - --json < story.txt",
                        "tessera tokenize --model models/demo --decode 1,2,3"});
  command.set_action([options] { return tokenize(*options); });
}

}  // namespace tessera::cli
