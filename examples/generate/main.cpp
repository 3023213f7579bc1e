// Continues a prompt with a language model, printing the text as it comes:  generate MODEL PROMPT

#include <cstdio>
#include <string_view>
#include <vector>

#include "tessera/error.h"
#include "tessera/model.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s MODEL PROMPT\nMODEL is a Hugging Face folder or a .gguf file\n", argv[0]);
    return 2;
  }
  try {
    tessera::LanguageModel model = tessera::LanguageModel::load(argv[1]);
    const std::vector<std::int32_t> prompt = model.encode(argv[2]);

    tessera::GenerateOptions options;
    options.max_tokens = 60;
    options.sampling.temperature = 0.7f;
    options.sampling.top_p = 0.95f;
    options.sampling.seed = 1;

    std::printf("%s", argv[2]);
    const tessera::Generation generation =
        model.generate(prompt, options, [](std::int32_t, std::string_view text) {
          std::fwrite(text.data(), 1, text.size(), stdout);
          std::fflush(stdout);
          return true;  // false would stop
        });
    std::printf("\n[%lld tokens from %s]\n", static_cast<long long>(generation.stats.generated_tokens),
                model.info().backend.c_str());
    return 0;
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.message().c_str());
    return 1;
  }
}
