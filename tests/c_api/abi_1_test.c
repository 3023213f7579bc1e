/* Runs what programs do that were compiled with the first version of the header, tessera_1.h, which never
 * changes: dense attention, plans, an explanation, verify. The library's structs may have grown since;
 * numbers and places may not have changed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tessera_1.h"

#define EXPECT(condition)                                                                             \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      fprintf(stderr, "line %d: %s does not hold: %s\n", __LINE__, #condition, tessera_last_error()); \
      ++failures;                                                                                     \
    }                                                                                                 \
  } while (0)

static int failures = 0;

/* One query that sees two of three keys, (1, 0) and (0, 1), with scores 2 and 0, and one head. */
static float q[2] = {2, 0}, k[6] = {1, 0, 0, 1, 9, 9}, v[6] = {1, 10, 2, 20, 99, 99}, o[2], lse[1];
static const int32_t seq_lens[1] = {2};

static tessera_attention_problem problem(void) {
  tessera_attention_problem p = {sizeof p};
  p.flags = TESSERA_HAS_SOFTMAX_SCALE | TESSERA_HAS_LSE | TESSERA_HAS_SEQ_LENS_KV;
  p.batch = p.seq_len_q = 1;
  p.seq_len_kv = 3;
  p.num_heads = p.num_kv_heads = 1;
  p.head_dim_qk = p.head_dim_v = 2;
  p.q.data = q;
  p.k.data = k;
  p.v.data = v;
  p.o.data = o;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TESSERA_F32;
  p.q.seq_stride = p.k.seq_stride = p.v.seq_stride = p.o.seq_stride = 2;
  p.lse.data = lse;
  p.lse.seq_stride = 1;
  p.softmax_scale = 1;
  p.seq_lens_kv = seq_lens;
  return p;
}

static void expect_result(void) {
  const double weight = exp(2) / (exp(2) + 1);
  EXPECT(fabs(o[0] - (weight + 2 * (1 - weight))) < 1e-6);
  EXPECT(fabs(o[1] - 10 * (weight + 2 * (1 - weight))) < 1e-5);
  EXPECT(fabs(lse[0] - log(exp(2) + 1)) < 1e-6);
  o[0] = o[1] = lse[0] = -1;
}

/* Structs as the library may read and write them: what lies behind is not its own. */
static struct {
  tessera_attention_plan_info info;
  unsigned char behind[64];
} guarded_info;
static struct {
  tessera_attention_options it;
  unsigned char behind[64];
} guarded_options;
static struct {
  tessera_attention_explanation_info info;
  unsigned char behind[64];
} guarded_explanation;

static void expect_untouched(const unsigned char* behind) {
  int i;
  for (i = 0; i < 64; ++i) EXPECT(behind[i] == 0xa5);
}

static int32_t count_result(void* user_data, const tessera_verify_result* result) {
  *(int*)user_data += result->passed;
  return 0;
}

int main(void) {
  tessera_attention_problem p = problem();
  tessera_attention_options options = {sizeof options};
  tessera_attention_plan* plan = NULL;
  tessera_verify_options verify = {sizeof verify};
  tessera_verify_counts counts = {sizeof counts};
  tessera_attention_explanation* explanation = NULL;
  int passed = 0;

  options.backend = "reference";
  EXPECT(tessera_attention_forward(&p, &options, NULL) == TESSERA_OK);
  expect_result();

  memset(&guarded_info, 0xa5, sizeof guarded_info);
  guarded_info.info.struct_size = sizeof guarded_info.info;
  EXPECT(tessera_attention_plan_prepare(&p, &options, &plan) == TESSERA_OK);
  EXPECT(tessera_attention_plan_get_info(plan, &guarded_info.info) == TESSERA_OK);
  EXPECT(guarded_info.info.struct_size == sizeof guarded_info.info);
  EXPECT(strcmp(guarded_info.info.backend, "reference") == 0);
  expect_untouched(guarded_info.behind);
  EXPECT(guarded_info.info.workspace_bytes == 0);
  EXPECT(tessera_attention_plan_run(plan, &p, NULL, 0, NULL) == TESSERA_OK);
  expect_result();
  tessera_attention_plan_free(plan);

  /* Options as long as they were: behind them is no number of parts. */
  memset(&guarded_options, 0xa5, sizeof guarded_options);
  memset(&guarded_options.it, 0, sizeof guarded_options.it);
  guarded_options.it.struct_size = sizeof guarded_options.it;
  guarded_options.it.backend = "cpu";
  guarded_options.it.config.num_splits = 2;
  EXPECT(tessera_attention_plan_create(&p, &guarded_options.it, &plan) == TESSERA_OK);
  EXPECT(tessera_attention_plan_get_info(plan, &guarded_info.info) == TESSERA_OK);
  EXPECT(guarded_info.info.config.num_splits == 2);
  tessera_attention_plan_free(plan);

  memset(&guarded_explanation, 0xa5, sizeof guarded_explanation);
  guarded_explanation.info.struct_size = sizeof guarded_explanation.info;
  EXPECT(tessera_attention_explain(&p, &guarded_options.it, &explanation) == TESSERA_OK);
  EXPECT(tessera_attention_explanation_get_info(explanation, &guarded_explanation.info) == TESSERA_OK);
  EXPECT(guarded_explanation.info.struct_size == sizeof guarded_explanation.info);
  EXPECT(guarded_explanation.info.num_rejected > 0 && guarded_explanation.info.flops == 16);
  expect_untouched(guarded_explanation.behind);
  expect_untouched(guarded_options.behind);
  tessera_attention_explanation_free(explanation);

  p.q.dtype = 12345;
  EXPECT(tessera_attention_forward(&p, &options, NULL) == TESSERA_INVALID_ARGUMENT);
  EXPECT(strstr(tessera_last_error(), "problem.q.dtype is 12345") != NULL);

  verify.backend = "reference";
  verify.filter = "sinks";
  verify.quick = 1;
  verify.on_result = count_result;
  verify.user_data = &passed;
  EXPECT(tessera_verify(&verify, &counts) == TESSERA_OK);
  EXPECT(counts.failed == 0 && counts.passed + counts.unsupported == passed && passed > 0);
  return failures == 0 ? 0 : 1;
}
