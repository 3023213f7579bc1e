"""Tensors of other libraries, described for the C interface without copying them."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, NamedTuple

import numpy as np

from . import _library as c


class Tensor(NamedTuple):
    """Where an array is. `strides` are in elements; `device` is (kind, index)."""

    pointer: int
    dtype: int
    shape: tuple
    strides: tuple
    device: tuple
    owner: Any  # keeps the memory


_CPU = (c.CPU, 0)


def _contiguous_strides(shape: tuple) -> tuple:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


# ---- numpy

_NUMPY_DTYPES = {
    np.dtype(np.float64): c.F64,
    np.dtype(np.float32): c.F32,
    np.dtype(np.float16): c.F16,
    np.dtype(np.int64): c.I64,
    np.dtype(np.int32): c.I32,
    np.dtype(np.uint8): c.U8,
    np.dtype(np.bool_): c.BOOL,
}
# Of packages such as ml_dtypes, which numpy itself lacks.
_NAMED_DTYPES = {"bfloat16": c.BF16, "float8_e4m3fn": c.F8_E4M3, "float8_e5m2": c.F8_E5M2}


def _numpy_dtype(dtype: np.dtype) -> int:
    code = _NUMPY_DTYPES.get(dtype) or _NAMED_DTYPES.get(dtype.name)
    if code is None or not dtype.isnative:
        raise c.InvalidArgumentError(f"an array is of dtype {dtype}; expected one that tessera has, such as float32")
    _NUMPY_DTYPES[dtype] = code
    return code


def _is_regular(array: np.ndarray) -> bool:
    """Whether the strides are whole elements and not negative, as the library takes them, where they lead anywhere."""
    item = array.itemsize
    return all(n == 1 or s >= 0 and s % item == 0 for n, s in zip(array.shape, array.strides))


def _numpy_pointer_by_interface(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


# numpy's C interface puts the address behind the object's head; asking for it by attributes takes microseconds.
_DATA_OFFSET = object.__basicsize__
_address_at = ctypes.c_void_p.from_address


def _numpy_pointer_by_layout(array: np.ndarray) -> int:
    return _address_at(id(array) + _DATA_OFFSET).value or 0


_probe = np.arange(3.0)[1:]
numpy_pointer = (
    _numpy_pointer_by_layout
    if sys.implementation.name == "cpython" and _numpy_pointer_by_layout(_probe) == _numpy_pointer_by_interface(_probe)
    else _numpy_pointer_by_interface
)


def _from_numpy(array: np.ndarray) -> Tensor:
    if not (array.flags.c_contiguous or _is_regular(array)):
        raise c.InvalidArgumentError(f"an array has strides of {array.strides} bytes; expected whole elements, not negative")
    item = array.itemsize
    dtype = array.dtype
    # Some versions of numpy give all strides of an array without elements as 0. One that leads nowhere may be negative.
    strides = tuple([max(0, s) // item for s in array.strides]) if array.size else _contiguous_strides(array.shape)
    return Tensor(numpy_pointer(array), _NUMPY_DTYPES.get(dtype) or _numpy_dtype(dtype), array.shape, strides, _CPU, array)


# ---- torch

_torch_dtypes: dict = {}


def _state_of(torch, name: str) -> Callable[[], Any]:
    """One of torch's functions that say in which state it is; of a torch without it one that always says none."""
    return getattr(torch._C, name, None) or (lambda: None)


_recorders: tuple[Callable[[], Any], ...] = ()


def is_recording(torch) -> bool:
    """Whether torch.jit.trace or a mode of torch's (make_fx, FakeTensorMode, …) takes the calls of operators."""
    global _recorders
    if not _recorders:
        _recorders = _state_of(torch, "_get_tracing_state"), _state_of(torch, "_len_torch_dispatch_stack")
    return bool(_recorders[0]() or _recorders[1]())


def torch_module():
    """torch if the program has imported it, else None: nothing here imports it."""
    return sys.modules.get("torch")


def is_torch(array: Any) -> bool:
    torch = torch_module()
    return torch is not None and isinstance(array, torch.Tensor)


def _fill_torch_dtypes(torch) -> None:
    _torch_dtypes.update({
        torch.float64: c.F64,
        torch.float32: c.F32,
        torch.float16: c.F16,
        torch.bfloat16: c.BF16,
        torch.int64: c.I64,
        torch.int32: c.I32,
        torch.uint8: c.U8,
        torch.bool: c.BOOL,
    })
    for name, code in (("float8_e4m3fn", c.F8_E4M3), ("float8_e5m2", c.F8_E5M2)):
        if hasattr(torch, name):
            _torch_dtypes[getattr(torch, name)] = code


def _from_torch(torch, tensor) -> Tensor:
    if not _torch_dtypes:
        _fill_torch_dtypes(torch)
    code = _torch_dtypes.get(tensor.dtype)
    if code is None:
        raise c.InvalidArgumentError(f"a tensor is of dtype {tensor.dtype}; expected one that tessera has, such as float32")
    if tensor.is_nested or tensor.layout is not torch.strided:
        raise c.InvalidArgumentError(f"a tensor is {'nested' if tensor.is_nested else tensor.layout}; expected a dense one")
    device = _CPU
    if not tensor.is_cpu:
        where = tensor.device
        if where.type != "cuda":
            raise c.UnsupportedError(f"a tensor is on {where}; expected the CPU or a CUDA or ROCm GPU")
        device = (c.HIP if torch.version.hip else c.CUDA, where.index)
    try:
        pointer = tensor.data_ptr()
    except RuntimeError as error:
        raise c.UnsupportedError(f"a tensor has no memory of its own, as within torch.func's transforms; expected one that has ({error})") from None
    if is_replaced(torch, tensor):
        raise c.UnsupportedError(f"a tensor is a {type(tensor).__name__}, which does not say where its memory is; expected a torch.Tensor")
    return Tensor(pointer, code, tensor.shape, tensor.stride(), device, tensor)


def is_replaced(torch, tensor) -> bool:
    """Whether the tensor's class has operators of its own, so that what it holds is elsewhere."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


# ---- Everything else that exports its memory


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p

_DLPACK_DEVICES = {1: c.CPU, 2: c.CUDA, 3: c.CPU, 10: c.HIP}
_DLPACK_DTYPES = {
    (2, 64): c.F64,
    (2, 32): c.F32,
    (2, 16): c.F16,
    (4, 16): c.BF16,
    (0, 64): c.I64,
    (0, 32): c.I32,
    (1, 8): c.U8,
    (6, 8): c.BOOL,
    (10, 8): c.F8_E4M3,
    (12, 8): c.F8_E5M2,
}


def _from_dlpack(array: Any, stream: int | None) -> Tensor:
    kind = _DLPACK_DEVICES.get(int(array.__dlpack_device__()[0]))
    if kind is None:
        raise c.UnsupportedError(f"a tensor's DLPack device is {array.__dlpack_device__()}; expected a CPU or GPU")
    # 1 is the legacy default stream in CUDA's numbering, and 0 in ROCm's.
    on = None if kind == c.CPU else stream or (1 if kind == c.CUDA else 0)
    capsule = array.__dlpack__() if on is None else array.__dlpack__(stream=on)
    t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    dtype = _DLPACK_DTYPES.get((t.code, t.bits))
    if dtype is None or t.lanes != 1:
        raise c.InvalidArgumentError(f"a tensor's DLPack type is (code {t.code}, {t.bits} bits, {t.lanes} lanes); expected a type that tessera has")
    shape = tuple(t.shape[: t.ndim])
    strides = tuple(t.strides[: t.ndim]) if t.strides else _contiguous_strides(shape)
    device = _CPU if kind == c.CPU else (kind, t.device_id)
    # The capsule gives the memory back when it goes.
    return Tensor((t.data or 0) + t.byte_offset, dtype, shape, strides, device, (array, capsule))


def _from_cuda_array_interface(array: Any) -> Tensor:
    interface = array.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    given = interface.get("strides")
    strides = tuple(s // dtype.itemsize for s in given) if given else _contiguous_strides(shape)
    device = getattr(array, "device", None)
    index = getattr(device, "id", 0)
    return Tensor(interface["data"][0] or 0, _numpy_dtype(dtype), shape, strides, (c.CUDA, index), array)


def signature(array: Any) -> tuple | None:
    """All of `describe` but the pointer, quickly, as a key; None for arrays of other libraries than numpy and torch."""
    if type(array) is np.ndarray:
        return array.shape, array.strides, array.dtype
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and not is_replaced(torch, array):
        return array.shape, array.stride(), array.dtype, array.device
    return None


def describe(array: Any, stream: int | None = None) -> Tensor:
    """The memory of an array: numpy's, torch's, or one with DLPack or __cuda_array_interface__."""
    if type(array) is np.ndarray:
        return _from_numpy(array)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _from_torch(torch, array)
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise c.InvalidArgumentError("an array is a masked one, whose mask would be lost; expected its data")
        return _from_numpy(array)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array, stream)
    if hasattr(array, "__cuda_array_interface__"):
        return _from_cuda_array_interface(array)
    if hasattr(array, "__array_interface__"):
        return _from_numpy(np.asarray(array))
    raise c.InvalidArgumentError(
        f"an argument is of type {type(array).__name__}; expected a numpy array, a torch tensor, or an object with "
        "__dlpack__, __cuda_array_interface__ or __array_interface__"
    )


def readable(array: Any) -> Any:
    """`array`, or a copy where the library would not take the strides: 1 along the last dimension, none negative."""
    if isinstance(array, np.ndarray):
        if array.flags.c_contiguous or _is_regular(array) and (array.shape[-1] == 1 or array.strides[-1] == array.itemsize):
            return array
        return np.ascontiguousarray(array)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and array.dim() and array.shape[-1] != 1 and array.stride(-1) != 1:
        describe(array)  # raises for what can't be copied either
        return array.contiguous()
    return array


def described_input(array: Any, stream: int | None = None) -> Tensor:
    """`describe` of what is `readable`."""
    t = describe(readable(array), stream)
    if not t.shape or t.strides[-1] == 1 or t.shape[-1] == 1 or 0 in t.shape:
        return t
    raise c.InvalidArgumentError(f"a tensor has strides {t.strides}; expected 1 along the last dimension")


def describe_as(name: str, array: Any, stream: int | None = None, how: Callable[..., Tensor] = describe) -> Tensor:
    """`describe`, or another `how`, of the argument of this name, with which errors begin."""
    try:
        return how(array, stream)
    except c.Error as error:
        raise type(error)(f"{name}: {error}") from None


def empty_like(like: Any, shape: tuple, dtype: int | None = None) -> Any:
    """An uninitialised array of `like`'s library, device and dtype, unless dtype is F32 or BF16."""
    if isinstance(like, np.ndarray):
        # Where numpy has arrays of 8 bits, the package that brings them has bfloat16, too.
        return np.empty(shape, like.dtype if dtype is None else np.float32 if dtype == c.F32 else np.dtype("bfloat16"))
    torch = torch_module()
    if torch is not None and isinstance(like, torch.Tensor):
        if dtype is None:
            return like.new_empty(shape)
        return like.new_empty(shape, dtype=torch.float32 if dtype == c.F32 else torch.bfloat16)
    raise c.InvalidArgumentError(
        f"the result of {type(like).__name__} arguments needs memory; expected it in out= (and lse=), "
        "for arrays of other libraries than numpy and torch"
    )


_raw_stream = None


def _find_raw_stream(torch):
    """torch's function from a device's index to its current stream's address. The public way makes an object first, which
    takes microseconds."""
    global _raw_stream
    _raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda i: torch.cuda.current_stream(i).cuda_stream)
    return _raw_stream


def current_stream(like: Any, device: tuple) -> int | None:
    """The stream that `like`'s library uses now on `device`; None: the default one."""
    if device[0] == c.CPU:
        return None
    torch = torch_module()
    if torch is not None and isinstance(like, torch.Tensor):
        return (_raw_stream or _find_raw_stream(torch))(device[1])
    interface = getattr(like, "__cuda_array_interface__", None)
    stream = interface.get("stream") if interface else None
    return None if stream in (None, 1) else stream
