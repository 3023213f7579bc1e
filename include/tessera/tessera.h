/* Tessera's C interface: attention, language models and generation. C99; also C++.
 *
 * Functions that can fail return a tessera_status: 0, or a code whose text tessera_last_error() has. No C++
 * exception leaves the library. Arguments are never null unless it says so.
 *
 * Structs begin with struct_size, which the caller sets to sizeof of the struct; everything else may be left
 * 0, which is the default (in C++: p{}, and then p.struct_size = sizeof p):
 *
 *     tessera_attention_problem p = {.struct_size = sizeof p};
 *
 * New members come only at the end, so that a program runs with later libraries as it was compiled. A program
 * with a header newer than the library runs as long as it leaves what the library doesn't know at 0;
 * otherwise the call fails with TESSERA_INVALID_ARGUMENT. Of structs that the library fills in, it writes as
 * much as struct_size says. Structs without struct_size never change.
 *
 * Functions may be called from several threads at once unless it says otherwise. */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TESSERA_API __attribute__((visibility("default")))
#else
#define TESSERA_API
#endif

/* ---- Errors, version, threads */

typedef int32_t tessera_status;
enum {
  TESSERA_OK = 0,
  TESSERA_INVALID_ARGUMENT = 1, /* the caller passed something that is wrong by itself */
  TESSERA_UNSUPPORTED = 2,      /* valid, but no kernel or backend here can do it */
  TESSERA_OUT_OF_MEMORY = 3,    /* memory, KV pages or another bounded resource ran out */
  TESSERA_DEVICE = 4,           /* a device or its driver failed */
  TESSERA_IO = 5,               /* a file could not be read or written */
  TESSERA_CORRUPT_FILE = 6,     /* a file's content contradicts its format */
  TESSERA_CANCELLED = 7,        /* a callback asked for it */
  TESSERA_INTERNAL = 8,         /* a defect of this library */
  TESSERA_QUEUE_FULL = 9        /* an engine's queue is full: the same call may be accepted later */
};

/* What was wrong, what was expected and what to do, in UTF-8: of the last call of this thread that failed.
 * Valid until another fails; "" if none did. */
TESSERA_API const char* tessera_last_error(void);

/* "InvalidArgument", …; "Unknown" for a number that is no status. */
TESSERA_API const char* tessera_status_name(tessera_status status);

/* The library's version, "major.minor.patch". */
TESSERA_API const char* tessera_version(void);

/* Threads that work on the CPU is spread over. */
TESSERA_API tessera_status tessera_num_threads(int32_t* count);
/* From now on `count`, 0: one for each processor. In the whole process. */
TESSERA_API tessera_status tessera_set_num_threads(int32_t count);

/* ---- Element types and devices */

typedef int32_t tessera_dtype;
enum {
  TESSERA_DTYPE_NONE = 0, /* not said: an error where a type is needed */
  TESSERA_F64 = 1,
  TESSERA_F32 = 2,
  TESSERA_F16 = 3,
  TESSERA_BF16 = 4,
  TESSERA_F8_E4M3 = 5,
  TESSERA_F8_E5M2 = 6,
  TESSERA_I64 = 7,
  TESSERA_I32 = 8,
  TESSERA_U8 = 9,
  TESSERA_BOOL = 10,
  /* Formats of blocks, of weights only. */
  TESSERA_Q4_0 = 32,
  TESSERA_Q4_1 = 33,
  TESSERA_Q5_0 = 34,
  TESSERA_Q5_1 = 35,
  TESSERA_Q8_0 = 36,
  TESSERA_Q2_K = 37,
  TESSERA_Q3_K = 38,
  TESSERA_Q4_K = 39,
  TESSERA_Q5_K = 40,
  TESSERA_Q6_K = 41,
  TESSERA_IQ4_NL = 42,
  TESSERA_IQ4_XS = 43,
  TESSERA_MXFP4 = 44,
  TESSERA_TQ1_0 = 45,
  TESSERA_TQ2_0 = 46,
  TESSERA_IQ1_S = 47,
  TESSERA_IQ1_M = 48,
  TESSERA_IQ2_XXS = 49,
  TESSERA_IQ2_XS = 50,
  TESSERA_IQ2_S = 51,
  TESSERA_IQ3_XXS = 52,
  TESSERA_IQ3_S = 53
};

/* "f32", "bf16", "q8_0", …; "none" for 0 and for a number that is no type. */
TESSERA_API const char* tessera_dtype_name(tessera_dtype dtype);

enum { TESSERA_CPU = 0, TESSERA_CUDA = 1, TESSERA_HIP = 2 };

/* A processor with its own memory. All CPUs of the machine are one device, index 0. */
typedef struct tessera_device {
  int32_t kind; /* TESSERA_CPU, TESSERA_CUDA or TESSERA_HIP */
  int32_t index;
} tessera_device;

/* ---- Memory that calls hand out: each is freed by the function of its name */

typedef struct tessera_text {
  char* data; /* UTF-8, and a zero behind it */
  size_t size_bytes;
} tessera_text;
typedef struct tessera_tokens {
  int32_t* data;
  size_t size;
} tessera_tokens;
typedef struct tessera_floats {
  float* data;
  size_t size;
} tessera_floats;
/* Each may be null, or empty; it is empty afterwards. */
TESSERA_API void tessera_text_free(tessera_text* text);
TESSERA_API void tessera_tokens_free(tessera_tokens* tokens);
TESSERA_API void tessera_floats_free(tessera_floats* floats);

/* ---- One attention call:  o = softmax(softmax_scale * q k^T + mask) v */

/* q, k, v or o of logical shape (batch, seq, heads, head_dim) with unit stride along head_dim. Strides are in
 * elements; they may be 0 for inputs (broadcast) but not negative.
 * Ragged: (total_tokens, heads, head_dim), batch_stride is ignored.
 * Paged k or v: (num_pages, page_size, heads, head_dim): batch is the page and seq the token within it. */
typedef struct tessera_tensor {
  void* data; /* of inputs only read; null only if the tensor has no elements */
  tessera_dtype dtype;
  int32_t reserved; /* 0 */
  int64_t batch_stride;
  int64_t seq_stride;
  int64_t head_stride;
} tessera_tensor;

/* Log-sum-exp of each query's scores (natural logarithm, fp32), sinks included; -inf for a query with no
 * visible key, whose o is 0; NaN for one with NaN or +inf among its scores. Dense: (batch, heads, seq_len_q)
 * by strides in elements. Ragged: (heads, total_q), batch_stride is ignored. */
typedef struct tessera_lse {
  float* data;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t seq_stride;
} tessera_lse;

/* A mask of shape (batch, heads, seq_len_q, seq_len_kv) by strides in elements; a stride of 0 broadcasts that
 * dimension. Indices count within a query's own sequence, also for ragged and paged batches. */
typedef struct tessera_mask {
  const void* data;
  tessera_dtype dtype; /* additive: F32, F16 or BF16; boolean: BOOL or U8, non-zero = visible */
  int32_t reserved;    /* 0 */
  int64_t batch_stride;
  int64_t head_stride;
  int64_t q_stride;
  int64_t kv_stride;
} tessera_mask;

/* Sequences one after another: sequence b is tokens [cu_seqlens[b], cu_seqlens[b + 1]). */
typedef struct tessera_ragged {
  const int32_t* cu_seqlens; /* (batch + 1), non-decreasing, first 0, last total_tokens */
  int64_t total_tokens;
} tessera_ragged;

/* Keys and values in pages: token t of sequence b is row t % page_size of page block_table[b][t / page_size].
 */
typedef struct tessera_paged_kv {
  const int32_t* block_table; /* (batch, max_pages_per_seq); entries past a sequence's end are never read */
  const int32_t* seq_lens_kv; /* (batch), tokens */
  int64_t block_table_stride; /* elements between rows of block_table */
  int64_t num_pages;          /* pages in k and v */
  int32_t max_pages_per_seq;
  int32_t page_size; /* tokens, any value >= 1 */
} tessera_paged_kv;

/* What stored keys and values of 8 bits are multiplied by: the key of page (or sequence) n and kv head h is
 * k[n * batch_stride + h * head_stride] times the stored one, and so the value by v. A stride of 0 gives all
 * heads, or all pages, the same scale. */
typedef struct tessera_kv_scales {
  const float* k;       /* null: 1 */
  const float* v;       /* null: 1 */
  int64_t batch_stride; /* elements between sequences, between pages if paged; ignored if ragged */
  int64_t head_stride;  /* elements */
} tessera_kv_scales;

/* What stored queries of 8 bits are multiplied by: the queries of sequence b, of all heads that read kv head
 * h, are q[b * batch_stride + h * head_stride] times the stored ones. With both strides 0 there is one scale.
 */
typedef struct tessera_q_scales {
  const float* q;       /* null: 1 */
  int64_t batch_stride; /* elements between sequences, ragged ones too */
  int64_t head_stride;  /* elements between kv heads */
} tessera_q_scales;

/* A tensor that a modifier's text reads by name. */
typedef struct tessera_captured_tensor {
  const char* name;    /* letters, digits and _, not first a digit; none of the language's names */
  const void* data;    /* in the problem's device's memory */
  tessera_dtype dtype; /* F32, F16, BF16 (fp32 in texts), I32, U8 (int32) or BOOL (bool) */
  int32_t rank;        /* 0 to 4; 0: one element, read without an index */
  int64_t sizes[4];    /* each from 1 */
  int64_t strides[4];  /* elements, 0 or more */
} tessera_captured_tensor;

/* A number that a modifier's text reads by name, as int32 or fp32. */
typedef struct tessera_scalar {
  const char* name;
  double value;
} tessera_scalar;

/* What a model does to its scores, as two expressions in text (docs/modifiers.md has the language): the new
 * score, "cap * tanh(score / cap)", and whether the query sees the key, "doc[q_idx] == doc[kv_idx]". A wrong
 * text is TESSERA_INVALID_ARGUMENT with line, column and what was expected. */
typedef struct tessera_score_modifier {
  const char* score;   /* fp32, may use `score`; null: the score stays */
  const char* visible; /* bool, may not; null: all keys are visible */
  const tessera_captured_tensor* tensors;
  size_t num_tensors;
  const tessera_scalar* scalars; /* arguments, like pointers: a plan takes others of the same names */
  size_t num_scalars;
} tessera_score_modifier;

/* Which corner of the (seq_len_q, seq_len_kv) rectangle the diagonal passes through. */
enum {
  TESSERA_BOTTOM_RIGHT = 0, /* the last query and the last key are at the same position */
  TESSERA_TOP_LEFT = 1      /* the first query and the first key are */
};

/* What of a tessera_attention_problem is there. */
#define TESSERA_HAS_LSE UINT64_C(0x1)
#define TESSERA_HAS_SOFTMAX_SCALE UINT64_C(0x2)
#define TESSERA_HAS_SOFTCAP UINT64_C(0x4)
#define TESSERA_HAS_WINDOW_LEFT UINT64_C(0x8)
#define TESSERA_HAS_WINDOW_RIGHT UINT64_C(0x10)
#define TESSERA_HAS_ALIBI UINT64_C(0x20)
#define TESSERA_HAS_ADDITIVE_MASK UINT64_C(0x40)
#define TESSERA_HAS_BOOLEAN_MASK UINT64_C(0x80)
#define TESSERA_HAS_SINKS UINT64_C(0x100)
#define TESSERA_HAS_RAGGED_Q UINT64_C(0x200)
#define TESSERA_HAS_RAGGED_KV UINT64_C(0x400)
#define TESSERA_HAS_PAGED_KV UINT64_C(0x800)
#define TESSERA_HAS_SEQ_LENS_KV UINT64_C(0x1000)
/* Asks for bits of a row that depend on nothing but that row's own query, keys and terms. */
#define TESSERA_BATCH_INVARIANT UINT64_C(0x2000)
#define TESSERA_HAS_KV_SCALES UINT64_C(0x4000)
#define TESSERA_HAS_MODIFIER UINT64_C(0x8000)
#define TESSERA_HAS_Q_SCALES UINT64_C(0x10000)
/* Promises that kernels just before the call in its stream may be writing q and each sequence's last
 * seq_len_q keys and values only (as many as it has queries), so that all others may be read while these
 * still run. */
#define TESSERA_SETTLED_KV UINT64_C(0x20000)
/* window_right = 0: keys after the diagonal are hidden. */
#define TESSERA_CAUSAL TESSERA_HAS_WINDOW_RIGHT

/* Every pointer, the arrays of the batch description included, points into `device`'s memory. */
typedef struct tessera_attention_problem {
  size_t struct_size;
  uint64_t flags; /* TESSERA_HAS_…: members below that are marked with one count only if it is set */
  tessera_device device;

  int64_t batch;     /* sequences; 0 is valid, as are lengths of 0: there is nothing to do */
  int64_t seq_len_q; /* queries a sequence; the most of any sequence if HAS_RAGGED_Q */
  /* Keys a sequence; an upper bound for every sequence if HAS_RAGGED_KV, HAS_PAGED_KV or HAS_SEQ_LENS_KV. */
  int64_t seq_len_kv;
  int32_t num_heads;
  int32_t num_kv_heads; /* divides num_heads; head h reads kv head h / (num_heads / num_kv_heads) */
  int32_t head_dim_qk;  /* 1 to 576 */
  int32_t head_dim_v;   /* 1 to 576 */

  /* All of o's type; or k and v both F8_E4M3, and then q too if it likes. v may be a part of k. */
  tessera_tensor q, k, v;
  tessera_tensor o; /* F32, F16 or BF16 (F64 in the reference); must not overlap an input */
  tessera_lse lse;  /* HAS_LSE */

  /* What is done to the scores, in this order:
   *   s = softmax_scale * (q . k);  s = softcap * tanh(s / softcap);  s += alibi;  s += additive_mask;
   *   s = modifier.score;
   *   s = -inf where modifier.visible, the windows or boolean_mask hide it (or the sequence ends);  softmax,
   *   with sinks in the denominator. */
  float softmax_scale; /* HAS_SOFTMAX_SCALE; else 1 / sqrt(head_dim_qk) */
  float softcap;       /* HAS_SOFTCAP; > 0 */
  /* Query i sees key j iff  i + shift - window_left <= j <= i + shift + window_right, shift = seq_len_kv -
   * seq_len_q of its own sequence for BOTTOM_RIGHT, 0 for TOP_LEFT. */
  int64_t window_left;  /* HAS_WINDOW_LEFT; >= 0 */
  int64_t window_right; /* HAS_WINDOW_RIGHT; >= 0 */
  int32_t alignment;    /* TESSERA_BOTTOM_RIGHT or TESSERA_TOP_LEFT, of windows, ALiBi, `shift` */
  int32_t reserved;     /* 0 */
  /* Adds -slope * |i + shift - j|. */
  const float* alibi_slopes;  /* HAS_ALIBI; (num_heads), or (batch, num_heads) with alibi_batch_stride */
  int64_t alibi_batch_stride; /* elements; 0: the same slopes for all sequences */
  tessera_mask additive_mask; /* HAS_ADDITIVE_MASK; its -inf hides a key as the boolean mask does */
  tessera_mask boolean_mask;  /* HAS_BOOLEAN_MASK */
  const float* sink_logits;   /* HAS_SINKS; (num_heads), natural units (not multiplied by softmax_scale) */

  tessera_ragged ragged_q;    /* HAS_RAGGED_Q */
  tessera_ragged ragged_kv;   /* HAS_RAGGED_KV; not together with HAS_PAGED_KV or HAS_SEQ_LENS_KV */
  tessera_paged_kv paged_kv;  /* HAS_PAGED_KV; not together with HAS_RAGGED_KV or HAS_SEQ_LENS_KV */
  const int32_t* seq_lens_kv; /* HAS_SEQ_LENS_KV; (batch), dense k and v padded to seq_len_kv */

  /* What programs with the header's first version lack. */
  tessera_kv_scales kv_scales; /* HAS_KV_SCALES; for k and v of F8_E4M3 only */

  /* And its second. */
  tessera_score_modifier modifier; /* HAS_MODIFIER; a key that additive_mask hides stays hidden */

  /* And its third. */
  tessera_q_scales q_scales; /* HAS_Q_SCALES; for q of F8_E4M3 only */
} tessera_attention_problem;

/* Tiles and resources of a kernel; 0: chosen automatically. */
typedef struct tessera_attention_config {
  int32_t block_m;    /* query rows a tile */
  int32_t block_n;    /* keys a tile */
  int32_t num_warps;  /* GPU: warps a block */
  int32_t num_stages; /* GPU: K/V tiles in flight */
  int32_t num_splits; /* parts that a kv head's keys are split into, merged afterwards */
} tessera_attention_config;

typedef struct tessera_attention_options {
  size_t struct_size;
  const char* backend; /* null or "auto", or a name: "cpu", "cuda", "hip", "unfused", "reference", … */
  /* Not 0: a named backend that can't run the problem gives way to the best that can. */
  int32_t allow_fallback;
  tessera_attention_config config; /* values to force */

  /* What programs with earlier versions of the header lack. */
  /* One more of `config`: parts that all kv heads' keys together are cut into, by kernels that share them out
   * so ("sm90/decode", "sm90/latent"); takes the place of num_splits. Others leave it alone. 0: chosen. */
  int32_t num_parts;
  int32_t reserved; /* 0 */
} tessera_attention_options;

/* Fails with TESSERA_INVALID_ARGUMENT if the problem is not one that makes sense. All functions below check
 * this, too. */
TESSERA_API tessera_status tessera_attention_validate(const tessera_attention_problem* problem);

/* Runs the problem; on a GPU it returns before the work is done. options: may be null. stream: a CUstream or
 * hipStream_t, null: the device's default stream; ignored on the CPU. */
TESSERA_API tessera_status tessera_attention_forward(const tessera_attention_problem* problem,
                                                     const tessera_attention_options* options, void* stream);

/* What will run, chosen once: running it chooses, looks up and allocates nothing. */
typedef struct tessera_attention_plan tessera_attention_plan;

typedef struct tessera_attention_plan_info {
  size_t struct_size;
  /* Texts are the plan's own. */
  const char* backend;
  const char* kernel;              /* e.g. "prefill/avx512" */
  tessera_attention_config config; /* every value filled in */
  int64_t num_q_tiles;             /* over batch and heads */
  int64_t num_kv_tiles;            /* of the longest row of tiles, all splits together */
  size_t shared_bytes;             /* on-chip scratch of one tile */
  size_t workspace_bytes;          /* scratch memory of the whole call */
  const char* const* notes;        /* what a user should know */
  size_t num_notes;
  const char* fallback_reason; /* not "": the backend asked for could not run the problem, and why */

  /* What programs with earlier versions of the header lack. */
  int32_t num_parts; /* of all kv heads' keys together; 0: the kernel has no such parts */
  /* Not 0: the softmax's weights are rounded to F8_E4M3 for their product with v, as only kernels for q of 8
   * bits may: o is less exact than with wider ones. */
  int32_t narrow_weights;
} tessera_attention_plan_info;

/* Makes a plan, to be freed by tessera_attention_plan_free. options: may be null. */
TESSERA_API tessera_status tessera_attention_plan_create(const tessera_attention_problem* problem,
                                                         const tessera_attention_options* options,
                                                         tessera_attention_plan** plan);
/* The same, and loads what the plan runs (a GPU's kernels: from the library, the cache, or compiled now).
 * Running it then costs microseconds from the first time on, and may be recorded in a CUDA graph. */
TESSERA_API tessera_status tessera_attention_plan_prepare(const tessera_attention_problem* problem,
                                                          const tessera_attention_options* options,
                                                          tessera_attention_plan** plan);
/* plan: may be null. */
TESSERA_API void tessera_attention_plan_free(tessera_attention_plan* plan);
TESSERA_API tessera_status tessera_attention_plan_get_info(const tessera_attention_plan* plan,
                                                           tessera_attention_plan_info* info);
/* Runs a plan. The problem has the description of the one that it was made for: only pointers and a
 * modifier's scalars may differ, and on a GPU q, k, v and o must be multiples of 16 bytes if those of the
 * plan's problem all were. workspace: at least the plan's workspace_bytes in the device's memory, aligned to
 * 64 bytes (null if it needs none); calls that run at the same time need one each, and outputs of their own.
 */
TESSERA_API tessera_status tessera_attention_plan_run(const tessera_attention_plan* plan,
                                                      const tessera_attention_problem* problem,
                                                      void* workspace, size_t workspace_bytes, void* stream);

/* Fails as tessera_attention_plan_run would for this problem, and runs nothing: for who writes keys and
 * values of the problem before it runs. */
TESSERA_API tessera_status tessera_attention_plan_validate(const tessera_attention_plan* plan,
                                                           const tessera_attention_problem* problem);

typedef struct tessera_rejected_backend {
  const char* backend;
  const char* reason;
} tessera_rejected_backend;

/* Why a plan is what it is and how long it must at least take. */
typedef struct tessera_attention_explanation tessera_attention_explanation;

typedef struct tessera_attention_explanation_info {
  size_t struct_size;
  /* Texts are the explanation's own. */
  const char* text;                   /* all of it, in words */
  const char* problem;                /* the problem in words */
  const tessera_attention_plan* plan; /* what would run; the explanation's own */
  const char* const* kernels;         /* of a GPU: where each comes from, and why not the others */
  size_t num_kernels;
  const tessera_rejected_backend* rejected;
  size_t num_rejected;
  double flops;               /* 2 (head_dim_qk + head_dim_v) for each visible pair of query and key */
  double bytes;               /* each needed input read once, each output written once */
  double ceiling_flops_per_s; /* of the device, measured now */
  double ceiling_bytes_per_s;
  double predicted_ms; /* the larger of flops and bytes over their ceilings */
  int32_t compute_bound;
  int32_t reserved;

  /* What programs with earlier versions of the header lack. */
  /* The modifier's program, an operation each; then how many tiles its mask leaves empty, full and mixed. */
  const char* const* modifier_lines;
  size_t num_modifier_lines;
} tessera_attention_explanation_info;

/* Takes about a tenth of a second. options: may be null. To be freed by tessera_attention_explanation_free.
 */
TESSERA_API tessera_status tessera_attention_explain(const tessera_attention_problem* problem,
                                                     const tessera_attention_options* options,
                                                     tessera_attention_explanation** explanation);
/* explanation: may be null. */
TESSERA_API void tessera_attention_explanation_free(tessera_attention_explanation* explanation);
TESSERA_API tessera_status tessera_attention_explanation_get_info(
    const tessera_attention_explanation* explanation, tessera_attention_explanation_info* info);

/* *text: the problem in one line: "bf16, batch 2, seq_len 512/1024, heads 32/8, head_dim 128, causal". */
TESSERA_API tessera_status tessera_attention_describe(const tessera_attention_problem* problem,
                                                      tessera_text* text);
/* An explanation's flops and bytes, without a backend and without measuring anything. Lengths and masks in a
 * GPU's memory are not read: their upper bounds stand in for them, and such a mask hides nothing. */
TESSERA_API tessera_status tessera_attention_flops(const tessera_attention_problem* problem, double* flops);
TESSERA_API tessera_status tessera_attention_bytes(const tessera_attention_problem* problem, double* bytes);

/* A backend of this library on this machine. */
typedef struct tessera_backend_info {
  size_t struct_size;
  /* Texts are the library's, valid as long as it is loaded. */
  const char* name;
  const char* description;
  const char* unavailable_reason; /* "": usable here */
  int32_t device_kind;            /* whose memory it works on: TESSERA_CPU, … */
  int32_t reserved;
} tessera_backend_info;

TESSERA_API tessera_status tessera_num_backends(size_t* count);
/* index: below tessera_num_backends'. */
TESSERA_API tessera_status tessera_get_backend_info(size_t index, tessera_backend_info* info);

/* *reason: why the backend of this name can't run the problem; empty if it can. */
TESSERA_API tessera_status tessera_attention_unsupported_reason(const char* backend,
                                                                const tessera_attention_problem* problem,
                                                                tessera_text* reason);

/* ---- Merging partial results */

/* Two attention results of the same queries over disjoint sets of keys, and where their union goes:
 * lse = log(exp(lse_a) + exp(lse_b)), o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b. o may be o_a or o_b,
 * lse may be lse_a or lse_b. */
typedef struct tessera_merge_states_problem {
  size_t struct_size;
  uint64_t flags; /* TESSERA_HAS_LSE */
  tessera_device device;
  int64_t batch;
  int64_t seq_len_q;
  int32_t num_heads;
  int32_t head_dim;
  tessera_tensor o_a, o_b;  /* (batch, seq_len_q, num_heads, head_dim), one dtype */
  tessera_lse lse_a, lse_b; /* only read */
  tessera_tensor o;         /* the same dtype */
  tessera_lse lse;          /* HAS_LSE */
} tessera_merge_states_problem;

/* backend: may be null, "auto". */
TESSERA_API tessera_status tessera_merge_states(const tessera_merge_states_problem* problem,
                                                const char* backend, void* stream);

/* ---- Comparing backends with the fp64 reference on this machine */

/* How one case went on one backend. */
typedef struct tessera_verify_result {
  size_t struct_size;
  /* Texts are valid until the callback returns. */
  const char* name;    /* e.g. "paged/page_size 16/bf16" */
  const char* backend; /* e.g. "cpu" */
  const char* kernel;  /* what ran; "" if nothing did */
  double error;        /* largest absolute error of the output; infinite for a wrong NaN or infinity */
  double bound;        /* what `error` may be at most */
  double lse_error;
  double lse_bound;
  int32_t passed;
  int32_t reserved;
  const char* unsupported_reason; /* not "": the backend can't run it; passed tells if that is permissible */
  const char* message;            /* why it failed; "" if it passed */
} tessera_verify_result;

typedef struct tessera_verify_options {
  size_t struct_size;
  const char* backend; /* null or "all": all that are usable here */
  const char* filter;  /* only cases whose name contains it; null: all */
  int32_t quick;       /* not 0: a selection that takes seconds */
  int32_t reserved;    /* 0 */
  /* Gets each result; not 0: no more cases. May be null. */
  int32_t (*on_result)(void* user_data, const tessera_verify_result* result);
  void* user_data;
} tessera_verify_options;

typedef struct tessera_verify_counts {
  size_t struct_size;
  int64_t passed;
  int64_t failed;
  int64_t unsupported; /* cases that a backend rightly does not take */
} tessera_verify_counts;

/* Runs the conformance suite of attention. options: may be null. A case that fails is counted, and no error;
 * that on_result ended it is TESSERA_CANCELLED. */
TESSERA_API tessera_status tessera_verify(const tessera_verify_options* options,
                                          tessera_verify_counts* counts);

/* ---- Language models */

/* A language model with its KV cache, ready to run on one backend. Calls on one model must not overlap, nor
 * come from its callbacks. A model without a cache (TESSERA_MODEL_WITHOUT_CACHE) is weights and tokenizer:
 * what the calls on tokens and conversations, which may then overlap, and engines need. */
typedef struct tessera_model tessera_model;

enum { TESSERA_PROGRESS_LOAD = 0, TESSERA_PROGRESS_PREFILL = 1 };

/* What of a tessera_model_options is there. */
#define TESSERA_MODEL_HAS_DEVICE UINT64_C(0x1)
/* A sequence's tokens don't depend on what else is in the batch or how it was prefilled. */
#define TESSERA_MODEL_BATCH_INVARIANT UINT64_C(0x2)
/* Logits and generation are errors; members and flags about the cache and what runs in it must be 0. */
#define TESSERA_MODEL_WITHOUT_CACHE UINT64_C(0x4)

typedef struct tessera_model_options {
  size_t struct_size;
  uint64_t flags;
  const char* backend;   /* null or "auto": a GPU if there is one; "cuda", "hip", "cpu", "reference" */
  tessera_device device; /* MODEL_HAS_DEVICE: one of the backend's devices; else the first */
  int64_t max_seq_len;   /* tokens of KV cache a sequence may take; 0: the model's context length */
  int64_t max_kv_tokens; /* tokens of KV cache in all; 0: max_batch * max_seq_len */
  int32_t max_batch;     /* sequences that run at the same time; 0: 1 */
  int32_t page_size;     /* tokens in a KV page; 0: 16 */
  int32_t prefill_chunk; /* most prompt tokens that go through the model at once; 0: 512 on a CPU, 2048 on a
                            GPU */
  tessera_dtype activation_dtype; /* and the KV cache's; NONE: as the weights suggest */
  /* Told how much is done, while loading in bytes, in prefill in tokens; not 0 cancels. May be null. */
  int32_t (*on_progress)(void* user_data, int32_t stage, uint64_t done, uint64_t total);
  void* user_data;

  /* What programs with the header's second version lack. */
  /* Of the KV cache: F8_E4M3, which takes half of a 16-bit cache's memory and reading; NONE: that of the
   * activations. */
  tessera_dtype kv_dtype;
  int32_t reserved; /* 0 */
} tessera_model_options;

typedef struct tessera_model_info {
  size_t struct_size;
  /* Texts are the model's own. */
  const char* architecture;
  const char* backend;
  tessera_device device;
  int64_t num_parameters;
  int64_t weight_bytes; /* of all weights as stored */
  int64_t decode_bytes; /* of the weights that one decode step reads */
  int64_t kv_cache_bytes;
  tessera_dtype weight_dtype;
  tessera_dtype activation_dtype;
  int64_t vocab_size;
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t max_seq_len; /* tokens that a sequence may take here */
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t has_tokenizer;
  int32_t has_chat_template;

  /* What programs with the header's second version lack. */
  tessera_dtype kv_dtype;
  int32_t reserved;

  /* What programs with the header's third version lack. How a folder stores matrices as codes and scales,
   * "fp8", "gptq, 4 bits", which are widened when it is loaded; "": it doesn't. */
  const char* quantization;
} tessera_model_info;

/* Opens a Hugging Face folder or a .gguf file, UTF-8. options: may be null. To be freed by
 * tessera_model_free. */
TESSERA_API tessera_status tessera_model_load(const char* path, const tessera_model_options* options,
                                              tessera_model** model);
/* A model with random weights and no tokenizer, for benchmarks; shape: "llama-1b", "tiny", … */
TESSERA_API tessera_status tessera_model_create_random(const char* shape, tessera_dtype weight_dtype,
                                                       const tessera_model_options* options,
                                                       tessera_model** model);
/* model: may be null. */
TESSERA_API void tessera_model_free(tessera_model* model);
TESSERA_API tessera_status tessera_model_get_info(const tessera_model* model, tessera_model_info* info);

/* Tokens of a text; add_special_tokens: those that the model wants around it. TESSERA_UNSUPPORTED if the
 * model has no tokenizer. */
TESSERA_API tessera_status tessera_model_encode(const tessera_model* model, const char* text,
                                                size_t text_bytes, int32_t add_special_tokens,
                                                tessera_tokens* tokens);
TESSERA_API tessera_status tessera_model_decode(const tessera_model* model, const int32_t* tokens,
                                                size_t num_tokens, int32_t skip_special_tokens,
                                                tessera_text* text);

typedef struct tessera_chat_message {
  const char* role; /* "system", "user", "assistant", "tool", or another that the model's template knows */
  const char* content;
  size_t content_bytes;
} tessera_chat_message;

typedef struct tessera_chat_options {
  size_t struct_size;
  const char* template_name; /* one of several that the model has; null: the default */
  const char* tools;         /* JSON list of tools the model may call, as in OpenAI's API; null: none */
  const char* variables;     /* JSON object with further variables of the template; null: none */
  /* Not 0: end behind the last message, not where the assistant's next one begins. */
  int32_t no_generation_prompt;
  int32_t reserved; /* 0 */
} tessera_chat_options;

/* A conversation as text, as the model's own chat template writes it. options: may be null. */
TESSERA_API tessera_status tessera_model_render_chat(const tessera_model* model,
                                                     const tessera_chat_message* messages,
                                                     size_t num_messages, const tessera_chat_options* options,
                                                     tessera_text* text);
/* The same as tokens. Text of the messages never makes control tokens. */
TESSERA_API tessera_status tessera_model_encode_chat(const tessera_model* model,
                                                     const tessera_chat_message* messages,
                                                     size_t num_messages, const tessera_chat_options* options,
                                                     tessera_tokens* tokens);
/* The same for a JSON list of messages, which may have whatever else the template knows: "tool_calls",
 * content in parts, "reasoning_content". */
TESSERA_API tessera_status tessera_model_render_chat_json(const tessera_model* model, const char* messages,
                                                          const tessera_chat_options* options,
                                                          tessera_text* text);
TESSERA_API tessera_status tessera_model_encode_chat_json(const tessera_model* model, const char* messages,
                                                          const tessera_chat_options* options,
                                                          tessera_tokens* tokens);

/* Logits after each of `tokens` (all not 0), or after the last one: (num_tokens or 1) * vocab_size. */
TESSERA_API tessera_status tessera_model_logits(tessera_model* model, const int32_t* tokens,
                                                size_t num_tokens, int32_t all, tessera_floats* logits);

/* ---- Generation */

/* What of a tessera_generate_options is there. */
#define TESSERA_GENERATE_HAS_MAX_TOKENS UINT64_C(0x1)
#define TESSERA_GENERATE_HAS_TOP_P UINT64_C(0x2)
#define TESSERA_GENERATE_HAS_REPETITION_PENALTY UINT64_C(0x4)
/* Goes on where the model would end its text. */
#define TESSERA_GENERATE_IGNORE_EOS UINT64_C(0x8)
/* Keeps the keys and values for the next call with this flag, which then computes only what its prompt does
 * not share with this sequence's beginning. For one prompt at a time. */
#define TESSERA_GENERATE_KEEP_CACHE UINT64_C(0x10)
#define TESSERA_GENERATE_HAS_LOGPROBS UINT64_C(0x20)
/* The text is a JSON object, any. */
#define TESSERA_GENERATE_JSON_OBJECT UINT64_C(0x40)
/* Of an engine's request: neither takes nor leaves keys and values of prompts that begin alike. */
#define TESSERA_GENERATE_NO_PREFIX_CACHE UINT64_C(0x80)
/* Of an engine's request with HAS_LOGPROBS: the same of its prompt, in the request's first event. The whole
 * prompt is computed then, and with max_tokens 0 nothing but it. */
#define TESSERA_GENERATE_PROMPT_LOGPROBS UINT64_C(0x100)

typedef struct tessera_logit_bias {
  int32_t token;
  float bias; /* added to the token's logit */
} tessera_logit_bias;

typedef struct tessera_token_logprob {
  int32_t token;
  float logprob; /* natural logarithm of the probability among the tokens that may be drawn, before biases,
                    temperature and filters */
} tessera_token_logprob;

/* How the next token is drawn; the order is logit bias, presence and frequency penalty, repetition penalty,
 * temperature, top-k, top-p, min-p. */
typedef struct tessera_generate_options {
  size_t struct_size;
  uint64_t flags;
  int64_t max_tokens;       /* HAS_MAX_TOKENS; else 256 */
  uint64_t seed;            /* the same seed gives the same tokens */
  float temperature;        /* 0: greedy */
  float top_p;              /* HAS_TOP_P, in (0, 1]; else 1 */
  float min_p;              /* in [0, 1] */
  float repetition_penalty; /* HAS_REPETITION_PENALTY, > 0; else 1 */
  int32_t top_k;            /* 0: all */
  int32_t reserved;         /* 0 */
  /* Texts that end the generation, and are left out of the text that on_token gets. */
  const char* const* stop;
  size_t num_stop;

  /* What programs with the header's second version lack. */
  float presence_penalty;               /* taken from the logits of tokens that were drawn before */
  float frequency_penalty;              /* the same, times how often they were */
  const tessera_logit_bias* logit_bias; /* each token at most once */
  size_t num_logit_bias;
  /* A form that the text is held to, one at most: JSON that fits this JSON Schema, or text that all of a
   * regular expression matches (docs/structured_output.md). Not with IGNORE_EOS. Null: none. */
  const char* json_schema;
  const char* regex;
  int32_t top_logprobs; /* HAS_LOGPROBS: of each token, and of that many likeliest; 0 to 64 */
  int32_t reserved_2;   /* 0 */
} tessera_generate_options;

typedef int32_t tessera_stop_reason;
enum {
  TESSERA_STOP_END_OF_TEXT = 0,
  TESSERA_STOP_MAX_TOKENS = 1,
  TESSERA_STOP_CONTEXT_FULL = 2,
  TESSERA_STOP_CANCELLED = 3,
  TESSERA_STOP_STRING = 4
};

typedef struct tessera_generation tessera_generation;

typedef struct tessera_generation_info {
  size_t struct_size;
  const int32_t* tokens; /* the new ones, without the end-of-text token; the generation's own */
  size_t num_tokens;
  tessera_stop_reason stop_reason;
  int32_t reserved;
  int64_t prompt_tokens;
  int64_t cached_tokens;    /* of these, taken from the call before (KEEP_CACHE) */
  int64_t generated_tokens; /* drawn ones, the end-of-text token included */
  double prefill_ms;        /* from the first prompt token in to the first token out */
  double decode_ms;         /* all tokens after the first */

  /* What programs with the header's second version lack. With HAS_LOGPROBS, the generation's own; else null.
   */
  const float* logprobs;                     /* (num_tokens) */
  const tessera_token_logprob* top_logprobs; /* (num_tokens, num_top_logprobs), the likeliest first */
  size_t num_top_logprobs;                   /* of each token */
} tessera_generation_info;

/* Gets each new token and the text that it completes: never half a character, empty without a tokenizer,
 * ended by a zero, valid until it returns. Returns 0 to go on; anything else ends the generation. */
typedef int32_t (*tessera_on_token)(void* user_data, int32_t token, const char* text, size_t text_bytes);

/* Continues a prompt. options and on_token: may be null. To be freed by tessera_generation_free. */
TESSERA_API tessera_status tessera_model_generate(tessera_model* model, const int32_t* prompt,
                                                  size_t prompt_tokens,
                                                  const tessera_generate_options* options,
                                                  tessera_on_token on_token, void* user_data,
                                                  tessera_generation** generation);

/* Continues prompts side by side, at most max_batch. options: null, or one of its own for each prompt, by
 * pointers of which each may be null. generations gets num_prompts results. */
TESSERA_API tessera_status tessera_model_generate_batch(tessera_model* model, const tessera_tokens* prompts,
                                                        size_t num_prompts,
                                                        const tessera_generate_options* const* options,
                                                        tessera_generation** generations);
/* generation: may be null. */
TESSERA_API void tessera_generation_free(tessera_generation* generation);
TESSERA_API tessera_status tessera_generation_get_info(const tessera_generation* generation,
                                                       tessera_generation_info* info);

/* ---- Engines */

/* Runs any number of requests over one model: a KV cache and a scheduler. Every step takes one token of each
 * sequence that is decoding, and prompt tokens of the others, shared out evenly. Requests that begin alike
 * share what was computed for their beginnings.
 *
 * Calls may come from any thread, while another is within tessera_engine_step; that is for one thread at a
 * time. */
typedef struct tessera_engine tessera_engine;

/* What of a tessera_engine_options is there. */
/* A request's logits, to the bit, don't depend on what else runs, on how its prompt was cut, on preemption,
 * or on the prefix cache. */
#define TESSERA_ENGINE_BATCH_INVARIANT UINT64_C(0x1)
/* Keeps nothing of ended sequences for prompts that begin the same. */
#define TESSERA_ENGINE_NO_PREFIX_CACHE UINT64_C(0x2)

typedef struct tessera_engine_options {
  size_t struct_size;
  uint64_t flags;
  int64_t max_seq_len;    /* tokens of KV cache a sequence may take; 0: the model's context length */
  int64_t max_kv_tokens;  /* tokens of KV cache in all; 0: max_batch * max_seq_len */
  int32_t max_batch;      /* sequences that run at the same time; 0: 16 */
  int32_t max_waiting;    /* requests that wait for their turn; 0: 256 */
  int32_t page_size;      /* tokens in a KV page; 0: 16 */
  int32_t prefill_chunk;  /* tokens of prompts in a step; 0: 512 on a CPU, 2048 on a GPU */
  tessera_dtype kv_dtype; /* as in tessera_model_options */
  int32_t reserved;       /* 0 */
} tessera_engine_options;

/* Over the model's weights, which both keep: either may be freed first. options: may be null. To be freed by
 * tessera_engine_free. */
TESSERA_API tessera_status tessera_engine_create(const tessera_model* model,
                                                 const tessera_engine_options* options,
                                                 tessera_engine** engine);
/* No other call on it may be on. engine: may be null. */
TESSERA_API void tessera_engine_free(tessera_engine* engine);
/* The options as they are used: no size is 0, kv_dtype is that of the cache. */
TESSERA_API tessera_status tessera_engine_get_options(const tessera_engine* engine,
                                                      tessera_engine_options* options);

/* Asks for a prompt's continuation. id names the request from now on: never 0, never used twice by an engine.
 * options: may be null; without KEEP_CACHE. TESSERA_QUEUE_FULL if max_waiting requests wait. */
TESSERA_API tessera_status tessera_engine_submit(tessera_engine* engine, const int32_t* prompt,
                                                 size_t prompt_tokens,
                                                 const tessera_generate_options* options, uint64_t* id);

enum { TESSERA_POOLING_MEAN = 0, TESSERA_POOLING_LAST = 1 };

typedef struct tessera_embedding_options {
  size_t struct_size;
  int32_t pooling;      /* how the hidden states of a prompt become one vector */
  int32_t no_normalize; /* not 0: not of Euclidean length 1 */
} tessera_embedding_options;

/* Asks for a prompt's hidden states, after the last norm, as one vector. options: may be null. */
TESSERA_API tessera_status tessera_engine_submit_embedding(tessera_engine* engine, const int32_t* prompt,
                                                           size_t prompt_tokens,
                                                           const tessera_embedding_options* options,
                                                           uint64_t* id);

/* Asks which earlier tokens some tokens of a text look at. positions: of those that look, ascending, at least
 * one. layers: ascending; all if num_layers is 0. At most 2^24 weights. */
TESSERA_API tessera_status tessera_engine_submit_attention(tessera_engine* engine, const int32_t* tokens,
                                                           size_t num_tokens, const int64_t* positions,
                                                           size_t num_positions, const int32_t* layers,
                                                           size_t num_layers, uint64_t* id);

/* Ends a request: it has no part in steps that begin afterwards, and the next step reports FINISHED with
 * TESSERA_STOP_CANCELLED. *was_alive is 0 if it had ended, or never was; may be null. */
TESSERA_API tessera_status tessera_engine_cancel(tessera_engine* engine, uint64_t id, int32_t* was_alive);

typedef int32_t tessera_event_type;
enum {
  TESSERA_EVENT_TOKEN = 0, /* of requests to continue a prompt only */
  /* Each request's last event is one of these. */
  TESSERA_EVENT_FINISHED = 1,
  TESSERA_EVENT_ERROR = 2
};

/* What became of requests in one step. */
typedef struct tessera_events tessera_events;

/* Arrays and texts are the events' own. */
typedef struct tessera_event {
  size_t struct_size;
  uint64_t id; /* the request's */
  tessera_event_type type;
  /* TOKEN: the one drawn. FINISHED by END_OF_TEXT: the one that ended the text, which has no event of its
   * own.
   */
  int32_t token;
  /* TOKEN and FINISHED: text that is now certain, UTF-8, a zero behind it: never half a character, never what
   * may become a stop string. Empty without a tokenizer. */
  const char* text;
  size_t text_bytes;
  const tessera_token_logprob* top_logprobs; /* TOKEN, with HAS_LOGPROBS; the likeliest first */
  size_t num_top_logprobs;
  float logprob;                   /* TOKEN, with HAS_LOGPROBS */
  tessera_stop_reason stop_reason; /* FINISHED */
  int64_t prompt_tokens;           /* FINISHED, as are all up to attention */
  int64_t cached_tokens;           /* of these, found in the prefix cache */
  int64_t generated_tokens;        /* drawn ones, the end-of-text token included */
  double prefill_ms;
  double decode_ms;
  const float* embedding; /* (hidden_size), of such requests */
  size_t embedding_size;
  /* (layers, num_heads, positions, tokens), of such requests: weights, whose sum over the tokens is 1; 0 for
   * tokens that a position does not see. */
  const float* attention;
  size_t attention_size;
  const char* error_message; /* ERROR, else "" */
  tessera_status error;      /* ERROR, else TESSERA_OK */
  int32_t reserved;

  /* A request's first event, with PROMPT_LOGPROBS: of the prompt's tokens but its first. */
  const float* prompt_logprobs;                     /* (num_prompt_logprobs) */
  const tessera_token_logprob* prompt_top_logprobs; /* (num_prompt_logprobs, num_prompt_top_logprobs) */
  size_t num_prompt_logprobs;
  size_t num_prompt_top_logprobs; /* of each token, the likeliest first */
} tessera_event;

/* Runs one step. There are no events, at once, if there is nothing to do. Errors end the requests that they
 * belong to. To be freed by tessera_events_free. */
TESSERA_API tessera_status tessera_engine_step(tessera_engine* engine, tessera_events** events);
/* events: may be null. */
TESSERA_API void tessera_events_free(tessera_events* events);
TESSERA_API tessera_status tessera_events_size(const tessera_events* events, size_t* size);
/* index: below the size. */
TESSERA_API tessera_status tessera_events_get(const tessera_events* events, size_t index,
                                              tessera_event* event);

/* *has_work: whether a step has something to do. */
TESSERA_API tessera_status tessera_engine_has_work(const tessera_engine* engine, int32_t* has_work);
/* Sleeps until there is work, tessera_engine_wake is called, or the time is over. has_work: may be null. */
TESSERA_API tessera_status tessera_engine_wait(tessera_engine* engine, int64_t timeout_ms, int32_t* has_work);
/* Ends one tessera_engine_wait, the next one if none is on. */
TESSERA_API tessera_status tessera_engine_wake(tessera_engine* engine);

/* What an engine does and has done. Counters only grow. */
typedef struct tessera_engine_stats {
  size_t struct_size;
  int64_t running;         /* requests that have pages */
  int64_t waiting;         /* requests that have none yet, or have lost them */
  int64_t kv_pages;        /* in all */
  int64_t kv_pages_used;   /* by running requests */
  int64_t kv_pages_cached; /* by nobody, kept for prompts that begin the same */
  int64_t kv_cache_bytes;  /* memory of all pages */
  uint64_t requests_submitted;
  uint64_t requests_finished;  /* the cancelled ones included */
  uint64_t requests_cancelled; /* of these */
  uint64_t requests_failed;
  uint64_t requests_refused; /* because the queue was full */
  uint64_t prompt_tokens;    /* of requests that have begun */
  uint64_t cached_tokens;    /* of these, found in the prefix cache */
  uint64_t computed_tokens;  /* that went through the model, again after preemption */
  uint64_t generated_tokens; /* drawn */
  uint64_t preemptions;      /* sequences that gave their pages to others */
  uint64_t steps;
} tessera_engine_stats;

TESSERA_API tessera_status tessera_engine_get_stats(const tessera_engine* engine,
                                                    tessera_engine_stats* stats);

#ifdef __cplusplus
}
#endif

#endif
