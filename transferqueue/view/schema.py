"""How the columns of a partition are stored: narrower, ragged, or not at all.

Explicit and exact. Both sides have one schema. `Schema.shrink` makes what is put of a batch and
refuses it if anything would be lost; `Schema.grow` shows what was put as the batch that it was::

    schema = Schema(
        store={
            "input_ids": Narrow(shown="int64", stored="int32"),
            "attention_mask": Bits(length=9216),
            "responses": Ragged(mask="response_mask", length=8192, stored="int32"),
            "values": Ragged(mask="response_mask", length=8192),
        },
        derive={"position_ids": Positions("attention_mask")},
    )
    handle = client.put(schema.shrink(batch), partition="train")
    view = schema.grow(client.view(handle))

Neither ``response_mask`` nor ``position_ids`` is stored then, and of the others half the bytes or
less. Columns that a schema does not name are stored as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch

from transferqueue.errors import InvalidInput, UnknownColumn, near_names
from transferqueue.view import jagged
from transferqueue.view.dataproto import DataProto
from transferqueue.view.derived import (
    Cast,
    Derivations,
    Padded,
    PaddedWhere,
    RunMask,
    Unpacked,
    derive_now,
    pack_bits,
    torch_dtype,
)
from transferqueue.view.equality import same_tensor
from transferqueue.view.lazy_dataproto import LazyDataProto
from transferqueue.view.padded import Side, unpad

if TYPE_CHECKING:
    from torch import Tensor

BatchT = TypeVar("BatchT", bound=DataProto)

Tensors = Mapping[str, Any]


class Storage(Protocol):
    """What becomes of one column."""

    @property
    def mask(self) -> str | None:
        """The column that must be there to shrink it."""
        ...

    def shrink(self, name: str, columns: Tensors) -> Tensor:
        """What is stored of column ``name``. ``InvalidInput`` if that is not all of it."""
        ...

    def grow(self, name: str) -> list[tuple[str, Any]]:
        """Derivations, in order, that give the column back, and others that it makes needless."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow:
    """A smaller dtype, e.g. int64 ids as int32. Every value must be the same in it."""

    shown: str
    """torch dtype name of the column."""
    stored: str
    mask: ClassVar[str | None] = None

    def shrink(self, name: str, columns: Tensors) -> Tensor:
        return _narrowed(name, columns[name], self.shown, self.stored)

    def grow(self, name: str) -> list[tuple[str, Any]]:
        return [(name, Cast(name, self.shown))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """A mask ``[B, length]`` of zeros and ones, eight places a byte."""

    length: int
    shown: str = "int64"
    mask: ClassVar[str | None] = None

    def shrink(self, name: str, columns: Tensors) -> Tensor:
        column = columns[name]
        if tuple(column.shape[1:]) != (self.length,):
            raise InvalidInput(
                f"column {name!r} of shape {tuple(column.shape)} is no mask of {self.length} places"
            )
        packed = pack_bits(column != 0)
        _refuse_loss(name, column, Unpacked(name, self.length, self.shown).compute(packed), "bits")
        return packed

    def grow(self, name: str) -> list[tuple[str, Any]]:
        return [(name, Unpacked(name, self.length, self.shown))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """A column ``[B, length, ...]`` whose padding is on one side, without it.

    ``mask`` must say just that (an int64 run of ones on the other side); it is not stored, as the
    lengths say the same. The padding must be ``value``.
    """

    mask: str
    length: int
    side: str = Side.RIGHT
    value: float = 0
    stored: str | None = None
    """A narrower dtype, as of `Narrow`."""
    shown: str = "int64"
    """The column's dtype; matters with ``stored`` only."""

    def shrink(self, name: str, columns: Tensors) -> Tensor:
        mask = columns[self.mask]
        if not self._mask_of_lengths(mask):
            raise InvalidInput(
                f"column {name!r}: {self.mask!r} is not an int64 run of ones on the side away from "
                f"{self.side}, {self.length} wide; store it with Bits and {name!r} with RaggedUnder"
            )
        ragged = _unpadded(name, columns[name], mask, self.value)
        return ragged if self.stored is None else _narrowed(name, ragged, self.shown, self.stored)

    def _mask_of_lengths(self, mask: Tensor) -> bool:
        if mask.dtype != torch.int64 or tuple(mask.shape[1:]) != (self.length,):
            return False
        lengths, places = mask.sum(1, keepdim=True), torch.arange(self.length, device=mask.device)
        if Side(self.side) is Side.LEFT:
            return torch.equal(mask, (places >= self.length - lengths).to(mask.dtype))
        return torch.equal(mask, (places < lengths).to(mask.dtype))

    def grow(self, name: str) -> list[tuple[str, Any]]:
        cast = [] if self.stored is None else [(name, Cast(name, self.shown))]
        return [
            *cast,
            (self.mask, RunMask(name, self.length, self.side)),
            (name, Padded(name, self.length, self.side, self.value)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedUnder:
    """A column ``[B, L, ...]`` with only the cells where another column, ``mask``, is not 0.

    For ids padded on both sides and masks with holes. The mask is stored too, best as `Bits`.
    """

    mask: str
    value: float = 0
    stored: str | None = None
    shown: str = "int64"

    def shrink(self, name: str, columns: Tensors) -> Tensor:
        ragged = _unpadded(name, columns[name], columns[self.mask], self.value)
        return ragged if self.stored is None else _narrowed(name, ragged, self.shown, self.stored)

    def grow(self, name: str) -> list[tuple[str, Any]]:
        cast = [] if self.stored is None else [(name, Cast(name, self.shown))]
        return [*cast, (name, PaddedWhere(name, self.mask, self.value))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What is stored of the columns of a partition. A value; give the same to both sides."""

    store: Mapping[str, Storage] = field(default_factory=dict)
    derive: Derivations = field(default_factory=dict)
    """Columns that are not stored. Those that one needs are named as `grow` shows them."""

    def shrink(self, batch: DataProto, beside: DataProto | None = None) -> DataProto:
        """A new eager batch of what is stored of ``batch``, to be put.

        ``beside``: where masks are found that ``batch`` lacks, when columns are put to samples
        that have the mask already. ``InvalidInput`` names the column of which something
        would be lost, ``UnknownColumn`` a mask that is nowhere.
        """
        self._refuse_other_than_derived(batch)
        masks = {one.mask for name, one in self.store.items() if isinstance(one, Ragged)}
        shrunk: dict[str, Any] = {}
        for name in batch._tensor_names():
            storage = self.store.get(name)
            if storage is not None:
                shrunk[name] = storage.shrink(name, self._with_mask(batch, beside, name, storage))
            elif name not in self.derive and not (name in masks and self._is_told(name, batch)):
                shrunk[name] = batch.batch.get(name)
        return DataProto.from_dict(shrunk, dict(batch.non_tensor_batch), batch.meta_info)

    def _with_mask(
        self, batch: DataProto, beside: DataProto | None, name: str, storage: Storage
    ) -> dict[str, Any]:
        columns = {name: batch.batch.get(name)}
        if storage.mask is None:
            return columns
        for source in (batch, beside):
            if source is not None and storage.mask in source._tensor_names():
                return columns | {storage.mask: source.batch.get(storage.mask)}
        known = batch._tensor_names()
        raise UnknownColumn(storage.mask, near_names(storage.mask, known), "the batch or beside it")

    def _is_told(self, mask: str, batch: DataProto) -> bool:
        """Whether a ragged column of this batch says what the mask says."""
        return any(
            isinstance(one, Ragged) and one.mask == mask and name in batch._tensor_names()
            for name, one in self.store.items()
        )

    def _refuse_other_than_derived(self, batch: DataProto) -> None:
        known = batch._tensor_names()
        for name, derivation in self.derive.items():
            if name not in known:
                continue
            for need in derivation.needs:
                if need not in known:
                    raise UnknownColumn(need, near_names(need, known), f"the batch, for {name!r}")
            derived = derivation.compute(*(batch.batch.get(need) for need in derivation.needs))
            _refuse_loss(name, batch.batch.get(name), derived, repr(derivation))

    def grow(self, batch: BatchT) -> BatchT:
        """Show a batch of stored columns, in place, as it was; returns it.

        A lazy view computes each column when it is read; its own and its handle's bytes are those
        of what is stored. Columns that are not there are passed over.
        """
        stored = batch._tensor_names()
        under = [name for name, one in self.store.items() if isinstance(one, RaggedUnder)]
        for name in [*(name for name in self.store if name not in under), *under]:
            if name in stored:
                for shown, derivation in self.store[name].grow(name):
                    if shown == name or shown not in batch._tensor_names():
                        _derive(batch, shown, derivation)
        for name, derivation in self.derive.items():
            if set(derivation.needs) <= set(batch._tensor_names()):
                _derive(batch, name, derivation)
        return batch


def _derive(batch: DataProto, name: str, derivation: Any) -> None:
    if isinstance(batch, LazyDataProto):
        batch.derive({name: derivation})
    else:
        derive_now(batch, {name: derivation})


def _unpadded(name: str, column: Tensor, mask: Tensor, value: float) -> Tensor:
    try:
        ragged: Tensor = unpad(column, mask, value=value)
    except InvalidInput as error:
        raise InvalidInput(f"column {name!r}: {error}") from error
    return ragged


def _narrowed(name: str, column: Any, shown: str, stored: str) -> Tensor:
    if column.dtype != torch_dtype(shown):
        raise InvalidInput(f"column {name!r} is {column.dtype}, its schema says {shown}")
    narrow: Tensor = column.to(torch_dtype(stored))
    _refuse_loss(name, column, narrow.to(torch_dtype(shown)), stored)
    return narrow


def _refuse_loss(name: str, column: Any, grown: Any, what: str) -> None:
    if not same_tensor(column, grown):
        raise InvalidInput(
            f"column {name!r} ({column.dtype} {_shape(column)}) is not what {what} gives back "
            f"({grown.dtype} {_shape(grown)}{_first_difference(column, grown)}); it would not come "
            f"back as it is"
        )


def _shape(column: Any) -> str:
    return "ragged" if jagged.is_jagged(column) else str(tuple(column.shape))


def _first_difference(column: Any, grown: Any) -> str:
    """The first cell that differs, when the shapes are the same."""
    left, right = (one.values() if jagged.is_jagged(one) else one for one in (column, grown))
    if left.shape != right.shape:
        return ""
    places = (left != right).flatten().nonzero().flatten()
    if not len(places):
        return ""
    first = int(places[0])
    return f", e.g. {right.flatten()[first].item()} for {left.flatten()[first].item()}"
