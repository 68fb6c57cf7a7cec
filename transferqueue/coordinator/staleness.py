"""Which rows are of a policy version that is too old."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.coordinator.row_set import none_of
from transferqueue.coordinator.tag_values import TagKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.policy import PartitionPolicy
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.tags import TagColumn, TagTable

_NUMBERS = (TagKind.INT, TagKind.FLOAT)


class Staleness:
    """The oldest version that may still be handed out. It only rises.

    With the policy at version 7 and ``max_staleness=2``, rows of version 4 are too old. Rows
    without the tag are never too old.
    """

    def __init__(self, policy: PartitionPolicy, tags: TagTable) -> None:
        self.policy = policy
        self._tags = tags
        self.newest: int | None = None
        """The newest version heard of, by a tag or by ``advance_policy``."""

    @property
    def bound(self) -> int | None:
        """Versions below this one are too old."""
        if self.newest is None or self.policy.max_staleness is None:
            return None
        return self.newest - self.policy.max_staleness

    def advance(self, version: int) -> bool:
        """There is a policy of this version. True if that makes more rows too old."""
        if self.newest is not None and version <= self.newest:
            return False
        self.newest = version
        return self.bound is not None

    def see(self, rows: Rows) -> bool:
        """These rows have been tagged; their newest version counts. True as for ``advance``."""
        column = self._column()
        if column is None:
            return False
        versions = column.raw(rows)[column.present(rows)]
        versions = versions[np.isfinite(versions)]
        return len(versions) > 0 and self.advance(int(versions.max()))

    def _column(self) -> TagColumn | None:
        """The versions, if there are any and it matters."""
        column = self._tags.columns.get(self.policy.version_tag)
        if self.policy.max_staleness is None or column is None or column.kind not in _NUMBERS:
            return None
        return column

    def is_stale(self, rows: Rows | slice) -> NDArray[np.bool_]:
        """Which of these rows are too old."""
        column = self._column()
        if column is None or self.bound is None:
            return none_of(rows)
        return np.asarray((column.raw(rows) < self.bound) & column.present(rows))
