"""Attention on numpy arrays, torch tensors and whatever exports its memory, under the names people know.

All functions take arrays on the CPU or a GPU and return arrays of the same library, on the current stream. They compute
forward only: tensors that require gradients are an error outside torch.no_grad().

Besides their own arguments all take these keywords:

backend: "cpu", "cuda", "hip", "unfused", "reference", …; None: the best for where the arrays are. allow_fallback: where
the one named can't run the call, the best that can does.
batch_invariant: a row's bits depend on nothing but its own query, keys and terms.
modifier: a tessera.Modifier: what else is done to the scores, and which keys are visible, as text.
out, lse: where the result and the log-sum-exp go; None: new arrays.
config: values to force of what the kernel chooses, a dict of some of "block_m" (query rows a tile), "block_n" (keys a
tile), "num_warps", "num_stages" (of a GPU's blocks), "num_splits" (parts that a kv head's keys are split into) and
"num_parts" (parts of all heads' keys together, of kernels that cut them so); 0: chosen. Plan.config has those of a plan.
settled_kv: promises that kernels just before the call in its stream may still be writing q and each sequence's last
seq_q keys and values only, so that the others, lengths and page tables may be read while they run. It does nothing where
the call itself writes or copies any of these first.
stream: the address of a CUstream or hipStream_t; None: the arrays' library's current one.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Mapping, NamedTuple

import numpy as np

from . import _library as c
from ._appending import append, check_appended, places_of
from ._call import CONFIG, Call, backend_name, forced_config, given_workspace, make_call, refuse_gradients, workspace_for
from ._problem import Arrays, Names, Terms
from ._tensors import describe_as, is_recording, is_torch, readable, torch_module
from .modifier import Modifier

Array = Any

_BATCH_HEADS_SEQ = (0, 2, 1)
_BATCH_SEQ_HEADS = (0, 1, 2)
_SDPA_NAMES = Names(scale="scale")
_VARLEN_NAMES = Names(lengths="cu_seqlens_k's lengths")
_CACHE_NAMES = Names(k="k_cache", v="v_cache")


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise c.UnsupportedError(f"dropout_p is {dropout_p}; expected 0: tessera computes inference only")


def operators(stream: int | None):
    """The operators of torch.library where torch has to see the call as one, since it records or replaces what is called
    (torch.compile, torch.jit.trace, make_fx, tensors without memory); else None."""
    torch = torch_module()
    if torch is None or not (torch.compiler.is_compiling() or is_recording(torch)):
        return None
    if stream is not None:
        raise c.UnsupportedError("a call that torch records runs on torch's current stream; expected stream=None")
    from . import _torch  # makes torch.ops.tessera

    return _torch


def into(name: str, to: Array | None, result: Array) -> Array:
    """An operator's result where the caller wants it."""
    if to is None:
        return result
    if not is_torch(to) or to.shape != result.shape or to.dtype != result.dtype:
        what = f"has shape {tuple(to.shape)} and dtype {to.dtype}" if is_torch(to) else f"is of type {type(to).__name__}"
        raise c.InvalidArgumentError(
            f"{name} {what}; expected a tensor of shape {tuple(result.shape)} and dtype {result.dtype} where torch records the call"
        )
    return to.copy_(result)


def _forced_list(config: Mapping[str, int] | None) -> list[int]:
    """A config as an operator's argument: empty if nothing is forced."""
    return list(forced_config(config) or ())


def _modifier_arguments(modifier: Modifier | None) -> tuple:
    """A modifier as an operator's arguments: its texts and then the names of tensors and scalars (each ended by a zero,
    as operators take no lists of texts), these, and those."""
    if modifier is None:
        return "", [], []
    texts = [modifier.score, modifier.visible, *modifier.tensors, *modifier.scalars]
    return "\0".join(texts), list(modifier.tensors.values()), list(modifier.scalars.values())


def _window(window_size: tuple, causal: bool) -> tuple:
    """flash-attn's (left, right), -1 being unlimited, as (left, right) with None."""
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise c.InvalidArgumentError(f"window_size is {window_size!r}; expected two numbers, of keys to the left and right") from None
    left, right = (None if x is None or c.whole("window_size", x) < 0 else int(x) for x in (left, right))
    return left, (0 if causal else right)


# ---- sdpa


def _sdpa_call(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *,
               softcap=None, window_size=(-1, -1), alibi_slopes=None, sinks=None, causal_alignment="top_left", modifier=None,
               out=None, lse=None, return_lse=False, backend=None, allow_fallback=False, batch_invariant=False,
               settled_kv=False, config=None, stream=None) -> Call:  # fmt: skip
    _refuse_dropout(dropout_p)
    if causal_alignment not in ("top_left", "bottom_right"):
        raise c.InvalidArgumentError(f"causal_alignment is {causal_alignment!r}; expected 'top_left' or 'bottom_right'")
    left, right = _window(window_size, is_causal)
    terms = Terms(scale, softcap, left, right, causal_alignment == "top_left", batch_invariant, backend, allow_fallback,
                  forced_config(config), settled_kv=bool(settled_kv), equal_heads=not enable_gqa)  # fmt: skip
    arrays = Arrays(query, key, value, out, lse, attn_mask, alibi_slopes, sinks)
    call = make_call(arrays, _BATCH_HEADS_SEQ, terms, return_lse, stream, modifier, _SDPA_NAMES)
    if return_lse:
        call.result = (call.out, call.lse)
    return call


def sdpa(query: Array, key: Array, value: Array, attn_mask: Array | None = None, dropout_p: float = 0.0,
         is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *, softcap: float | None = None,
         window_size: tuple = (-1, -1), alibi_slopes: Array | None = None, sinks: Array | None = None,
         causal_alignment: str = "top_left", modifier: Modifier | None = None, out: Array | None = None,
         lse: Array | None = None, return_lse: bool = False, backend: str | None = None, allow_fallback: bool = False,
         batch_invariant: bool = False, settled_kv: bool = False, config: Mapping[str, int] | None = None,
         stream: int | None = None) -> Array:  # fmt: skip
    """Attention as torch.nn.functional.scaled_dot_product_attention.

    query: (batch, heads, seq_q, head_dim); key: (batch, kv_heads, seq_kv, head_dim); value: (batch, kv_heads, seq_kv,
    head_dim_v). kv_heads divides heads, and is heads unless enable_gqa. Any strides.
    attn_mask: broadcasts to (batch, heads, seq_q, seq_kv); boolean (True = visible) or floating (added to the scores).
    is_causal: key j is visible to query i if j <= i, as torch means it; causal_alignment="bottom_right": if
    j <= i + seq_kv - seq_q, as decoding wants it. It may be combined with attn_mask.
    scale: of the scores; None: 1 / sqrt(head_dim).
    softcap: s = softcap * tanh(s / softcap). window_size: (left, right) keys beside the diagonal, -1: all.
    alibi_slopes: (heads) or (batch, heads), fp32. sinks: (heads), fp32, an extra logit a head in the denominator.
    out, lse: where they go. return_lse: returns (result, lse) with lse (batch, heads, seq_q), fp32, natural.

    Returns (batch, heads, seq_q, head_dim_v). Raises tessera.Error.
    """
    ops = operators(stream)
    if ops is not None:
        result, its_lse = ops.sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap,
                               list(window_size), alibi_slopes, sinks, causal_alignment, return_lse or lse is not None,
                               backend, allow_fallback, batch_invariant, settled_kv, _forced_list(config), *_modifier_arguments(modifier))  # fmt: skip
        result, its_lse = into("out", out, result), into("lse", lse, its_lse)
        return (result, its_lse) if return_lse else result
    return _sdpa_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap=softcap,
                      window_size=window_size, alibi_slopes=alibi_slopes, sinks=sinks, causal_alignment=causal_alignment,
                      modifier=modifier, out=out, lse=lse, return_lse=return_lse, backend=backend, allow_fallback=allow_fallback,
                      batch_invariant=batch_invariant, settled_kv=settled_kv, config=config, stream=stream).run()  # fmt: skip


# ---- flash-attn's functions


def _flash_attn_call(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                     alibi_slopes=None, deterministic=False, return_attn_probs=False, *, q_descale=None, k_descale=None,
                     v_descale=None, sinks=None, modifier=None, out=None, lse=None, backend=None, allow_fallback=False,
                     batch_invariant=False, settled_kv=False, config=None, stream=None) -> Call:  # fmt: skip
    _refuse_dropout(dropout_p)
    left, right = _window(window_size, causal)
    terms = Terms(softmax_scale, softcap, left, right, False, batch_invariant, backend, allow_fallback,
                  forced_config(config), settled_kv=bool(settled_kv))  # fmt: skip
    arrays = Arrays(q, k, v, out, lse, None, alibi_slopes, sinks, k_scale=k_descale, v_scale=v_descale, q_scale=q_descale)
    call = make_call(arrays, _BATCH_SEQ_HEADS, terms, return_attn_probs, stream, modifier)
    if return_attn_probs:
        call.result = (call.out, call.lse, None)
    return call


def flash_attn_func(q: Array, k: Array, v: Array, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: tuple = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Array | None = None, deterministic: bool = False, return_attn_probs: bool = False, *,
                    q_descale: Array | None = None, k_descale: Array | None = None, v_descale: Array | None = None,
                    sinks: Array | None = None, modifier: Modifier | None = None, out: Array | None = None,
                    lse: Array | None = None, backend: str | None = None, allow_fallback: bool = False,
                    batch_invariant: bool = False, settled_kv: bool = False, config: Mapping[str, int] | None = None,
                    stream: int | None = None) -> Array:  # fmt: skip
    """Attention as flash_attn.flash_attn_func.

    q: (batch, seq_q, heads, head_dim); k: (batch, seq_kv, kv_heads, head_dim); v: (batch, seq_kv, kv_heads,
    head_dim_v). kv_heads divides heads. causal and window_size, (left, right) with -1 for all, are about the diagonal
    that ends in the bottom right corner. softcap: 0: none. alibi_slopes: (heads) or (batch, heads), fp32.
    sinks: (heads), fp32. deterministic: always so.
    k and v, or all three, may be of float8_e4m3fn: q_descale, k_descale and v_descale, fp32 of 1 element, (kv_heads) or
    (batch, kv_heads), are what they are multiplied by; None: 1.

    Returns (batch, seq_q, heads, head_dim_v) of q's dtype, of bfloat16 for q of 8 bits unless out is of another; with
    return_attn_probs (that, lse (batch, heads, seq_q), None).
    """
    ops = operators(stream)
    if ops is not None:
        result, its_lse = ops.flash_attn(q, k, v, dropout_p, softmax_scale, causal, list(window_size), softcap, alibi_slopes,
                                     return_attn_probs or lse is not None, sinks, backend, allow_fallback, batch_invariant,
                                     settled_kv, _forced_list(config), q_descale,
                                     k_descale, v_descale, *_modifier_arguments(modifier))  # fmt: skip
        result, its_lse = into("out", out, result), into("lse", lse, its_lse)
        return (result, its_lse, None) if return_attn_probs else result
    return _flash_attn_call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                            return_attn_probs, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, sinks=sinks,
                            modifier=modifier, out=out, lse=lse, backend=backend, allow_fallback=allow_fallback,
                            batch_invariant=batch_invariant, settled_kv=settled_kv, config=config, stream=stream).run()  # fmt: skip


def _refuse_inert(name: str, array: Any, *attributes: str) -> None:
    """Raises InvalidArgumentError for what the call can't compute with."""
    if not all(hasattr(array, attribute) for attribute in attributes):
        describe_as(name, array)  # raises for what is no array
        raise c.InvalidArgumentError(f"{name} is of type {type(array).__name__}; expected a numpy array or a torch tensor, with which the call computes")


def _lengths_of(cu_seqlens: Array) -> Array:
    _refuse_inert("cu_seqlens_k", cu_seqlens, "shape", "__getitem__")
    return cu_seqlens[1:] - cu_seqlens[:-1]


def _varlen_call(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                 causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                 return_attn_probs=False, block_table=None, *, q_descale=None, k_descale=None, v_descale=None, sinks=None,
                 modifier=None, out=None, lse=None, backend=None, allow_fallback=False, batch_invariant=False,
                 settled_kv=False, config=None, stream=None) -> Call:  # fmt: skip
    _refuse_dropout(dropout_p)
    left, right = _window(window_size, causal)
    # Lengths of sequences in pages are written just before the call.
    terms = Terms(softmax_scale, softcap, left, right, False, batch_invariant, backend, allow_fallback, forced_config(config),
                  c.whole("max_seqlen_q", max_seqlen_q), c.whole("max_seqlen_k", max_seqlen_k),
                  bool(settled_kv) and block_table is None)  # fmt: skip
    if block_table is None:
        places = (cu_seqlens_k, None, None)
    else:
        places = (None, block_table, _lengths_of(cu_seqlens_k))
    arrays = Arrays(q, k, v, out, lse, None, alibi_slopes, sinks, cu_seqlens_q, *places, k_descale, v_descale, q_descale)
    call = make_call(arrays, _BATCH_SEQ_HEADS, terms, return_attn_probs, stream, modifier, _VARLEN_NAMES)
    if return_attn_probs:
        call.result = (call.out, call.lse, None)
    return call


def flash_attn_varlen_func(q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, max_seqlen_q: int,
                           max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
                           causal: bool = False, window_size: tuple = (-1, -1), softcap: float = 0.0,
                           alibi_slopes: Array | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Array | None = None, *,
                           q_descale: Array | None = None, k_descale: Array | None = None, v_descale: Array | None = None,
                           sinks: Array | None = None, modifier: Modifier | None = None, out: Array | None = None,
                           lse: Array | None = None, backend: str | None = None, allow_fallback: bool = False,
                           batch_invariant: bool = False, settled_kv: bool = False, config: Mapping[str, int] | None = None,
                           stream: int | None = None) -> Array:  # fmt: skip
    """Attention of sequences of different lengths, one after another, as flash_attn.flash_attn_varlen_func.

    q: (total_q, heads, head_dim); k: (total_kv, kv_heads, head_dim); v: (total_kv, kv_heads, head_dim_v).
    cu_seqlens_q, cu_seqlens_k: (batch + 1), int32: sequence b is rows [cu[b], cu[b + 1]).
    max_seqlen_q, max_seqlen_k: bounds of the lengths. The rest as in flash_attn_func.
    block_table: (batch, max_pages), int32: k and v are (pages, page_size, kv_heads, head_dim).
    q_descale: of 1 element, (kv_heads) or (batch, kv_heads); k_descale and v_descale: of 1 element or (kv_heads), with
    block_table also (pages, kv_heads).

    Returns (total_q, heads, head_dim_v); with return_attn_probs (that, lse (heads, total_q), None).
    """
    ops = operators(stream)
    if ops is not None:
        result, its_lse = ops.flash_attn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                                softmax_scale, causal, list(window_size), softcap, alibi_slopes,
                                                return_attn_probs or lse is not None, block_table, sinks, backend,
                                                allow_fallback, batch_invariant, settled_kv, _forced_list(config), q_descale,
                                                k_descale, v_descale, *_modifier_arguments(modifier))  # fmt: skip
        result, its_lse = into("out", out, result), into("lse", lse, its_lse)
        return (result, its_lse, None) if return_attn_probs else result
    return _varlen_call(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
                        window_size, softcap, alibi_slopes, deterministic, return_attn_probs, block_table,
                        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, sinks=sinks, modifier=modifier,
                        out=out, lse=lse, backend=backend, allow_fallback=allow_fallback, batch_invariant=batch_invariant,
                        settled_kv=settled_kv, config=config, stream=stream).run()  # fmt: skip


def _filled(like: Array, shape: tuple, value: int) -> Array:
    """int32 where `like` is, made there: recordings of a CUDA graph allow no copy from the CPU."""
    if is_torch(like):
        return torch_module().full(shape, value, dtype=torch_module().int32, device=like.device)
    return np.full(shape, value, np.int32)


_MOST_TOKENS = 2**31 - 1


def _refuse_rotation_and_padding(rotary_cos: Array | None, rotary_sin: Array | None, cache_leftpad: Array | None) -> None:
    if rotary_cos is not None or rotary_sin is not None:
        raise c.UnsupportedError("rotary_cos and rotary_sin are not applied by tessera; expected q and k that are rotated already")
    if cache_leftpad is not None:
        raise c.UnsupportedError("cache_leftpad is not supported; expected sequences that begin at their cache's begin")


def _kvcache_call(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                  cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                  window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                  return_softmax_lse=False, *, q_descale=None, k_descale=None, v_descale=None, sinks=None, modifier=None,
                  out=None, lse=None, backend=None, allow_fallback=False, batch_invariant=False, settled_kv=False, config=None, stream=None) -> Call:  # fmt: skip
    _refuse_rotation_and_padding(rotary_cos, rotary_sin, cache_leftpad)
    if (k is None) != (v is None):
        raise c.InvalidArgumentError("one of k and v is None; expected both or neither")
    if block_table is not None and cache_batch_idx is not None:
        raise c.InvalidArgumentError("block_table and cache_batch_idx are both given; expected one of them: each says where the caches are")
    refuse_gradients(k, v)
    for name, array in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        _refuse_inert(name, array, "shape")
    for name, array in (("k", k), ("v", v), ("cache_batch_idx", cache_batch_idx)):
        if array is not None:
            _refuse_inert(name, array, "shape", "reshape")
    given_seqlens = cache_seqlens
    if isinstance(cache_seqlens, (int, np.integer)):
        if not 0 <= cache_seqlens <= _MOST_TOKENS:
            raise c.InvalidArgumentError(f"cache_seqlens is {cache_seqlens}; expected a number of tokens from 0 to {_MOST_TOKENS}")
        cache_seqlens = _filled(q, q.shape[:1], cache_seqlens)
    if block_table is not None and cache_seqlens is None:
        raise c.InvalidArgumentError("cache_seqlens is None; expected the number of tokens of each sequence in its pages")
    lengths = cache_seqlens
    if k is not None:
        if cache_seqlens is None:
            raise c.InvalidArgumentError("cache_seqlens is None; expected the number of tokens that each cache has, to append k and v")
        _refuse_inert("cache_seqlens", cache_seqlens, "shape", "__add__")
        lengths = cache_seqlens + _filled(q, (), k.shape[1] if len(k.shape) > 1 else 0)
    # Of caches that the library can't read in place it gets copies, which are appended to, too.
    k_read, v_read = (k_cache, v_cache) if k is None else (readable(k_cache), readable(v_cache))
    table = block_table
    if table is None and cache_batch_idx is not None:
        # Caches of a batch, chosen by index, are pages as long as a cache.
        table = cache_batch_idx.reshape(-1, 1)
        if lengths is None:
            lengths = _filled(q, q.shape[:1], k_cache.shape[1])
    left, right = _window(window_size, causal)
    # Lengths that are made here are written just before the call.
    settled = bool(settled_kv) and lengths is given_seqlens
    terms = Terms(softmax_scale, softcap, left, right, False, batch_invariant, backend, allow_fallback,
                  forced_config(config, num_splits), settled_kv=settled)  # fmt: skip
    arrays = Arrays(q, k_read, v_read, out, lse, None, alibi_slopes, sinks, None, None, table, lengths, k_descale, v_descale, q_descale)
    call = make_call(arrays, _BATCH_SEQ_HEADS, terms, return_softmax_lse, stream, modifier, _CACHE_NAMES)
    if return_softmax_lse:
        call.result = (call.out, call.lse)
    if k is not None:
        check_appended(q, k_cache, v_cache, k, v)

        def appending() -> Callable[[], None]:
            places = places_of(k_cache, k.shape[1], cache_seqlens, cache_batch_idx, block_table)

            def write() -> None:
                for cache, read, new, descale in ((k_cache, k_read, k, k_descale), (v_cache, v_read, v, v_descale)):
                    append(cache, new, places, descale)
                    if read is not cache:
                        append(read, new, places, descale)

            return write

        call.appending = appending
    return call


def flash_attn_with_kvcache(q: Array, k_cache: Array, v_cache: Array, k: Array | None = None, v: Array | None = None,
                            rotary_cos: Array | None = None, rotary_sin: Array | None = None,
                            cache_seqlens: Array | int | None = None, cache_batch_idx: Array | None = None,
                            cache_leftpad: Array | None = None, block_table: Array | None = None,
                            softmax_scale: float | None = None, causal: bool = False, window_size: tuple = (-1, -1),
                            softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Array | None = None,
                            num_splits: int = 0, return_softmax_lse: bool = False, *, q_descale: Array | None = None,
                            k_descale: Array | None = None, v_descale: Array | None = None, sinks: Array | None = None,
                            modifier: Modifier | None = None, out: Array | None = None, lse: Array | None = None,
                            backend: str | None = None, allow_fallback: bool = False, batch_invariant: bool = False,
                            settled_kv: bool = False, config: Mapping[str, int] | None = None, stream: int | None = None) -> Array:  # fmt: skip
    """Attention over a KV cache as flash_attn.flash_attn_with_kvcache.

    q: (batch, seq_q, heads, head_dim). k_cache, v_cache: (batch_cache, seq_cache, kv_heads, head_dim), or with
    block_table, (batch, max_pages) int32, (pages, page_size, kv_heads, head_dim), any page size.
    cache_seqlens: (batch) int32 or one int, tokens in each cache; None: full. cache_batch_idx: (batch) int32, the cache
    of each sequence; None: its own index.
    The caches are of q's dtype, or of float8_e4m3fn; then k_descale and v_descale, fp32 of 1 element, (kv_heads) or
    (batch_cache or pages, kv_heads), are what stored keys and values are multiplied by; None: 1. Then q may be of
    float8_e4m3fn, too, with a q_descale of 1 element, (kv_heads) or (batch, kv_heads): the result is of bfloat16, or of
    out's dtype.
    k, v: (batch, seq_new, kv_heads, head_dim), written into the caches behind cache_seqlens first; into caches of 8 bits
    divided by k_descale and v_descale.
    num_splits: parts the keys are split into, 0: chosen; config's. Rotary embeddings and left padding are not supported.

    Returns (batch, seq_q, heads, head_dim_v); with return_softmax_lse (that, lse (batch, heads, seq_q)).
    """
    ops = operators(stream)
    if ops is not None:
        _refuse_rotation_and_padding(rotary_cos, rotary_sin, cache_leftpad)
        if isinstance(cache_seqlens, (int, np.integer)):
            settled_kv = False  # the lengths are written just before the call
            cache_seqlens = torch_module().full((q.shape[0],), cache_seqlens, dtype=torch_module().int32, device=q.device)
        arguments = (q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, block_table, softmax_scale, causal,
                     list(window_size), softcap, alibi_slopes, num_splits, return_softmax_lse or lse is not None, sinks,
                     backend, allow_fallback, batch_invariant, settled_kv, _forced_list(config), q_descale, k_descale,
                     v_descale, *_modifier_arguments(modifier))  # fmt: skip
        result, its_lse = (ops.flash_attn_with_kvcache if k is None else ops.flash_attn_append_kvcache)(*arguments)
        result, its_lse = into("out", out, result), into("lse", lse, its_lse)
        return (result, its_lse) if return_softmax_lse else result
    return _kvcache_call(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
                         block_table, softmax_scale, causal, window_size, softcap, rotary_interleaved, alibi_slopes,
                         num_splits, return_softmax_lse, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
                         sinks=sinks, modifier=modifier, out=out, lse=lse, backend=backend, allow_fallback=allow_fallback,
                         batch_invariant=batch_invariant, settled_kv=settled_kv, config=config, stream=stream).run()  # fmt: skip


_CALLS: dict[Callable, Callable[..., Call]] = {
    sdpa: _sdpa_call,
    flash_attn_func: _flash_attn_call,
    flash_attn_varlen_func: _varlen_call,
    flash_attn_with_kvcache: _kvcache_call,
}


def _call_of(function: Callable, args: tuple, kwargs: dict) -> Call:
    make = _CALLS.get(function)
    if make is None:
        names = ", ".join(f.__name__ for f in _CALLS)
        raise c.InvalidArgumentError(f"{function!r} has no plan; expected one of tessera's {names}")
    return make(*args, **kwargs)


# ---- Plans


def _config_of(config: Any, num_parts: int) -> dict[str, int]:
    return dict(zip(CONFIG, (*(getattr(config, name) for name, _ in config._fields_), num_parts)))


def _asked_for(call: Call) -> tuple[str, dict[str, int]]:
    """The backend and the values that a call forces; "" and 0: none."""
    if call.options is None:
        return "", dict.fromkeys(CONFIG, 0)
    options = call.options._obj  # ctypes' own name for what byref() is of
    return c.decoded(options.backend), _config_of(options.config, options.num_parts)


class _Planned:
    """What will run a call."""

    backend: str
    kernel: str
    config: dict[str, int]
    num_q_tiles: int
    num_kv_tiles: int
    shared_bytes: int
    workspace_bytes: int
    narrow_weights: bool
    notes: list[str]
    fallback_reason: str

    def _describe(self, handle: Any) -> None:
        info = c.made(c.attention_plan_info)
        c.check(c.library.tessera_attention_plan_get_info(handle, ctypes.byref(info)))
        self.backend = c.decoded(info.backend)
        self.kernel = c.decoded(info.kernel)
        self.config = _config_of(info.config, info.num_parts)
        self.num_q_tiles = info.num_q_tiles
        self.num_kv_tiles = info.num_kv_tiles
        self.shared_bytes = info.shared_bytes
        self.workspace_bytes = info.workspace_bytes
        self.narrow_weights = bool(info.narrow_weights)
        self.notes = [c.decoded(info.notes[i]) for i in range(info.num_notes)]
        self.fallback_reason = c.decoded(info.fallback_reason)


class Plan(_Planned, c.Unique):
    """A call that was chosen and loaded once; made by `tessera.plan`.

    Running it chooses, looks up and allocates nothing but the result (nothing with out=), so that it may be recorded
    in a CUDA graph. One run at a time: its workspace is the plan's, unless run gets one. Attributes: backend, kernel,
    config (a dict of tiles and splits, as calls take it), num_q_tiles, num_kv_tiles, shared_bytes and workspace_bytes (of a
    tile on the chip, and of a run), narrow_weights (whether weights are rounded to 8 bits for their product with the
    values), notes, fallback_reason (why it isn't the backend asked for, or "").
    """

    def __init__(self, function: Callable, args: tuple, kwargs: dict):
        call = _call_of(function, args, kwargs)
        self._make = _CALLS[function]
        handle = ctypes.c_void_p()
        c.check(c.library.tessera_attention_plan_prepare(call.problem, call.options, ctypes.byref(handle)))
        self._handle = handle
        self._describe(handle)
        self._asked_for = _asked_for(call)
        self._workspace = workspace_for(call, self.workspace_bytes)

    def run(self, *args: Any, workspace: Array | None = None, **kwargs: Any) -> Any:
        """The result for the arguments of the function that the plan is of, whose shapes, strides, dtypes and options
        are those that it was made with; only the arrays may be others, and backend, num_splits and config, which are chosen,
        may be left out. Raises InvalidArgumentError else.

        workspace: scratch memory on the arrays' device, uint8 of one dimension with workspace_bytes from its first multiple
        of 64 bytes on (63 more always do); None: the plan's own. Runs at the same time need one each.
        """
        call = self._make(*args, **kwargs)
        pointer = self._workspace_of(call, workspace)
        if call.options is not None:
            self._refuse_other_choice(call)
        if call.appending is not None:
            write = call.appending()
            c.check(c.library.tessera_attention_plan_validate(self._handle, call.problem))
            write()
        status = c.library.tessera_attention_plan_run(
            self._handle, call.problem, pointer, self.workspace_bytes, call.stream
        )
        if status:
            c.check(status)
        return call.result

    def _workspace_of(self, call: Call, given: Array | None) -> int | None:
        if given is not None:
            return given_workspace(call, given, self.workspace_bytes)
        if self._workspace is None:
            raise c.InvalidArgumentError(
                f"workspace is None; expected {self.workspace_bytes} bytes, which tessera allocates beside torch's tensors only"
            )
        return self._workspace[0]

    def _refuse_other_choice(self, call: Call) -> None:
        backend, config = _asked_for(call)
        planned_backend, planned_config = self._asked_for
        if backend and backend not in (planned_backend, self.backend):
            raise c.InvalidArgumentError(
                f"backend is {backend!r}, and the plan was made for {self.backend!r}; expected that or none, or a plan of its own"
            )
        for name, value in config.items():
            if value and value not in (planned_config[name], self.config[name]):
                raise c.InvalidArgumentError(
                    f"{name} is {value}, and the plan's is {self.config[name]}; expected that or 0, or a plan of its own"
                )

    def __del__(self):
        if getattr(self, "_handle", None):
            c.library.tessera_attention_plan_free(self._handle)
            self._handle = None

    def __repr__(self) -> str:
        return f"<tessera.Plan {self.backend}/{self.kernel}>"


def plan(function: Callable, *args: Any, **kwargs: Any) -> Plan:
    """A plan of `function(*args, **kwargs)`, one of sdpa and flash_attn_…, to be run often.

    Nothing is computed yet; k and v to append are not appended. Raises tessera.Error.
    """
    return Plan(function, args, kwargs)


# ---- Explanations


class Explanation(_Planned):
    """What would run a call, why, and how long it must at least take; its text is str(explanation).

    Attributes: problem, plan's (backend, kernel, config, workspace_bytes, notes, …), kernels, modifier (the modifier's
    program, an operation a line, and what its mask leaves of the tiles), rejected (a dict from backend to reason), flops,
    bytes, ceiling_flops_per_s, ceiling_bytes_per_s, predicted_ms, compute_bound.
    """

    def __init__(self, call: Call):
        handle = ctypes.c_void_p()
        c.check(c.library.tessera_attention_explain(call.problem, call.options, ctypes.byref(handle)))
        try:
            info = c.made(c.attention_explanation_info)
            c.check(c.library.tessera_attention_explanation_get_info(handle, ctypes.byref(info)))
            self.text = c.decoded(info.text)
            self.problem = c.decoded(info.problem)
            self._describe(info.plan)
            self.kernels = [c.decoded(info.kernels[i]) for i in range(info.num_kernels)]
            self.modifier = [c.decoded(info.modifier_lines[i]) for i in range(info.num_modifier_lines)]
            self.rejected = {
                c.decoded(info.rejected[i].backend): c.decoded(info.rejected[i].reason) for i in range(info.num_rejected)
            }
            self.flops = info.flops
            self.bytes = info.bytes
            self.ceiling_flops_per_s = info.ceiling_flops_per_s
            self.ceiling_bytes_per_s = info.ceiling_bytes_per_s
            self.predicted_ms = info.predicted_ms
            self.compute_bound = bool(info.compute_bound)
        finally:
            c.library.tessera_attention_explanation_free(handle)

    def __str__(self) -> str:
        return self.text


def explain(function: Callable, *args: Any, **kwargs: Any) -> Explanation:
    """Why `function(*args, **kwargs)` would run as it would. Computes nothing but the device's ceilings, in about a
    tenth of a second. Raises tessera.Error."""
    return Explanation(_call_of(function, args, kwargs))


class Cost(NamedTuple):
    """What a call has to do at least. problem: the call in words; flops: 2 (head_dim + head_dim_v) for each visible pair of
    query and key; bytes: each needed input read once, each result written once."""

    problem: str
    flops: float
    bytes: float


def cost(function: Callable, *args: Any, **kwargs: Any) -> Cost:
    """The cost of `function(*args, **kwargs)`, for rates of what was timed. Computes nothing. Of arrays on a GPU neither
    lengths nor masks are read: upper bounds stand in for lengths, and such masks hide nothing. Raises tessera.Error."""
    call = _call_of(function, args, kwargs)
    text, flops, moved = c.text(), ctypes.c_double(), ctypes.c_double()
    c.check(c.library.tessera_attention_flops(call.problem, ctypes.byref(flops)))
    c.check(c.library.tessera_attention_bytes(call.problem, ctypes.byref(moved)))
    c.check(c.library.tessera_attention_describe(call.problem, ctypes.byref(text)))
    return Cost(c.taken_text(text), flops.value, moved.value)


# ---- Backends, verify


class Backend(NamedTuple):
    """A backend of the library on this machine; unavailable_reason is "" if it is usable here."""

    name: str
    description: str
    unavailable_reason: str
    device: str


def backends() -> list[Backend]:
    """All backends, the preferred first."""
    count = ctypes.c_size_t()
    c.check(c.library.tessera_num_backends(ctypes.byref(count)))
    found = []
    for i in range(count.value):
        info = c.made(c.backend_info)
        c.check(c.library.tessera_get_backend_info(i, ctypes.byref(info)))
        found.append(Backend(c.decoded(info.name), c.decoded(info.description), c.decoded(info.unavailable_reason),
                             c.DEVICE_KINDS[info.device_kind]))  # fmt: skip
    return found


def unsupported_reason(backend: str, function: Callable, *args: Any, **kwargs: Any) -> str:
    """Why the backend of this name can't run `function(*args, **kwargs)`; "" if it can. Computes nothing. Raises
    tessera.Error for a name that no backend has, and for arguments that are wrong for all of them."""
    name = backend_name(backend)
    if name is None:
        raise c.InvalidArgumentError(f"backend is {backend!r}; expected a name, such as 'cpu'")
    call = _call_of(function, args, kwargs)
    reason = c.text()
    c.check(c.library.tessera_attention_unsupported_reason(name, call.problem, ctypes.byref(reason)))
    return c.taken_text(reason)


class VerifyResult(NamedTuple):
    """How one case of the conformance suite went on one backend. It passed if error <= bound, lse_error <= lse_bound
    and no rule was broken; with an unsupported_reason nothing ran."""

    name: str
    backend: str
    kernel: str
    error: float
    bound: float
    lse_error: float
    lse_bound: float
    passed: bool
    unsupported_reason: str
    message: str


def verify(backend: str = "all", *, quick: bool = True, filter: str = "",
           on_result: Callable[[VerifyResult], Any] | None = None) -> list[VerifyResult]:  # fmt: skip
    """Compares backends with the fp64 reference on this machine, over every feature of attention.

    backend: a name, or "all" that are usable. quick: a selection that takes seconds. filter: only cases whose name
    contains it. on_result: gets each result as it comes. Raises tessera.Error if no case has that name.
    """
    results: list[VerifyResult] = []
    raised: list[BaseException] = []

    def collect(_, pointer) -> int:
        r = pointer[0]
        try:
            results.append(VerifyResult(c.decoded(r.name), c.decoded(r.backend), c.decoded(r.kernel), r.error, r.bound,
                                        r.lse_error, r.lse_bound, bool(r.passed), c.decoded(r.unsupported_reason),
                                        c.decoded(r.message)))  # fmt: skip
            if on_result is not None:
                on_result(results[-1])
        except BaseException as error:  # to be raised where the suite was called
            raised.append(error)
            return 1
        return 0

    options = c.made(c.verify_options)
    options.backend = c.c_text("backend", backend)
    options.filter = c.c_text("filter", filter)
    options.quick = int(quick)
    options.on_result = c.ON_RESULT(collect)
    counts = c.made(c.verify_counts)
    status = c.library.tessera_verify(ctypes.byref(options), ctypes.byref(counts))
    if raised:
        raise raised[0]
    c.check(status)
    return results


def set_num_threads(count: int) -> None:
    """Threads that work on the CPU is spread over from now on, in the whole process; 0: one for each processor."""
    c.check(c.library.tessera_set_num_threads(c.whole_of_32_bits("the number of threads", count)))


def num_threads() -> int:
    """Threads that work on the CPU is spread over."""
    count = ctypes.c_int32()
    c.check(c.library.tessera_num_threads(ctypes.byref(count)))
    return count.value
