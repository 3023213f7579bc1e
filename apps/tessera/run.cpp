#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "commands.h"
#include "core/text.h"
#include "generation_report.h"
#include "interrupt.h"
#include "model_io.h"
#include "output.h"
#include "output_form.h"
#include "progress_bar.h"
#include "sampling_options.h"
#include "tessera/model.h"
#include "tessera/threads.h"
#include "threads_option.h"

namespace tessera::cli {

namespace {

struct RunOptions {
  std::string model;
  std::string prompt;
  GenerateOptions generate;
  ModelOptions model_options;
  std::optional<std::uint64_t> seed;  // none: any
  bool ignore_eos = false;
  bool echo = false;
  bool chat = false;
  OutputForm form;
  std::optional<std::int64_t> logprobs;
  std::string system;  // with chat
  std::string activation_dtype = "auto";
  std::string kv_dtype = "auto";
  int threads = 0;
  bool json = false;
};

nlohmann::ordered_json to_json(const Generation& generation, const std::string& text,
                               const SamplingOptions& sampling, const ModelInfo* model) {
  const GenerationStats& stats = generation.stats;
  nlohmann::ordered_json document = {{"text", text},
                                     {"tokens", generation.tokens},
                                     {"stop_reason", stop_reason_name(generation.stop_reason)},
                                     {"prompt_tokens", stats.prompt_tokens},
                                     {"generated_tokens", stats.generated_tokens},
                                     {"prefill_ms", stats.prefill_ms},
                                     {"decode_ms", stats.decode_ms},
                                     {"prompt_tokens_per_second", prompt_rate(stats)},
                                     {"generated_tokens_per_second", generation_rate(stats)},
                                     {"threads", num_threads()},
                                     {"seed", nullptr}};
  if (const auto seed = used_seed(sampling)) document["seed"] = *seed;
  if (model != nullptr) {
    document["backend"] = model->backend;
    document["model"] = model_to_json(*model);
  }
  return document;
}

nlohmann::ordered_json token_to_json(const Model& model, std::int32_t token, float logprob) {
  return {{"token", token}, {"text", printable(model.token_bytes(token))}, {"logprob", logprob}};
}

nlohmann::ordered_json logprobs_to_json(const Generation& generation, const Model& model) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < generation.logprobs.size(); ++i) {
    nlohmann::ordered_json entry = token_to_json(model, generation.tokens[i], generation.logprobs[i]);
    entry["top"] = nlohmann::ordered_json::array();
    for (const TokenLogprob& top : generation.top_logprobs[i]) {
      entry["top"].push_back(token_to_json(model, top.token, top.logprob));
    }
    list.push_back(std::move(entry));
  }
  return list;
}

/// A line a token: its probability and text, then those of the likeliest.
std::string logprobs_text(const Generation& generation, const Model& model) {
  const auto token_text = [&](std::int32_t token, float logprob) {
    return fmt::format("{:8.4f} '{}'", logprob, printable(model.token_bytes(token), 40));
  };
  std::string text;
  for (std::size_t i = 0; i < generation.logprobs.size(); ++i) {
    text += token_text(generation.tokens[i], generation.logprobs[i]);
    for (const TokenLogprob& top : generation.top_logprobs[i])
      text += "  |" + token_text(top.token, top.logprob);
    text += '\n';
  }
  return text;
}

/// What an interrupt leaves before the first token.
int finish_interrupted(const RunOptions& options, const ModelInfo* model) {
  Generation nothing;
  nothing.stop_reason = StopReason::kCancelled;
  if (options.json) {
    write_json(to_json(nothing, "", options.generate.sampling, model));
  } else {
    write_stderr("stopped before the first token\n");
  }
  return kExitDone;
}

std::vector<std::int32_t> encode_prompt(const Model& model, const RunOptions& options,
                                        const std::string& prompt) {
  if (!options.chat) return model.encode(prompt);
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", prompt});
  return model.encode_chat(messages);
}

int run(RunOptions options) {
  if (!options.system.empty() && !options.chat) throw UsageError("--system needs --chat");
  check(options.form, options.ignore_eos);
  use_threads(options.threads);
  const std::string prompt = read_prompt(options.prompt);
  catch_interrupts();

  ProgressBar progress_bar;
  options.model_options.on_progress = [&](const Progress& progress) {
    if (interrupted()) throw Interrupted{};
    progress_bar.show(progress);
  };
  options.model_options.activation_dtype = parse_activation_dtype(options.activation_dtype);
  options.model_options.kv_dtype = parse_kv_dtype(options.kv_dtype);
  options.generate.stop_at_eos = !options.ignore_eos;
  if (options.logprobs) options.generate.top_logprobs = static_cast<int>(*options.logprobs);
  options.generate.sampling.seed = options.seed ? *options.seed : std::random_device{}();

  std::unique_ptr<LanguageModel> model;
  std::string text;
  try {
    const Model loaded = Model::load(options.model, load_options(options.model_options));
    const std::vector<std::int32_t> tokens = encode_prompt(loaded, options, prompt);
    model = std::make_unique<LanguageModel>(
        with_cache_for(loaded, tokens, options.generate.max_tokens, options.model_options));
    progress_bar.clear();
    options.generate.constraint = FormedOutput(options.form, loaded).next();
    if (options.echo && !options.json) write_stdout(prompt);
    const Generation generation =
        model->generate(tokens, options.generate, [&](std::int32_t, std::string_view piece) {
          progress_bar.clear();
          if (!options.json) write_stdout(piece);
          text += piece;
          return !interrupted();
        });
    if (options.json) {
      nlohmann::ordered_json document = to_json(generation, text, options.generate.sampling, &model->info());
      if (options.logprobs) document["logprobs"] = logprobs_to_json(generation, model->model());
      write_json(document);
    } else {
      if (text.empty() || text.back() != '\n') write_stdout("\n");
      if (options.logprobs) write_stderr(logprobs_text(generation, model->model()));
      write_stderr(rates_text(generation, options.generate.sampling, model->info()));
    }
  } catch (const Interrupted&) {
    progress_bar.clear();
    return finish_interrupted(options, model ? &model->info() : nullptr);
  }
  return kExitDone;
}

}  // namespace

void add_run_command(Command& parent) {
  auto options = std::make_shared<RunOptions>();
  Command command = parent.add_command("run", "Continue a prompt with a language model");
  command.add_required_text("-m,--model", options->model, "Hugging Face folder or .gguf file", "PATH");
  command.add_required_text("-p,--prompt", options->prompt,
                            "Text to continue; - reads standard input, without its last newline");
  command.add_flag("--chat", options->chat,
                   "The prompt is a message, which the model's chat template frames");
  command.add_text("--system", options->system, "With --chat: what the model is told before the prompt");
  add_stop_option(command, options->generate.stop, "Text that ends the generation, not printed");
  add_output_form(command, options->form);
  command.add_integer("--logprobs", options->logprobs, 0, 64,
                      "Tell each token's log probability, and those of the N likeliest");
  command.add_integer("-n,--max-tokens", options->generate.max_tokens, 1, std::int64_t{1} << 40,
                      "Most tokens to generate");
  command.add_flag("--ignore-eos", options->ignore_eos, "Go on past the end-of-text token");
  command.add_flag("--echo", options->echo, "Print the prompt before its continuation");
  command.add_flag("--json", options->json, "Print one JSON document at the end, no text before");

  add_sampling_options(command, options->generate.sampling, options->seed);

  command.begin_group("Machine");
  add_machine_options(command, options->model_options, options->activation_dtype, options->threads);
  add_kv_dtype_option(command, options->kv_dtype);
  command.add_integer("--max-seq-len", options->model_options.max_seq_len, 0, std::int64_t{1} << 40,
                      "Most tokens of prompt and text; 0: the model's context length");
  command.add_flag("--batch-invariant", options->model_options.batch_invariant,
                   "Bits that don't depend on how the prompt was split");
  command.set_examples(
      {"tessera run --model models/demo --prompt \"Once upon a time\"",
       "tessera run --model model.gguf --prompt - --temperature 0.8 --top-p 0.95 < prompt.txt",
       "tessera run -m models/demo -p Hello -n 20 --json",
       "tessera run -m models/demo --chat --prompt \"Tell me a story about a fox\" --stop \".\"", "",
       "Text goes to standard output, rates to standard error. Ctrl-C stops and keeps the text so",
       "far (exit code 0, stop_reason \"cancelled\"); a second Ctrl-C kills the program."});
  command.set_action([options] { return run(*options); });
}

}  // namespace tessera::cli
