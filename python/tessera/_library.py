"""The library by ctypes, and under one name all that tessera.h has: `from . import _library as c`."""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_uint64, c_void_p

from ._errors import *  # noqa: F403
from ._errors import error_of
from ._structs import *  # noqa: F403
from ._structs import ON_TOKEN, text

_P = c_void_p
_SIGNATURES = {
    "num_threads": [_P],
    "set_num_threads": [c_int32],
    "attention_forward": [_P, _P, _P],
    "attention_plan_prepare": [_P, _P, _P],
    "attention_plan_get_info": [_P, _P],
    "attention_plan_validate": [_P, _P],
    "attention_plan_run": [_P, _P, _P, c_size_t, _P],
    "attention_explain": [_P, _P, _P],
    "attention_explanation_get_info": [_P, _P],
    "attention_describe": [_P, _P],
    "attention_flops": [_P, _P],
    "attention_bytes": [_P, _P],
    "num_backends": [_P],
    "get_backend_info": [c_size_t, _P],
    "attention_unsupported_reason": [c_char_p, _P, _P],
    "merge_states": [_P, c_char_p, _P],
    "verify": [_P, _P],
    "model_load": [c_char_p, _P, _P],
    "model_get_info": [_P, _P],
    "model_encode": [_P, c_char_p, c_size_t, c_int32, _P],
    "model_decode": [_P, _P, c_size_t, c_int32, _P],
    "model_render_chat": [_P, _P, c_size_t, _P, _P],
    "model_encode_chat": [_P, _P, c_size_t, _P, _P],
    "model_render_chat_json": [_P, c_char_p, _P, _P],
    "model_encode_chat_json": [_P, c_char_p, _P, _P],
    "model_logits": [_P, _P, c_size_t, c_int32, _P],
    "model_generate": [_P, _P, c_size_t, _P, ON_TOKEN, _P, _P],
    "model_generate_batch": [_P, _P, c_size_t, _P, _P],
    "generation_get_info": [_P, _P],
    "engine_create": [_P, _P, _P],
    "engine_get_options": [_P, _P],
    "engine_submit": [_P, _P, c_size_t, _P, _P],
    "engine_submit_embedding": [_P, _P, c_size_t, _P, _P],
    "engine_submit_attention": [_P, _P, c_size_t, _P, c_size_t, _P, c_size_t, _P],
    "engine_cancel": [_P, c_uint64, _P],
    "engine_step": [_P, _P],
    "events_size": [_P, _P],
    "events_get": [_P, c_size_t, _P],
    "engine_has_work": [_P, _P],
    "engine_wait": [_P, c_int64, _P],
    "engine_wake": [_P],
    "engine_get_stats": [_P, _P],
}
_FREES = [
    "attention_plan_free",
    "attention_explanation_free",
    "text_free",
    "tokens_free",
    "floats_free",
    "model_free",
    "generation_free",
    "engine_free",
    "events_free",
]


def _open() -> ctypes.CDLL:
    """The library beside this file, or the one that TESSERA_C_LIBRARY names."""
    path = os.environ.get("TESSERA_C_LIBRARY") or pathlib.Path(__file__).parent / "lib" / "libtessera_c.so"
    library = ctypes.CDLL(str(path))
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, "tessera_" + name)
        function.argtypes = arguments
        function.restype = c_int32
    for name in _FREES:
        function = getattr(library, "tessera_" + name)
        function.argtypes = [_P]
        function.restype = None
    for name, arguments in {"last_error": [], "version": [], "dtype_name": [c_int32]}.items():
        function = getattr(library, "tessera_" + name)
        function.argtypes = arguments
        function.restype = c_char_p
    return library


library = _open()


def check(status: int) -> None:
    """Raises the error of a status that is not 0."""
    if status:
        raise error_of(status, library.tessera_last_error())


def decoded(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def taken_text(given: text) -> str:
    """What a call handed out, which is freed."""
    taken = ctypes.string_at(given.data, given.size_bytes).decode("utf-8", "replace")
    library.tessera_text_free(ctypes.byref(given))
    return taken


class Unique:
    """What holds an object of the library: a copy would free that a second time."""

    def __reduce_ex__(self, protocol):
        raise TypeError(f"{type(self).__name__} objects can't be copied or pickled; expected one made anew")
