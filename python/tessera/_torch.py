"""Operators for torch.compile: torch.ops.tessera's, which it takes as they are. Imported when torch is there."""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from . import attention, merging
from ._call import CONFIG, needs_gradients
from .modifier import Modifier


def _modifier(texts: str, tensors: list, scalars: list) -> Modifier | None:
    """attention._modifier_arguments' modifier."""
    if not texts:
        return None
    score, visible, *names = texts.split("\0")
    return Modifier(score, visible, **dict(zip(names, [*tensors, *scalars])))


def _config(values: list) -> dict | None:
    """attention._forced_list's config."""
    return dict(zip(CONFIG, values)) if values else None


def _results(result, has_lse: bool, like: Tensor) -> Tuple[Tensor, Tensor]:
    """An operator's results are always two: without lse it is empty."""
    if has_lse:
        return result[0], result[1]
    return result, like.new_empty(0, dtype=torch.float32)


def _fake(like: Tensor, shape, lse_shape, has_lse: bool) -> Tuple[Tensor, Tensor]:
    dtype = torch.bfloat16 if like.dtype == torch.float8_e4m3fn else like.dtype
    return like.new_empty(shape, dtype=dtype), like.new_empty(lse_shape if has_lse else 0, dtype=torch.float32)


@torch.library.custom_op("tessera::sdpa", mutates_args=())
def sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], dropout_p: float, is_causal: bool,
         scale: Optional[float], enable_gqa: bool, softcap: Optional[float], window_size: List[int],
         alibi_slopes: Optional[Tensor], sinks: Optional[Tensor], causal_alignment: str, return_lse: bool,
         backend: Optional[str], allow_fallback: bool, batch_invariant: bool, settled_kv: bool, config: List[int],
         modifier_texts: str, modifier_tensors: List[Tensor], modifier_scalars: List[float]) -> Tuple[Tensor, Tensor]:  # fmt: skip
    call = attention._sdpa_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap=softcap,
                                window_size=window_size, alibi_slopes=alibi_slopes, sinks=sinks,
                                causal_alignment=causal_alignment, return_lse=return_lse, backend=backend,
                                allow_fallback=allow_fallback, batch_invariant=batch_invariant, settled_kv=settled_kv,
                                config=_config(config),
                                modifier=_modifier(modifier_texts, modifier_tensors, modifier_scalars))  # fmt: skip
    return _results(call.run(), return_lse, query)


@sdpa.register_fake
def _(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap, window_size, alibi_slopes, sinks,
      causal_alignment, return_lse, backend, allow_fallback, batch_invariant, settled_kv, config, modifier_texts,
      modifier_tensors, modifier_scalars):  # fmt: skip
    batch, heads, seq_q, _ = query.shape
    return _fake(query, (batch, heads, seq_q, value.shape[-1]), (batch, heads, seq_q), return_lse)


@torch.library.custom_op("tessera::flash_attn", mutates_args=())
def flash_attn(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: Optional[float], causal: bool,
               window_size: List[int], softcap: float, alibi_slopes: Optional[Tensor], return_lse: bool,
               sinks: Optional[Tensor], backend: Optional[str], allow_fallback: bool,
               batch_invariant: bool, settled_kv: bool, config: List[int], q_descale: Optional[Tensor],
               k_descale: Optional[Tensor], v_descale: Optional[Tensor], modifier_texts: str,
               modifier_tensors: List[Tensor], modifier_scalars: List[float]) -> Tuple[Tensor, Tensor]:  # fmt: skip
    call = attention._flash_attn_call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                                      return_attn_probs=return_lse, q_descale=q_descale, k_descale=k_descale,
                                      v_descale=v_descale, sinks=sinks, backend=backend,
                                      allow_fallback=allow_fallback, batch_invariant=batch_invariant,
                                      settled_kv=settled_kv, config=_config(config),
                                      modifier=_modifier(modifier_texts, modifier_tensors, modifier_scalars))  # fmt: skip
    return _results(call.run(), return_lse, q)


@flash_attn.register_fake
def _(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_lse, sinks, backend,
      allow_fallback, batch_invariant, settled_kv, config, q_descale, k_descale, v_descale, modifier_texts,
      modifier_tensors, modifier_scalars):  # fmt: skip
    batch, seq_q, heads, _ = q.shape
    return _fake(q, (batch, seq_q, heads, v.shape[-1]), (batch, heads, seq_q), return_lse)


@torch.library.custom_op("tessera::flash_attn_varlen", mutates_args=())
def flash_attn_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
                      max_seqlen_k: int, dropout_p: float, softmax_scale: Optional[float], causal: bool,
                      window_size: List[int], softcap: float, alibi_slopes: Optional[Tensor], return_lse: bool,
                      block_table: Optional[Tensor], sinks: Optional[Tensor], backend: Optional[str],
                      allow_fallback: bool, batch_invariant: bool, settled_kv: bool, config: List[int],
                      q_descale: Optional[Tensor], k_descale: Optional[Tensor], v_descale: Optional[Tensor], modifier_texts: str,
                      modifier_tensors: List[Tensor], modifier_scalars: List[float]) -> Tuple[Tensor, Tensor]:  # fmt: skip
    call = attention._varlen_call(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes,
                                  return_attn_probs=return_lse, block_table=block_table, q_descale=q_descale,
                                  k_descale=k_descale, v_descale=v_descale, sinks=sinks, backend=backend,
                                  allow_fallback=allow_fallback, batch_invariant=batch_invariant,
                                  settled_kv=settled_kv, config=_config(config),
                                  modifier=_modifier(modifier_texts, modifier_tensors, modifier_scalars))  # fmt: skip
    return _results(call.run(), return_lse, q)


@flash_attn_varlen.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
      softcap, alibi_slopes, return_lse, block_table, sinks, backend, allow_fallback, batch_invariant, settled_kv,
      config, q_descale, k_descale, v_descale, modifier_texts,
      modifier_tensors, modifier_scalars):  # fmt: skip
    total_q, heads, _ = q.shape
    return _fake(q, (total_q, heads, v.shape[-1]), (heads, total_q), return_lse)


def _kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor], v: Optional[Tensor],
             cache_seqlens: Optional[Tensor], cache_batch_idx: Optional[Tensor], block_table: Optional[Tensor],
             softmax_scale: Optional[float], causal: bool, window_size: List[int], softcap: float,
             alibi_slopes: Optional[Tensor], num_splits: int, return_lse: bool, sinks: Optional[Tensor],
             backend: Optional[str], allow_fallback: bool, batch_invariant: bool, settled_kv: bool,
             config: List[int], q_descale: Optional[Tensor], k_descale: Optional[Tensor], v_descale: Optional[Tensor], modifier_texts: str,
             modifier_tensors: List[Tensor], modifier_scalars: List[float]) -> Tuple[Tensor, Tensor]:  # fmt: skip
    call = attention._kvcache_call(q, k_cache, v_cache, k, v, None, None, cache_seqlens, cache_batch_idx, None,
                                   block_table, softmax_scale, causal, window_size, softcap, True, alibi_slopes,
                                   num_splits, return_lse, q_descale=q_descale, k_descale=k_descale,
                                   v_descale=v_descale, sinks=sinks, backend=backend, allow_fallback=allow_fallback,
                                   batch_invariant=batch_invariant, settled_kv=settled_kv, config=_config(config),
                                   modifier=_modifier(modifier_texts, modifier_tensors, modifier_scalars))  # fmt: skip
    return _results(call.run(), return_lse, q)


def _fake_kvcache(q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, block_table, softmax_scale, causal,
                  window_size, softcap, alibi_slopes, num_splits, return_lse, sinks, backend, allow_fallback,
                  batch_invariant, settled_kv, config, q_descale, k_descale, v_descale, modifier_texts,
                  modifier_tensors, modifier_scalars):  # fmt: skip
    batch, seq_q, heads, _ = q.shape
    return _fake(q, (batch, seq_q, heads, v_cache.shape[-1]), (batch, heads, seq_q), return_lse)


# One that reads the caches, and one that appends to them first.
flash_attn_with_kvcache = torch.library.custom_op("tessera::flash_attn_with_kvcache", _kvcache, mutates_args=())
flash_attn_append_kvcache = torch.library.custom_op("tessera::flash_attn_append_kvcache", _kvcache,
                                                    mutates_args=("k_cache", "v_cache"))  # fmt: skip
flash_attn_with_kvcache.register_fake(_fake_kvcache)
flash_attn_append_kvcache.register_fake(_fake_kvcache)


@torch.library.custom_op("tessera::merge_states", mutates_args=())
def merge_states(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor, layout: Optional[str], return_lse: bool,
                 backend: Optional[str]) -> Tuple[Tensor, Tensor]:  # fmt: skip
    return _results(merging._merge_states(o_a, lse_a, o_b, lse_b, layout, return_lse=return_lse, backend=backend), return_lse, o_a)


@merge_states.register_fake
def _(o_a, lse_a, o_b, lse_b, layout, return_lse, backend):
    return _fake(o_a, o_a.shape, lse_a.shape, return_lse)


def _setup_gradients(ctx, inputs, output) -> None:
    """Called where torch expects gradients, and only there."""
    raise needs_gradients()


def _no_gradients(ctx, *gradients) -> None:
    raise needs_gradients()


# torch has a message of its own for an operator that changes its arguments.
for _operator in (sdpa, flash_attn, flash_attn_varlen, flash_attn_with_kvcache, merge_states):
    _operator.register_autograd(_no_gradients, setup_context=_setup_gradients)
