"""Which samples the rows of a column are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.handle import BatchHandle
from transferqueue.handle_rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from transferqueue.fields import FieldSpec
    from transferqueue.uids import Uids
    from transferqueue.view.lazy_connection import Connection
    from transferqueue.view.rows import RowIndex


class Samples:
    """Samples of one partition, one a row, and the way to the service that has them.

    Never changed. The columns of a view that came with one handle share one object, so that an
    operation on rows costs one piece of index work and not one a column.
    """

    def __init__(self, connection: Connection, partition: str, rows: Rows) -> None:
        self.connection = connection
        self.partition = partition
        self.rows = rows
        self.uids: Uids = rows.uids  # int64 [rows]
        self.offsets: list[torch.Tensor] = []
        """Distinct offsets of the jagged columns that were fetched for these very rows. torch lets
        two jagged columns meet in arithmetic only if they hold one offsets object."""

    @classmethod
    def of(cls, handle: BatchHandle, connection: Connection) -> Samples:
        """Those of a handle."""
        return cls(connection, handle.partition, handle.rows)

    def __len__(self) -> int:
        return len(self.uids)

    def take(self, rows: slice | RowIndex) -> Samples:
        """Those of other rows."""
        return Samples(self.connection, self.partition, Rows(self.uids[rows]))

    @classmethod
    def join(cls, parts: Sequence[Samples]) -> Samples:
        """Those of all parts, which `are_of_one_table`."""
        first = parts[0]
        rows = Rows(np.concatenate([part.uids for part in parts]))
        return cls(first.connection, first.partition, rows)

    @staticmethod
    def are_of_one_table(parts: Sequence[Samples]) -> bool:
        """Whether one request can name all of them."""
        return len({(part.connection.service_id, part.partition) for part in parts}) == 1

    def same_as(self, other: Samples) -> bool:
        """Whether both are the same samples in the same order."""
        if self is other:
            return True
        return Samples.are_of_one_table([self, other]) and np.array_equal(self.uids, other.uids)

    @property
    def are_distinct(self) -> bool:
        """Whether no sample stands for two rows. Others can be read and not be put to."""
        return self.rows.are_distinct

    def handle(
        self,
        fields: Mapping[str, FieldSpec],
        stored_names: Mapping[str, str] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> BatchHandle:
        """The handle of these samples with these fields."""
        return BatchHandle(
            service_id=self.connection.service_id,
            partition=self.partition,
            uids=self.rows,
            fields=fields,
            sources=stored_names,
            meta_info=meta_info,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, (self.connection, self.partition, self.rows.coded)


def _from_bytes(connection: Connection, partition: str, uids: bytes) -> Samples:
    return Samples(connection, partition, Rows.of_bytes(uids))
