"""Tessera: attention for numpy and torch, and language models, on NVIDIA GPUs, AMD GPUs and CPUs."""

from . import _library
from ._errors import (
    CancelledError,
    CorruptFileError,
    DeviceError,
    Error,
    FileError,
    InvalidArgumentError,
    OutOfMemoryError,
    QueueFullError,
    UnsupportedError,
)
from ._generation import GenerateOptions, Generation, PromptLogprobs, TokenLogprob
from .attention import (
    Backend,
    Cost,
    Explanation,
    Plan,
    VerifyResult,
    backends,
    cost,
    explain,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    num_threads,
    plan,
    sdpa,
    set_num_threads,
    unsupported_reason,
    verify,
)
from .engine import Engine, EngineOptions, EngineStats, Event, Stream
from .merging import merge_states
from .model import ChatMessage, Model, ModelInfo
from .modifier import Modifier

__version__ = _library.library.tessera_version().decode()

__all__ = [
    "Backend",
    "CancelledError",
    "ChatMessage",
    "CorruptFileError",
    "Cost",
    "DeviceError",
    "Engine",
    "EngineOptions",
    "EngineStats",
    "Error",
    "Event",
    "Explanation",
    "FileError",
    "GenerateOptions",
    "Generation",
    "InvalidArgumentError",
    "Model",
    "ModelInfo",
    "Modifier",
    "OutOfMemoryError",
    "Plan",
    "PromptLogprobs",
    "QueueFullError",
    "Stream",
    "TokenLogprob",
    "UnsupportedError",
    "VerifyResult",
    "backends",
    "cost",
    "explain",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "merge_states",
    "num_threads",
    "plan",
    "sdpa",
    "set_num_threads",
    "unsupported_reason",
    "verify",
]
