/* Decodes one token of two sequences over a paged KV cache through the C interface: makes a plan, runs it,
 * and checks the result against the definition. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tessera/tessera.h"

enum { BATCH = 2, HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64, PAGE_SIZE = 16, PAGES = 12, MAX_PAGES = 6 };
#define ROW (KV_HEADS * HEAD_DIM) /* elements of a token's keys */

static float q[BATCH * HEADS * HEAD_DIM], o[BATCH * HEADS * HEAD_DIM];
static float k[PAGES * PAGE_SIZE * ROW], v[PAGES * PAGE_SIZE * ROW];
/* Pages of each sequence, in any order; what lies behind a sequence's end is never read. */
static const int32_t block_table[BATCH][MAX_PAGES] = {{7, 2, 9, 0, 4, 11}, {1, 10, -1, -1, -1, -1}};
static const int32_t seq_lens[BATCH] = {93, 20};

static void check(tessera_status status) {
  if (status == TESSERA_OK) return;
  fprintf(stderr, "error: %s: %s\n", tessera_status_name(status), tessera_last_error());
  exit(1);
}

static void fill(float* values, size_t count, unsigned seed) {
  size_t i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / (float)(1u << 23) - 1.0f;
  }
}

static const float* token_row(const float* cache, int sequence, int token, int kv_head) {
  const int page = block_table[sequence][token / PAGE_SIZE];
  return cache + (page * PAGE_SIZE + token % PAGE_SIZE) * ROW + kv_head * HEAD_DIM;
}

/* Largest error of one head's output against softmax(q k^T / sqrt(HEAD_DIM)) v in double precision. */
static double error_of(int sequence, int head) {
  const float* query = q + (sequence * HEADS + head) * HEAD_DIM;
  double sum = 0, row[HEAD_DIM] = {0}, largest = 0;
  int j, d;
  for (j = 0; j < seq_lens[sequence]; ++j) {
    const float* key = token_row(k, sequence, j, head / (HEADS / KV_HEADS));
    const float* value = token_row(v, sequence, j, head / (HEADS / KV_HEADS));
    double score = 0, weight;
    for (d = 0; d < HEAD_DIM; ++d) score += (double)query[d] * key[d];
    weight = exp(score / sqrt(HEAD_DIM));
    sum += weight;
    for (d = 0; d < HEAD_DIM; ++d) row[d] += weight * value[d];
  }
  for (d = 0; d < HEAD_DIM; ++d) {
    largest = fmax(largest, fabs(row[d] / sum - o[(sequence * HEADS + head) * HEAD_DIM + d]));
  }
  return largest;
}

int main(void) {
  tessera_attention_problem p = {.struct_size = sizeof p};
  tessera_attention_plan_info info = {.struct_size = sizeof info};
  tessera_attention_plan* plan = NULL;
  void* workspace = NULL;
  double largest = 0;
  int b, head;

  fill(q, sizeof q / sizeof *q, 1);
  fill(k, sizeof k / sizeof *k, 2);
  fill(v, sizeof v / sizeof *v, 3);

  p.batch = BATCH;
  p.seq_len_q = 1;
  p.seq_len_kv = MAX_PAGES * PAGE_SIZE;
  p.num_heads = HEADS;
  p.num_kv_heads = KV_HEADS;
  p.head_dim_qk = p.head_dim_v = HEAD_DIM;
  p.q.data = q; /* (batch, heads, head_dim) */
  p.o.data = o;
  p.k.data = k; /* (pages, page_size, kv_heads, head_dim) */
  p.v.data = v;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TESSERA_F32;
  p.q.batch_stride = p.o.batch_stride = HEADS * HEAD_DIM;
  p.q.seq_stride = p.o.seq_stride = HEADS * HEAD_DIM;
  p.q.head_stride = p.o.head_stride = HEAD_DIM;
  p.k.batch_stride = p.v.batch_stride = PAGE_SIZE * ROW;
  p.k.seq_stride = p.v.seq_stride = ROW;
  p.k.head_stride = p.v.head_stride = HEAD_DIM;
  p.flags = TESSERA_HAS_PAGED_KV;
  p.paged_kv.block_table = &block_table[0][0];
  p.paged_kv.block_table_stride = MAX_PAGES;
  p.paged_kv.seq_lens_kv = seq_lens;
  p.paged_kv.num_pages = PAGES;
  p.paged_kv.max_pages_per_seq = MAX_PAGES;
  p.paged_kv.page_size = PAGE_SIZE;

  /* Once; then as often as there are tokens, with the same or other pointers. */
  check(tessera_attention_plan_prepare(&p, NULL, &plan));
  check(tessera_attention_plan_get_info(plan, &info));
  if (info.workspace_bytes > 0) {
    workspace = aligned_alloc(64, (info.workspace_bytes + 63) / 64 * 64);
    if (workspace == NULL) return 1;
  }
  check(tessera_attention_plan_run(plan, &p, workspace, info.workspace_bytes, NULL));
  printf("tessera %s ran %s/%s with %d splits\n", tessera_version(), info.backend, info.kernel,
         (int)info.config.num_splits);
  tessera_attention_plan_free(plan);
  free(workspace);

  for (b = 0; b < BATCH; ++b) {
    for (head = 0; head < HEADS; ++head) largest = fmax(largest, error_of(b, head));
  }
  /* A weighted mean of values below 1 in fp32: some tens of roundings of 6e-8. */
  printf("largest error %.2e, bound 1e-05\n", largest);
  return largest <= 1e-5 ? 0 : 1;
}
