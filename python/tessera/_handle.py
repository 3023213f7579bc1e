"""Handles of the library's objects, which one thread may close while others use them."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Callable, Iterator

from . import _library as c


class Handle:
    """An object of the library. `pointer` is null until a function of the library has made it, and once it is closed."""

    def __init__(self, name: str, free: Callable, wake: Callable | None = None):
        """name: of the object, for errors. wake: ends calls that wait in the library, so that they return soon."""
        self.pointer = ctypes.c_void_p()
        self._name, self._free, self._wake = name, free, wake
        self._changed = threading.Condition()
        self._num_users = 0

    @contextlib.contextmanager
    def in_use(self) -> Iterator[ctypes.c_void_p]:
        """The pointer, which stays open within. Raises InvalidArgumentError if it is closed."""
        with self._changed:
            if not self.pointer:
                raise c.InvalidArgumentError(f"the {self._name} is closed; expected an open one")
            self._num_users += 1
            pointer = self.pointer
        try:
            yield pointer
        finally:
            with self._changed:
                self._num_users -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Frees the object once other threads' calls have returned; theirs from now on are errors."""
        with self._changed:
            pointer, self.pointer = self.pointer, ctypes.c_void_p()
            while pointer and self._num_users:
                if self._wake is not None:
                    self._wake(pointer)
                self._changed.wait(0.1)
        self._free(pointer)

    def __del__(self):
        self._free(self.pointer)
