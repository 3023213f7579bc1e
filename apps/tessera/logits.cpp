#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>

#include "commands.h"
#include "model_io.h"
#include "output.h"
#include "tessera/model.h"
#include "threads_option.h"

namespace tessera::cli {

namespace {

struct LogitsOptions {
  std::string model;
  std::optional<std::string> tokens;
  std::optional<std::string> prompt;
  ModelOptions model_options;
  bool all = false;
  int top = 10;
  std::string activation_dtype = "auto";
  std::string kv_dtype = "auto";
  int threads = 0;
  bool json = false;
};

/// A vocabulary times a context is too much for a tree of JSON values, so that the numbers are written as
/// text at once, with as many digits as bring back the same float.
void append_json_array(std::span<const float> values, std::string& text) {
  text += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    if (std::isfinite(values[i])) {
      fmt::format_to(std::back_inserter(text), "{}", values[i]);
    } else {
      text += "null";
    }
  }
  text += ']';
}

std::string to_json(std::span<const float> logits, std::size_t vocab_size, bool all) {
  std::string text = "{\"logits\": ";
  if (all) text += '[';
  for (std::size_t begin = 0; begin < logits.size(); begin += vocab_size) {
    if (begin > 0) text += ",\n";
    append_json_array(logits.subspan(begin, vocab_size), text);
  }
  if (all) text += ']';
  return text + "}\n";
}

/// The likeliest next tokens after each row of logits.
std::string to_table(const LanguageModel& model, std::span<const float> logits, std::size_t vocab_size,
                     int top, std::size_t first_position) {
  const bool has_text = model.info().has_tokenizer;
  Table table({{"position"}, {"token"}, {"logit"}, {"probability"}, {"text", Table::Align::kLeft}});
  for (std::size_t row = 0; row * vocab_size < logits.size(); ++row) {
    const std::span<const float> values = logits.subspan(row * vocab_size, vocab_size);
    std::vector<std::int32_t> order(vocab_size);
    std::iota(order.begin(), order.end(), 0);
    const auto count = std::min<std::ptrdiff_t>(top, std::ssize(order));
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](std::int32_t a, std::int32_t b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    const double largest = values[static_cast<std::size_t>(order.front())];
    double sum = 0;
    for (const float value : values) sum += std::exp(value - largest);
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      const std::int32_t id = order[static_cast<std::size_t>(i)];
      const float value = values[static_cast<std::size_t>(id)];
      const std::string text =
          has_text ? fmt::format("{:?}", model.decode(std::span(&id, 1), false)) : std::string();
      table.add_row({i == 0 ? std::to_string(first_position + row) : std::string(), std::to_string(id),
                     fmt::format("{:.4f}", value), fmt::format("{:.4f}", std::exp(value - largest) / sum),
                     text});
    }
  }
  return table.to_string();
}

int logits(LogitsOptions options) {
  if (options.tokens.has_value() == options.prompt.has_value()) {
    throw UsageError("give either --tokens IDS or --prompt TEXT");
  }
  use_threads(options.threads);
  std::vector<std::int32_t> tokens;
  std::string prompt;
  if (options.tokens) {
    tokens = parse_token_ids("--tokens", *options.tokens == "-" ? read_stdin() : *options.tokens);
  } else {
    prompt = read_prompt(*options.prompt);
  }
  options.model_options.activation_dtype = parse_activation_dtype(options.activation_dtype);
  options.model_options.kv_dtype = parse_kv_dtype(options.kv_dtype);
  const Model loaded = Model::load(options.model, load_options(options.model_options));
  if (!options.tokens) tokens = loaded.encode(prompt);
  LanguageModel model = with_cache_for(loaded, tokens, /*new_tokens=*/0, options.model_options);
  const std::vector<float> values = model.logits(tokens, options.all);
  const auto vocab_size = static_cast<std::size_t>(model.info().vocab_size);
  write_stdout(options.json
                   ? to_json(values, vocab_size, options.all)
                   : to_table(model, values, vocab_size, options.top, options.all ? 0 : tokens.size() - 1));
  return kExitDone;
}

}  // namespace

void add_logits_command(Command& parent) {
  auto options = std::make_shared<LogitsOptions>();
  Command command = parent.add_command("logits", "Print what a model makes of the next token");
  command.add_required_text("-m,--model", options->model, "Hugging Face folder or .gguf file", "PATH");
  command.add_optional_text("--tokens", options->tokens, "Token ids such as 1,2,3; - reads standard input",
                            "IDS");
  command.add_optional_text("-p,--prompt", options->prompt,
                            "Text instead of ids; - reads standard input, without its last newline");
  command.add_flag("--all", options->all, "After each token, not only the last one");
  command.add_integer("--top", options->top, 1, 1 << 20, "Without --json: how many tokens to list");
  command.add_integer(
      "--max-seq-len", options->model_options.max_seq_len, 0, std::int64_t{1} << 40,
      "Most tokens of the context, by which LongRoPE's factors are chosen; 0: the model's context length");
  add_machine_options(command, options->model_options, options->activation_dtype, options->threads);
  add_kv_dtype_option(command, options->kv_dtype);
  command.add_flag("--json", options->json, "Print {\"logits\": [...]}, with --all a list of lists");
  command.set_examples({"tessera logits --model models/demo --tokens 1,2,3 --json",
                        "tessera logits --model models/demo --prompt \"Once upon a\" --top 5"});
  command.set_action([options] { return logits(*options); });
}

}  // namespace tessera::cli
