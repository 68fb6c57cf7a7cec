"""Puts that go to several shards: what has become of this shard's part. No socket, no clock.

A client commits the parts of such a put one beside the other, so at any moment one shard may have
its part and another not yet. A checkpoint, which has all of a put or none of it, asks every shard
for this account: a part that is in on one shard and under way on another is waited for, and one
that is in while another was given up is left out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transferqueue.uids import decode_uids, encode_uids

if TYPE_CHECKING:
    import numpy as np

    from transferqueue.wire.put import PutPlan

MAX_ENDED = 1024
"""Parts that have ended and are remembered. All parts of a put end within its deadline of one
another; so many later puts over several shards make it certain that the others have, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The cells that one part has written."""

    partition: str
    uids_code: bytes
    fields: tuple[str, ...] | None
    """``None``: the rows are the put's own."""

    @property
    def uids(self) -> np.ndarray:
        """int64[rows]."""
        return decode_uids(self.uids_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNames:
    """Names of puts, by what has become of this shard's part of each."""

    under_way: frozenset[str]
    committed: frozenset[str]
    given_up: frozenset[str]

    def to_plain(self) -> dict[str, list[str]]:
        return {
            "under_way": sorted(self.under_way),
            "committed": sorted(self.committed),
            "given_up": sorted(self.given_up),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> PartNames:
        return cls(
            under_way=frozenset(plain["under_way"]),
            committed=frozenset(plain["committed"]),
            given_up=frozenset(plain["given_up"]),
        )


class SplitPuts:
    """An empty name stands for a put that has one part only, and is passed over."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._ended: OrderedDict[str, Written | None] = OrderedDict()
        """``None``: given up."""

    def begin(self, name: str) -> None:
        if name:
            self._under_way.add(name)

    def committed(self, plan: PutPlan, uids: np.ndarray) -> None:
        if plan.part_of:
            fields = tuple(column.name for column in plan.columns)
            self._end(
                plan.part_of,
                Written(
                    partition=plan.partition,
                    uids_code=encode_uids(uids),
                    fields=None if plan.uids is None else fields,
                ),
            )

    def given_up(self, name: str) -> None:
        if name:
            self._end(name, None)

    def written(self, name: str) -> Written | None:
        """What the part of this put has written, if it is in."""
        return self._ended.get(name)

    def names(self) -> PartNames:
        ended = self._ended.items()
        return PartNames(
            under_way=frozenset(self._under_way),
            committed=frozenset(name for name, written in ended if written is not None),
            given_up=frozenset(name for name, written in ended if written is None),
        )

    def ended_to_plain(self) -> list[list[Any]]:
        """Parts that have ended, oldest first. Those under way are told by their reservations."""
        return [
            [name, None]
            if written is None
            else [name, [written.partition, written.uids_code, written.fields]]
            for name, written in self._ended.items()
        ]

    def restore(self, plain: list[list[Any]]) -> None:
        """Inverse of `ended_to_plain`."""
        for name, written in plain:
            self._end(str(name), None if written is None else _written(*written))

    def _end(self, name: str, written: Written | None) -> None:
        self._under_way.discard(name)
        self._ended.pop(name, None)
        self._ended[name] = written
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)


def _written(partition: str, uids_code: bytes, fields: list[str] | None) -> Written:
    return Written(
        partition=partition,
        uids_code=bytes(uids_code),
        fields=None if fields is None else tuple(fields),
    )
