"""What the columns of a view of a handle are made from, when somebody looks.

A method may never look at its batch, and a view that is passed on is not looked at either. Making
columns was a third of what a rank does for a call that carries nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from transferqueue.fields import FieldKind
from transferqueue.reads import FieldOn
from transferqueue.view.devices import place_of
from transferqueue.view.eager import EagerColumns
from transferqueue.view.lazy_column import Group, LazyColumn
from transferqueue.view.lazy_dict import LazyDict, lazy_batch
from transferqueue.view.lazy_samples import Samples
from transferqueue.view.lazy_sources import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.handle import BatchHandle
    from transferqueue.view.lazy_connection import Connection
    from transferqueue.view.lazy_ledger import FetchLedger

    Columns = dict[str, LazyColumn]


@dataclass(frozen=True, slots=True)
class Origin:
    """A handle, and how to read it."""

    handle: BatchHandle
    connection: Connection
    reads: Sequence[str]
    """Columns of the handle that come together, at the first touch of one; those made by ``tq.on``
    on to their device."""

    def samples(self) -> Samples:
        """What the rows stand for."""
        return Samples.of(self.handle, self.connection)

    def columns(self, samples: Samples) -> tuple[Columns, Columns]:
        """Tensors and arrays by name. Not kept: what a view lets go of must be gone."""
        stored_names = self.handle.stored_names
        tensors: Columns = {}
        arrays: Columns = {}
        for name, spec in self.handle.fields.items():
            kind = tensors if spec.kind is FieldKind.TENSOR else arrays
            kind[name] = LazyColumn(Stored(samples, stored_names[name], spec))
        group = Group()
        for name in self.reads:
            column = tensors[name] if name in tensors else arrays[name]
            group.add(column)
            if isinstance(name, FieldOn):
                column.device = place_of(name.device)
        return tensors, arrays


class Unfolding(EagerColumns):
    """The attributes of a view, those of a handle made when somebody looks at one."""

    _origin: Origin
    """Of a view of a handle."""
    _ledger: FetchLedger

    @cached_property
    def _samples(self) -> tuple[Samples, ...]:
        """What the rows stand for: the samples of the handle, and of what was united with it.
        Empty where rows are no samples."""
        return (self._origin.samples(),)

    @cached_property
    def _batch(self) -> Any:
        """``batch`` as it is kept: ``None``, a TensorDict, or an `UnmadeBatch`."""
        return self._unfolded()["_batch"]

    @cached_property
    def non_tensor_batch(self) -> Any:  # type: ignore[override] # it can be assigned
        """The arrays."""
        return self._unfolded()["non_tensor_batch"]

    @cached_property
    def meta_info(self) -> Any:  # type: ignore[override]
        """What goes with the batch as a whole."""
        return self._origin.handle.meta_info.copy()

    def _unfolded(self) -> dict[str, Any]:
        """The attributes, with both containers among them; one that was assigned stays."""
        known, (samples,) = vars(self), self._samples
        tensors, arrays = self._origin.columns(samples)
        batch = lazy_batch(tensors, [len(samples)], None, self._ledger) if tensors else None
        known.setdefault("_batch", batch)
        known.setdefault("non_tensor_batch", LazyDict(arrays, self._ledger))
        return known
