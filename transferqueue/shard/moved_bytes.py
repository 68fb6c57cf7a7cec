"""How many bytes a shard has taken in and given out: by field, and by the way they went."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.wire.put import PutPlan

MAX_FIELDS = 256
"""Names that are told apart. Fields are a job's to name, and each is a time series somewhere."""

WIDE = 64
"""From so many fields on a request counts under the name of its partition: the weights of a model
are a field a tensor, and nobody wants to read of each."""

OTHERS = "(other fields)"


class Way(StrEnum):
    """How bytes went."""

    INLINE = "inline"
    """Within the request or its answer: few of them."""
    MAPPED = "mapped"
    """Written to or read from the shard's memory, on its host: at the speed of memory."""
    STREAMED = "streamed"
    """In chunks over a socket."""


def way_of_put(body: Mapping[str, Any]) -> Way:
    """How the bytes of a put come, as its request says (`Puts`)."""
    if body["payload"] is not None:
        return Way.INLINE
    return Way.STREAMED if body["writer"] is None else Way.MAPPED


class MovedBytes:
    """Counters of one shard. They only rise, and begin again with its process."""

    def __init__(self) -> None:
        self._put: dict[str, int] = {}
        self._got: dict[str, int] = {}
        self._put_by_way = dict.fromkeys(Way, 0)
        self._got_by_way = dict.fromkeys(Way, 0)

    def put(self, plan: PutPlan, way: Way) -> None:
        """The columns of a put have a place, and are here or on their way."""
        nbytes = {column.name: column.nbytes for column in plan.columns}
        self._put_by_way[way] += self._count(self._put, plan.partition, nbytes)

    def got(self, partition: str, nbytes: Mapping[str, int], way: Way) -> None:
        """Columns of these sizes were found for a reader."""
        self._got_by_way[way] += self._count(self._got, partition, nbytes)

    def _count(self, totals: dict[str, int], partition: str, nbytes: Mapping[str, int]) -> int:
        total = sum(nbytes.values())
        for name, num in nbytes.items() if len(nbytes) < WIDE else ((partition, total),):
            known = name if name in totals or len(totals) < MAX_FIELDS else OTHERS
            totals[known] = totals.get(known, 0) + num
        return total

    def report(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "put_bytes": dict(self._put),
            "got_bytes": dict(self._got),
            "put_bytes_by_way": {way.value: num for way, num in self._put_by_way.items()},
            "got_bytes_by_way": {way.value: num for way, num in self._got_by_way.items()},
        }
