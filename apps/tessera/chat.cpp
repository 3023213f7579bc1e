// An interactive conversation with a model.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "commands.h"
#include "core/new_file.h"
#include "generation_report.h"
#include "interrupt.h"
#include "line_reader.h"
#include "model_io.h"
#include "output.h"
#include "output_form.h"
#include "progress_bar.h"
#include "sampling_options.h"
#include "tessera/error.h"
#include "tessera/model.h"
#include "threads_option.h"

namespace tessera::cli {

namespace {

// Tokens of KV cache if --max-seq-len does not say: a long conversation, but not a context of a million
// tokens.
constexpr std::int64_t kChatKvTokens = 16384;

struct ChatCommandOptions {
  std::string model;
  std::string system;
  GenerateOptions generate;
  OutputForm form;
  ModelOptions model_options;
  std::optional<std::uint64_t> seed;
  std::string activation_dtype = "auto";
  std::string kv_dtype = "auto";
  int threads = 0;
};

constexpr std::string_view kHelp =
    "/help            this list\n"
    "/reset           forget the conversation, keep the system prompt\n"
    "/system [TEXT]   show the system prompt, or set it and start anew; \"/system -\" takes it away\n"
    "/save FILE       write the conversation into a new file as JSON: a list of messages with role and "
    "content\n"
    "/quit            end (also Ctrl-D)\n"
    "A line that ends in \\ goes on in the next; \"\"\" alone on a line begins and ends a text of several "
    "lines,\nwhich is no command, whatever it begins with.\n"
    "Ctrl-C stops an answer and keeps what is there of it.\n";

class Conversation {
 public:
  explicit Conversation(ChatCommandOptions options)
      : options_(std::move(options)), model_(load()), formed_(options_.form, model_.model()) {}

  int run() {
    if (reader_.is_interactive()) {
      write_stderr(fmt::format(
          "{} on {}; /help lists the commands{}\n", model_.info().architecture, model_.info().backend,
          reader_.can_edit() ? "" : "; lines can't be edited: libedit2 is not installed"));
    }
    while (!terminated()) {
      const std::optional<Input> input = read_input();
      if (!input) break;
      if (input->text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
      if (input->text.front() == '/' && !input->is_quoted) {
        if (!run_command(input->text)) break;
        continue;
      }
      answer(input->text);
    }
    return kExitDone;
  }

 private:
  struct Input {
    std::string text;
    bool is_quoted = false;  ///< by """, as what begins with '/' must be to reach the model
  };

  LanguageModel load() {
    ModelOptions& model_options = options_.model_options;
    model_options.on_progress = [this](const Progress& progress) {
      if (interrupted()) throw Interrupted{};
      progress_bar_.show(progress);
    };
    kv_tokens_ = model_options.max_seq_len > 0 ? model_options.max_seq_len : kChatKvTokens;
    model_options.max_kv_tokens = kv_tokens_;
    LanguageModel model = LanguageModel::load(options_.model, model_options);
    progress_bar_.clear();
    kv_tokens_ = std::min(kv_tokens_, model.info().max_seq_len);
    if (!model.info().has_chat_template) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format(
              "{} has no chat template, so that it can't be talked to; 'tessera run' continues a text",
              options_.model));
    }
    reset();
    return model;
  }

  void reset() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({"system", options_.system});
  }

  /// What the user writes next, joined from several lines if need be; nothing at the end of the input.
  std::optional<Input> read_input() {
    std::optional<std::string> line = reader_.read("> ");
    if (!line) {
      if (reader_.is_interactive()) write_stdout("\n");
      return std::nullopt;
    }
    if (*line == "\"\"\"") {
      std::string text;
      for (line = reader_.read(". "); line && *line != "\"\"\""; line = reader_.read(". "))
        text += *line + '\n';
      if (!text.empty()) text.pop_back();
      return Input{text, true};
    }
    std::string text = *line;
    while (text.ends_with('\\') && line) {
      text.back() = '\n';
      line = reader_.read(". ");
      if (line) text += *line;
    }
    return Input{text};
  }

  /// False: the program ends.
  bool run_command(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    std::string argument = space == line.npos ? "" : line.substr(space + 1);
    argument.erase(0, argument.find_first_not_of(' '));
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      write_stdout(kHelp);
    } else if (name == "/reset") {
      reset();
      write_stderr("the conversation is forgotten\n");
    } else if (name == "/system") {
      if (argument.empty()) {
        write_stdout(options_.system.empty() ? "there is no system prompt\n" : options_.system + '\n');
      } else {
        options_.system = argument == "-" ? "" : argument;
        reset();
        write_stderr("the system prompt is set, and the conversation begins anew\n");
      }
    } else if (name == "/save") {
      save(argument);
    } else {
      write_stderr(fmt::format("there is no command '{}'; /help lists them\n", name));
    }
    return true;
  }

  void save(const std::string& path) {
    if (path.empty()) {
      write_stderr("/save needs the name of a file\n");
      return;
    }
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const ChatMessage& message : messages_)
      list.push_back({{"role", message.role}, {"content", message.content}});
    const std::string text =
        list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
    try {
      NewFile file(path);
      file.write(text.data(), text.size());
      file.finish();
      write_stderr(fmt::format("{} messages are in {}\n", messages_.size(), path));
    } catch (const Error& error) {
      write_stderr("error: " + error.message() + '\n');
    }
  }

  /// Asks the model. What goes wrong ends this answer, not the conversation.
  void answer(const std::string& text) {
    messages_.push_back({"user", text});
    std::string said;
    catch_interrupts();
    try {
      const std::vector<std::int32_t> tokens = model_.encode_chat(messages_);
      const auto num_tokens = static_cast<std::int64_t>(tokens.size());
      if (num_tokens >= kv_tokens_) {
        throw Error(ErrorCode::kOutOfMemory,
                    fmt::format("the conversation has {} tokens, of which {} fit; /reset begins anew, "
                                "--max-seq-len makes room where the model allows it",
                                num_tokens, kv_tokens_));
      }
      GenerateOptions generate = options_.generate;
      generate.keep_cache = true;
      generate.constraint = formed_.next();
      generate.max_tokens = std::min(generate.max_tokens, kv_tokens_ - num_tokens);
      generate.sampling.seed = options_.seed ? *options_.seed : std::random_device{}();
      const Generation generation =
          model_.generate(tokens, generate, [&](std::int32_t, std::string_view piece) {
            progress_bar_.clear();
            write_stdout(piece);
            said += piece;
            return !interrupted();
          });
      if (!said.ends_with('\n')) write_stdout("\n");
      write_stderr(rates_text(generation, generate.sampling, model_.info()));
    } catch (const Interrupted&) {
      progress_bar_.clear();
      write_stderr("stopped before the first token\n");
    } catch (const OutputError&) {
      throw;
    } catch (const Error& error) {
      progress_bar_.clear();
      if (!said.empty()) write_stdout("\n");
      write_stderr("error: " + error.message() + '\n');
    }
    release_interrupts();
    if (said.empty()) {
      messages_.pop_back();
    } else {
      messages_.push_back({"assistant", said});
    }
  }

  ChatCommandOptions options_;
  ProgressBar progress_bar_;
  std::int64_t kv_tokens_ = 0;
  std::vector<ChatMessage> messages_;
  LanguageModel model_;
  FormedOutput formed_;
  LineReader reader_;
};

int chat(ChatCommandOptions options) {
  check(options.form, false);
  use_threads(options.threads);
  options.model_options.activation_dtype = parse_activation_dtype(options.activation_dtype);
  options.model_options.kv_dtype = parse_kv_dtype(options.kv_dtype);
  return Conversation(std::move(options)).run();
}

}  // namespace

void add_chat_command(Command& parent) {
  auto options = std::make_shared<ChatCommandOptions>();
  options->generate.max_tokens = 2048;
  Command command = parent.add_command("chat", "Talk with a language model");
  command.add_required_text("-m,--model", options->model, "Hugging Face folder or .gguf file", "PATH");
  command.add_text("--system", options->system, "What the model is told before the conversation");
  command.add_integer("-n,--max-tokens", options->generate.max_tokens, 1, std::int64_t{1} << 40,
                      "Most tokens of an answer");
  add_output_form(command, options->form);
  add_stop_option(command, options->generate.stop, "Text that ends an answer");
  add_sampling_options(command, options->generate.sampling, options->seed);

  command.begin_group("Machine");
  add_machine_options(command, options->model_options, options->activation_dtype, options->threads);
  add_kv_dtype_option(command, options->kv_dtype);
  command.add_integer(
      "--max-seq-len", options->model_options.max_seq_len, 0, std::int64_t{1} << 40,
      "Most tokens of the conversation; 0: 16384, or the model's context length if that is less");
  command.set_examples(
      {"tessera chat --model models/demo", "tessera chat -m model.gguf --system \"Answer in one sentence.\"",
       "", "Answers go to standard output, rates to standard error. Type /help for the commands."});
  command.set_action([options] { return chat(*options); });
}

}  // namespace tessera::cli
