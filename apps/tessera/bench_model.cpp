#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "attention/backend.h"
#include "bench_mixed_steps.h"
#include "bench_report.h"
#include "commands.h"
#include "core/block_format.h"
#include "model/checkpoint/quantize_gguf.h"
#include "model_io.h"
#include "output.h"
#include "progress_bar.h"
#include "tessera/error.h"
#include "tessera/model.h"
#include "threads_option.h"
#include "timing.h"

namespace tessera::cli {

namespace {

struct BenchModelOptions {
  std::optional<std::string> model;
  std::optional<std::string> shape;
  std::optional<std::string> config;
  std::string dtype = "bf16";
  std::string activation_dtype = "auto";
  std::string kv_dtype = "auto";
  std::string backend = "auto";
  int prompt_tokens = 512;
  int gen_tokens = 128;
  int batch = 1;
  int chunk_tokens = 0;
  int repeat = 1;
  int threads = 0;
  bool batch_invariant = false;
  bool json = false;
};

struct BenchModelResult {
  Timing prefill;
  Timing decode;
  std::optional<MixedSteps> mixed;
  Ceilings ceilings;
};

/// Decode steps of one run: the first token comes out of the prompt's pass.
int decode_steps(const BenchModelOptions& o) { return o.gen_tokens - 1; }

/// Dtypes of weights, then mixes of them.
std::vector<std::string> weight_dtype_choices() {
  std::vector<std::string> names;
  for (const DType dtype : weight_dtypes()) names.emplace_back(dtype_name(dtype));
  for (const std::string& mix : quantization_mixes()) {
    if (std::ranges::find(names, mix) == names.end()) names.push_back(mix);
  }
  return names;
}

bool is_mix(const std::string& name) {
  return std::ranges::none_of(weight_dtypes(), [&](DType dtype) { return dtype_name(dtype) == name; });
}

LanguageModel make_model(const BenchModelOptions& options, ProgressBar& progress_bar) {
  ModelOptions model_options;
  model_options.backend = options.backend;
  model_options.activation_dtype = parse_activation_dtype(options.activation_dtype);
  model_options.kv_dtype = parse_kv_dtype(options.kv_dtype);
  model_options.batch_invariant = options.batch_invariant;
  model_options.max_batch = options.batch;
  model_options.max_seq_len = std::int64_t{options.prompt_tokens} + options.gen_tokens;
  model_options.on_progress = [&](const Progress& progress) { progress_bar.show(progress); };
  if (options.model) return LanguageModel::load(*options.model, model_options);
  if (options.config) return LanguageModel::random_like(*options.config, options.dtype, model_options);
  const RandomModelShape shape = random_model_shape(*options.shape);
  if (is_mix(options.dtype)) return LanguageModel::random(shape, options.dtype, model_options);
  return LanguageModel::random(shape, parse_dtype(options.dtype), model_options);
}

/// Prompts of tokens spread over the vocabulary, different in each sequence.
std::vector<std::vector<std::int32_t>> make_prompts(const BenchModelOptions& options,
                                                    std::int64_t vocab_size) {
  std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(options.batch));
  std::int64_t token = 1;
  for (auto& prompt : prompts) {
    for (int i = 0; i < options.prompt_tokens; ++i) {
      token = (token * 1103515245 + 12345) % 2147483648;
      prompt.push_back(static_cast<std::int32_t>(token % vocab_size));
    }
  }
  return prompts;
}

BenchModelResult measure(LanguageModel& model, const BenchModelOptions& options) {
  const auto prompts = make_prompts(options, model.info().vocab_size);
  GenerateOptions generate;
  generate.stop_at_eos = false;
  generate.max_tokens = options.gen_tokens;
  const AttentionBackend& backend = find_attention_backend(model.info().backend);
  CeilingWatch ceilings(model.info().activation_dtype);
  ceilings.look(backend);
  std::vector<double> prefill_ms, decode_ms;
  for (int run = 0; run <= options.repeat; ++run) {
    GenerateOptions this_run = generate;
    if (run == 0) this_run.max_tokens = 2;  // pages weights and buffers in
    const std::vector<Generation> generations = model.generate_batch(prompts, std::span(&this_run, 1));
    const Generation& first = generations.front();
    if (std::ssize(first.tokens) != this_run.max_tokens) {
      throw Error(ErrorCode::kDevice,
                  fmt::format("{} tokens came out and {} were asked for; stopped: {}", first.tokens.size(),
                              this_run.max_tokens, stop_reason_text(first.stop_reason)));
    }
    if (run == 0) continue;
    prefill_ms.push_back(first.stats.prefill_ms);
    decode_ms.push_back(first.stats.decode_ms);
  }
  BenchModelResult result;
  result.prefill = summarize(prefill_ms);
  result.decode = summarize(decode_ms);
  ceilings.look(backend);
  result.ceilings = ceilings.best();
  if (options.chunk_tokens > 0) result.mixed = time_mixed_steps(model.model(), prompts, options.chunk_tokens);
  return result;
}

struct Rates {
  double prompt_tokens_per_s, decode_tokens_per_s;
  double decode_gbps;  ///< one step reads the weights once, however many sequences it serves
  double ceiling_gbps;

  double share_of_ceiling() const { return decode_gbps / ceiling_gbps; }
};

Rates rates_of(const BenchModelResult& result, const BenchModelOptions& o, const ModelInfo& info) {
  const double steps_per_s = decode_steps(o) * 1e3 / result.decode.median_ms;
  return {o.batch * static_cast<double>(o.prompt_tokens) * 1e3 / result.prefill.median_ms,
          o.batch * steps_per_s, static_cast<double>(info.decode_bytes) * steps_per_s * 1e-9,
          result.ceilings.bytes_per_s * 1e-9};
}

nlohmann::ordered_json to_json(const BenchModelResult& result, const BenchModelOptions& o,
                               const std::string& name, const ModelInfo& info) {
  const Rates rates = rates_of(result, o, info);
  nlohmann::ordered_json document = bench_environment_json();
  document["model"] = model_to_json(info);
  document["results"] = {{{"name", name},
                          {"backend", info.backend},
                          {"weight_dtype", dtype_name(info.weight_dtype)},
                          {"batch", o.batch},
                          {"batch_invariant", o.batch_invariant},
                          {"prompt_tokens", o.prompt_tokens},
                          {"gen_tokens", o.gen_tokens},
                          {"runs", result.prefill.samples},
                          {"prefill_ms", result.prefill.median_ms},
                          {"prefill_ms_min", result.prefill.min_ms},
                          {"prefill_ms_max", result.prefill.max_ms},
                          {"prefill_tokens_per_second", rates.prompt_tokens_per_s},
                          {"decode_ms", result.decode.median_ms},
                          {"decode_ms_min", result.decode.min_ms},
                          {"decode_ms_max", result.decode.max_ms},
                          {"decode_tokens_per_second", rates.decode_tokens_per_s},
                          {"decode_bytes", info.decode_bytes},
                          {"decode_gbps", rates.decode_gbps},
                          {"ceiling", rates.ceiling_gbps},
                          {"ceiling_kind", "memory_read"},
                          {"ceiling_unit", "GB/s"},
                          {"share_of_ceiling", rates.share_of_ceiling()}}};
  if (result.mixed) {
    const MixedSteps& m = *result.mixed;
    document["results"][0]["mixed_steps"] = {{"chunk_tokens", o.chunk_tokens},
                                             {"decode_ms", m.decode_ms},
                                             {"chunk_ms", m.chunk_ms},
                                             {"both_ms", m.both_ms},
                                             {"share_of_both", m.share_of_both()}};
  }
  return document;
}

std::string to_text(const BenchModelResult& result, const BenchModelOptions& o, const std::string& name,
                    const ModelInfo& info) {
  const Rates rates = rates_of(result, o, info);
  std::string text =
      fmt::format("{}: {} parameters, {} of {} weights, {} activations, {} KV cache, backend {}\n{}\n\n",
                  name, count_text(info.num_parameters), bytes_text(static_cast<double>(info.weight_bytes)),
                  dtype_name(info.weight_dtype), dtype_name(info.activation_dtype), dtype_name(info.kv_dtype),
                  info.backend, bench_environment_text());
  text += fmt::format("prefill  {} x {} tokens  {:.1f} ms  {:.1f} tokens/s\n", o.batch, o.prompt_tokens,
                      result.prefill.median_ms, rates.prompt_tokens_per_s);
  text += fmt::format(
      "decode   {} x {} tokens  {:.1f} ms  {:.1f} tokens/s  {:.2f} GB/s of weights, {:.1f} % of the "
      "memory read rate {:.2f} GB/s\n",
      o.batch, decode_steps(o), result.decode.median_ms, rates.decode_tokens_per_s, rates.decode_gbps,
      100 * rates.share_of_ceiling(), rates.ceiling_gbps);
  if (result.mixed) {
    const MixedSteps& m = *result.mixed;
    text += fmt::format(
        "steps    {} decodes {:.2f} ms, {} tokens of a prompt {:.2f} ms, both {:.2f} ms, {:.2f} of the two "
        "apart\n",
        o.batch, m.decode_ms, o.chunk_tokens, m.chunk_ms, m.both_ms, m.share_of_both());
  }
  return text;
}

int bench_model(const BenchModelOptions& options) {
  if (options.model.has_value() + options.shape.has_value() + options.config.has_value() != 1) {
    throw UsageError("give one of --model PATH, --shape NAME and --config PATH");
  }
  if (options.shape) {
    try {
      random_model_shape(*options.shape);
    } catch (const Error& error) {
      throw UsageError("--shape: " + error.message());
    }
  }
  use_threads(options.threads);
  ProgressBar progress_bar;
  LanguageModel model = make_model(options, progress_bar);
  progress_bar.clear();
  const BenchModelResult result = measure(model, options);
  progress_bar.clear();
  const std::string name = options.model ? *options.model : options.shape ? *options.shape : *options.config;
  if (options.json) {
    write_json(to_json(result, options, name, model.info()));
  } else {
    write_stdout(to_text(result, options, name, model.info()));
  }
  return kExitDone;
}

}  // namespace

void add_bench_model_command(Command& parent) {
  auto options = std::make_shared<BenchModelOptions>();
  Command command = parent.add_command("model", "Time reading a prompt and generating with a whole model");
  command.add_optional_text("-m,--model", options->model, "Hugging Face folder or .gguf file", "PATH");
  command.add_optional_text("--shape", options->shape,
                            "Random weights of a known shape: llama-1b, llama-8b, ...", "NAME");
  command.add_optional_text("--config", options->config,
                            "Random weights of the model that a Hugging Face config.json describes", "PATH");
  command.add_choice("--dtype", options->dtype, weight_dtype_choices(),
                     "Of random weights, or a mix of them");
  command.add_choice(
      "--activation-dtype", options->activation_dtype, activation_dtype_choices(),
      "And of the KV cache; auto: that of the weights, of quantised ones bf16 if the device multiplies that");
  add_kv_dtype_option(command, options->kv_dtype);
  command.add_integer("--prompt-tokens", options->prompt_tokens, 1, 1 << 24, "Tokens of each prompt");
  command.add_integer("--gen-tokens", options->gen_tokens, 2, 1 << 24, "Tokens to generate after each");
  command.add_integer("--batch", options->batch, 1, 1 << 16, "Prompts side by side");
  command.add_integer("--chunk-tokens", options->chunk_tokens, 0, 1 << 20,
                      "Also times steps in which all sequences decode beside so many tokens of a prompt");
  command.add_flag("--batch-invariant", options->batch_invariant, "Bits that don't depend on the batch");
  command.add_integer("--repeat", options->repeat, 1, 1000, "Runs; the median counts");
  command.add_text("--backend", options->backend, "auto, or a name that 'tessera info' lists", "NAME",
                   check_backend_name);
  add_threads_option(command, options->threads);
  command.add_flag("--json", options->json, "Print one JSON document");
  command.set_examples(
      {"tessera bench model --model models/demo",
       "tessera bench model --shape llama-1b --dtype bf16 --prompt-tokens 512 --gen-tokens 128",
       "tessera bench model --shape llama-1b --dtype q8_0 --batch 4 --json",
       "tessera bench model --config tests/fixtures/models/qwen3_moe/config.json --dtype f32"});
  command.set_action([options] { return bench_model(*options); });
}

}  // namespace tessera::cli
