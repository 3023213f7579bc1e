/* Continues a prompt with a language model through the C interface, printing the text as it comes:
 *     c_generate MODEL PROMPT */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/tessera.h"

static void check(tessera_status status) {
  if (status == TESSERA_OK) return;
  fprintf(stderr, "error: %s\n", tessera_last_error());
  exit(1);
}

static int32_t print_text(void* user_data, int32_t token, const char* text, size_t text_bytes) {
  (void)user_data;
  (void)token;
  fwrite(text, 1, text_bytes, stdout);
  fflush(stdout);
  return 0; /* anything else would stop */
}

int main(int argc, char** argv) {
  tessera_model_info model_info = {.struct_size = sizeof model_info};
  tessera_generate_options options = {.struct_size = sizeof options};
  tessera_generation_info info = {.struct_size = sizeof info};
  tessera_model* model = NULL;
  tessera_generation* generation = NULL;
  tessera_tokens prompt;

  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL PROMPT\nMODEL is a Hugging Face folder or a .gguf file\n", argv[0]);
    return 2;
  }
  check(tessera_model_load(argv[1], NULL, &model));
  check(tessera_model_get_info(model, &model_info));
  check(tessera_model_encode(model, argv[2], strlen(argv[2]), 1, &prompt));

  options.flags = TESSERA_GENERATE_HAS_MAX_TOKENS | TESSERA_GENERATE_HAS_TOP_P;
  options.max_tokens = 60;
  options.temperature = 0.7f;
  options.top_p = 0.95f;
  options.seed = 1;

  printf("%s", argv[2]);
  check(tessera_model_generate(model, prompt.data, prompt.size, &options, print_text, NULL, &generation));
  check(tessera_generation_get_info(generation, &info));
  printf("\n[%lld tokens from %s]\n", (long long)info.generated_tokens, model_info.backend);

  tessera_generation_free(generation);
  tessera_tokens_free(&prompt);
  tessera_model_free(model);
  return 0;
}
