// A server with OpenAI's API and a page to chat on.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "commands.h"
#include "interrupt.h"
#include "model_io.h"
#include "output.h"
#include "progress_bar.h"
#include "sampling_options.h"
#include "server/api_server.h"
#include "server/engine_model.h"
#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/model.h"
#include "threads_option.h"

namespace tessera::cli {

namespace {

// Tokens of KV cache for all sequences if --max-kv-tokens does not say: some long conversations, but not
// sixteen contexts of a million tokens.
constexpr std::int64_t kServedKvTokens = 65536;

struct ServeOptions {
  std::string model;
  std::string model_name;  // empty: the file's
  server::ServerOptions server;
  EngineOptions engine;
  ModelOptions machine;  // of which backend and activation_dtype are read
  std::optional<std::string> api_key, api_key_file;
  std::string activation_dtype = "auto";
  std::string kv_dtype = "auto";
  std::optional<std::uint64_t> seed;
  int port = 8080;
  int max_body_mib = 8;
  int max_connections = 4096;
  int drain_seconds = 30;
  bool no_prefix_cache = false;
  int threads = 0;
};

std::string read_key(const std::string& path) {
  constexpr std::size_t kMostBytes = 4096;  // of a line; clients send the key in a header
  std::ifstream file(path, std::ios::binary);
  std::string key(kMostBytes + 1, '\0');
  file.read(key.data(), static_cast<std::streamsize>(key.size()));
  key.resize(static_cast<std::size_t>(file.gcount()));
  if (key.empty()) {
    throw Error(ErrorCode::kIo, fmt::format("cannot read a key from the first line of '{}'", path));
  }
  key.resize(std::min(key.find('\n'), key.size()));
  if (key.size() > kMostBytes) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the first line of '{}' is longer than {} bytes; expected a key", path, kMostBytes));
  }
  while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
  if (key.empty())
    throw Error(ErrorCode::kInvalidArgument, fmt::format("the first line of '{}' is empty", path));
  return key;
}

std::string name_of(const std::string& path) {
  const std::filesystem::path absolute = std::filesystem::absolute(path).lexically_normal();
  const std::filesystem::path file = absolute.has_filename() ? absolute : absolute.parent_path();
  return file.extension() == ".gguf" ? file.stem().string() : file.filename().string();
}

Model load(const ServeOptions& options) {
  ProgressBar progress_bar;
  LoadOptions load_options;
  load_options.backend = options.machine.backend;
  load_options.activation_dtype = parse_activation_dtype(options.activation_dtype);
  load_options.on_progress = [&](const Progress& progress) {
    if (interrupted()) throw Interrupted{};
    progress_bar.show(progress);
  };
  Model model = Model::load(options.model, load_options);
  progress_bar.clear();
  return model;
}

int serve(ServeOptions options) {
  if (options.api_key && options.api_key_file)
    throw UsageError("--api-key and --api-key-file exclude each other");
  // Nobody who gives a key means to do without.
  if (options.api_key && options.api_key->empty()) throw UsageError("--api-key is empty; expected a key");
  use_threads(options.threads);
  if (options.api_key) options.server.api_key = *options.api_key;
  if (options.api_key_file) options.server.api_key = read_key(*options.api_key_file);
  catch_interrupts();
  try {
    options.engine.kv_dtype = parse_kv_dtype(options.kv_dtype);
    Model model = load(options);
    const ModelInfo info = model.info();
    if (!info.has_tokenizer) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} has no tokenizer, so that it can't be served", options.model));
    }
    EngineOptions& engine = options.engine;
    if (engine.max_kv_tokens == 0) engine.max_kv_tokens = std::max(kServedKvTokens, engine.max_seq_len);
    if (engine.max_seq_len == 0) engine.max_seq_len = std::min(info.max_seq_len, engine.max_kv_tokens);
    engine.max_kv_tokens = std::min(engine.max_kv_tokens, engine.max_batch * engine.max_seq_len);
    engine.prefix_cache = !options.no_prefix_cache;
    server::EngineModel served(std::move(model), engine);

    server::ServerOptions& server_options = options.server;
    server_options.port = static_cast<std::uint16_t>(options.port);
    server_options.http.max_body_bytes = static_cast<std::size_t>(options.max_body_mib) << 20;
    server_options.http.max_connections = static_cast<std::size_t>(options.max_connections);
    server_options.max_preparing = static_cast<std::size_t>(engine.max_waiting);
    server_options.drain_time = std::chrono::seconds(options.drain_seconds);
    server_options.defaults.model_name =
        options.model_name.empty() ? name_of(options.model) : options.model_name;
    server_options.defaults.seed = options.seed;
    // More could never be taken at once: waiting for them would be in vain.
    server_options.defaults.max_choices =
        static_cast<int>(std::min<std::int64_t>(server_options.defaults.max_choices, engine.max_waiting));
    server_options.wants_end = [] { return interrupted(); };
    server::ApiServer server(served, server_options);
    if (server_options.api_key.empty() && !server.on_loopback()) {
      write_stderr(
          "warning: everybody who reaches this machine may use the server; --api-key-file asks for a key\n");
    }
    write_stderr(fmt::format("{} on {}: {} sequences at a time of up to {} tokens, {} of KV cache\n",
                             info.architecture, info.backend, engine.max_batch, served.max_seq_len(),
                             bytes_text(static_cast<double>(served.stats().kv_cache_bytes))));
    write_stdout(fmt::format("\"{}\" at http://{}:{}\n", server_options.defaults.model_name,
                             server_options.host.find(':') == std::string::npos
                                 ? server_options.host
                                 : '[' + server_options.host + ']',
                             server.port()));
    server.run();
  } catch (const Interrupted&) {
    write_stderr("stopped before the model was loaded\n");
  }
  return kExitDone;
}

}  // namespace

void add_serve_command(Command& parent) {
  auto options = std::make_shared<ServeOptions>();
  SamplingOptions& sampling = options->server.defaults.sampling;
  sampling.temperature = 1;  // as in OpenAI's API
  Command command = parent.add_command("serve", "Serve a model with OpenAI's API, and a page to chat on");
  command.add_required_text("-m,--model", options->model, "Hugging Face folder or .gguf file", "PATH");
  command.add_text("--host", options->server.host, "Address to listen on; 0.0.0.0: all networks", "HOST");
  command.add_integer("--port", options->port, 0, 65535, "Port to listen on; 0: any that is free");
  command.add_text("--model-name", options->model_name,
                   "What requests call the model; its file's name otherwise");
  command.add_optional_text("--api-key", options->api_key,
                            "Key that clients must send; others see it in the list of processes");
  command.add_optional_text("--api-key-file", options->api_key_file, "File whose first line is the key",
                            "PATH");
  command.add_text("--cors-origin", options->server.cors_origin,
                   "Whose pages may call this server, e.g. https://example.com, or *", "ORIGIN",
                   taken_by(server::as_browsers_write_it));

  command.begin_group("Limits");
  command.add_integer("--max-batch", options->engine.max_batch, 1, 1 << 16,
                      "Sequences that run at the same time");
  command.add_integer("--max-waiting", options->engine.max_waiting, 1, 1 << 20,
                      "Requests that wait for their turn; more are told to come back (429)");
  command.add_integer(
      "--max-seq-len", options->engine.max_seq_len, 0, std::int64_t{1} << 40,
      "Most tokens of prompt and answer; 0: the model's context length, or all of the KV cache");
  command.add_integer("--max-kv-tokens", options->engine.max_kv_tokens, 0, std::int64_t{1} << 40,
                      "Tokens of KV cache for all sequences; 0: 65536");
  command.add_integer("--max-connections", options->max_connections, 1, 1 << 20, "Clients at the same time");
  command.add_integer("--max-body", options->max_body_mib, 1, 1024, "Most MiB of a request");
  command.add_integer("--drain-seconds", options->drain_seconds, 0, 86400,
                      "Time for running requests after Ctrl-C or SIGTERM");
  command.add_flag("--no-prefix-cache", options->no_prefix_cache,
                   "Compute every prompt anew, also where it begins like an earlier one");
  command.add_flag("--batch-invariant", options->engine.batch_invariant,
                   "An answer's bits don't depend on what else runs or is cached");

  add_sampling_options(command, sampling, options->seed);

  command.begin_group("Machine");
  add_machine_options(command, options->machine, options->activation_dtype, options->threads);
  add_kv_dtype_option(command, options->kv_dtype);
  command.set_examples(
      {"tessera serve --model models/demo",
       "tessera serve --model model.gguf --host 0.0.0.0 --api-key-file key.txt --max-batch 32",
       "curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Once upon a time\"}'", "",
       "The sampling options are for requests that don't say. Encrypted connections (TLS) are left to",
       "a proxy in front. Ctrl-C or SIGTERM ends the server when what runs is done; a second one at",
       "once."});
  command.set_action([options] { return serve(*options); });
}

}  // namespace tessera::cli
