"""Which backend the fields of a put go to. No bytes, no socket.

A partition may name a backend for some of its fields, and by ``*`` for all others. What it does not
name, and what comes before the partition is declared, goes to the default one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.errors import UnknownBackend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from transferqueue.wire.put import PutPlan

    Int64s = NDArray[np.int64]
    Choice = Mapping[str, str]
    """Field, or `EVERY_OTHER`, to the name of a backend."""

EVERY_OTHER = "*"


class BackendChoice:
    """Backends by number: ``names[number]``."""

    def __init__(self, names: Sequence[str] = ("default",), *, default: int = 0) -> None:
        self.names = list(names)
        self._default = default
        self.of: dict[str, Choice] = {}
        """By partition, what was declared."""

    def declare(self, choices: Mapping[str, Choice]) -> None:
        """These partitions have a choice, and no others."""
        self.of = {partition: dict(choice) for partition, choice in choices.items()}

    def numbers(self, partition: str, fields: Sequence[str]) -> Int64s | None:
        """The backend of each field, int64[fields]; ``None`` where all of them are the default.

        UnknownBackend for one that this shard does not have.
        """
        choice = self.of.get(partition)
        if not choice:
            return None
        rest = choice.get(EVERY_OTHER)
        found = [self._number(choice.get(field, rest)) for field in fields]
        return np.array(found, np.int64)

    def numbers_of_copy(self, partition: str, fields: Sequence[str]) -> Int64s | None:
        """As `numbers`, of second copies: what would go to a backend that this shard lacks, as one
        may that joined later, goes to the default one."""
        choice = self.of.get(partition)
        if not choice:
            return None
        rest = choice.get(EVERY_OTHER)
        names = [choice.get(field, rest) for field in fields]
        return np.array([self._number(n if n in self.names else None) for n in names], np.int64)

    def bytes_of(self, plan: PutPlan) -> dict[int, int]:
        """By backend the bytes that a put brings there; at least one."""
        numbers = self.numbers(plan.partition, [column.name for column in plan.columns])
        found: dict[int, int] = {}
        for at, column in enumerate(plan.columns):
            if column.nbytes:
                number = self._default if numbers is None else int(numbers[at])
                found[number] = found.get(number, 0) + column.nbytes
        return found or {self._default: 0}

    def _number(self, name: str | None) -> int:
        if name is None:
            return self._default
        if name not in self.names:
            raise UnknownBackend(name, self.names)
        return self.names.index(name)
