"""Attention calls ready to run: a call's description is packed once and found again, with other pointers, by the next."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from . import _library as c
from ._problem import NO_MODIFIER, Arrays, Names, Problem, Terms, device_name, dtype_name, fail, refuse_read_only
from ._tensors import current_stream, describe, describe_as, empty_like, numpy_pointer, signature, torch_module
from .modifier import Modifier, Packed


class Call:
    """A problem ready to run: `problem` is its struct, `result` what the caller gets."""

    __slots__ = ("problem", "options", "stream", "device", "out", "lse", "result", "like", "keep", "appending")

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
        self.appending = None  # to be done before it runs: checks, and returns what writes

    def run(self) -> Any:
        if self.appending is not None:
            write = self.appending()
            self._refuse()
            write()
        status = c.library.tessera_attention_forward(self.problem, self.options, self.stream)
        if status:
            c.check(status)
        return self.result

    def _refuse(self) -> None:
        """Raises what running would, without running."""
        plan = ctypes.c_void_p()
        c.check(c.library.tessera_attention_plan_prepare(self.problem, self.options, ctypes.byref(plan)))
        c.library.tessera_attention_plan_free(plan)


# What can be forced of a kernel, as Plan.config has it.
CONFIG = (*(name for name, _ in c.attention_config._fields_), "num_parts")


def forced_config(config: Mapping[str, int] | None, num_splits: int = 0) -> tuple | None:
    """The values of CONFIG that a call forces, 0 being none; None if all are."""
    if config is None and num_splits == 0:
        return None
    if not isinstance(config, (Mapping, type(None))):
        fail(f"config is of type {type(config).__name__}; expected a dict from names to numbers, such as {{'num_splits': 4}}")
    values = dict.fromkeys(CONFIG, 0)
    for name, value in (config or {}).items():
        if name not in values:
            fail(f"config has {name!r}; expected some of {', '.join(CONFIG)}")
        values[name] = c.whole_of_32_bits(f"config's {name}", value)
    if num_splits != 0:
        num_splits = c.whole_of_32_bits("num_splits", num_splits)
        if values["num_splits"] not in (0, num_splits):
            fail(f"num_splits is {num_splits} and config's {values['num_splits']}; expected one of them, or the same")
        values["num_splits"] = num_splits
    return tuple(values.values()) if any(values.values()) else None


def backend_name(backend: str | None) -> bytes | None:
    if not isinstance(backend, (str, type(None))):
        fail(f"backend is {backend!r}; expected a name, such as 'cpu', or None")
    return c.c_text("backend", backend) if backend else None


def _options(terms: Terms):
    if terms.backend is None and terms.config is None:
        return None
    options = c.made(c.attention_options)
    options.backend = backend_name(terms.backend)
    options.allow_fallback = 1 if terms.allow_fallback else 0
    if terms.config is not None:
        *config, options.num_parts = terms.config
        options.config = c.attention_config(*config)
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


def _template_of(packed: bytes, pointers: dict[int, int], options, problem: Problem) -> _Template:
    """Cuts a packed problem where its pointers are, and its modifier, so that packing another touches nothing else."""
    layout, parts, places, end = ["="], [], [], 0
    modifier, modifier_place = _OFFSETS["modifier"], 0

    def keep_until(offset: int) -> None:
        if offset > end:
            layout.append(f"{offset - end}s")
            parts.append(packed[end:offset])

    for offset in sorted((*pointers, modifier)):
        keep_until(offset)
        if offset == modifier:
            modifier_place = len(parts)
            layout.append(f"{len(NO_MODIFIER)}Q")
            parts += NO_MODIFIER
            end = offset + len(NO_MODIFIER) * _POINTER_BYTES
            continue
        places.append((len(parts), pointers[offset]))
        layout.append("Q")
        parts.append(0)
        end = offset + _POINTER_BYTES
    keep_until(len(packed))
    pack = struct.Struct("".join(layout)).pack
    return _Template(pack, parts, tuple(places), modifier_place, options, problem.device, problem.out_shape, problem.out_dtype, problem.lse_shape)


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
              modifier: Modifier | None = None, names: Names = Names()) -> Call:  # fmt: skip
    """A call of arrays whose dimensions (batch, seq, heads, head_dim) are in the places `order` names; the result's are,
    too."""
    if stream is not None:
        stream = c.address("stream", stream)
    # signature(), without calling it for the usual arrays.
    torch = sys.modules.get("torch")
    tensor = torch and torch.Tensor
    if modifier is not None and not isinstance(modifier, Modifier):
        fail(f"modifier is of type {type(modifier).__name__}; expected a tessera.Modifier")
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
        return _build(arrays, order, terms, want_lse, stream, packed, names, None)
    if template is None:
        return _build(arrays, order, terms, want_lse, stream, packed, names, key)
    out, lse = arrays.out, arrays.lse
    if out is not None:
        refuse_read_only("out", out)
    if lse is not None:
        refuse_read_only("lse", lse)
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
        parts[template.modifier_place : template.modifier_place + len(NO_MODIFIER)] = packed.struct
    if stream is None and template.device[0] != c.CPU:
        stream = current_stream(arrays[0], template.device)
    return Call(template.pack(*parts), template.options, stream, template.device, out, lse, arrays[0], (arrays, packed))


def _build(arrays: Arrays, order: tuple, terms: Terms, want_lse: bool, stream: int | None, modifier: Packed | None,
           names: Names, key: tuple | None) -> Call:  # fmt: skip
    """Checks and packs a call, and keeps it as a template under `key`."""
    refuse_gradients(*arrays)
    problem = Problem(arrays, order, terms, stream, names)
    packed = problem.pack(want_lse, modifier)
    options = _options(terms)
    filled = arrays._replace(out=problem.out, lse=problem.lse)
    if key is not None:
        _keep_template(key, filled, problem, packed, options)
    return Call(packed, options, problem.stream, problem.device, problem.out, problem.lse, arrays.q, (filled, problem.keep, modifier))


def _keep_template(key: tuple, arrays: Arrays, problem: Problem, packed: bytes, options) -> None:
    """Unless an array was copied: then the next one has to be, too."""
    if any(all(t.owner is not a for a in arrays) for t in problem.keep):
        return
    if any(a is not None and signature(a) is None for a in arrays):
        return
    if len(_templates) >= _MOST_TEMPLATES:
        _templates.clear()
    _templates[key] = _template_of(packed, _pointers_of(arrays, problem.flags), options, problem)


def workspace_for(call: Call, size_bytes: int) -> tuple | None:
    """(pointer, owner) of scratch memory on the call's device, aligned to 64 bytes; None where only the caller can make it."""
    if size_bytes == 0:
        return None, None
    if call.device[0] == c.CPU:
        memory = np.empty(size_bytes + 64, np.uint8)
        begin = numpy_pointer(memory)
        return begin + -begin % 64, memory
    torch = torch_module()
    if torch is None or not isinstance(call.like, torch.Tensor):
        return None
    memory = torch.empty(size_bytes + 64, dtype=torch.uint8, device=call.like.device)
    begin = memory.data_ptr()
    return begin + -begin % 64, memory


def given_workspace(call: Call, workspace: Any, size_bytes: int) -> int:
    """Pointer of the scratch memory in what a caller gives: at its first multiple of 64 bytes."""
    refuse_read_only("workspace", workspace)
    t = describe_as("workspace", workspace, call.stream)
    if t.device != call.device:
        fail(f"workspace is on {device_name(t.device)}; expected it with q on {device_name(call.device)}")
    if t.dtype != c.U8 or len(t.shape) != 1 or t.strides[0] != 1:
        fail(f"workspace has shape {tuple(t.shape)}, strides {tuple(t.strides)} and dtype {dtype_name(t.dtype)}; expected one dimension, contiguous, u8")
    skipped = -t.pointer % 64
    if t.shape[0] < skipped + size_bytes:
        fail(f"workspace has {t.shape[0]} bytes, {skipped} of them in front of a multiple of 64; expected {size_bytes} from there on")
    return t.pointer + skipped
