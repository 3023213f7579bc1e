"""The arrays and options of an attention call, checked and packed as tessera.h's tessera_attention_problem."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, NamedTuple

import numpy as np

from . import _library as c
from ._tensors import Tensor, current_stream, describe_as, described_input, empty_like
from .modifier import Packed

# tessera_attention_problem from its first member to its last; _structs.attention_problem names them.
_TENSOR = "Qi4xqqq"
_MASK = "Qi4xqqqq"
_PROBLEM = struct.Struct("=QQiiqqqiiii" + 4 * _TENSOR + "Qqqq" + "ffqqi4xQq" + 2 * _MASK + "Q" + "QqQq" + "QQqqii" + "Q" + "QQqq" + "6Q" + "Qqq")
assert _PROBLEM.size == ctypes.sizeof(c.attention_problem)

# By where (batch, seq, heads) are.
_FOUR_DIMENSIONS = {(0, 1, 2): "(batch, seq, heads, head_dim)", (0, 2, 1): "(batch, heads, seq, head_dim)"}
_FLOATING = (c.F64, c.F32, c.F16, c.BF16)

_NO_MASK = (0, 0, 0, 0, 0, 0)
_NO_LSE = (0, 0, 0, 0)
_NO_PAGES = (0, 0, 0, 0, 0, 0)
_NO_SCALES = (0, 0, 0, 0)
_NO_Q_SCALES = (0, 0, 0)
NO_MODIFIER = (0, 0, 0, 0, 0, 0)


class Terms(NamedTuple):
    """Options of a call that are no arrays; None is absent."""

    softmax_scale: float | None = None
    softcap: float | None = None
    window_left: int | None = None
    window_right: int | None = None
    top_left: bool = False
    batch_invariant: bool = False
    backend: str | None = None
    allow_fallback: bool = False
    config: tuple | None = None  # values to force, _call.CONFIG's
    max_q: int = 0  # of ragged sequences
    max_kv: int = 0
    settled_kv: bool = False
    equal_heads: bool = False  # k has as many heads as q


class Names(NamedTuple):
    """What the caller's function calls arrays, lengths and the scale of a call."""

    q: str = "q"
    k: str = "k"
    v: str = "v"
    lengths: str = "cache_seqlens"
    scale: str = "softmax_scale"


class Arrays(NamedTuple):
    """The arrays of a call; None is absent. Ragged q (cu_q) has (tokens, heads, head_dim), as have k and v with cu_kv; k
    and v with block_table are (pages, page_size, heads, head_dim)."""

    q: Any
    k: Any
    v: Any
    out: Any = None
    lse: Any = None
    mask: Any = None
    alibi_slopes: Any = None
    sinks: Any = None
    cu_q: Any = None
    cu_kv: Any = None
    block_table: Any = None
    seq_lens_kv: Any = None
    k_scale: Any = None
    v_scale: Any = None
    q_scale: Any = None


def fail(message: str) -> None:
    raise c.InvalidArgumentError(message)


def refuse_read_only(name: str, array: Any) -> None:
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        fail(f"{name} is an array that may not be written to; expected one that may")


def device_name(device: tuple) -> str:
    return "the CPU" if device[0] == c.CPU else f"{c.DEVICE_KINDS[device[0]]}:{device[1]}"


def dtype_name(dtype: int) -> str:
    return c.library.tessera_dtype_name(dtype).decode()


class Problem:
    """A call's arrays, whose dimensions (batch, seq, heads, head_dim) are in the places `order` names. pack() checks them
    in turn; what it makes for the caller are `out` and `lse`. `keep` has the descriptions of all."""

    def __init__(self, arrays: Arrays, order: tuple, terms: Terms, stream: int | None, names: Names):
        self.arrays = arrays
        self.names = names
        self.order = order
        self.terms = terms
        self.q, self.k, self.v = self.keep = [describe_as(n, a, stream, described_input) for n, a in zip(names, arrays[:3])]
        self.device = self.q.device
        if any(t.device != self.device for t in self.keep):
            fail(f"{names.q}, {names.k} and {names.v} are on {', '.join(device_name(t.device) for t in self.keep)}; expected one device")
        self.stream = current_stream(arrays.q, self.device) if stream is None and self.device[0] != c.CPU else stream
        self.flags = c.BATCH_INVARIANT if terms.batch_invariant else 0

    def pack(self, want_lse: bool, modifier: Packed | None) -> bytes:
        q_strides, ragged_q = self._queries()
        k_strides, v_strides, ragged_kv, pages, lens = self._keys()
        head_dim_qk, head_dim_v = self.q.shape[-1], self.v.shape[-1]
        if head_dim_qk != self.k.shape[-1]:
            fail(f"{self.names.q} has head_dim {head_dim_qk} and {self.names.k} {self.k.shape[-1]}; expected the same")
        if self.terms.equal_heads and self.heads != self.kv_heads:
            fail(f"query has {self.heads} heads and key {self.kv_heads}; expected as many, or enable_gqa=True")
        to, o_strides = self._output(head_dim_v)
        lse = self._lse(want_lse)
        scores = (*self._factors(), *self._diagonal(), *self._alibi(), *self._masks(), self._sinks())
        kv_scales, q_scales = self._kv_scales(), self._q_scales()
        modifier_members = self._modifier(modifier)
        if self.terms.settled_kv and not self._has_copies():
            self.flags |= c.SETTLED_KV
        values = [
            _PROBLEM.size, self.flags, *self.device,
            self.batch, self.seq_q, self.seq_kv, self.heads, self.kv_heads, head_dim_qk, head_dim_v,
            self.q.pointer, self.q.dtype, *q_strides, self.k.pointer, self.k.dtype, *k_strides,
            self.v.pointer, self.v.dtype, *v_strides, to.pointer, to.dtype, *o_strides, *lse,
            *scores, *ragged_q, *ragged_kv, *pages, lens, *kv_scales, *modifier_members, *q_scales,
        ]  # fmt: skip
        try:
            return _PROBLEM.pack(*values)
        except (struct.error, OverflowError) as error:
            raise c.InvalidArgumentError(f"a size or number of the call is out of range: {error}") from None

    def _has_copies(self) -> bool:
        """Whether anything but q was copied, and so is written just before the call."""
        given = (*self.arrays, self.out, self.lse)
        owners = [t.owner[0] if isinstance(t.owner, tuple) else t.owner for t in self.keep[1:]]
        return any(all(owner is not a for a in given) for owner in owners)

    # ---- Where the tokens are

    def _in_order(self, of_dimensions: tuple) -> tuple:
        """What sizes or strides are of (batch, seq, heads)."""
        return tuple(of_dimensions[i] for i in self.order)

    def _queries(self) -> tuple:
        """(strides, ragged) of q."""
        shape, strides = self.q.shape, self.q.strides
        if self.arrays.cu_q is None:
            if len(shape) != 4:
                fail(f"{self.names.q} has shape {tuple(shape)}; expected {_FOUR_DIMENSIONS[self.order]}")
            self.batch, self.seq_q, self.heads = self._in_order(shape)
            return self._in_order(strides), (0, 0)
        if len(shape) != 3:
            fail(f"{self.names.q} has shape {tuple(shape)}; expected (total_q, heads, head_dim)")
        t = self._vector(self.arrays.cu_q, "cu_seqlens_q", c.I32)
        self.flags |= c.HAS_RAGGED_Q
        self.batch, self.seq_q, self.heads = t.shape[0] - 1, self.terms.max_q, shape[1]
        return (0, *strides[:2]), (t.pointer, shape[0])

    def _keys(self) -> tuple:
        """(strides of k, of v, ragged, paged, lengths) of keys and values."""
        shape = self.k.shape
        if shape[:-1] != self.v.shape[:-1]:
            fail(f"{self.names.k} has shape {tuple(shape)} and {self.names.v} {tuple(self.v.shape)}; expected them to differ in head_dim only")
        if self.arrays.cu_kv is not None:
            return self._ragged_keys()
        if len(shape) != 4:
            expected = _FOUR_DIMENSIONS[self.order] if self.arrays.block_table is None else "(pages, page_size, kv_heads, head_dim)"
            fail(f"{self.names.k} has shape {tuple(shape)}; expected {expected}")
        rows, self.seq_kv, self.kv_heads = self._in_order(shape)
        strides = self._in_order(self.k.strides), self._in_order(self.v.strides)
        if self.arrays.block_table is not None:
            return (*strides, (0, 0), self._pages(rows, self.seq_kv), 0)
        if rows != self.batch:
            fail(f"{self.names.k} has {rows} sequences and {self.names.q} {self.batch}; expected as many")
        return (*strides, (0, 0), _NO_PAGES, self._lengths())

    def _ragged_keys(self) -> tuple:
        shape = self.k.shape
        if len(shape) != 3:
            fail(f"{self.names.k} has shape {tuple(shape)}; expected (total_kv, kv_heads, head_dim)")
        t = self._counted(self.arrays.cu_kv, "cu_seqlens_k", c.I32, self.batch + 1, ", one more than sequences")
        self.flags |= c.HAS_RAGGED_KV
        self.seq_kv, self.kv_heads = self.terms.max_kv, shape[1]
        return (0, *self.k.strides[:2]), (0, *self.v.strides[:2]), (t.pointer, shape[0]), _NO_PAGES, 0

    def _pages(self, num_pages: int, page_size: int) -> tuple:
        table = self._vector(self.arrays.block_table, "block_table", c.I32, 2)
        lengths = self._vector(self.arrays.seq_lens_kv, self.names.lengths, c.I32)
        if table.shape[0] != self.batch or lengths.shape[0] != self.batch:
            fail(f"block_table has {table.shape[0]} rows and {self.names.lengths} {lengths.shape[0]} elements; expected {self.batch}, the sequences of q")
        self.flags |= c.HAS_PAGED_KV
        self.seq_kv = self.terms.max_kv or table.shape[1] * page_size
        return table.pointer, lengths.pointer, table.strides[0], num_pages, table.shape[1], page_size

    def _lengths(self) -> int:
        """Pointer to the lengths of padded keys, 0 without any."""
        if self.arrays.seq_lens_kv is None:
            return 0
        lengths = self._counted(self.arrays.seq_lens_kv, self.names.lengths, c.I32, self.batch, ", the sequences of q")
        self.flags |= c.HAS_SEQ_LENS_KV
        return lengths.pointer

    # ---- Outputs

    def _output(self, head_dim: int) -> tuple:
        """(description, strides) of out, which is made unless it is given."""
        out = self.arrays.out
        refuse_read_only("out", out)
        is_ragged = self.arrays.cu_q is not None
        # q's, but for the last dimension.
        self.out_shape = shape = (*self.q.shape[:-1], head_dim)
        self.out_dtype = c.BF16 if self.q.dtype == c.F8_E4M3 else None  # none: q's
        self.out = empty_like(self.arrays.q, shape, self.out_dtype) if out is None else out
        to = describe_as("out", self.out, self.stream)
        if tuple(to.shape) != shape or to.device != self.device or (to.strides[-1] != 1 and head_dim > 1):
            fail(f"out has shape {tuple(to.shape)} and strides {tuple(to.strides)} on {device_name(to.device)}; expected shape "
                 f"{shape} with stride 1 along the last dimension on {device_name(self.device)}")
        self.keep.append(to)
        return to, (0, *to.strides[:2]) if is_ragged else self._in_order(to.strides)

    def _lse(self, is_wanted: bool) -> tuple:
        self.lse, self.lse_shape = self.arrays.lse, None
        refuse_read_only("lse", self.lse)
        if not is_wanted and self.lse is None:
            return _NO_LSE
        is_ragged = self.arrays.cu_q is not None
        self.lse_shape = (self.heads, self.q.shape[0]) if is_ragged else (self.batch, self.heads, self.seq_q)
        if self.lse is None:
            self.lse = empty_like(self.arrays.q, self.lse_shape, c.F32)
        t = describe_as("lse", self.lse, self.stream)
        if tuple(t.shape) != self.lse_shape or t.dtype != c.F32 or t.device != self.device:
            fail(f"lse has shape {tuple(t.shape)} and dtype {dtype_name(t.dtype)} on {device_name(t.device)}; expected "
                 f"{self.lse_shape}, f32, on {device_name(self.device)}")
        self.keep.append(t)
        self.flags |= c.HAS_LSE
        return (t.pointer, 0, *t.strides) if is_ragged else (t.pointer, *t.strides)

    # ---- Scores

    def _given(self, value: Any, flag: int) -> Any:
        """A number of the struct, and its flag if it is there."""
        if value is None:
            return 0
        self.flags |= flag
        return value

    def _factors(self) -> tuple:
        terms = self.terms
        scale = None if terms.softmax_scale is None else c.number(self.names.scale, terms.softmax_scale)
        softcap = None if terms.softcap is None else c.number("softcap", terms.softcap)
        return self._given(scale, c.HAS_SOFTMAX_SCALE), self._given(softcap or None, c.HAS_SOFTCAP)

    def _diagonal(self) -> tuple:
        terms = self.terms
        left, right = self._given(terms.window_left, c.HAS_WINDOW_LEFT), self._given(terms.window_right, c.HAS_WINDOW_RIGHT)
        return left, right, c.TOP_LEFT if terms.top_left else c.BOTTOM_RIGHT

    def _alibi(self) -> tuple:
        slopes = self.arrays.alibi_slopes
        if slopes is None:
            return 0, 0
        dims = len(describe_as("alibi_slopes", slopes, self.stream).shape)
        t = self._vector(slopes, "alibi_slopes", c.F32, max(1, min(2, dims)))
        if tuple(t.shape) not in ((self.heads,), (self.batch, self.heads)):
            fail(f"alibi_slopes has shape {tuple(t.shape)}; expected ({self.heads},) or ({self.batch}, {self.heads})")
        self.flags |= c.HAS_ALIBI
        return t.pointer, t.strides[0] if len(t.shape) == 2 else 0

    def _masks(self) -> tuple:
        """The additive mask, then the boolean one: a mask that broadcasts to (batch, heads, seq_q, seq_kv) is one of them."""
        if self.arrays.mask is None:
            return *_NO_MASK, *_NO_MASK
        t = describe_as("the mask", self.arrays.mask, self.stream)
        self._check_device("the mask", t)
        want = (self.batch, self.heads, self.seq_q, self.seq_kv)
        missing = 4 - len(t.shape)
        shape = (1,) * missing + tuple(t.shape)
        if missing < 0 or any(got not in (1, expected) for got, expected in zip(shape, want)):
            fail(f"the mask has shape {tuple(t.shape)}; expected one that broadcasts to {want}")
        strides = tuple(0 if got == 1 else s for got, s in zip(shape, (0,) * missing + tuple(t.strides)))
        if min(strides) < 0:
            fail(f"the mask has strides {strides}; expected none that is negative")
        self.keep.append(t)
        if t.dtype not in (c.BOOL, *_FLOATING):
            fail(f"the mask is of dtype {dtype_name(t.dtype)}; expected bool (True is visible), or f32, f16 or bf16 (added to the scores)")
        mask = (t.pointer, t.dtype, *strides)
        if t.dtype == c.BOOL:
            self.flags |= c.HAS_BOOLEAN_MASK
            return *_NO_MASK, *mask
        self.flags |= c.HAS_ADDITIVE_MASK
        return *mask, *_NO_MASK

    def _sinks(self) -> int:
        if self.arrays.sinks is None:
            return 0
        t = self._counted(self.arrays.sinks, "sinks", c.F32, self.heads, ", one a head")
        self.flags |= c.HAS_SINKS
        return t.pointer

    def _modifier(self, modifier: Packed | None) -> tuple:
        if modifier is None:
            return NO_MODIFIER
        for t in modifier.tensors:
            self._check_device("a tensor of the modifier", t)
        self.flags |= c.HAS_MODIFIER
        return modifier.struct

    # ---- What numbers of 8 bits are multiplied by

    def _kv_scales(self) -> tuple:
        if self.arrays.k_scale is None and self.arrays.v_scale is None:
            return _NO_SCALES
        self.flags |= c.HAS_KV_SCALES
        rows = self.k.shape[self.order[0]] if self.arrays.cu_kv is None else 1  # sequences or pages
        pointers, strides = [0, 0], None
        for i, (name, given) in enumerate((("k_descale", self.arrays.k_scale), ("v_descale", self.arrays.v_scale))):
            if given is None:
                continue
            pointers[i], own = self._scale(name, given, rows)
            if strides not in (None, own):
                fail(f"k_descale and v_descale have strides {strides} and {own}; expected the same shape and strides")
            strides = own
        return *pointers, *strides

    def _q_scales(self) -> tuple:
        if self.arrays.q_scale is None:
            return _NO_Q_SCALES
        self.flags |= c.HAS_Q_SCALES
        pointer, strides = self._scale("q_descale", self.arrays.q_scale, self.batch)
        return pointer, *strides

    def _scale(self, name: str, given: Any, rows: int) -> tuple:
        """(pointer, strides) of scales of 1 element, (kv_heads) or (rows, kv_heads)."""
        t = describe_as(name, given, self.stream)
        shape, heads = tuple(t.shape), self.kv_heads
        if t.device != self.device or t.dtype != c.F32 or shape not in ((), (1,), (heads,), (rows, heads)):
            fail(f"{name} has shape {shape} and dtype {dtype_name(t.dtype)} on {device_name(t.device)}; expected (1), "
                 f"({heads},) or ({rows}, {heads}), f32, on {device_name(self.device)}")
        self.keep.append(t)
        # One element serves all heads, a row all sequences; strides that lead nowhere are 0, too, so that they are the same.
        strides = tuple(0 if n == 1 else s for n, s in zip(shape, t.strides))
        return t.pointer, (0,) * (2 - len(strides)) + strides

    # ---- Checks

    def _check_device(self, what: str, t: Tensor) -> None:
        if t.device != self.device:
            fail(f"{what} is on {device_name(t.device)}; expected it with q on {device_name(self.device)}")

    def _counted(self, array: Any, name: str, dtype: int, count: int, why: str = "") -> Tensor:
        """A vector of so many elements."""
        t = self._vector(array, name, dtype)
        if t.shape[0] != count:
            fail(f"{name} has {t.shape[0]} elements; expected {count}{why}")
        return t

    def _vector(self, array: Any, name: str, dtype: int, dims: int = 1) -> Tensor:
        t = describe_as(name, array, self.stream, described_input)
        self._check_device(name, t)
        if t.dtype != dtype:
            fail(f"{name} is of dtype {dtype_name(t.dtype)}; expected {dtype_name(dtype)}")
        if len(t.shape) != dims:
            fail(f"{name} has shape {tuple(t.shape)}; expected {dims} dimension{'s' if dims > 1 else ''}")
        if dims == 1 and t.shape[0] > 1 and t.strides[0] != 1:
            fail(f"{name} has stride {t.strides[0]}; expected a contiguous one")
        self.keep.append(t)
        return t
