"""Two results of attention over disjoint keys, made one."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _library as c
from ._call import backend_name, refuse_gradients
from ._problem import device_name, dtype_name, fail, refuse_read_only
from ._tensors import Tensor, current_stream, describe_as, described_input, empty_like
from .attention import Array, into, operators

# Where (batch, seq, heads) are in a result's dimensions.
_LAYOUTS = {"batch_heads_seq": (0, 2, 1), "batch_seq_heads": (0, 1, 2)}


def _order(layout: str | None, shape: tuple) -> tuple | None:
    """_LAYOUTS' of results of this shape; None: they are ragged."""
    if len(shape) == 3:
        if layout is not None:
            fail(f"layout is {layout!r} with o_a of shape {shape}; expected None: 3 dimensions are (tokens, heads, head_dim)")
        return None
    if len(shape) != 4:
        fail(f"o_a has shape {shape}; expected 4 dimensions, or 3 of ragged sequences: (tokens, heads, head_dim)")
    if layout not in _LAYOUTS:
        fail(f"layout is {layout!r}; expected 'batch_heads_seq' for results of sdpa, 'batch_seq_heads' for those of flash_attn_…")
    return _LAYOUTS[layout]


class _Rows:
    """The rows that both results have: their sizes, and how arrays of them are described."""

    def __init__(self, like: Tensor, layout: str | None):
        self.device, self.dtype, self.shape = like.device, like.dtype, tuple(like.shape)
        self.order = _order(layout, self.shape)
        if self.order is None:
            self.batch, (self.seq, self.heads) = 1, self.shape[:2]
            self.lse_shape = (self.heads, self.seq)
        else:
            self.batch, self.seq, self.heads = (self.shape[i] for i in self.order)
            self.lse_shape = (self.batch, self.heads, self.seq)

    def _check(self, name: str, t: Tensor, shape: tuple, dtype: int, what: str) -> None:
        if tuple(t.shape) != shape or t.dtype != dtype or t.device != self.device:
            fail(f"{name} has shape {tuple(t.shape)} and dtype {dtype_name(t.dtype)} on {device_name(t.device)}; expected {shape}, "
                 f"{dtype_name(dtype)}, on {device_name(self.device)}{what}")

    def o(self, name: str, t: Tensor) -> c.tensor:
        self._check(name, t, self.shape, self.dtype, ", as o_a")
        if t.strides[-1] != 1 and t.shape[-1] > 1:
            fail(f"{name} has strides {tuple(t.strides)}; expected 1 along the last dimension")
        strides = (0, *t.strides[:2]) if self.order is None else tuple(t.strides[i] for i in self.order)
        return c.tensor(t.pointer, t.dtype, 0, *strides)

    def lse(self, name: str, t: Tensor) -> c.lse:
        self._check(name, t, self.lse_shape, c.F32, ", beside o_a")
        return c.lse(t.pointer, *((0, *t.strides) if self.order is None else t.strides))


def _merge_states(o_a, lse_a, o_b, lse_b, layout=None, *, out=None, lse=None, return_lse=False, backend=None, stream=None):
    if stream is not None:
        stream = c.address("stream", stream)
    refuse_gradients(o_a, lse_a, o_b, lse_b, out, lse)
    a, b = (describe_as(name, array, stream, described_input) for name, array in (("o_a", o_a), ("o_b", o_b)))
    lses = [describe_as(name, array, stream) for name, array in (("lse_a", lse_a), ("lse_b", lse_b))]
    rows = _Rows(a, layout)
    p = c.made(c.merge_states_problem)
    p.device = c.device(*rows.device)
    p.batch, p.seq_len_q, p.num_heads, p.head_dim = rows.batch, rows.seq, rows.heads, rows.shape[-1]
    p.o_a, p.o_b = rows.o("o_a", a), rows.o("o_b", b)
    p.lse_a, p.lse_b = rows.lse("lse_a", lses[0]), rows.lse("lse_b", lses[1])
    for name, array in (("out", out), ("lse", lse)):
        refuse_read_only(name, array)
    out = empty_like(o_a, rows.shape) if out is None else out
    to = describe_as("out", out, stream)
    p.o = rows.o("out", to)
    if lse is None and return_lse:
        lse = empty_like(o_a, rows.lse_shape, c.F32)
    if lse is not None:
        to_lse = describe_as("lse", lse, stream)
        p.lse = rows.lse("lse", to_lse)
        p.flags = c.HAS_LSE
    name = backend_name(backend)
    stream = current_stream(o_a, rows.device) if stream is None else stream
    c.check(c.library.tessera_merge_states(ctypes.byref(p), name, stream))
    return (out, lse) if return_lse else out


def merge_states(o_a: Array, lse_a: Array, o_b: Array, lse_b: Array, layout: str | None = None, *, out: Array | None = None,
                 lse: Array | None = None, return_lse: bool = False, backend: str | None = None,
                 stream: int | None = None) -> Any:  # fmt: skip
    """The result of attention over the keys of two calls together, whose queries are the same and whose keys are disjoint:
    lse = log(exp(lse_a) + exp(lse_b)), o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b. Flash-Decoding (Dao et al., 2023).

    o_a, o_b: results of one shape and dtype (float32, float16, bfloat16). layout: "batch_heads_seq" for sdpa's, (batch,
    heads, seq_q, head_dim_v); "batch_seq_heads" for those of flash_attn_…, (batch, seq_q, heads, head_dim_v); None for ragged
    ones of 3 dimensions, (tokens, heads, head_dim_v). lse_a, lse_b: what these calls return beside them, natural logarithms,
    fp32: (batch, heads, seq_q); ragged: (heads, tokens). Any strides. At most one of the calls may have had sinks.
    out, lse: where they go, which may be o_a or o_b, and lse_a or lse_b; None: new arrays. return_lse: returns (o, lse), to be
    merged with more.
    backend: a name; None: the best for where the arrays are. stream: as of the other functions.

    Where both lse are -inf o is 0 and lse -inf; where one is NaN both are. Returns o, of the shape of o_a. Raises
    InvalidArgumentError for arrays that don't fit together, UnsupportedError where no backend can merge them.
    """
    ops = operators(stream)
    if ops is not None:
        o, its_lse = ops.merge_states(o_a, lse_a, o_b, lse_b, layout, return_lse or lse is not None, backend)
        o, its_lse = into("out", out, o), into("lse", lse, its_lse)
        return (o, its_lse) if return_lse else o
    return _merge_states(o_a, lse_a, o_b, lse_b, layout, out=out, lse=lse, return_lse=return_lse, backend=backend, stream=stream)
