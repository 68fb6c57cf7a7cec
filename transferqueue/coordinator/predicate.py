"""Conditions on tags: ``(tag("policy_version") >= 3) & ~tag("source").isin(["replay"])``.

A predicate is a closed value, not code: it travels as nested lists, is checked when it is read,
and is evaluated over whole columns. A row that lacks a tag fails every comparison with it, also
``!=``; ``~`` then turns that into true, and ``tag(...).exists()`` asks for it by name.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from transferqueue.coordinator.row_set import none_of
from transferqueue.coordinator.tag_values import MAX_TAG_CHARS, TagKind
from transferqueue.errors import InvalidInput, TagTypeMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.tags import TagColumn, TagTable

MAX_DEPTH = 64
MAX_NODES = 1024
MAX_VALUES = 65_536
"""How many values all ``isin`` of one predicate may list."""

TagValue: TypeAlias = bool | int | float | str
Mask: TypeAlias = NDArray[np.bool_]


class Op(StrEnum):
    """The comparisons."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


_COMPARE: Mapping[Op, Callable[[Any, Any], Any]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}


class Predicate(ABC):
    """A condition on the tags of a row. Combine with ``&``, ``|`` and ``~``."""

    __slots__ = ()

    def __and__(self, other: Predicate) -> Predicate:
        return And(_checked(self), _checked(other))

    def __or__(self, other: Predicate) -> Predicate:
        return Or(_checked(self), _checked(other))

    def __invert__(self) -> Predicate:
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a predicate has no truth value here; write &, | and ~ for and, or and not")

    @abstractmethod
    def mask(self, tags: TagTable, rows: Rows | slice) -> Mask:
        """Which of these rows it holds for. Never raises: an unknown tag is one nobody has."""

    @abstractmethod
    def check(self, tags: TagTable) -> None:
        """UnknownTag or TagTypeMismatch if it makes no sense for these columns."""

    @abstractmethod
    def tags(self) -> frozenset[str]:
        """The tags it reads."""

    @abstractmethod
    def to_plain(self) -> list[Any]:
        """Its wire form."""

    @staticmethod
    def from_plain(plain: Any) -> Predicate:
        """Read the wire form; InvalidInput says what is wrong with it, and where it is too big."""
        return _Reader().read(plain, depth=1)


def _checked(value: Predicate) -> Predicate:
    if not isinstance(value, Predicate):
        raise TypeError(
            f"combine predicates, got {value!r}; put comparisons in brackets: "
            f'(tag("a") > 1) & (tag("b") == 2)'
        )
    return value


@dataclass(frozen=True, slots=True)
class Compare(Predicate):
    """``tag(name) op value``."""

    name: str
    op: Op
    value: TagValue

    def mask(self, tags: TagTable, rows: Rows | slice) -> Mask:
        column = tags.columns.get(self.name)
        if column is None or self._problem(column):
            return none_of(rows)
        value = column.code(self.value) if isinstance(self.value, str) else self.value
        return np.asarray(_COMPARE[self.op](column.raw(rows), value) & column.present(rows))

    def check(self, tags: TagTable) -> None:
        column = tags.column(self.name)
        problem = self._problem(column)
        if problem:
            raise TagTypeMismatch(self.name, column.kind.value, problem)

    def _problem(self, column: TagColumn) -> str:
        if not _comparable(column.kind, self.value):
            return f"{type(self.value).__name__} {self.value!r}"
        if column.kind in (TagKind.STR, TagKind.BOOL) and self.op not in (Op.EQ, Op.NE):
            return f"{self.op.value} (only == and != make sense)"
        return ""

    def tags(self) -> frozenset[str]:
        return frozenset((self.name,))

    def to_plain(self) -> list[Any]:
        return [self.op.value, self.name, self.value]


def _comparable(kind: TagKind, value: TagValue) -> bool:
    if isinstance(value, bool):
        return kind is TagKind.BOOL
    if isinstance(value, str):
        return kind is TagKind.STR
    return kind in (TagKind.INT, TagKind.FLOAT)


@dataclass(frozen=True, slots=True)
class IsIn(Predicate):
    """``tag(name).isin(values)``."""

    name: str
    values: tuple[TagValue, ...]

    def mask(self, tags: TagTable, rows: Rows | slice) -> Mask:
        column = tags.columns.get(self.name)
        if column is None or self._misfits(column):
            return none_of(rows)
        values: list[Any] = list(self.values)
        if column.kind is TagKind.STR:
            values = [column.code(str(value)) for value in values]
        return np.isin(column.raw(rows), values) & column.present(rows)

    def check(self, tags: TagTable) -> None:
        column = tags.column(self.name)
        misfits = self._misfits(column)
        if misfits:
            got = f"{type(misfits[0]).__name__} {misfits[0]!r} in isin"
            raise TagTypeMismatch(self.name, column.kind.value, got)

    def _misfits(self, column: TagColumn) -> list[TagValue]:
        return [value for value in self.values if not _comparable(column.kind, value)]

    def tags(self) -> frozenset[str]:
        return frozenset((self.name,))

    def to_plain(self) -> list[Any]:
        return ["in", self.name, list(self.values)]


@dataclass(frozen=True, slots=True)
class Exists(Predicate):
    """``tag(name).exists()``."""

    name: str

    def mask(self, tags: TagTable, rows: Rows | slice) -> Mask:
        column = tags.columns.get(self.name)
        return none_of(rows) if column is None else column.present(rows)

    def check(self, tags: TagTable) -> None:
        """Asking whether rows have a tag makes sense also where none has."""

    def tags(self) -> frozenset[str]:
        return frozenset((self.name,))

    def to_plain(self) -> list[Any]:
        return ["exists", self.name]


@dataclass(frozen=True, slots=True)
class _Pair(Predicate):
    left: Predicate
    right: Predicate

    def check(self, tags: TagTable) -> None:
        self.left.check(tags)
        self.right.check(tags)

    def tags(self) -> frozenset[str]:
        return self.left.tags() | self.right.tags()


@dataclass(frozen=True, slots=True)
class And(_Pair):
    """``left & right``."""

    def mask(self, tags: TagTable, rows: Rows | slice) -> Mask:
        return self.left.mask(tags, rows) & self.right.mask(tags, rows)

    def to_plain(self) -> list[Any]:
        return ["and", self.left.to_plain(), self.right.to_plain()]


@dataclass(frozen=True, slots=True)
class Or(_Pair):
    """``left | right``."""

    def mask(self, tags: TagTable, rows: Rows | slice) -> Mask:
        return self.left.mask(tags, rows) | self.right.mask(tags, rows)

    def to_plain(self) -> list[Any]:
        return ["or", self.left.to_plain(), self.right.to_plain()]


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """``~inner``."""

    inner: Predicate

    def mask(self, tags: TagTable, rows: Rows | slice) -> Mask:
        return ~self.inner.mask(tags, rows)

    def check(self, tags: TagTable) -> None:
        self.inner.check(tags)

    def tags(self) -> frozenset[str]:
        return self.inner.tags()

    def to_plain(self) -> list[Any]:
        return ["not", self.inner.to_plain()]


class _Reader:
    """Reads the wire form within its limits."""

    def __init__(self) -> None:
        self._num_nodes = 0
        self._num_values = 0

    def read(self, plain: Any, depth: int) -> Predicate:
        self._num_nodes += 1
        if depth > MAX_DEPTH or self._num_nodes > MAX_NODES:
            raise InvalidInput(
                f"where: at most {MAX_NODES} conditions, nested {MAX_DEPTH} deep; "
                f"use isin for a long list of values"
            )
        match plain:
            case ["and", left, right]:
                return And(self.read(left, depth + 1), self.read(right, depth + 1))
            case ["or", left, right]:
                return Or(self.read(left, depth + 1), self.read(right, depth + 1))
            case ["not", inner]:
                return Not(self.read(inner, depth + 1))
            case ["in", str(name), list(values) | tuple(values)]:
                self._num_values += len(values)
                if self._num_values > MAX_VALUES:
                    raise InvalidInput(f"where: isin lists more than {MAX_VALUES} values")
                return IsIn(name, tuple(literal(name, value) for value in values))
            case ["exists", str(name)]:
                return Exists(name)
            case [str(op), str(name), value] if op in _OPS:
                return Compare(name, Op(op), literal(name, value))
        raise InvalidInput(f"where: not a condition: {str(plain)[:80]}")


_OPS = frozenset(op.value for op in Op)


def literal(name: str, value: Any) -> TagValue:
    """A value that a tag can be compared with; InvalidInput for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        if len(value) <= MAX_TAG_CHARS:
            return str(value)
    elif isinstance(value, (bool, float)) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    shown = f"{type(value).__name__} {str(value)[:40]!r}"
    raise InvalidInput(f"tag {name!r}: compare with a bool, int64, float or short str, not {shown}")


class TagRef:
    """A tag to compare: what ``tag(name)`` gives."""

    __slots__ = ("_name",)
    __hash__ = None  # type: ignore[assignment]  # == makes a predicate

    def __init__(self, name: str) -> None:
        self._name = name

    def _compare(self, op: Op, value: Any) -> Predicate:
        return Compare(self._name, op, literal(self._name, value))

    def __eq__(self, value: object) -> Predicate:  # type: ignore[override]
        return self._compare(Op.EQ, value)

    def __ne__(self, value: object) -> Predicate:  # type: ignore[override]
        return self._compare(Op.NE, value)

    def __lt__(self, value: TagValue) -> Predicate:
        return self._compare(Op.LT, value)

    def __le__(self, value: TagValue) -> Predicate:
        return self._compare(Op.LE, value)

    def __gt__(self, value: TagValue) -> Predicate:
        return self._compare(Op.GT, value)

    def __ge__(self, value: TagValue) -> Predicate:
        return self._compare(Op.GE, value)

    def isin(self, values: Iterable[TagValue]) -> Predicate:
        """One of these values."""
        if isinstance(values, str):
            raise InvalidInput(f"tag {self._name!r}: isin takes a list of values, not a str")
        return IsIn(self._name, tuple(literal(self._name, value) for value in values))

    def exists(self) -> Predicate:
        """The row has the tag at all."""
        return Exists(self._name)

    def __bool__(self) -> bool:
        raise TypeError(f'tag("{self._name}") has no value here; compare it')


def tag(name: str) -> TagRef:
    """A tag of the samples, to be compared: ``tag("policy_version") >= 3``."""
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"a tag's name is a non-empty str, got {name!r}")
    return TagRef(name)
