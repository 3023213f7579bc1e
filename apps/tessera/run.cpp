#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "commands.h"
#include "interrupt.h"
#include "model_io.h"
#include "output.h"
#include "progress_bar.h"
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
  std::string activation_dtype = "auto";
  int threads = 0;
  bool json = false;
};

/// Tokens a second; 0 if nothing was measured.
double rate(std::int64_t tokens, double ms) {
  return tokens > 0 && ms > 0 ? static_cast<double>(tokens) * 1e3 / ms : 0;
}

/// The first token comes out of the prompt's pass, so decoding accounts for the others.
double prompt_rate(const GenerationStats& stats) { return rate(stats.prompt_tokens, stats.prefill_ms); }
double generation_rate(const GenerationStats& stats) {
  return rate(stats.generated_tokens - 1, stats.decode_ms);
}

/// The seed that decided the text; none if the likeliest tokens were taken.
std::optional<std::uint64_t> used_seed(const SamplingOptions& sampling) {
  return sampling.temperature > 0 ? std::optional(sampling.seed) : std::nullopt;
}

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

std::string rates_text(const Generation& generation, const SamplingOptions& sampling,
                       const std::string& backend) {
  const GenerationStats& stats = generation.stats;
  std::string text = fmt::format("{}: prompt: {} tokens, {:.1f} tokens/s; generated: {} tokens", backend,
                                 stats.prompt_tokens, prompt_rate(stats), stats.generated_tokens);
  if (stats.generated_tokens > 1) text += fmt::format(", {:.1f} tokens/s", generation_rate(stats));
  text += fmt::format("; stopped: {}", stop_reason_text(generation.stop_reason));
  if (const auto seed = used_seed(sampling)) text += fmt::format("; seed {}", *seed);
  return text + '\n';
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

int run(RunOptions options) {
  use_threads(options.threads);
  const std::string prompt = read_prompt(options.prompt);
  catch_interrupts();

  ProgressBar progress_bar;
  options.model_options.on_progress = [&](const Progress& progress) {
    if (interrupted()) throw Interrupted{};
    progress_bar.show(progress);
  };
  options.model_options.max_kv_tokens = kv_tokens_for(prompt.size(), options.generate.max_tokens);
  options.model_options.activation_dtype = parse_activation_dtype(options.activation_dtype);
  options.generate.stop_at_eos = !options.ignore_eos;
  options.generate.sampling.seed = options.seed ? *options.seed : std::random_device{}();

  std::unique_ptr<LanguageModel> model;
  std::string text;
  try {
    model = std::make_unique<LanguageModel>(LanguageModel::load(options.model, options.model_options));
    progress_bar.clear();
    const std::vector<std::int32_t> tokens = model->encode(prompt);
    if (options.echo && !options.json) write_stdout(prompt);
    const Generation generation =
        model->generate(tokens, options.generate, [&](std::int32_t, std::string_view piece) {
          progress_bar.clear();
          if (!options.json) write_stdout(piece);
          text += piece;
          return !interrupted();
        });
    if (options.json) {
      write_json(to_json(generation, text, options.generate.sampling, &model->info()));
    } else {
      if (text.empty() || text.back() != '\n') write_stdout("\n");
      write_stderr(rates_text(generation, options.generate.sampling, model->info().backend));
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
  command.add_integer("-n,--max-tokens", options->generate.max_tokens, 1, std::int64_t{1} << 40,
                      "Most tokens to generate");
  command.add_flag("--ignore-eos", options->ignore_eos, "Go on past the end-of-text token");
  command.add_flag("--echo", options->echo, "Print the prompt before its continuation");
  command.add_flag("--json", options->json, "Print one JSON document at the end, no text before");

  SamplingOptions& sampling = options->generate.sampling;
  command.begin_group("Sampling, in this order");
  command.add_real("--repetition-penalty", sampling.repetition_penalty, 1e-6f, 1e6f,
                   "Above 1 makes earlier tokens less likely");
  command.add_real("--temperature", sampling.temperature, 0, 1e6f, "0: always the most likely token");
  command.add_integer("--top-k", sampling.top_k, 0, 1 << 30, "Only the K most likely tokens; 0: all");
  command.add_real("--top-p", sampling.top_p, 1e-9f, 1,
                   "Only the likeliest tokens that make up this probability");
  command.add_real("--min-p", sampling.min_p, 0, 1,
                   "Only tokens at least this likely, relative to the likeliest");
  command.add_seed("--seed", options->seed, "The same seed gives the same text; none: one is drawn and told");

  command.begin_group("Machine");
  command.add_text("--backend", options->model_options.backend, "auto, or a name that 'tessera info' lists",
                   "NAME", check_backend_name);
  command.add_choice("--activation-dtype", options->activation_dtype, activation_dtype_choices(),
                     "Of activations and KV cache; auto: what suits the weights");
  add_threads_option(command, options->threads);
  command.add_integer("--max-seq-len", options->model_options.max_seq_len, 0, std::int64_t{1} << 40,
                      "Most tokens of prompt and text; 0: the model's context length");
  command.add_flag("--batch-invariant", options->model_options.batch_invariant,
                   "Bits that don't depend on how the prompt was split");
  command.set_examples(
      {"tessera run --model models/demo --prompt \"Once upon a time\"",
       "tessera run --model model.gguf --prompt - --temperature 0.8 --top-p 0.95 < prompt.txt",
       "tessera run -m models/demo -p Hello -n 20 --json", "",
       "Text goes to standard output, rates to standard error. Ctrl-C stops and keeps the text so",
       "far (exit code 0, stop_reason \"cancelled\"); a second Ctrl-C kills the program."});
  command.set_action([options] { return run(*options); });
}

}  // namespace tessera::cli
