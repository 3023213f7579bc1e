"""Keys and values that are appended to caches before a call: whether they fit, where they go, and how they are written."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _library as c
from ._tensors import is_torch, torch_module

_MOST_OF_8_BITS = 448.0  # of float8_e4m3fn
_STORED_IN_8_BITS = ("float32", "float16", "bfloat16")  # what is rounded to it


def _stored(cache: Any, new: Any, descale: Any, pages: Any) -> tuple[Any, Any]:
    """The cache and new (batch, seq_new, kv_heads, head_dim) as they are assigned. In a cache of 8 bits `new` is divided by
    what stored ones are multiplied by, those of pages (batch, seq_new) or sequences; what is too large becomes 448."""
    if new.dtype == cache.dtype:
        return cache, new
    if is_torch(cache):
        torch = torch_module()
        if cache.dtype != torch.float8_e4m3fn:
            return cache, new
        new = new.float()
    elif cache.dtype.name != "float8_e4m3fn":
        return cache, new
    else:
        new = new.astype(np.float32)
    if descale is not None:
        new = new / (descale[pages][..., None] if len(descale.shape) == 2 else descale.reshape(-1, 1))
    new = new.clip(-_MOST_OF_8_BITS, _MOST_OF_8_BITS)
    if is_torch(cache):
        return cache.view(torch.uint8), new.to(cache.dtype).view(torch.uint8)
    return cache, new.astype(cache.dtype)


def _dtype_name(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def check_appended(q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any) -> None:
    """That k and v have the shapes and dtypes of what is appended to caches that fit q, and that these can be written."""
    shape = tuple(k.shape)
    if len(shape) != 4 or shape != (q.shape[0], shape[1], *k_cache.shape[2:]):
        raise c.InvalidArgumentError(f"k has shape {shape}; expected ({q.shape[0]}, seq_new, {k_cache.shape[2]}, {k_cache.shape[3]})")
    expected = (*shape[:2], *v_cache.shape[2:])
    if tuple(v.shape) != expected:
        raise c.InvalidArgumentError(f"v has shape {tuple(v.shape)}; expected {expected}, as many tokens as k")
    for name, cache, new in (("k", k_cache, k), ("v", v_cache, v)):
        if is_torch(new) != is_torch(cache) or getattr(new, "device", None) != getattr(cache, "device", None):
            raise c.InvalidArgumentError(f"{name} is an array of another library or device than its cache; expected the same")
        if new.dtype != cache.dtype:
            dtype, stored = _dtype_name(new), _dtype_name(cache)
            if stored != "float8_e4m3fn" or dtype not in _STORED_IN_8_BITS:
                raise c.InvalidArgumentError(f"{name} is of dtype {dtype}; expected its cache's, {stored}")
        if isinstance(cache, np.ndarray) and not cache.flags.writeable:
            raise c.InvalidArgumentError(f"{name}_cache can't be written to; expected one that {name} can be appended to")


def _check_within(name: str, index: Any, size: int, what: str) -> None:
    """That all of `index` are from 0 to size - 1; not of a GPU's, which only the device could tell."""
    if is_torch(index) and not index.is_cpu:
        return
    for bad in index[(index < 0) | (index >= size)].reshape(-1)[:1]:
        raise c.InvalidArgumentError(f"{name} puts k and v at {what} {int(bad)}; expected one of the {size} that there are, from 0 on")


def places_of(cache: Any, seq_new: int, seqlens: Any, batch_idx: Any, block_table: Any) -> tuple:
    """Where seq_new tokens behind the first seqlens[b] of each sequence's cache lie: its first two indices, which broadcast
    to (batch, seq_new). Raises InvalidArgumentError for places that the cache lacks."""
    batch = seqlens.shape[0]
    if is_torch(cache):
        torch = torch_module()
        tokens = seqlens[:, None].long() + torch.arange(seq_new, device=cache.device)
        rows = torch.arange(batch, device=cache.device)
        as_index = lambda x: x.long()  # noqa: E731
    else:
        tokens = seqlens[:, None].astype(np.int64) + np.arange(seq_new)
        rows = np.arange(batch)
        as_index = lambda x: x  # noqa: E731
    if block_table is None:
        pages = (rows if batch_idx is None else as_index(batch_idx))[:, None]
        _check_within("cache_batch_idx", pages, cache.shape[0], "cache")
        _check_within("cache_seqlens", tokens, cache.shape[1], "token")
        return pages, tokens
    page_size = cache.shape[1]
    _check_within("cache_seqlens", tokens, block_table.shape[1] * page_size, "token")
    pages = as_index(block_table)[rows[:, None], tokens // page_size]
    _check_within("block_table", pages, cache.shape[0], "page")
    return pages, tokens % page_size


def append(cache: Any, new: Any, places: tuple, descale: Any) -> None:
    """Writes new (batch, seq_new, kv_heads, head_dim) to `places` of a cache."""
    cache, new = _stored(cache, new, descale, places[0])
    cache[places] = new
