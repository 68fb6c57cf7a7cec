"""What a put stores: checked and encoded before anything is sent. No socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.device_puts import DeviceColumn, InObject
from transferqueue.client.tensors_found import TensorsFound
from transferqueue.errors import DuplicateRows, InvalidInput, RowCountMismatch
from transferqueue.fields import check_name
from transferqueue.wire.columns import encode_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.column_bytes import Column
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.device_sides import DeviceSides
    from transferqueue.fields import FieldSpec
    from transferqueue.wire.columns import ObjectPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one put stores, encoded."""

    partition: str
    num_rows: int
    uids: np.ndarray | None  # int64[rows]; None: new rows
    columns: Mapping[str, Column]
    tags: Mapping[str, Any]
    overwrite: bool
    in_objects: Sequence[InObject] = ()
    """What is to be brought to its place in ``columns`` before anything is sent."""

    @property
    def nbytes(self) -> int:
        return sum(column.num_bytes for column in self.columns.values())

    @property
    def side(self) -> DeviceSide | None:
        """The device that most of its bytes are on, of those that are on any; ``None``: all are in
        memory of the host."""
        of_side: dict[DeviceSide, int] = {}
        for column in self.columns.values():
            if isinstance(column, DeviceColumn):
                of_side[column.side] = of_side.get(column.side, 0) + column.num_bytes
        return max(of_side, key=lambda side: of_side[side], default=None)

    @property
    def specs(self) -> dict[str, FieldSpec]:
        return {name: column.spec for name, column in self.columns.items()}


def encode_batch(
    columns: Mapping[str, Any],
    *,
    partition: str,
    uids: np.ndarray | None,
    tags: Mapping[str, Any],
    overwrite: bool,
    objects: ObjectPolicy,
    devices: DeviceSides,
) -> Batch:
    """Check and encode everything, so that a bad column is refused before anything is sent."""
    if not columns:
        raise InvalidInput("a put needs at least one field, got none")
    check_name(partition, what="partition")
    num_rows = _count_rows(columns, uids)
    if uids is not None:
        _check_distinct(uids)
    found = TensorsFound(devices)
    encoded = {
        name: encode_column(
            check_name(name, what="field"),
            value,
            num_rows,
            objects=objects,
            stays=found.stays,
            elsewhere=found,
        )
        for name, value in columns.items()
    }
    return Batch(
        partition=partition,
        num_rows=num_rows,
        uids=uids,
        # When all are encoded: a copy that one of them needed on its device is then under way.
        columns={name: found.column(name, column) for name, column in encoded.items()},
        in_objects=found.in_objects,
        tags=_check_tags(tags, num_rows),
        overwrite=overwrite,
    )


def _count_rows(columns: Mapping[str, Any], uids: np.ndarray | None) -> int:
    """RowCountMismatch names the first column that does not line up."""
    counts = {name: _rows_of(name, value) for name, value in columns.items()}
    if uids is not None:
        expected, what = len(uids), "the handle"
    else:
        what, expected = next(iter(counts.items()))
        what = f"field {what!r}"
    for name, count in counts.items():
        if count != expected:
            raise RowCountMismatch(
                f"field {name!r} beside {what}",
                expected,
                count,
                "every field of a put has one value a row",
            )
    return expected


def _rows_of(name: str, value: Any) -> int:
    try:
        if getattr(value, "is_nested", False):  # of either layout: one has no len, one no shape
            return int(value.size(0))
        return int(value.shape[0]) if hasattr(value, "shape") else len(value)
    except (TypeError, IndexError):
        raise InvalidInput(
            f"field {name!r} needs one value a row, got a single {type(value).__name__}; "
            f"wrap it in a list, or use meta_info or tags"
        ) from None


def _check_distinct(uids: np.ndarray) -> None:
    distinct, counts = np.unique(uids, return_counts=True)
    if len(distinct) != len(uids):
        raise DuplicateRows(len(uids), len(distinct), distinct[counts > 1].tolist())


def _check_tags(tags: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in tags.items():
        check_name(name, what="tag")
        if name.startswith("@"):
            raise InvalidInput(f"tag {name!r}: names that begin with @ are reserved")
        if hasattr(value, "numpy") and hasattr(value, "dim"):
            value = value.item() if value.dim() == 0 else value.detach().cpu().numpy()
        if isinstance(value, np.ndarray | list | tuple) and len(value) != num_rows:
            raise RowCountMismatch(
                f"tag {name!r}", num_rows, len(value), "give one value for all rows, or one a row"
            )
        checked[name] = value
    return checked
