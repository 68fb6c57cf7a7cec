"""Tag values on their way to or from the coordinator: typed, one a row, absence explicit.

Tags are small facts about samples that the control plane may decide by: a policy version, a
group, a length. bool, int64, float64 and str, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from transferqueue.errors import InvalidInput, RowCountMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

TagColumnValues: TypeAlias = "NDArray[Any] | list[Any]"
"""One value a row: bool, int64 or float64 array, or a list when it holds str or ``None``."""

MAX_TAG_CHARS = 1024
"""Tags are for deciding, not for carrying data; anything longer is a field."""


class TagKind(StrEnum):
    """The types a tag can have."""

    BOOL = "bool"
    INT = "int64"
    FLOAT = "float64"
    STR = "str"


DTYPES: Mapping[TagKind, np.dtype[Any]] = {
    TagKind.BOOL: np.dtype(np.bool_),
    TagKind.INT: np.dtype("<i8"),
    TagKind.FLOAT: np.dtype("<f8"),
    TagKind.STR: np.dtype(object),
}
_KIND_OF_TYPE: Mapping[type, TagKind] = {
    bool: TagKind.BOOL,
    int: TagKind.INT,
    float: TagKind.FLOAT,
    str: TagKind.STR,
}
_KIND_OF_DTYPE: Mapping[str, TagKind] = {
    "b": TagKind.BOOL,
    "i": TagKind.INT,
    "u": TagKind.INT,
    "f": TagKind.FLOAT,
    "U": TagKind.STR,
}
_FILL: Mapping[TagKind, Any] = {
    TagKind.BOOL: False,
    TagKind.INT: 0,
    TagKind.FLOAT: 0.0,
    TagKind.STR: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TagValues:
    """One tag of some rows."""

    kind: TagKind
    values: NDArray[Any]  # [rows] bool, int64, float64, or object (of str)
    absent: NDArray[np.bool_] | None = None  # [rows]; None: no row lacks it

    def __len__(self) -> int:
        return len(self.values)

    @property
    def num_absent(self) -> int:
        """How many rows do not have the tag."""
        return 0 if self.absent is None else int(np.count_nonzero(self.absent))

    def take(self, index: NDArray[np.integer[Any]] | slice) -> TagValues:
        """Some of the rows."""
        absent = None if self.absent is None else self.absent[index]
        return TagValues(kind=self.kind, values=self.values[index], absent=absent)

    def tolist(self) -> list[Any]:
        """Plain Python values, ``None`` where a row lacks the tag."""
        if self.absent is None:
            return list(self.values.tolist())
        values = self.values.astype(object)
        values[self.absent] = None
        return list(values.tolist())

    def to_column(self) -> TagColumnValues:
        """As callers get it: an array of numbers, or a list where an array could not say it."""
        if self.absent is None and self.kind is not TagKind.STR:
            return self.values
        return self.tolist()


def tag_values(name: str, value: Any, num_rows: int) -> TagValues | None:
    """What a caller passed as a tag: a scalar for all rows, or an array or list of one a row.

    ``None`` in a list is a row without the tag; ``None`` alone, or for every row, is no tag at all
    and gives ``None``. Errors: InvalidInput (type), RowCountMismatch (length).
    """
    if value is None:
        return None
    if isinstance(value, TagValues):
        values: TagValues | None = value
    elif isinstance(value, (list, tuple)):
        values = _from_objects(name, _object_array(value))
    else:
        array = value if isinstance(value, np.ndarray) else np.asarray(_scalar(name, value))
        if array.ndim == 0:
            array = np.broadcast_to(array, (num_rows,))
        elif array.ndim != 1:
            raise InvalidInput(
                f"tag {name!r}: one value a row, got an array of shape {list(array.shape)}"
            )
        values = _from_array(name, array)
    if values is not None and len(values) != num_rows:
        raise RowCountMismatch(f"tag {name!r}", num_rows, len(values))
    return values


def _scalar(name: str, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        raise InvalidInput(f"tag {name!r}: {value} does not fit int64")
    return value


def _object_array(values: list[Any] | tuple[Any, ...]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _from_array(name: str, array: NDArray[Any]) -> TagValues | None:
    kind = _KIND_OF_DTYPE.get(array.dtype.kind)
    if kind is None:
        if array.dtype.kind == "O":
            return _from_objects(name, array)
        raise InvalidInput(
            f"tag {name!r}: bool, int, float or str, got {array.dtype}; put it as a field"
        )
    if array.dtype == np.uint64 and len(array) and int(array.max()) >= 2**63:
        raise InvalidInput(f"tag {name!r}: {int(array.max())} does not fit int64")
    _check_chars(name, kind, array)
    return TagValues(kind=kind, values=np.ascontiguousarray(array, dtype=DTYPES[kind]))


def _check_chars(name: str, kind: TagKind, array: NDArray[Any]) -> None:
    if kind is not TagKind.STR or array.dtype.itemsize <= 4 * MAX_TAG_CHARS:
        return
    longest = int(np.char.str_len(array).max(initial=0))
    if longest > MAX_TAG_CHARS:
        raise InvalidInput(
            f"tag {name!r}: {longest} characters, the limit is {MAX_TAG_CHARS}; put it as a field"
        )


def _from_objects(name: str, array: NDArray[Any]) -> TagValues | None:
    absent = np.fromiter(map(is_, array.tolist(), repeat(None)), np.bool_, len(array))
    present = array[~absent]
    if not len(present):
        return None
    kinds = {_kind_of(name, type_) for type_ in set(map(type, present.tolist()))}
    if kinds == {TagKind.INT, TagKind.FLOAT}:
        kinds = {TagKind.FLOAT}
    if len(kinds) != 1:
        raise InvalidInput(f"tag {name!r}: one type, got {sorted(k.value for k in kinds)}")
    kind = kinds.pop()
    if kind is TagKind.STR:
        _check_chars(name, kind, np.array(present.tolist(), dtype=np.str_))
    filled = np.where(absent, _FILL[kind], array)
    try:
        values = filled.astype(DTYPES[kind])
    except OverflowError as err:
        raise InvalidInput(f"tag {name!r}: a value does not fit {kind.value}") from err
    return TagValues(kind=kind, values=values, absent=absent if bool(absent.any()) else None)


def _kind_of(name: str, type_: type) -> TagKind:
    kind = _KIND_OF_TYPE.get(type_)
    if kind is None and issubclass(type_, np.generic):
        kind = _KIND_OF_DTYPE.get(np.dtype(type_).kind)
    if kind is None:
        raise InvalidInput(
            f"tag {name!r}: bool, int, float or str, got {type_.__name__}; put it as a field"
        )
    return kind
