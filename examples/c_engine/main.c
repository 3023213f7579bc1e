/* Continues several prompts side by side with an engine, the last of them as JSON of a schema:
 *     c_engine MODEL PROMPT... */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/tessera.h"

enum { MOST_REQUESTS = 16, MOST_TEXT = 4096 };

static const char* const SCHEMA =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, "
    "\"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 120}}, \"required\": [\"name\", \"age\"]}";

typedef struct answer {
  uint64_t id;
  char text[MOST_TEXT];
  size_t size;
  int failed;
} answer;

static void check(tessera_status status) {
  if (status == TESSERA_OK) return;
  fprintf(stderr, "error: %s\n", tessera_last_error());
  exit(1);
}

static void submit(tessera_engine* engine, const tessera_model* model, const char* prompt, int as_json,
                   answer* out) {
  tessera_generate_options options = {.struct_size = sizeof options};
  tessera_tokens tokens;

  check(tessera_model_encode(model, prompt, strlen(prompt), 1, &tokens));
  options.flags = TESSERA_GENERATE_HAS_MAX_TOKENS;
  options.max_tokens = 60;
  options.temperature = 0.7f;
  options.seed = 1;
  options.frequency_penalty = 0.1f;
  if (as_json) options.json_schema = SCHEMA;
  check(tessera_engine_submit(engine, tokens.data, tokens.size, &options, &out->id));
  tessera_tokens_free(&tokens);
}

/* Adds an event's text to its request's; an error ends that request only. */
static void take(const tessera_event* event, answer* answers, int count) {
  size_t room, size;
  int i = 0;

  while (i < count && answers[i].id != event->id) ++i;
  if (i == count) return;
  room = sizeof answers[i].text - answers[i].size;
  size = event->text_bytes < room ? event->text_bytes : room;
  memcpy(answers[i].text + answers[i].size, event->text, size);
  answers[i].size += size;
  if (event->type == TESSERA_EVENT_ERROR) {
    fprintf(stderr, "request %d: %s\n", i + 1, event->error_message);
    answers[i].failed = 1;
  }
}

int main(int argc, char** argv) {
  static answer answers[MOST_REQUESTS];
  tessera_model_options model_options = {.struct_size = sizeof model_options};
  tessera_engine_options engine_options = {.struct_size = sizeof engine_options};
  tessera_engine_stats stats = {.struct_size = sizeof stats};
  tessera_model* model = NULL;
  tessera_engine* engine = NULL;
  const int count = argc - 2;
  int32_t has_work = 1;
  int failed = 0;
  int i;

  if (count < 1 || count > MOST_REQUESTS) {
    fprintf(stderr, "usage: %s MODEL PROMPT...\nMODEL is a Hugging Face folder or a .gguf file\n", argv[0]);
    return 2;
  }
  model_options.flags = TESSERA_MODEL_WITHOUT_CACHE; /* the engine brings one */
  check(tessera_model_load(argv[1], &model_options, &model));
  engine_options.max_batch = 4; /* more requests wait for their turn */
  engine_options.max_kv_tokens = 4096;
  check(tessera_engine_create(model, &engine_options, &engine));
  for (i = 0; i < count; ++i) submit(engine, model, argv[i + 2], i == count - 1, &answers[i]);

  /* A program with several threads submits and cancels from any of them, while this one steps and waits. */
  while (has_work) {
    tessera_events* events = NULL;
    size_t size, e;

    check(tessera_engine_step(engine, &events));
    check(tessera_events_size(events, &size));
    for (e = 0; e < size; ++e) {
      tessera_event event = {.struct_size = sizeof event};
      check(tessera_events_get(events, e, &event));
      take(&event, answers, count);
    }
    tessera_events_free(events);
    check(tessera_engine_has_work(engine, &has_work));
  }

  for (i = 0; i < count; ++i) {
    printf("%s%.*s\n", i == count - 1 ? "" : argv[i + 2], (int)answers[i].size, answers[i].text);
    failed |= answers[i].failed;
  }
  check(tessera_engine_get_stats(engine, &stats));
  printf("[%llu tokens in %llu steps]\n", (unsigned long long)stats.generated_tokens,
         (unsigned long long)stats.steps);
  tessera_engine_free(engine);
  tessera_model_free(model);
  return failed;
}
