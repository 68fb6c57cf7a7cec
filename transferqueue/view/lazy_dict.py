"""A dict whose values are fetched when they are asked for, and a TensorDict over one.

A real ``TensorDict`` takes a dict subclass as its inner mapping: names, membership and lengths cost
nothing, a read of one column fetches that column, and whatever tensordict does with all columns
fetches all of them in one request. Measured on tensordict 0.10 and 0.15; a ``TensorDictBase``
subclass of its own would be thousands of lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import TensorDict

from transferqueue.view.lazy_column import LazyColumn
from transferqueue.view.lazy_fetch import fetch_now
from transferqueue.view.lazy_sources import Joined, Stored

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView

    import torch

    from transferqueue.view.lazy_ledger import FetchLedger

_NO_DEFAULT = object()


class LazyDict(dict[str, Any]):
    """Name -> value. What lies in the dict itself is a `LazyColumn` each.

    ``items()`` and ``values()`` are snapshots: they fetch all that is missing in one request. A
    value that is set is a local column.
    """

    __slots__ = ("ledger",)

    def __init__(self, columns: Mapping[str, LazyColumn], ledger: FetchLedger) -> None:
        self.ledger = ledger
        super().update(columns)

    # ---- columns, without touching them

    def column(self, name: str) -> LazyColumn:
        column: LazyColumn = super().__getitem__(name)
        return column

    def columns(self) -> dict[str, LazyColumn]:
        return dict(super().items())

    def put_column(self, name: str, column: LazyColumn) -> None:
        super().__setitem__(name, column)

    def pop_column(self, name: str) -> LazyColumn:
        column: LazyColumn = super().pop(name)
        return column

    # ---- a dict of values

    def _read(self, column: LazyColumn) -> Any:
        if not column.is_here:
            fetch_now([column], self.ledger)
        _touch(column, self.ledger)
        return column.value

    def _plain(self) -> dict[str, Any]:
        columns = self.columns()
        fetch_now(columns.values(), self.ledger)
        return {name: self._read(column) for name, column in columns.items()}

    def __getitem__(self, name: str) -> Any:
        return self._read(self.column(name))

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.put_column(name, LazyColumn(None, value))

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *others: Any, **more: Any) -> None:
        for name, value in dict(*others, **more).items():
            self[name] = value

    def __ior__(self, other: Any) -> LazyDict:  # type: ignore[override]
        self.update(other)
        return self

    def pop(self, name: str, default: Any = _NO_DEFAULT) -> Any:
        if name not in self and default is not _NO_DEFAULT:
            return default
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, Any]:
        name = next(reversed(self))
        return name, self.pop(name)

    def __iter__(self) -> Iterator[str]:
        # Not superfluous: with it dict(self) and {**self} ask for values, without it they copy
        # what lies inside.
        return super().__iter__()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return self._plain().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return self._plain().values()

    def copy(self) -> dict[str, Any]:
        """As of every dict, shallow: columns that are not here come when the copy is asked."""
        return LazyDict(self.columns(), self.ledger)

    __copy__ = copy

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        merged: dict[str, Any] = {**self._plain(), **other}
        return merged

    def __ror__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        merged: dict[str, Any] = {**other, **self._plain()}
        return merged

    def __eq__(self, other: object) -> bool:
        return self._plain() == (other._plain() if isinstance(other, LazyDict) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        shown = (
            f"{name!r}: {column.value!r}" if column.is_here else f"{name!r}: <not fetched>"
            for name, column in self.columns().items()
        )
        return "{" + ", ".join(shown) + "}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (self._plain(),)


def _touch(column: LazyColumn, ledger: FetchLedger) -> None:
    source = column.source
    if isinstance(source, Stored):
        ledger.touch(source.field)
    elif isinstance(source, Joined):
        for piece in source.pieces:
            _touch(piece, ledger)
    elif source is not None:
        for part in source.needs():
            _touch(part, ledger)


class UnmadeBatch:
    """What a TensorDict of columns is made of, until somebody wants to have one.

    Making it takes longer than everything else that a view is made of, and many views live without:
    those between two operations on rows, and those of a method that reads ``non_tensor_batch``.
    """

    __slots__ = ("batch_size", "columns", "device")

    def __init__(
        self, columns: LazyDict, batch_size: Iterable[int], device: torch.device | None
    ) -> None:
        self.columns = columns
        self.batch_size = tuple(batch_size)
        self.device = device

    def made(self) -> TensorDict:
        """The TensorDict. Its columns need not be here."""
        batch = TensorDict({}, batch_size=list(self.batch_size), device=self.device)
        batch._tensordict = self.columns
        return batch


def lazy_batch(
    columns: Mapping[str, LazyColumn],
    batch_size: Iterable[int],
    device: torch.device | None,
    ledger: FetchLedger,
) -> UnmadeBatch:
    """A TensorDict of columns that need not be here, to be made when it is wanted."""
    return UnmadeBatch(LazyDict(columns, ledger), batch_size, device)


def columns_of_batch(batch: Any) -> dict[str, LazyColumn]:
    """The columns of any TensorDict, made or not, or of ``None``; those of an ordinary one are
    local."""
    if batch is None:
        return {}
    if isinstance(batch, UnmadeBatch):
        return batch.columns.columns()
    return columns_of_dict(getattr(batch, "_tensordict", batch))


def columns_of_dict(mapping: Any) -> dict[str, LazyColumn]:
    """The columns of any mapping; those of an ordinary one are local."""
    if isinstance(mapping, LazyDict):
        return mapping.columns()
    return {name: LazyColumn(None, value) for name, value in mapping.items()}
