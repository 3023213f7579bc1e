"""Tessera: attention for numpy and torch, and language models, on NVIDIA GPUs, AMD GPUs and CPUs."""

from . import _library
from ._library import (
    CancelledError,
    CorruptFileError,
    DeviceError,
    Error,
    FileError,
    InvalidArgumentError,
    OutOfMemoryError,
    UnsupportedError,
)
from .attention import (
    Backend,
    Explanation,
    Plan,
    VerifyResult,
    backends,
    explain,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    num_threads,
    plan,
    sdpa,
    set_num_threads,
    verify,
)
from .model import ChatMessage, Generation, Model, ModelInfo

__version__ = _library.library.tessera_version().decode()

__all__ = [
    "Backend",
    "CancelledError",
    "ChatMessage",
    "CorruptFileError",
    "DeviceError",
    "Error",
    "Explanation",
    "FileError",
    "Generation",
    "InvalidArgumentError",
    "Model",
    "ModelInfo",
    "OutOfMemoryError",
    "Plan",
    "UnsupportedError",
    "VerifyResult",
    "backends",
    "explain",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "num_threads",
    "plan",
    "sdpa",
    "set_num_threads",
    "verify",
]
