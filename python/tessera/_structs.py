"""Numbers and structs of tessera.h, with its names but for the prefix."""

from __future__ import annotations

import ctypes
import operator
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p

from ._errors import InvalidArgumentError

# ---- Numbers

F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, U8, BOOL = range(1, 11)
CPU, CUDA, HIP = range(3)
DEVICE_KINDS = ("cpu", "cuda", "hip")
BOTTOM_RIGHT, TOP_LEFT = range(2)

HAS_LSE = 0x1
HAS_SOFTMAX_SCALE = 0x2
HAS_SOFTCAP = 0x4
HAS_WINDOW_LEFT = 0x8
HAS_WINDOW_RIGHT = 0x10
HAS_ALIBI = 0x20
HAS_ADDITIVE_MASK = 0x40
HAS_BOOLEAN_MASK = 0x80
HAS_SINKS = 0x100
HAS_RAGGED_Q = 0x200
HAS_RAGGED_KV = 0x400
HAS_PAGED_KV = 0x800
HAS_SEQ_LENS_KV = 0x1000
BATCH_INVARIANT = 0x2000
HAS_KV_SCALES = 0x4000
HAS_MODIFIER = 0x8000
HAS_Q_SCALES = 0x10000
SETTLED_KV = 0x20000

MODEL_HAS_DEVICE = 0x1
MODEL_BATCH_INVARIANT = 0x2
MODEL_WITHOUT_CACHE = 0x4
GENERATE_HAS_MAX_TOKENS = 0x1
GENERATE_HAS_TOP_P = 0x2
GENERATE_HAS_REPETITION_PENALTY = 0x4
GENERATE_IGNORE_EOS = 0x8
GENERATE_KEEP_CACHE = 0x10
GENERATE_HAS_LOGPROBS = 0x20
GENERATE_JSON_OBJECT = 0x40
GENERATE_NO_PREFIX_CACHE = 0x80
GENERATE_PROMPT_LOGPROBS = 0x100
ENGINE_BATCH_INVARIANT = 0x1
ENGINE_NO_PREFIX_CACHE = 0x2
EVENT_TOKEN, EVENT_FINISHED, EVENT_ERROR = range(3)

# ---- Structs


class Options(ctypes.Structure):
    """A struct that users' values go into: ctypes would cut numbers that are too large, numpy's too."""

    def __setattr__(self, name, value):
        try:
            super().__setattr__(name, value)
        except TypeError:
            raise InvalidArgumentError(f"{name} is {value!r}; expected {'a whole number' if isinstance(value, float) else 'a number'}") from None
        kept = getattr(self, name)
        if isinstance(kept, int) and kept != operator.index(value):
            raise InvalidArgumentError(f"{name} is {value}; expected a number of {8 * getattr(type(self), name).size} bits")


class device(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("index", c_int32)]


class tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("reserved", c_int32),
        ("batch_stride", c_int64),
        ("seq_stride", c_int64),
        ("head_stride", c_int64),
    ]


class lse(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("head_stride", c_int64),
        ("seq_stride", c_int64),
    ]


class mask(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("reserved", c_int32),
        ("batch_stride", c_int64),
        ("head_stride", c_int64),
        ("q_stride", c_int64),
        ("kv_stride", c_int64),
    ]


class ragged(ctypes.Structure):
    _fields_ = [("cu_seqlens", c_void_p), ("total_tokens", c_int64)]


class paged_kv(ctypes.Structure):
    _fields_ = [
        ("block_table", c_void_p),
        ("seq_lens_kv", c_void_p),
        ("block_table_stride", c_int64),
        ("num_pages", c_int64),
        ("max_pages_per_seq", c_int32),
        ("page_size", c_int32),
    ]


class kv_scales(ctypes.Structure):
    _fields_ = [("k", c_void_p), ("v", c_void_p), ("batch_stride", c_int64), ("head_stride", c_int64)]


class q_scales(ctypes.Structure):
    _fields_ = [("q", c_void_p), ("batch_stride", c_int64), ("head_stride", c_int64)]


class captured_tensor(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("sizes", c_int64 * 4),
        ("strides", c_int64 * 4),
    ]


class scalar(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class score_modifier(ctypes.Structure):
    _fields_ = [
        ("score", c_void_p),
        ("visible", c_void_p),
        ("tensors", c_void_p),
        ("num_tensors", c_size_t),
        ("scalars", c_void_p),
        ("num_scalars", c_size_t),
    ]


class attention_problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint64),
        ("device", device),
        ("batch", c_int64),
        ("seq_len_q", c_int64),
        ("seq_len_kv", c_int64),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim_qk", c_int32),
        ("head_dim_v", c_int32),
        ("q", tensor),
        ("k", tensor),
        ("v", tensor),
        ("o", tensor),
        ("lse", lse),
        ("softmax_scale", c_float),
        ("softcap", c_float),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("alignment", c_int32),
        ("reserved", c_int32),
        ("alibi_slopes", c_void_p),
        ("alibi_batch_stride", c_int64),
        ("additive_mask", mask),
        ("boolean_mask", mask),
        ("sink_logits", c_void_p),
        ("ragged_q", ragged),
        ("ragged_kv", ragged),
        ("paged_kv", paged_kv),
        ("seq_lens_kv", c_void_p),
        ("kv_scales", kv_scales),
        ("modifier", score_modifier),
        ("q_scales", q_scales),
    ]


class attention_config(ctypes.Structure):
    _fields_ = [
        ("block_m", c_int32),
        ("block_n", c_int32),
        ("num_warps", c_int32),
        ("num_stages", c_int32),
        ("num_splits", c_int32),
    ]


class attention_options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_char_p),
        ("allow_fallback", c_int32),
        ("config", attention_config),
        ("num_parts", c_int32),
        ("reserved", c_int32),
    ]


class attention_plan_info(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_char_p),
        ("kernel", c_char_p),
        ("config", attention_config),
        ("num_q_tiles", c_int64),
        ("num_kv_tiles", c_int64),
        ("shared_bytes", c_size_t),
        ("workspace_bytes", c_size_t),
        ("notes", ctypes.POINTER(c_char_p)),
        ("num_notes", c_size_t),
        ("fallback_reason", c_char_p),
        ("num_parts", c_int32),
        ("narrow_weights", c_int32),
    ]


class rejected_backend(ctypes.Structure):
    _fields_ = [("backend", c_char_p), ("reason", c_char_p)]


class attention_explanation_info(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("text", c_char_p),
        ("problem", c_char_p),
        ("plan", c_void_p),
        ("kernels", ctypes.POINTER(c_char_p)),
        ("num_kernels", c_size_t),
        ("rejected", ctypes.POINTER(rejected_backend)),
        ("num_rejected", c_size_t),
        ("flops", c_double),
        ("bytes", c_double),
        ("ceiling_flops_per_s", c_double),
        ("ceiling_bytes_per_s", c_double),
        ("predicted_ms", c_double),
        ("compute_bound", c_int32),
        ("reserved", c_int32),
        ("modifier_lines", ctypes.POINTER(c_char_p)),
        ("num_modifier_lines", c_size_t),
    ]


class backend_info(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("description", c_char_p),
        ("unavailable_reason", c_char_p),
        ("device_kind", c_int32),
        ("reserved", c_int32),
    ]


class merge_states_problem(Options):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint64),
        ("device", device),
        ("batch", c_int64),
        ("seq_len_q", c_int64),
        ("num_heads", c_int32),
        ("head_dim", c_int32),
        ("o_a", tensor),
        ("o_b", tensor),
        ("lse_a", lse),
        ("lse_b", lse),
        ("o", tensor),
        ("lse", lse),
    ]


class verify_result(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("backend", c_char_p),
        ("kernel", c_char_p),
        ("error", c_double),
        ("bound", c_double),
        ("lse_error", c_double),
        ("lse_bound", c_double),
        ("passed", c_int32),
        ("reserved", c_int32),
        ("unsupported_reason", c_char_p),
        ("message", c_char_p),
    ]


ON_RESULT = ctypes.CFUNCTYPE(c_int32, c_void_p, ctypes.POINTER(verify_result))


class verify_options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_char_p),
        ("filter", c_char_p),
        ("quick", c_int32),
        ("reserved", c_int32),
        ("on_result", ON_RESULT),
        ("user_data", c_void_p),
    ]


class verify_counts(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("passed", c_int64),
        ("failed", c_int64),
        ("unsupported", c_int64),
    ]


class text(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size_bytes", c_size_t)]


class tokens(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(c_int32)), ("size", c_size_t)]


class floats(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


ON_PROGRESS = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int32, c_uint64, c_uint64)


class model_options(Options):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint64),
        ("backend", c_char_p),
        ("device", device),
        ("max_seq_len", c_int64),
        ("max_kv_tokens", c_int64),
        ("max_batch", c_int32),
        ("page_size", c_int32),
        ("prefill_chunk", c_int32),
        ("activation_dtype", c_int32),
        ("on_progress", ON_PROGRESS),
        ("user_data", c_void_p),
        ("kv_dtype", c_int32),
        ("reserved", c_int32),
    ]


class model_info(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("architecture", c_char_p),
        ("backend", c_char_p),
        ("device", device),
        ("num_parameters", c_int64),
        ("weight_bytes", c_int64),
        ("decode_bytes", c_int64),
        ("kv_cache_bytes", c_int64),
        ("weight_dtype", c_int32),
        ("activation_dtype", c_int32),
        ("vocab_size", c_int64),
        ("hidden_size", c_int64),
        ("intermediate_size", c_int64),
        ("max_seq_len", c_int64),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("has_tokenizer", c_int32),
        ("has_chat_template", c_int32),
        ("kv_dtype", c_int32),
        ("reserved", c_int32),
        ("quantization", c_char_p),
    ]


class chat_message(ctypes.Structure):
    _fields_ = [("role", c_char_p), ("content", c_char_p), ("content_bytes", c_size_t)]


class chat_options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("template_name", c_char_p),
        ("tools", c_char_p),
        ("variables", c_char_p),
        ("no_generation_prompt", c_int32),
        ("reserved", c_int32),
    ]


class logit_bias(Options):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class token_logprob(ctypes.Structure):
    _fields_ = [("token", c_int32), ("logprob", c_float)]


class generate_options(Options):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint64),
        ("max_tokens", c_int64),
        ("seed", c_uint64),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("top_k", c_int32),
        ("reserved", c_int32),
        ("stop", ctypes.POINTER(c_char_p)),
        ("num_stop", c_size_t),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("logit_bias", ctypes.POINTER(logit_bias)),
        ("num_logit_bias", c_size_t),
        ("json_schema", c_char_p),
        ("regex", c_char_p),
        ("top_logprobs", c_int32),
        ("reserved_2", c_int32),
    ]


class generation_info(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", ctypes.POINTER(c_int32)),
        ("num_tokens", c_size_t),
        ("stop_reason", c_int32),
        ("reserved", c_int32),
        ("prompt_tokens", c_int64),
        ("cached_tokens", c_int64),
        ("generated_tokens", c_int64),
        ("prefill_ms", c_double),
        ("decode_ms", c_double),
        ("logprobs", ctypes.POINTER(c_float)),
        ("top_logprobs", ctypes.POINTER(token_logprob)),
        ("num_top_logprobs", c_size_t),
    ]


ON_TOKEN = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int32, c_void_p, c_size_t)


class engine_options(Options):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint64),
        ("max_seq_len", c_int64),
        ("max_kv_tokens", c_int64),
        ("max_batch", c_int32),
        ("max_waiting", c_int32),
        ("page_size", c_int32),
        ("prefill_chunk", c_int32),
        ("kv_dtype", c_int32),
        ("reserved", c_int32),
    ]


class embedding_options(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("pooling", c_int32), ("no_normalize", c_int32)]


class event(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("id", c_uint64),
        ("type", c_int32),
        ("token", c_int32),
        ("text", c_void_p),
        ("text_bytes", c_size_t),
        ("top_logprobs", ctypes.POINTER(token_logprob)),
        ("num_top_logprobs", c_size_t),
        ("logprob", c_float),
        ("stop_reason", c_int32),
        ("prompt_tokens", c_int64),
        ("cached_tokens", c_int64),
        ("generated_tokens", c_int64),
        ("prefill_ms", c_double),
        ("decode_ms", c_double),
        ("embedding", c_void_p),
        ("embedding_size", c_size_t),
        ("attention", c_void_p),
        ("attention_size", c_size_t),
        ("error_message", c_char_p),
        ("error", c_int32),
        ("reserved", c_int32),
        ("prompt_logprobs", ctypes.POINTER(c_float)),
        ("prompt_top_logprobs", ctypes.POINTER(token_logprob)),
        ("num_prompt_logprobs", c_size_t),
        ("num_prompt_top_logprobs", c_size_t),
    ]


class engine_stats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("running", c_int64),
        ("waiting", c_int64),
        ("kv_pages", c_int64),
        ("kv_pages_used", c_int64),
        ("kv_pages_cached", c_int64),
        ("kv_cache_bytes", c_int64),
        ("requests_submitted", c_uint64),
        ("requests_finished", c_uint64),
        ("requests_cancelled", c_uint64),
        ("requests_failed", c_uint64),
        ("requests_refused", c_uint64),
        ("prompt_tokens", c_uint64),
        ("cached_tokens", c_uint64),
        ("computed_tokens", c_uint64),
        ("generated_tokens", c_uint64),
        ("preemptions", c_uint64),
        ("steps", c_uint64),
    ]


def made(struct):
    """A struct of zeros with its size."""
    return struct(struct_size=ctypes.sizeof(struct))
