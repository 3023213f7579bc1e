"""Attention by its definition in double precision, and what inputs it takes."""

import numpy as np


def attention(q, k, v, scale=None, softcap=None, bias=None, visible=None, sinks=None):
    """q: (batch, heads, seq_q, d); k, v: (batch, kv_heads, seq_kv, d). Returns (o, lse)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    if visible is not None:
        s = np.where(visible, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sinks = np.asarray(sinks, np.float64)[None, :, None, None]
        top = np.maximum(top, sinks)
    top = np.where(np.isfinite(top), top, 0)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - top))
    seen = np.isfinite(s).any(-1, keepdims=True)
    o = np.einsum("bhqk,bhkd->bhqd", np.where(seen, p / np.where(total == 0, 1, total), 0), v)
    with np.errstate(divide="ignore"):
        lse = np.where(seen, np.log(total) + top, -np.inf)[..., 0]
    return o, lse


def band(seq_q, seq_kv, left=None, right=None, top_left=False):
    """(seq_q, seq_kv): the keys that a window around the diagonal leaves visible."""
    shift = 0 if top_left else seq_kv - seq_q
    distance = np.arange(seq_kv)[None] - np.arange(seq_q)[:, None] - shift
    return ((left is None) | (distance >= -(left or 0))) & ((right is None) | (distance <= (right or 0)))
