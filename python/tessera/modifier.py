"""Score modifiers: what a model does to its scores, as text."""

from __future__ import annotations

import ctypes
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple

import numpy as np

from . import _library as c
from ._tensors import Tensor, describe_as

_MOST_DIMENSIONS = 4


class Packed(NamedTuple):
    """A modifier as the library takes it."""

    key: tuple  # all but pointers and scalars' values
    struct: tuple  # tessera_score_modifier's members
    tensors: list[Tensor]
    keep: tuple  # what the struct points to


def _made_again(score: str, visible: str, values: dict) -> Modifier:
    """A modifier that was copied or pickled."""
    return Modifier(score, visible, **values)


class Modifier:
    """What is done to the scores behind masks and biases, as two expressions in text (docs/modifiers.md has the language).

    score: the new score, such as "cap * tanh(score / cap)". visible: whether a query sees a key, such as
    "doc[q_idx] == doc[kv_idx]". Names that the texts use and the language lacks are given by `values`: numbers, which are
    scalars, and arrays of at most 4 dimensions, which are read as "doc[q_idx]" (indices are clamped into them), on the device
    of the call: float32, float16, bfloat16, int32, uint8 or bool, with any strides that are not negative. Other numbers need
    no new compilation, nor other arrays of the same sort.

    Wrong texts are an InvalidArgumentError of the call, with line, column and what was expected.
    """

    def __init__(self, score: str = "", visible: str = "", **values: Any):
        for name, text in (("score", score), ("visible", visible), *(("a name", name) for name in values)):
            # C's texts end at a zero.
            if not isinstance(text, str) or "\0" in text:
                raise c.InvalidArgumentError(f"{name} is {text!r}; expected a text without zeros")
        scalars: dict[str, float] = {}
        tensors: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
                try:
                    scalars[name] = float(value)
                except OverflowError:
                    raise c.InvalidArgumentError(f"{name} is beyond the range of floating numbers; expected one within it") from None
            else:
                tensors[name] = value
        self.score = score
        self.visible = visible
        # They are packed once: none may be put in another's place.
        self.scalars: Mapping[str, float] = MappingProxyType(scalars)
        self.tensors: Mapping[str, Any] = MappingProxyType(tensors)
        self._packed: Packed | None = None

    def __reduce__(self):
        return _made_again, (self.score, self.visible, {**self.scalars, **self.tensors})

    def packed(self, stream: int | None = None) -> Packed:
        """Made once: the arrays stay where they are as long as the modifier lives."""
        if self._packed is None:
            self._packed = self._pack(stream)
        return self._packed

    def _pack(self, stream: int | None) -> Packed:
        score, visible = self.score.encode(), self.visible.encode()
        described = [describe_as(name, array, stream) for name, array in self.tensors.items()]
        captured = (c.captured_tensor * max(1, len(described)))()
        for out, name, t in zip(captured, self.tensors, described):
            if len(t.shape) > _MOST_DIMENSIONS:
                raise c.InvalidArgumentError(f"{name} has {len(t.shape)} dimensions; expected {_MOST_DIMENSIONS} at most")
            out.name, out.data, out.dtype, out.rank = name.encode(), t.pointer, t.dtype, len(t.shape)
            out.sizes[: len(t.shape)] = list(t.shape)
            out.strides[: len(t.shape)] = list(t.strides)
        scalars = (c.scalar * max(1, len(self.scalars)))(*[c.scalar(n.encode(), v) for n, v in self.scalars.items()])
        texts = ctypes.c_char_p(score), ctypes.c_char_p(visible)
        addresses = [ctypes.cast(text, ctypes.c_void_p).value for text in texts]
        struct = (*addresses, ctypes.addressof(captured), len(described), ctypes.addressof(scalars), len(self.scalars))
        sorts = [(n, t.dtype, tuple(t.shape), tuple(t.strides), t.device) for n, t in zip(self.tensors, described)]
        return Packed((score, visible, *sorts, *self.scalars), struct, described, (texts, captured, scalars))

    def __repr__(self) -> str:
        values = [*self.scalars.items(), *((name, "…") for name in self.tensors)]
        return f"tessera.Modifier({', '.join([repr(self.score), repr(self.visible), *(f'{n}={v}' for n, v in values)])})"
