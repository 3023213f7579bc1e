"""What calls raise, and checks of arguments that raise it."""

from __future__ import annotations

import operator

class Error(RuntimeError):
    """What the library refused or failed at. `code` is its kind, such as "Unsupported"."""

    code = "Internal"


class InvalidArgumentError(Error, ValueError):
    """An argument is wrong by itself."""

    code = "InvalidArgument"


class UnsupportedError(Error, NotImplementedError):
    """Valid, but no kernel or backend here can do it."""

    code = "Unsupported"


class OutOfMemoryError(Error, MemoryError):
    """Memory, KV pages or another bounded resource ran out."""

    code = "OutOfMemory"


class QueueFullError(OutOfMemoryError):
    """An engine's queue is full: the same call may be accepted later."""

    code = "QueueFull"


class DeviceError(Error):
    """A device or its driver failed."""

    code = "Device"


class FileError(Error, OSError):
    """A file could not be read."""

    code = "Io"


class CorruptFileError(Error):
    """A file's content contradicts its format."""

    code = "CorruptFile"


class CancelledError(Error):
    """A callback asked for the end."""

    code = "Cancelled"


_BY_STATUS = {
    1: InvalidArgumentError,
    2: UnsupportedError,
    3: OutOfMemoryError,
    4: DeviceError,
    5: FileError,
    6: CorruptFileError,
    7: CancelledError,
    9: QueueFullError,
}
# Where users find them, and what a traceback calls them.
for _error in (Error, *_BY_STATUS.values()):
    _error.__module__ = __package__


def error_of(status: int, message: bytes) -> Error:
    """The error of a tessera_status that is not 0."""
    return _BY_STATUS.get(status, Error)(message.decode("utf-8", "replace"))


# ---- Arguments


def whole(name: str, value) -> int:
    """A number without a fraction. Raises InvalidArgumentError for others."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} is {value!r}; expected a whole number") from None


def whole_of_32_bits(name: str, value) -> int:
    """whole(), for a member or argument that would cut larger ones."""
    number = whole(name, value)
    if not -(2**31) <= number < 2**31:
        raise InvalidArgumentError(f"{name} is {value}; expected a number of 32 bits")
    return number


def number(name: str, value) -> float:
    """A number. Raises InvalidArgumentError for what is none."""
    if isinstance(value, (str, bytes)):  # float() would read a text
        raise InvalidArgumentError(f"{name} is {value!r}; expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"{name} is {value!r}; expected a number") from None


def address(name: str, value) -> int:
    """The address of a stream. Raises InvalidArgumentError for objects that have one."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(
            f"{name} is {value!r}; expected the address of a CUstream or hipStream_t, such as torch's stream.cuda_stream, or None"
        ) from None


def c_text(name: str, value: str | bytes) -> bytes:
    """A text as C has it. Raises InvalidArgumentError for what C would take a part of only."""
    if not isinstance(value, (str, bytes)):
        raise InvalidArgumentError(f"{name} is {value!r}; expected a text")
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    if b"\0" in data:
        raise InvalidArgumentError(f"{name} is {value!r}; expected a text without zeros")
    return data
