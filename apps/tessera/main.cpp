#include <exception>
#include <new>
#include <string>

#include "build_info.h"
#include "commands.h"
#include "output.h"
#include "tessera/error.h"
#include "truncated_files.h"

namespace {

using namespace tessera::cli;

int run(CommandLine& command_line, int argc, char** argv) {
  Command root = command_line.root();
  add_run_command(root);
  add_chat_command(root);
  add_serve_command(root);
  add_tokenize_command(root);
  add_logits_command(root);
  Command bench =
      root.add_command("bench", "Measure attention, the other kernels or a whole model on this machine");
  add_bench_attention_command(bench);
  add_bench_kernels_command(bench);
  add_bench_model_command(bench);
  bench.set_examples({"tessera bench attention --seq-len-q 2048 --causal",
                      "tessera bench model --shape llama-1b --dtype bf16"});
  Command tune =
      root.add_command("tune", "Measure which kernels are quickest on this machine, and choose them");
  add_tune_attention_command(tune);
  tune.set_examples({"tessera tune attention --dtype bf16"});
  add_verify_command(root);
  Command explain = root.add_command("explain", "Say what would run, and why");
  add_explain_command(explain);
  explain.set_examples({"tessera explain attention --seq-len-q 1 --seq-len-kv 32768"});
  add_info_command(root);
  add_cache_command(root);
  add_quantize_command(root);
  root.set_examples({"tessera run --model models/demo --prompt \"Once upon a time\"", "tessera info"});
  return command_line.run(argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  fill_closed_streams();
  make_failed_writes_errors();
  explain_truncated_files();
  int exit_code = kExitFailed;
  std::string message;
  CommandLine command_line("Runs large language models and the attention engine that drives them.",
                           "tessera " + version_text());
  try {
    return run(command_line, argc, argv);
  } catch (const ReaderGone&) {
    return kExitDone;
  } catch (const UsageError& error) {
    message = command_line.as_typed(error.what());
    exit_code = kExitUsage;
  } catch (const tessera::Error& error) {
    message = command_line.as_typed(error.message());
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  } catch (const std::exception& error) {
    message = error.what();
  }
  write_stderr("error: " + message + '\n');
  return exit_code;
}
