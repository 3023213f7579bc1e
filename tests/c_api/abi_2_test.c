/* Runs what programs do that were compiled with the second version of the header, tessera_2.h, which never
 * changes: a model, a generation with every option. The library's structs may have grown since; numbers and
 * places may not have changed.
 *     abi_2_test MODEL */
#include <stdio.h>
#include <string.h>

#include "tessera_2.h"

#define EXPECT(condition)                                                                             \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      fprintf(stderr, "line %d: %s does not hold: %s\n", __LINE__, #condition, tessera_last_error()); \
      ++failures;                                                                                     \
    }                                                                                                 \
  } while (0)

static int failures = 0;

/* Structs as the library may read and write them: what lies behind is not its own. */
static struct {
  tessera_model_options it;
  unsigned char behind[64];
} model_options;
static struct {
  tessera_model_info it;
  unsigned char behind[64];
} model_info;
static struct {
  tessera_generate_options it;
  unsigned char behind[64];
} options;
static struct {
  tessera_generation_info it;
  unsigned char behind[64];
} info;

#define BEGIN(s) \
  (memset(&(s), 0xa5, sizeof(s)), memset(&(s).it, 0, sizeof(s).it), (s).it.struct_size = sizeof(s).it)

static void expect_untouched(const unsigned char* behind) {
  int i;
  for (i = 0; i < 64; ++i) EXPECT(behind[i] == 0xa5);
}

int main(int argc, char** argv) {
  tessera_model* model = NULL;
  tessera_generation* generation = NULL;
  const int32_t prompt[3] = {1, 2, 3};
  const char* const stop[1] = {"no such text"};

  if (argc != 2) return 2;
  BEGIN(model_options);
  BEGIN(model_info);
  BEGIN(options);
  BEGIN(info);
  model_options.it.backend = "reference";
  model_options.it.max_seq_len = 32;
  EXPECT(tessera_model_load(argv[1], &model_options.it, &model) == TESSERA_OK);
  EXPECT(tessera_model_get_info(model, &model_info.it) == TESSERA_OK);
  EXPECT(model_info.it.struct_size == sizeof model_info.it);
  EXPECT(model_info.it.max_seq_len == 32 && model_info.it.has_tokenizer == 1);
  expect_untouched(model_info.behind);

  options.it.flags =
      TESSERA_GENERATE_HAS_MAX_TOKENS | TESSERA_GENERATE_IGNORE_EOS | TESSERA_GENERATE_KEEP_CACHE;
  options.it.max_tokens = 4;
  options.it.stop = stop;
  options.it.num_stop = 1;
  EXPECT(tessera_model_generate(model, prompt, 3, &options.it, NULL, NULL, &generation) == TESSERA_OK);
  EXPECT(tessera_generation_get_info(generation, &info.it) == TESSERA_OK);
  EXPECT(info.it.num_tokens == 4 && info.it.stop_reason == TESSERA_STOP_MAX_TOKENS);
  EXPECT(info.it.prompt_tokens == 3 && info.it.generated_tokens == 4);
  expect_untouched(info.behind);

  tessera_generation_free(generation);
  tessera_model_free(model);
  return failures == 0 ? 0 : 1;
}
