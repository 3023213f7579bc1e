#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "core/text.h"
#include "interrupt.h"
#include "model/checkpoint/quantize_gguf.h"
#include "output.h"
#include "progress_bar.h"
#include "threads_option.h"

namespace tessera::cli {

namespace {

struct QuantizeOptions {
  std::string model, out;
  std::string type = "q4_k_m";
  int threads = 0;
  bool json = false;
};

int quantize(QuantizeOptions options) {
  options.type = lower_case(options.type);  // llama.cpp's programs write Q4_K_M
  use_threads(options.threads);
  catch_interrupts();
  ProgressBar bar;
  QuantizedSizes sizes;
  try {
    sizes =
        quantize_gguf(options.model, options.type, options.out, [&](std::uint64_t done, std::uint64_t all) {
          if (interrupted()) throw Interrupted{};
          bar.show({Progress::Stage::kLoad, done, all});
        });
  } catch (const Interrupted&) {  // what was written of the file is gone
    bar.clear();
    end_interrupted();
  }
  bar.clear();
  if (options.json) {
    write_json({{"out", options.out},
                {"type", options.type},
                {"bytes_before", sizes.bytes_before},
                {"bytes_after", sizes.bytes_after}});
    return kExitDone;
  }
  write_stdout(fmt::format("{}: {}, {:.1f} MB of weights (before: {:.1f} MB)\n", options.out, options.type,
                           static_cast<double>(sizes.bytes_after) * 1e-6,
                           static_cast<double>(sizes.bytes_before) * 1e-6));
  return kExitDone;
}

}  // namespace

void add_quantize_command(Command& parent) {
  auto options = std::make_shared<QuantizeOptions>();
  Command command =
      parent.add_command("quantize", "Make a .gguf file of a model, its matrices in fewer bits");
  command.add_required_text("-m,--model", options->model,
                            "Hugging Face folder, or .gguf file, of parts the first", "PATH");
  command.add_choice("--type", options->type, quantization_mixes(), "Mix of formats, as llama.cpp names them",
                     [](const std::string& name) { return mix_problem(lower_case(name)); });
  command.add_required_text("out", options->out, "The .gguf file to write, which must not exist yet", "OUT");
  add_threads_option(command, options->threads);
  command.add_flag("--json", options->json, "Print one JSON document");
  command.set_examples({"tessera quantize --model models/demo --type q4_k_m demo-q4_k_m.gguf",
                        "tessera quantize --model model-f16.gguf --type q4_k_m model-q4_k_m.gguf"});
  command.set_action([options] { return quantize(*options); });
}

}  // namespace tessera::cli
