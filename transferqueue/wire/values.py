"""Python values as bytes and back, exactly: type, value and nesting.

msgpack carries ``None``, bool, 64-bit int, float (NaN and -0.0 too), str, bytes, list and dict with
any keys. What it would change or refuse travels as an extension, by code:

    1  tuple                a msgpack array
    2  set                  a msgpack array
    3  frozenset            a msgpack array
    4  int beyond 64 bits   two's complement, little-endian
    5  complex              two float64
    6  numpy scalar         array [dtype.str, raw bytes]
    7  numpy.str_           UTF-8 (a scalar of dtype "<U3" would lose trailing NULs)
    8  numpy.bytes_         the bytes
    9  numpy object array   array [shape, items in C order]
    32 and up               leaves: what the caller's ``leaf`` hook makes of other types

Lists and dicts are written by msgpack's C code in one pass, so plain rows cost no Python call each.
A lone surrogate in a str is carried as the three bytes that UTF-8 would give it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from itertools import chain, compress
from typing import Any, Final

import msgpack
import numpy as np

from transferqueue.dtypes import array_dtype, is_array_dtype
from transferqueue.errors import Malformed
from transferqueue.fields import shape_from_wire
from transferqueue.wire.format import Buffer, check_msgpack, guarded_unpack

FIRST_LEAF_CODE: Final = 32

MAX_DEPTH: Final = 32
"""How deep tuples, sets and object arrays may nest; lists and dicts may go to msgpack's 500."""

_TUPLE, _SET, _FROZENSET, _BIG_INT, _COMPLEX, _SCALAR, _STR, _BYTES, _OBJECTS = range(1, 10)

_TWO_DOUBLES: Final = struct.Struct("<2d")

EncodeLeaf = Callable[[object], msgpack.ExtType]
DecodeLeaf = Callable[[int, bytes], object]


class CannotCarry(Exception):
    """A value that this codec has no exact form for. Whoever knows the field and row names them."""

    def __init__(self, type_name: str, hint: str = "") -> None:
        super().__init__(type_name, hint)
        self.type_name = type_name
        self.hint = hint


def type_name(value: object) -> str:
    """How an error names the type of a value, e.g. ``"pathlib.PosixPath"``."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def no_leaves(value: object) -> msgpack.ExtType:
    """The ``leaf`` hook of a packer that takes nothing else."""
    raise CannotCarry(type_name(value))


def no_leaf_codes(code: int, data: bytes) -> object:
    """The ``leaf`` hook of a reader that takes nothing else."""
    raise Malformed(f"unexpected extension {code} of {len(data)} bytes")


class ValuePacker:
    """Packs values. ``leaf`` gives the extension for any other type, or raises `CannotCarry`."""

    def __init__(self, leaf: EncodeLeaf = no_leaves) -> None:
        self._extensions = _Extensions(leaf)
        self._packer = self._extensions.new_packer()

    def pack(self, value: object) -> bytes:
        """The bytes of one value. Raises `CannotCarry`, or what ``leaf`` raises."""
        return self.pack_many([value])[0]

    def pack_many(self, values: Sequence[object]) -> list[bytes]:
        """The bytes of each value; no Python call a value when all are plain."""
        self._extensions.depth = 0
        try:
            packed = list(map(self._packer.pack, values))
        except (ValueError, OverflowError, RecursionError) as error:
            # One that failed still holds half a value.
            self._packer = self._extensions.new_packer()
            raise CannotCarry(
                "value", f"{str(error).rstrip('.')}: is it nested too deep?"
            ) from error
        except BaseException:
            self._packer = self._extensions.new_packer()
            raise
        _refuse_hidden(list(compress(values, map(_MAY_HIDE.search, packed))))
        return packed


class _Extensions:
    """What msgpack has no type of its own for. Its packer refers to it, and it to no packer: a
    cycle would keep what both hold until somebody looks for cycles."""

    def __init__(self, leaf: EncodeLeaf) -> None:
        self._leaf = leaf
        self.depth = 0

    def new_packer(self) -> Any:
        return msgpack.Packer(
            strict_types=True,
            default=self._extension,
            unicode_errors="surrogatepass",
            buf_size=1 << 12,
        )

    def _extension(self, value: object) -> msgpack.ExtType:
        """Called by msgpack for a value that it does not take itself."""
        nested = _NESTED.get(type(value))
        if nested is not None:
            return msgpack.ExtType(nested, self._pack_nested(list(value)))  # type: ignore[call-overload]
        direct = _DIRECT.get(type(value))
        if direct is not None:
            return direct(value)
        if isinstance(value, np.generic) and is_array_dtype(value.dtype):
            return msgpack.ExtType(_SCALAR, msgpack.packb([value.dtype.str, value.tobytes()]))
        if type(value) is np.ndarray and value.dtype == object:
            items = [list(value.shape), value.reshape(-1).tolist()]
            return msgpack.ExtType(_OBJECTS, self._pack_nested(items))
        return self._leaf(value)

    def _pack_nested(self, items: Sequence[object]) -> bytes:
        if self.depth >= MAX_DEPTH:
            raise CannotCarry("value", f"tuples and sets nest deeper than {MAX_DEPTH} in it")
        self.depth += 1
        packed: bytes = self.new_packer().pack(items)
        self.depth -= 1
        return packed


_NESTED: Final[dict[type, int]] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}

_DIRECT: Final[dict[type, Callable[[Any], msgpack.ExtType]]] = {
    int: lambda value: msgpack.ExtType(
        _BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    ),
    complex: lambda value: msgpack.ExtType(_COMPLEX, _TWO_DOUBLES.pack(value.real, value.imag)),
    # str(value) would lose trailing NULs
    np.str_: lambda value: msgpack.ExtType(_STR, value.encode("utf-8", "surrogatepass")),
    np.bytes_: lambda value: msgpack.ExtType(_BYTES, bytes(value)),
}


# msgpack writes a bytearray and a memoryview as bytes, and its own ExtType and Timestamp as
# themselves, without asking `default`. Each shows as one of these bytes, so a value without any of
# them needs no walk; one with them (mostly by chance) gets one.
_MAY_HIDE: Final = re.compile(rb"[\xc4-\xc9\xd4-\xd8]")
_HIDDEN: Final = frozenset({bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp})
_SEQUENCES: Final = frozenset({list, tuple, set, frozenset})


def _refuse_hidden(values: Sequence[object]) -> None:
    """Look at all values at once, one level of nesting after another."""
    while values:
        if not _HIDDEN.isdisjoint(map(type, values)):
            found = next(value for value in values if type(value) in _HIDDEN)
            raise CannotCarry(type_name(found), "convert it with bytes(...)")
        values = _inside(values)


def _inside(values: Sequence[Any]) -> Sequence[object]:
    """What the containers among ``values`` hold."""
    sequences = [value for value in values if type(value) in _SEQUENCES]
    dicts = [value for value in values if type(value) is dict]
    arrays = [value for value in values if type(value) is np.ndarray and value.dtype == object]
    return [
        *chain.from_iterable(sequences),
        *chain.from_iterable(dicts),
        *chain.from_iterable(map(dict.values, dicts)),
        *chain.from_iterable(array.reshape(-1).tolist() for array in arrays),
    ]


class ValueReader:
    """Inverse of `ValuePacker`. ``leaf`` makes the value of a code from `FIRST_LEAF_CODE` up.

    Raises `Malformed` for whatever bytes are not a value, and what ``leaf`` raises.
    """

    def __init__(self, leaf: DecodeLeaf = no_leaf_codes) -> None:
        self._leaf = leaf
        self._depth = 0

    def read(self, data: Buffer) -> Any:
        """The one value that ``data`` is."""
        self._depth = 0
        return self._read(data)

    def read_many(self, data: Buffer, num_values: int) -> list[Any]:
        """The values that follow each other in ``data``, in one pass of the parser."""
        values: list[Any] = self.read(b"".join((_ARRAY32.pack(0xDD, num_values), data)))
        return values

    def _read(self, data: Buffer) -> Any:
        check_msgpack(data)
        return guarded_unpack(
            lambda: msgpack.unpackb(
                data,
                strict_map_key=False,
                timestamp=1,
                ext_hook=self._extension,
                unicode_errors="surrogatepass",
            )
        )

    def _extension(self, code: int, data: bytes) -> object:
        if code >= FIRST_LEAF_CODE:
            return self._leaf(code, data)
        make = _READERS.get(code)
        if make is not None:
            return make(data)
        return self._nested(code, data)

    def _nested(self, code: int, data: bytes) -> object:
        if self._depth >= MAX_DEPTH:
            raise Malformed(f"values nest deeper than {MAX_DEPTH}")
        self._depth += 1
        items = self._read(data)
        self._depth -= 1
        make = _NESTED_READERS.get(code)
        if make is None or type(items) is not list:
            raise Malformed(f"unexpected extension {code} of {len(data)} bytes")
        return make(items)


_ARRAY32: Final = struct.Struct(">BI")


def _read_scalar(data: bytes) -> object:
    dtype_name, raw = msgpack.unpackb(data)
    dtype = array_dtype(dtype_name)
    if len(raw) != dtype.itemsize:
        raise Malformed(f"a scalar of {dtype} has {len(raw)} bytes")
    return np.frombuffer(raw, dtype=dtype)[0]


def object_array(items: Sequence[object], shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    """Items as an object array of that shape; never spread over more dimensions by numpy."""
    return np.fromiter(items, dtype=object, count=len(items)).reshape(shape)


def _read_objects(parts: list[Any]) -> object:
    if len(parts) != 2 or type(parts[1]) is not list:
        raise Malformed("an object array is [shape, items]")
    shape, items = shape_from_wire(parts[0]), parts[1]
    if math.prod(shape) != len(items):
        raise Malformed(f"{len(items)} items for an object array of {shape}")
    return object_array(items, shape)


_READERS: Final[dict[int, Callable[[bytes], object]]] = {
    _BIG_INT: lambda data: int.from_bytes(data, "little", signed=True),
    _COMPLEX: lambda data: complex(*_TWO_DOUBLES.unpack(data)),
    _SCALAR: _read_scalar,
    _STR: lambda data: np.str_(data.decode("utf-8", "surrogatepass")),
    _BYTES: lambda data: np.bytes_(data),
}

_NESTED_READERS: Final[dict[int, Callable[[list[Any]], object]]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _OBJECTS: _read_objects,
}
