"""One attention call, packed as tessera.h's tessera_attention_problem, and the plans that run it."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any, NamedTuple

import numpy as np

from . import _library as c
from ._tensors import (
    Tensor,
    current_stream,
    describe,
    described_input,
    empty_like,
    numpy_pointer,
    signature,
    torch_module,
)
from .modifier import Modifier, Packed

# tessera_attention_problem from its first member to its last; _library.attention_problem names them.
_TENSOR = "Qi4xqqq"
_MASK = "Qi4xqqqq"
_PROBLEM = struct.Struct("=QQiiqqqiiii" + 4 * _TENSOR + "Qqqq" + "ffqqi4xQq" + 2 * _MASK + "Q" + "QqQq" + "QQqqii" + "Q" + "QQqq" + "6Q" + "Qqq")
assert _PROBLEM.size == ctypes.sizeof(c.attention_problem)

_NO_MASK = (0, 0, 0, 0, 0, 0)
_NO_LSE = (0, 0, 0, 0)
_NO_PAGES = (0, 0, 0, 0, 0, 0)
_NO_SCALES = (0, 0, 0, 0)
_NO_MODIFIER = (0, 0, 0, 0, 0, 0)
_NO_Q_SCALES = (0, 0, 0)


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
    num_splits: int = 0
    max_q: int = 0  # of ragged sequences
    max_kv: int = 0


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


class Call:
    """A problem ready to run: `problem` is its struct, `result` what the caller gets."""

    __slots__ = ("problem", "options", "stream", "device", "out", "lse", "result", "like", "keep", "before")

    def __init__(self, problem, options, stream, device, out, lse, like, keep):
        self.problem = problem
        self.options = options
        self.stream = stream
        self.device = device
        self.out = out
        self.lse = lse
        self.result = out
        self.like = like
        self.keep = keep  # what the pointers lead to
        self.before = None  # to be done before it runs

    def run(self) -> Any:
        if self.before is not None:
            self.before()
        status = c.library.tessera_attention_forward(self.problem, self.options, self.stream)
        if status:
            c.check(status)
        return self.result


def _fail(message: str) -> None:
    raise c.InvalidArgumentError(message)


_READ_ONLY_OUT = "out is an array that may not be written to; expected one that may"


def _vector(array: Any, name: str, device: tuple, dtype: int, keep: list, dims: int = 1, stream=None) -> Tensor:
    t = described_input(array, stream)
    if t.device != device:
        _fail(f"{name} is on {_device_name(t.device)}; expected it with q on {_device_name(device)}")
    if t.dtype != dtype:
        _fail(f"{name} is of dtype {_dtype_name(t.dtype)}; expected {_dtype_name(dtype)}")
    if len(t.shape) != dims:
        _fail(f"{name} has shape {tuple(t.shape)}; expected {dims} dimension{'s' if dims > 1 else ''}")
    if dims == 1 and t.shape[0] > 1 and t.strides[0] != 1:
        _fail(f"{name} has stride {t.strides[0]}; expected a contiguous one")
    keep.append(t)
    return t


def _device_name(device: tuple) -> str:
    return "the CPU" if device[0] == c.CPU else f"{c.DEVICE_KINDS[device[0]]}:{device[1]}"


def _dtype_name(dtype: int) -> str:
    return c.library.tessera_dtype_name(dtype).decode()


def _mask(array: Any, batch: int, heads: int, seq_q: int, seq_kv: int, device: tuple, keep: list, stream) -> tuple:
    """(is_boolean, struct) of a mask that broadcasts to (batch, heads, seq_q, seq_kv)."""
    t = describe(array, stream)
    if t.device != device:
        _fail(f"the mask is on {_device_name(t.device)}; expected it with q on {_device_name(device)}")
    want = (batch, heads, seq_q, seq_kv)
    if len(t.shape) > 4:
        _fail(f"the mask has shape {tuple(t.shape)}; expected one that broadcasts to {want}")
    shape = (1,) * (4 - len(t.shape)) + tuple(t.shape)
    strides = (0,) * (4 - len(t.shape)) + tuple(t.strides)
    for got, expected in zip(shape, want):
        if got != expected and got != 1:
            _fail(f"the mask has shape {tuple(t.shape)}; expected one that broadcasts to {want}")
    strides = tuple(0 if got == 1 else s for got, s in zip(shape, strides))
    if min(strides) < 0:
        _fail(f"the mask has strides {strides}; expected none that is negative")
    keep.append(t)
    return t.dtype == c.BOOL, (t.pointer, t.dtype, *strides)


def _scale(name: str, given: Any, batch: int, heads: int, device: tuple, keep: list, stream) -> tuple:
    """(pointer, strides) of scales of 1 element, (kv_heads) or (batch, kv_heads)."""
    t = describe(given, stream)
    shape = tuple(t.shape)
    if t.device != device or t.dtype != c.F32 or shape not in ((), (1,), (heads,), (batch, heads)):
        _fail(f"{name} has shape {shape} and dtype {_dtype_name(t.dtype)} on {_device_name(t.device)}; expected (1), "
              f"({heads},) or ({batch}, {heads}), f32, on {_device_name(device)}")
    keep.append(t)
    # One element serves all heads, a row all sequences; strides that lead nowhere are 0, too, so that they are the same.
    strides = tuple(0 if n == 1 else s for n, s in zip(shape, t.strides))
    return t.pointer, (0,) * (2 - len(strides)) + strides


def _scales(k_scale: Any, v_scale: Any, batch: int, heads: int, device: tuple, keep: list, stream) -> tuple:
    """Struct of the scales of k and v; batch: sequences or pages."""
    pointers, strides = [0, 0], None
    for i, (name, given) in enumerate((("k_descale", k_scale), ("v_descale", v_scale))):
        if given is None:
            continue
        pointers[i], own = _scale(name, given, batch, heads, device, keep, stream)
        if strides not in (None, own):
            _fail(f"k_descale and v_descale have strides {strides} and {own}; expected the same shape and strides")
        strides = own
    return (*pointers, *strides)


def _options(terms: Terms):
    if terms.backend is None and not terms.num_splits:
        return None
    if not isinstance(terms.backend, (str, type(None))):
        _fail(f"backend is {terms.backend!r}; expected a name, such as 'cpu', or None")
    options = c.made(c.attention_options)
    options.backend = terms.backend.encode() if terms.backend else None
    options.allow_fallback = 1 if terms.allow_fallback else 0
    options.config.num_splits = terms.num_splits
    if options.config.num_splits != terms.num_splits:
        _fail(f"num_splits is {terms.num_splits}; expected a number of 32 bits")
    return ctypes.byref(options)


class _Template(NamedTuple):
    """A problem that was checked and packed: calls of the same description differ from it in pointers only."""

    pack: Any  # from parts to a problem
    parts: list  # bytes that stay the same, and between them pointers
    places: tuple  # (index in parts, index in Arrays) of each pointer
    modifier_place: int  # index in parts of the first member of the modifier
    options: Any
    device: tuple
    out_shape: tuple
    out_dtype: int | None
    lse_shape: tuple | None


_templates: dict[tuple, _Template] = {}
_MOST_TEMPLATES = 4096  # of a program whose shapes always change


def _offsets(struct_type: type, prefix: str = "", begin: int = 0) -> dict[str, int]:
    """Where a struct's members are, in bytes: "q.data", …"""
    offsets = {}
    for name, kind in struct_type._fields_:
        offset = begin + getattr(struct_type, name).offset
        offsets[prefix + name] = offset
        if issubclass(kind, ctypes.Structure):
            offsets.update(_offsets(kind, f"{prefix}{name}.", offset))
    return offsets


_OFFSETS = _offsets(c.attention_problem)
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
# The pointer of each of Arrays, as a member. A mask has one of two, and so has seq_lens_kv.
_POINTERS = {
    "q": "q.data",
    "k": "k.data",
    "v": "v.data",
    "out": "o.data",
    "lse": "lse.data",
    "alibi_slopes": "alibi_slopes",
    "sinks": "sink_logits",
    "cu_q": "ragged_q.cu_seqlens",
    "cu_kv": "ragged_kv.cu_seqlens",
    "block_table": "paged_kv.block_table",
    "k_scale": "kv_scales.k",
    "v_scale": "kv_scales.v",
    "q_scale": "q_scales.q",
}


def _pointers_of(arrays: Arrays, flags: int) -> dict[int, int]:
    """From the place of each pointer in the struct, in bytes, to its array's index in Arrays."""
    places = {}
    for index, (name, array) in enumerate(zip(Arrays._fields, arrays)):
        if array is None:
            continue
        if name == "mask":
            member = "boolean_mask.data" if flags & c.HAS_BOOLEAN_MASK else "additive_mask.data"
        elif name == "seq_lens_kv":
            member = "paged_kv.seq_lens_kv" if flags & c.HAS_PAGED_KV else "seq_lens_kv"
        else:
            member = _POINTERS[name]
        places[_OFFSETS[member]] = index
    return places


def _template_of(problem: bytes, pointers: dict[int, int], options, device, out_shape, out_dtype, lse_shape) -> _Template:
    """Cuts a problem where its pointers are, and its modifier, so that packing another touches nothing else."""
    layout, parts, places, end = ["="], [], [], 0
    modifier, modifier_place = _OFFSETS["modifier"], 0

    def keep_until(offset: int) -> None:
        if offset > end:
            layout.append(f"{offset - end}s")
            parts.append(problem[end:offset])

    for offset in sorted((*pointers, modifier)):
        keep_until(offset)
        if offset == modifier:
            modifier_place = len(parts)
            layout.append(f"{len(_NO_MODIFIER)}Q")
            parts += _NO_MODIFIER
            end = offset + len(_NO_MODIFIER) * _POINTER_BYTES
            continue
        places.append((len(parts), pointers[offset]))
        layout.append("Q")
        parts.append(0)
        end = offset + _POINTER_BYTES
    keep_until(len(problem))
    pack = struct.Struct("".join(layout)).pack
    return _Template(pack, parts, tuple(places), modifier_place, options, device, out_shape, out_dtype, lse_shape)


def needs_gradients() -> c.UnsupportedError:
    return c.UnsupportedError(
        "an argument requires gradients, which tessera does not compute; expected the call under torch.no_grad() or "
        "torch.inference_mode()"
    )


def refuse_gradients(*arrays: Any) -> None:
    """Raises UnsupportedError if torch would expect gradients of one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return
    for array in arrays:
        if getattr(array, "requires_grad", False):
            raise needs_gradients()


def _refuse_tensors(arrays: tuple) -> None:
    """Says in words what torch's tensors lack."""
    for array in arrays:
        if array is not None:
            describe(array)


def make_call(arrays: Arrays, order: tuple, terms: Terms, want_lse: bool = False, stream: int | None = None,
              modifier: Modifier | None = None) -> Call:  # fmt: skip
    """A call of arrays whose dimensions (batch, seq, heads, head_dim) are in the places `order` names; the result's are,
    too."""
    # signature(), without calling it for the usual arrays.
    torch = sys.modules.get("torch")
    tensor = torch and torch.Tensor
    if modifier is not None and not isinstance(modifier, Modifier):
        _fail(f"modifier is of type {type(modifier).__name__}; expected a tessera.Modifier")
    packed = None
    if modifier is not None:
        refuse_gradients(*modifier.tensors.values())
        packed = modifier.packed(stream)
    # An array whose gradients are wanted has a key that no template has; _build refuses it.
    graded = torch is not None and torch.is_grad_enabled()
    try:
        key = (order, terms, want_lse, packed and packed.key, *[
            a if a is None
            else (a.shape, a.strides, a.dtype) if type(a) is np.ndarray
            else (a.shape, a.stride(), a.dtype, a.device, graded and a.requires_grad) if type(a) is tensor
            else (signature(a) or a, graded and getattr(a, "requires_grad", False))
            for a in arrays
        ])  # fmt: skip
    except RuntimeError:  # torch's, of a tensor without strides
        _refuse_tensors(arrays)
        raise
    try:
        template = _templates.get(key)
    except (TypeError, ValueError):  # arrays of another kind, which have no hash
        return _build(arrays, order, terms, want_lse, stream, packed, None)
    if template is None:
        return _build(arrays, order, terms, want_lse, stream, packed, key)
    out, lse = arrays.out, arrays.lse
    if type(out) is np.ndarray and not out.flags.writeable:
        _fail(_READ_ONLY_OUT)
    if out is None or (lse is None and want_lse):
        out = empty_like(arrays.q, template.out_shape, template.out_dtype) if out is None else out
        lse = empty_like(arrays.q, template.lse_shape, c.F32) if lse is None and want_lse else lse
        arrays = (*arrays[:3], out, lse, *arrays[5:])
    parts = template.parts.copy()
    try:
        for place, index in template.places:
            array = arrays[index]
            parts[place] = numpy_pointer(array) if type(array) is np.ndarray else array.data_ptr()
    except RuntimeError:  # torch's, of a tensor without memory
        _refuse_tensors(arrays)
        raise
    if packed is not None:
        parts[template.modifier_place : template.modifier_place + len(_NO_MODIFIER)] = packed.struct
    if stream is None and template.device[0] != c.CPU:
        stream = current_stream(arrays[0], template.device)
    return Call(template.pack(*parts), template.options, stream, template.device, out, lse, arrays[0], (arrays, packed))


def _build(arrays: Arrays, order: tuple, terms: Terms, want_lse: bool, stream: int | None, modifier: Packed | None,
           key: tuple | None) -> Call:  # fmt: skip
    """Checks and packs a call, and keeps it as a template under `key`."""
    refuse_gradients(*arrays)
    q, k, v, out, lse, mask, alibi_slopes, sinks_given, cu_q, cu_kv, block_table, seq_lens_kv, k_scale, v_scale, q_scale = arrays
    max_q, max_kv = terms.max_q, terms.max_kv
    tq, tk, tv = described_input(q, stream), described_input(k, stream), described_input(v, stream)
    keep = [tq, tk, tv]
    device = tq.device
    if tk.device != device or tv.device != device:
        _fail(f"q, k and v are on {', '.join(_device_name(t.device) for t in (tq, tk, tv))}; expected one device")
    if stream is None and device[0] != c.CPU:
        stream = current_stream(q, device)
    ib, iseq, ih = order
    flags = 0

    # Sizes and strides of q.
    qs, qst = tq.shape, tq.strides
    if cu_q is None:
        if len(qs) != 4:
            _fail(f"q has shape {tuple(qs)}; expected 4 dimensions")
        batch, seq_q, heads, q_strides = qs[ib], qs[iseq], qs[ih], (qst[ib], qst[iseq], qst[ih])
        ragged_q = (0, 0)
    else:
        if len(qs) != 3:
            _fail(f"q has shape {tuple(qs)}; expected (total_q, heads, head_dim)")
        t = _vector(cu_q, "cu_seqlens_q", device, c.I32, keep, stream=stream)
        flags |= c.HAS_RAGGED_Q
        batch, seq_q, heads, q_strides = t.shape[0] - 1, max_q, qs[1], (0, qst[0], qst[1])
        ragged_q = (t.pointer, qs[0])

    # Of k and v.
    ks, kst, vs, vst = tk.shape, tk.strides, tv.shape, tv.strides
    if ks[:-1] != vs[:-1]:
        _fail(f"k has shape {tuple(ks)} and v {tuple(vs)}; expected them to differ in head_dim only")
    ragged_kv, pages, lens = (0, 0), _NO_PAGES, 0
    if cu_kv is not None:
        if len(ks) != 3:
            _fail(f"k has shape {tuple(ks)}; expected (total_kv, kv_heads, head_dim)")
        t = _vector(cu_kv, "cu_seqlens_k", device, c.I32, keep, stream=stream)
        if t.shape[0] - 1 != batch:
            _fail(f"cu_seqlens_k has {t.shape[0]} elements; expected {batch + 1}, one more than sequences")
        flags |= c.HAS_RAGGED_KV
        seq_kv, kv_heads = max_kv, ks[1]
        k_strides, v_strides = (0, kst[0], kst[1]), (0, vst[0], vst[1])
        ragged_kv = (t.pointer, ks[0])
    else:
        if len(ks) != 4:
            _fail(f"k has shape {tuple(ks)}; expected 4 dimensions")
        seq_kv, kv_heads = ks[iseq], ks[ih]
        k_strides, v_strides = (kst[ib], kst[iseq], kst[ih]), (vst[ib], vst[iseq], vst[ih])
        if block_table is not None:
            table = _vector(block_table, "block_table", device, c.I32, keep, 2, stream)
            lengths = _vector(seq_lens_kv, "cache_seqlens", device, c.I32, keep, stream=stream)
            if table.shape[0] != batch or lengths.shape[0] != batch:
                _fail(f"block_table has {table.shape[0]} rows and cache_seqlens {lengths.shape[0]}; expected {batch}, the sequences of q")
            flags |= c.HAS_PAGED_KV
            pages = (table.pointer, lengths.pointer, table.strides[0], ks[ib], table.shape[1], ks[iseq])
            seq_kv = max_kv or table.shape[1] * ks[iseq]
        else:
            if ks[ib] != batch:
                _fail(f"k has {ks[ib]} sequences and q {batch}; expected as many")
            if seq_lens_kv is not None:
                lengths = _vector(seq_lens_kv, "cache_seqlens", device, c.I32, keep, stream=stream)
                if lengths.shape[0] != batch:
                    _fail(f"cache_seqlens has {lengths.shape[0]} elements; expected {batch}")
                flags |= c.HAS_SEQ_LENS_KV
                lens = lengths.pointer
    if qs[-1] != ks[-1]:
        _fail(f"q has head_dim {qs[-1]} and k {ks[-1]}; expected the same")

    # Outputs.
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        _fail(_READ_ONLY_OUT)
    head_dim_v = vs[-1]
    out_dtype = c.BF16 if tq.dtype == c.F8_E4M3 else None  # none: q's
    if cu_q is not None:
        if out is None:
            out = empty_like(q, (qs[0], heads, head_dim_v), out_dtype)
        to = describe(out, stream)
        o_shape, o_strides = (qs[0], heads, head_dim_v), to.strides
        o_struct = (0, o_strides[0], o_strides[1]) if len(o_strides) == 3 else None
    else:
        shape = [0, 0, 0, head_dim_v]
        shape[ib], shape[iseq], shape[ih] = batch, seq_q, heads
        o_shape = tuple(shape)
        if out is None:
            out = empty_like(q, o_shape, out_dtype)
        to = describe(out, stream)
        o_strides = to.strides
        o_struct = (o_strides[ib], o_strides[iseq], o_strides[ih]) if len(o_strides) == 4 else None
    if tuple(to.shape) != o_shape or to.device != device or (o_strides[-1] != 1 and head_dim_v > 1):
        _fail(f"out has shape {tuple(to.shape)} and strides {tuple(o_strides)} on {_device_name(to.device)}; expected shape "
              f"{o_shape} with stride 1 along the last dimension on {_device_name(device)}")
    keep.append(to)
    lse_struct, lse_shape = _NO_LSE, None
    if want_lse or lse is not None:
        lse_shape = (heads, qs[0]) if cu_q is not None else (batch, heads, seq_q)
        if lse is None:
            lse = empty_like(q, lse_shape, c.F32)
        t = describe(lse, stream)
        if tuple(t.shape) != lse_shape or t.dtype != c.F32 or t.device != device:
            _fail(f"lse has shape {tuple(t.shape)} and dtype {_dtype_name(t.dtype)}; expected {lse_shape}, f32, with q")
        keep.append(t)
        flags |= c.HAS_LSE
        lse_struct = (t.pointer, 0, *t.strides) if cu_q is not None else (t.pointer, *t.strides)

    # Scores.
    scale = softcap = 0.0
    left = right = 0
    if terms.softmax_scale is not None:
        flags |= c.HAS_SOFTMAX_SCALE
        scale = terms.softmax_scale
    if terms.softcap:
        flags |= c.HAS_SOFTCAP
        softcap = terms.softcap
    if terms.window_left is not None:
        flags |= c.HAS_WINDOW_LEFT
        left = terms.window_left
    if terms.window_right is not None:
        flags |= c.HAS_WINDOW_RIGHT
        right = terms.window_right
    slopes, slopes_stride = 0, 0
    if alibi_slopes is not None:
        t = described_input(alibi_slopes, stream)
        t = _vector(alibi_slopes, "alibi_slopes", device, c.F32, keep, max(1, min(2, len(t.shape))), stream)
        if tuple(t.shape) not in ((heads,), (batch, heads)):
            _fail(f"alibi_slopes has shape {tuple(t.shape)}; expected ({heads},) or ({batch}, {heads})")
        flags |= c.HAS_ALIBI
        slopes, slopes_stride = t.pointer, t.strides[0] if len(t.shape) == 2 else 0
    additive = boolean = _NO_MASK
    if mask is not None:
        is_boolean, packed = _mask(mask, batch, heads, seq_q, seq_kv, device, keep, stream)
        if is_boolean:
            flags, boolean = flags | c.HAS_BOOLEAN_MASK, packed
        else:
            flags, additive = flags | c.HAS_ADDITIVE_MASK, packed
    sinks = 0
    if sinks_given is not None:
        t = _vector(sinks_given, "sinks", device, c.F32, keep, stream=stream)
        if t.shape[0] != heads:
            _fail(f"sinks has {t.shape[0]} elements; expected {heads}, one a head")
        flags |= c.HAS_SINKS
        sinks = t.pointer
    scales = _NO_SCALES
    if k_scale is not None or v_scale is not None:
        flags |= c.HAS_KV_SCALES
        scales = _scales(k_scale, v_scale, ks[ib] if cu_kv is None else 1, kv_heads, device, keep, stream)
    q_scales = _NO_Q_SCALES
    if q_scale is not None:
        flags |= c.HAS_Q_SCALES
        pointer, strides = _scale("q_descale", q_scale, batch, kv_heads, device, keep, stream)
        q_scales = (pointer, *strides)
    if terms.batch_invariant:
        flags |= c.BATCH_INVARIANT
    modifier_struct = _NO_MODIFIER
    if modifier is not None:
        for t in modifier.tensors:
            if t.device != device:
                _fail(f"a tensor of the modifier is on {_device_name(t.device)}; expected it with q on {_device_name(device)}")
        flags |= c.HAS_MODIFIER
        modifier_struct = modifier.struct

    values = [
        _PROBLEM.size, flags, *device, batch, seq_q, seq_kv, heads, kv_heads, qs[-1], head_dim_v,
        tq.pointer, tq.dtype, *q_strides, tk.pointer, tk.dtype, *k_strides, tv.pointer, tv.dtype, *v_strides,
        to.pointer, to.dtype, *o_struct, *lse_struct, scale, softcap, left, right,
        c.TOP_LEFT if terms.top_left else c.BOTTOM_RIGHT, slopes, slopes_stride, *additive, *boolean, sinks,
        *ragged_q, *ragged_kv, *pages, lens, *scales, *modifier_struct, *q_scales,
    ]  # fmt: skip
    try:
        problem = _PROBLEM.pack(*values)
    except (struct.error, OverflowError) as error:
        raise c.InvalidArgumentError(f"a size or number of the call is out of range: {error}") from None
    options = _options(terms)
    filled = arrays._replace(out=out, lse=lse)
    if key is not None:
        _keep_template(key, filled, keep, problem, flags, options, device, o_shape, out_dtype, lse_shape)
    return Call(problem, options, stream, device, out, lse, q, (filled, keep, modifier))


def _keep_template(key, arrays: Arrays, keep: list, problem: bytes, flags: int, options, device, out_shape, out_dtype,
                   lse_shape) -> None:  # fmt: skip
    """Unless an array was copied: then the next one has to be, too."""
    if any(all(t.owner is not a for a in arrays) for t in keep):
        return
    if any(a is not None and signature(a) is None for a in arrays):
        return
    if len(_templates) >= _MOST_TEMPLATES:
        _templates.clear()
    _templates[key] = _template_of(problem, _pointers_of(arrays, flags), options, device, out_shape, out_dtype, lse_shape)


def workspace_for(call: Call, size_bytes: int) -> tuple:
    """(pointer, owner) of scratch memory on the call's device, aligned to 64 bytes."""
    if size_bytes == 0:
        return None, None
    if call.device[0] == c.CPU:
        memory = np.empty(size_bytes + 64, np.uint8)
        begin = numpy_pointer(memory)
        return begin + -begin % 64, memory
    torch = torch_module()
    if torch is None or not isinstance(call.like, torch.Tensor):
        raise c.UnsupportedError("a plan's workspace on a GPU is allocated by torch; expected torch tensors, or workspace=")
    memory = torch.empty(size_bytes + 64, dtype=torch.uint8, device=call.like.device)
    begin = memory.data_ptr()
    return begin + -begin % 64, memory
