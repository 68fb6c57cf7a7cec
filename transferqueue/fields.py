"""How a field looks, without its data."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from transferqueue.dtypes import OBJECT, array_dtype, tensor_itemsize
from transferqueue.errors import FieldSpecMismatch, InvalidInput, Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIES: Final = -1
"""A size in `FieldSpec.shape` that is not the same everywhere."""

_CHARACTER_BYTES: Final = {"U": 4, "S": 1}


class FieldKind(StrEnum):
    """What a column comes back as."""

    TENSOR = "tensor"
    """A ``torch.Tensor``; nested with the jagged layout when the field is ragged."""
    ARRAY = "array"
    """A ``numpy.ndarray`` of a numeric, string or time dtype."""
    OBJECT = "object"
    """A ``numpy.ndarray`` of Python objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """How one field of a batch looks. Carries no data."""

    dtype: str
    """torch dtype name, e.g. ``"bfloat16"``; numpy's ``dtype.str``, e.g. ``"<U5"``, for kind
    ``array``; ``"object"`` for an object column."""
    shape: tuple[int, ...] = ()
    """Shape of one sample. `VARIES` at the ragged dimension, and where puts differ."""
    ragged_dim: int | None = None
    """Which per-sample dimension varies in length, or ``None`` when every sample has ``shape``."""
    kind: FieldKind = FieldKind.TENSOR

    # What follows from these, worked out once: a put asks for it ten times a field.
    itemsize: int = field(init=False, repr=False, compare=False)
    """Bytes of one element; 1 for an object column, whose cells are bytes."""
    is_text: bool = field(init=False, repr=False, compare=False)
    """Whether this is a numpy string array. Its width may differ between puts."""
    has_lengths: bool = field(init=False, repr=False, compare=False)
    """Whether a cell is a number of units that differs by row.

    So it is in ragged and object columns, and in text: its unit is one character of every string
    of the sample, so that rows of puts of different widths are still one column."""
    unit_shape: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Shape of one unit: of the whole sample, or of one step along the ragged dimension."""
    is_concrete: bool = field(init=False, repr=False, compare=False)
    """False when puts of different shapes were merged, so that no one unit size holds."""
    _unit_bytes: int = field(init=False, repr=False, compare=False)
    """`unit_bytes`, or `VARIES`."""
    _wire: tuple[Any, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        itemsize = 1
        if self.kind is FieldKind.TENSOR:
            itemsize = tensor_itemsize(self.dtype)
        elif self.kind is FieldKind.ARRAY:
            itemsize = array_dtype(self.dtype).itemsize
        elif self.dtype != OBJECT:
            raise ValueError(f"an object column has dtype 'object', got {self.dtype!r}")
        if any(size < VARIES for size in self.shape):
            raise ValueError(f"shape must be of sizes or -1, got {self.shape}")
        if self.ragged_dim is not None:
            self._check_ragged()
        self._work_out(itemsize)

    def _work_out(self, itemsize: int) -> None:
        is_text = self.kind is FieldKind.ARRAY and self.dtype[1] in _CHARACTER_BYTES
        is_object = self.kind is FieldKind.OBJECT
        sizes = tuple(size for dim, size in enumerate(self.shape) if dim != self.ragged_dim)
        assign = functools.partial(object.__setattr__, self)
        assign("itemsize", itemsize)
        assign("is_text", is_text)
        assign("has_lengths", self.ragged_dim is not None or is_object or is_text)
        assign("unit_shape", () if is_object else sizes)
        assign("is_concrete", VARIES not in sizes)
        element_bytes = _CHARACTER_BYTES[self.dtype[1]] if is_text else itemsize
        unit_bytes = math.prod(self.unit_shape) * element_bytes
        assign("_unit_bytes", unit_bytes if self.is_concrete else VARIES)
        assign("_wire", (self.dtype, self.shape, self.ragged_dim, self.kind.value))

    def _check_ragged(self) -> None:
        if self.kind is not FieldKind.TENSOR:
            raise ValueError(f"only tensors are ragged, got kind {self.kind.value!r}")
        dim = self.ragged_dim
        if dim is None or not 0 <= dim < len(self.shape) or self.shape[dim] != VARIES:
            raise ValueError(f"ragged_dim {dim} is not a dimension of size -1 in {self.shape}")

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit. Raises ``ValueError`` when they vary between puts."""
        if self._unit_bytes == VARIES:
            raise ValueError(f"the bytes of {self} vary between puts")
        return self._unit_bytes

    @classmethod
    def of(
        cls,
        dtype: str,
        shape: tuple[int, ...],
        *,
        ragged_dim: int | None = None,
        kind: FieldKind = FieldKind.TENSOR,
    ) -> FieldSpec:
        """The same, checked once for all columns that look so."""
        return _interned(dtype, shape, ragged_dim, kind)

    def merge(self, other: FieldSpec, *, field: str) -> FieldSpec:
        """The spec of rows of both. Sizes that differ become `VARIES`, of two widths of text it
        is the larger; any other difference raises `FieldSpecMismatch`."""
        if self == other:
            return self
        dtype = _merge_dtype(self, other)
        same_layout = (self.kind, self.ragged_dim, len(self.shape)) == (
            other.kind,
            other.ragged_dim,
            len(other.shape),
        )
        if dtype is None or not same_layout:
            raise FieldSpecMismatch(field, str(self), str(other))
        shape = tuple(a if a == b else VARIES for a, b in zip(self.shape, other.shape, strict=True))
        return replace(self, dtype=dtype, shape=shape)

    def to_wire(self) -> tuple[str, tuple[int, ...], int | None, str]:
        """Plain values: ``(dtype, shape, ragged_dim, kind)``."""
        return self._wire

    @classmethod
    def from_wire(cls, value: object) -> FieldSpec:
        """Inverse of `to_wire`. Raises `Malformed`."""
        if not isinstance(value, list | tuple) or len(value) != 4:
            raise Malformed("a field spec is [dtype, shape, ragged_dim, kind]")
        dtype, shape, ragged_dim, kind = value
        if (
            type(kind) is not str
            or type(dtype) is not str
            or not (ragged_dim is None or type(ragged_dim) is int)
        ):
            raise Malformed("a field spec is [dtype, shape, ragged_dim, kind]")
        try:
            return _interned(dtype, shape_from_wire(shape, low=VARIES), ragged_dim, kind)
        except ValueError as error:
            raise Malformed(f"bad field spec: {error}") from error

    def __str__(self) -> str:
        if self.kind is FieldKind.OBJECT:
            return "object" + (str(list(self.shape)) if self.shape else "")
        sizes = ", ".join(
            "ragged" if dim == self.ragged_dim else "*" if size == VARIES else str(size)
            for dim, size in enumerate(self.shape)
        )
        name = self.dtype if self.kind is FieldKind.TENSOR else f"numpy {self.dtype}"
        return f"{name}[{sizes}]"


@functools.lru_cache(maxsize=4096)
def _interned(dtype: str, shape: tuple[int, ...], ragged_dim: int | None, kind: str) -> FieldSpec:
    """The same few specs come with every message and every put: checked once, they are shared."""
    return FieldSpec(dtype=dtype, shape=shape, ragged_dim=ragged_dim, kind=FieldKind(kind))


def _merge_dtype(left: FieldSpec, right: FieldSpec) -> str | None:
    if left.dtype == right.dtype:
        return left.dtype
    if left.is_text and right.is_text and left.dtype[:2] == right.dtype[:2]:
        return max(left, right, key=lambda spec: spec.itemsize).dtype
    return None


def fields_to_wire(fields: Mapping[str, FieldSpec]) -> list[list[Any]]:
    """Fields in their order, each ``[name, *spec]``."""
    return [[name, *spec.to_wire()] for name, spec in fields.items()]


def fields_from_wire(entries: list[Any]) -> dict[str, FieldSpec]:
    """Inverse of `fields_to_wire`. Raises `Malformed`; the names are checked by who uses them."""
    fields: dict[str, FieldSpec] = {}
    for entry in entries:
        if type(entry) is not list or not entry or type(entry[0]) is not str or entry[0] in fields:
            raise Malformed("a field is [name, *spec], each name once")
        fields[entry[0]] = FieldSpec.from_wire(entry[1:])
    return fields


def check_name(name: Any, *, what: str) -> str:
    """A name of a field, partition or task: 1 to 256 characters of text. Raises `InvalidInput`."""
    if type(name) is not str:
        raise InvalidInput(f"{what} must be a str, got {name!r:.80}")
    if not 0 < len(name) <= 256 or "\0" in name:
        raise InvalidInput(f"{what} must be 1 to 256 characters without NUL, got {name!r:.80}")
    return name


def shape_from_wire(shape: object, *, low: int = 0) -> tuple[int, ...]:
    """A list of at most 32 sizes, each at least ``low`` and below 2**48. Raises `Malformed`."""
    if not isinstance(shape, list | tuple) or len(shape) > 32:
        raise Malformed("a shape is a list of at most 32 sizes")
    for size in shape:
        if type(size) is not int or not low <= size < 1 << 48:
            raise Malformed(f"not a size: {size!r:.40}")
    return tuple(shape)
