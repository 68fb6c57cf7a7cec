"""Wire format v1, the whole of it.

A message is a list of frames (a ZMQ multipart message without its routing envelope)::

    frame 0     "TQ"  version (1 byte, 1)  reserved (1 byte, 0)  header
    frame 1..n  raw payload bytes; what they are is said by the header

The header is one msgpack array ``[op, request_id, num_frames, body]``:

    op          str, at most 64 characters. ``ok`` and ``error`` answer; the rest ask.
    request_id  unsigned 64-bit int; an answer repeats the id of what it answers.
    num_frames  how many payload frames follow; another number is a broken message.
    body        map with str keys of plain values: nil, bool, 64-bit int, float, str (UTF-8, where a
                lone surrogate is carried as its three bytes), bin, array, map with str keys. No
                extension type but the timestamp, which is read as a float. Nesting up to 500 deep.

Rules of the receiver, so that bytes which are not ours cost little and change nothing:

- Frame 0 is at most ``HEADER_MAX_BYTES`` long. Bulk data belongs in payload frames.
- Every length that the header claims is checked against the bytes that are there before anything
  of that length is allocated (one pass of the parser that builds nothing comes first).
- Nothing may follow the header in frame 0.
- Anything wrong raises `Malformed`, `TooLarge` or `VersionMismatch`; nothing is half-taken.

A numpy array in a payload frame is described in the body by ``[dtype, shape]`` (`pack_array`):
``dtype`` is numpy's string of a bool, int, unsigned or float type in little-endian order, ``shape``
a list of sizes; ``prod(shape) * itemsize`` must equal the length of the frame.

An error travels as an ``error`` message with the body ``{"cls", "args", "message"}``: the name of a
class in ``transferqueue.errors``, what its constructor takes, and its text. A class that the
receiver does not know becomes `RemoteError` with that text.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from transferqueue import errors
from transferqueue.errors import (
    InvalidInput,
    Malformed,
    RemoteError,
    TooLarge,
    TransferQueueError,
    VersionMismatch,
)
from transferqueue.fields import shape_from_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VERSION: Final = 1
PREAMBLE: Final = b"TQ" + bytes([VERSION, 0])
HEADER_MAX_BYTES: Final = 8 << 20
OP_MAX_CHARS: Final = 64

OK_OP: Final = "ok"
ERROR_OP: Final = "error"

Buffer = bytes | bytearray | memoryview

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One request, answer or event. Its frames are not copied, neither way."""

    op: str
    request_id: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    frames: Sequence[Buffer] = ()


def encode_message(message: Message) -> list[Buffer]:
    """The frames to send. Raises `InvalidInput` for a body that is not plain, or `TooLarge`."""
    header = [message.op, message.request_id, len(message.frames), message.body]
    frame = PREAMBLE + pack_plain(header)
    _require_str_keys(message.body)
    if len(frame) > HEADER_MAX_BYTES:
        raise TooLarge(f"the header of {message.op!r}", len(frame), HEADER_MAX_BYTES)
    return [frame, *message.frames]


def decode_message(frames: Sequence[Buffer]) -> Message:
    """Inverse of `encode_message`; the payload frames are passed on as they are.

    Raises `Malformed`, `TooLarge` or `VersionMismatch`, and nothing else, whatever the bytes.
    """
    if not frames:
        raise Malformed("an empty message")
    op, request_id, num_frames, body = _header(frames[0])
    if type(op) is not str or not 0 < len(op) <= OP_MAX_CHARS:
        raise Malformed(f"op must be a str of 1 to {OP_MAX_CHARS} characters")
    if type(request_id) is not int or request_id < 0:
        raise Malformed("request_id must be an unsigned int")
    if type(body) is not dict:
        raise Malformed("body must be a map")
    if type(num_frames) is not int or num_frames != len(frames) - 1:
        raise Malformed(f"{op}: {num_frames!r} frames announced, {len(frames) - 1} received")
    return Message(op=op, request_id=request_id, body=body, frames=list(frames[1:]))


def _header(frame: Buffer) -> list[Any]:
    view = memoryview(frame)
    if view.nbytes > HEADER_MAX_BYTES:
        raise TooLarge("a header", view.nbytes, HEADER_MAX_BYTES)
    preamble = bytes(view[: len(PREAMBLE)])
    if len(preamble) < len(PREAMBLE) or preamble[:2] != PREAMBLE[:2]:
        raise Malformed("not a TransferQueue message")
    if preamble[2] != VERSION:
        raise VersionMismatch(VERSION, preamble[2])
    if preamble[3]:
        raise Malformed("the reserved byte is not 0")
    header = unpack_plain(view[len(PREAMBLE) :])
    if type(header) is not list or len(header) != 4:
        raise Malformed("the header must be an array of 4")
    return header


def _require_str_keys(body: object) -> None:
    """Fail where the mistake is made: the receiver drops such a message without an answer.
    ``body``: what has been packed, so it ends somewhere."""
    nested = [body]
    for value in nested:
        if isinstance(value, dict):
            for key in value:
                if type(key) is not str:
                    raise InvalidInput(f"a map of a message body has str keys, got {key!r}")
            items: Any = value.values()
        else:
            items = value
        for item in items:
            # A lookup a leaf: asking each whether it nests took a tenth of all that a get takes.
            if type(item) not in _LEAVES and isinstance(item, _NESTING):
                nested.append(item)


_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})
_NESTING: Final = (dict, list, tuple)


def pack_plain(value: object) -> bytes:
    """Plain values as msgpack. Tuples become lists, numpy scalars become Python's.

    Raises `InvalidInput` for anything else.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_plain_scalar, unicode_errors="surrogatepass")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"not a plain value: {error}") from error
    return packed


def _plain_scalar(value: object) -> object:
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    raise TypeError(f"cannot send a {type(value).__qualname__}")


def unpack_plain(data: Buffer) -> Any:
    """Inverse of `pack_plain` for a whole buffer. Raises `Malformed`."""
    check_msgpack(data)
    try:  # not by `guarded_unpack`: every message comes through here
        return msgpack.unpackb(
            data,
            timestamp=1,
            strict_map_key=True,
            ext_hook=_no_extensions,
            unicode_errors="surrogatepass",
        )
    except _PARSER_ERRORS as error:
        raise _malformed(error) from error


def unpack_own(data: bytes) -> Any:
    """Inverse of `pack_plain` for bytes that came where pickles do, by Ray say: not looked at
    before they are parsed."""
    return msgpack.unpackb(data, strict_map_key=True, unicode_errors="surrogatepass")


def _no_extensions(code: int, data: bytes) -> object:
    raise Malformed(f"unexpected msgpack extension {code} of {len(data)} bytes")


def check_msgpack(data: Buffer) -> None:
    """Raise `Malformed` unless ``data`` is exactly one complete msgpack value.

    This pass builds no objects. Without it a few bytes make the parser allocate a list as long as
    they claim, and once more for every level that they nest.
    """
    size = memoryview(data).nbytes
    parser = msgpack.Unpacker(max_buffer_size=max(size, 1))
    try:
        parser.feed(data)
        parser.skip()
        end = int(parser.tell())
    except _PARSER_ERRORS as error:
        raise _malformed(error) from error
    if end != size:
        raise Malformed(f"{size - end} bytes after the end of a value")


def guarded_unpack(unpack: Callable[[], Any]) -> Any:
    """Run a msgpack parser and turn all it raises for bad bytes into `Malformed`."""
    try:
        return unpack()
    except _PARSER_ERRORS as error:
        raise _malformed(error) from error


_PARSER_ERRORS: Final = (
    msgpack.exceptions.UnpackException,
    struct.error,
    ValueError,  # includes FormatError, StackError, ExtraData and bad UTF-8
    TypeError,
    OverflowError,
    RecursionError,
)


def _malformed(error: Exception) -> Malformed:
    return Malformed(f"bad msgpack: {type(error).__name__}: {error}")


def pack_array(array: Array) -> tuple[list[Any], memoryview]:
    """An array as ``([dtype, shape], frame)``; no copy when it is contiguous and little-endian."""
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"cannot send an array of dtype {array.dtype}")
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    # ascontiguousarray turns a scalar into one element, so the shape is taken from the argument.
    return [little.dtype.str, list(array.shape)], little.reshape(-1).view(np.uint8).data


def unpack_array(desc: object, frame: Buffer) -> Array:
    """Inverse of `pack_array`: a view of ``frame``. Raises `Malformed`."""
    if not isinstance(desc, list | tuple) or len(desc) != 2:
        raise Malformed("an array is described by [dtype, shape]")
    dtype, shape = _index_dtype(desc[0]), shape_from_wire(desc[1])
    view = memoryview(frame)
    if math.prod(shape) * dtype.itemsize != view.nbytes:
        raise Malformed(f"{dtype} of shape {shape} does not take {view.nbytes} bytes")
    return np.frombuffer(view, dtype=dtype).reshape(shape)


def _index_dtype(name: object) -> np.dtype[Any]:
    dtype = _INDEX_DTYPES.get(name) if type(name) is str else None
    if dtype is None:
        raise Malformed(f"not a dtype of the wire format: {name!r:.40}")
    return dtype


_INDEX_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    np.dtype(code).str: np.dtype(code)
    for code in ("?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
}


def encode_error(error: BaseException) -> dict[str, Any]:
    """The body of an ``error`` message. An exception that is not ours becomes a `RemoteError`."""
    if not isinstance(error, TransferQueueError):
        error = RemoteError(type(error).__qualname__, str(error))
    return {
        "cls": type(error).__name__,
        "args": [_plain_or_text(arg) for arg in error.args],
        "message": str(error),
    }


def _plain_or_text(value: object) -> object:
    """An error must reach its caller even when one of its arguments cannot."""
    try:
        pack_plain(value)
        _require_str_keys([value])
    except InvalidInput:
        return str(value)
    return value


def decode_error(body: Mapping[str, Any]) -> TransferQueueError:
    """Inverse of `encode_error`: an instance, not raised. Never fails itself."""
    name, args, message = body.get("cls"), body.get("args"), body.get("message")
    if type(name) is str and name in _ERROR_CLASSES and isinstance(args, list):
        try:
            error = _ERROR_CLASSES[name](*args)
            str(error)  # arguments of the wrong types show here
        except (TypeError, ValueError, LookupError, AttributeError):
            pass
        else:
            return error
    return RemoteError(str(name), str(message))


_ERROR_CLASSES: Final[dict[str, type[TransferQueueError]]] = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, TransferQueueError) and not name.startswith("_")
}
