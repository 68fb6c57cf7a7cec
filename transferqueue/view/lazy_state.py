"""A view as a pickle: which samples and fields, and the values that are nowhere else.

A column that is stored travels as a name, also when it was fetched; one that is local, or a
fetched tensor that was edited in place, travels with its cells, and a slice of it without those of
its neighbours (see ``serialization``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tensordict import TensorDict

from transferqueue.fields import FieldSpec
from transferqueue.view import serialization as wire
from transferqueue.view.lazy_column import Group, LazyColumn
from transferqueue.view.lazy_sources import Computed, Joined, Stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from transferqueue.view.lazy_column import Source
    from transferqueue.view.lazy_samples import Samples

    Columns = Mapping[str, LazyColumn]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """What makes up a view."""

    tensors: Columns
    arrays: Columns
    batch_size: tuple[int, ...] | None
    """``None``: the view has no ``batch``."""
    device: torch.device | None
    samples: tuple[Samples, ...]
    meta_info: dict[str, Any]


def dump(view: ViewState) -> dict[str, Any]:
    """Plain values, arrays and `Samples`, to be pickled."""
    packer = _Packer()
    return {
        "tensors": {name: packer.column(column) for name, column in view.tensors.items()},
        "arrays": {name: packer.column(column) for name, column in view.arrays.items()},
        "batch_size": view.batch_size,
        "device": None if view.device is None else str(view.device),
        "samples": view.samples,
        "meta_info": wire.without_parents(view.meta_info),
        "columns": packer.columns,
        "values": packer.values(),
    }


def load(state: Mapping[str, Any]) -> ViewState:
    """Inverse of `dump`. A device that is not here becomes the CPU."""
    device = wire.adopt_tensordict(((), state["device"], {})).device
    columns = _Unpacker(state["columns"], state["values"], device).columns
    return ViewState(
        tensors={name: columns[number] for name, number in state["tensors"].items()},
        arrays={name: columns[number] for name, number in state["arrays"].items()},
        batch_size=state["batch_size"],
        device=device,
        samples=state["samples"],
        meta_info=state["meta_info"],
    )


class _Packer:
    """Columns by number, each ``(source, value number, is edited, group number)``, so that what
    columns share they still share on the other side. Values lie apart, so that jagged ones that
    share offsets still do."""

    def __init__(self) -> None:
        self.columns: list[tuple[Any, ...]] = []
        self._numbers: dict[int, int] = {}
        self._values: list[Any] = []
        self._groups: dict[int, int] = {}

    def column(self, column: LazyColumn) -> int:
        """Its number, which those of the columns it is made of precede."""
        key = id(column)
        if key not in self._numbers:
            packed = self._pack(column)
            self._numbers[key] = len(self.columns)
            self.columns.append(packed)
        return self._numbers[key]

    def _pack(self, column: LazyColumn) -> tuple[Any, ...]:
        edited = column.is_edited
        travels = column.is_here and (column.is_local or edited)
        number = None
        if travels:
            number = len(self._values)
            self._values.append(column.value)
        source = None if travels and column.is_local else self._source(column.source)
        group = column.group
        group_number = None
        if group is not None:
            group_number = self._groups.setdefault(id(group), len(self._groups))
        return source, number, edited, group_number

    def _source(self, source: Source | None) -> tuple[Any, ...]:
        match source:
            case Stored():
                return "stored", source.samples, source.field, source.spec.to_wire()
            case Joined():
                return "joined", [self.column(piece) for piece in source.pieces], source.order
            case Computed():
                return "computed", source.derivation, [self.column(one) for one in source.parts]
        raise TypeError(f"a column from {type(source).__name__} is no column of a batch")

    def values(self) -> tuple[Any, dict[int, np.ndarray]]:
        tensors = TensorDict({}, batch_size=[])
        arrays = {}
        for number, value in enumerate(self._values):
            if isinstance(value, np.ndarray):
                arrays[number] = wire.without_parents(value)
            else:
                tensors.set(str(number), value)
        return wire.serialize_tensordict(tensors), arrays


class _Unpacker:
    def __init__(
        self, packed: Sequence[tuple[Any, ...]], values: tuple[Any, Any], device: Any
    ) -> None:
        tensors, self._arrays = values
        self._tensors = wire.adopt_tensordict(tensors)
        self._device = device
        self._groups: dict[int, Group] = {}
        self.columns: list[LazyColumn] = []
        for one in packed:
            self.columns.append(self._column(one))

    def _column(self, packed: tuple[Any, ...]) -> LazyColumn:
        source, number, edited, group = packed
        column = LazyColumn(
            None if source is None else self._source(*source),
            None if number is None else self._value(number),
            device=self._device,
        )
        if edited and number is not None:
            column.mark_edited()
        if group is not None:
            self._groups.setdefault(group, Group()).add(column)
        return column

    def _source(self, kind: str, *parts: Any) -> Source:
        if kind == "stored":
            samples, field, spec = parts
            return Stored(samples, field, FieldSpec.from_wire(spec))
        if kind == "joined":
            numbers, order = parts
            return Joined([self.columns[number] for number in numbers], order)
        derivation, numbers = parts
        return Computed(derivation, [self.columns[number] for number in numbers])

    def _value(self, number: int) -> Any:
        if number in self._arrays:
            return self._arrays[number]
        value = self._tensors.get(str(number))
        return value if self._device is None else value.to(self._device)
