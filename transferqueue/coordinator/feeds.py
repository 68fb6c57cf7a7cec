"""What each task can claim: for every (task, fields, condition) asked for, the set of rows.

Invariant: a feed's ``ready`` holds exactly the rows that are live, free for the task, have all of
the fields, satisfy the condition and are not too stale. Whatever changes one of those for some
rows calls ``refresh`` with them, so a claim looks at nothing but the rows it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from transferqueue.coordinator.groups import GroupIndex, ReadyGroups
from transferqueue.coordinator.row_set import Rows, RowSet
from transferqueue.coordinator.samplers import Blocks
from transferqueue.coordinator.table import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from transferqueue.coordinator.predicate import Predicate
    from transferqueue.coordinator.samplers import Grouping
    from transferqueue.coordinator.staleness import Staleness
    from transferqueue.coordinator.table import Table
    from transferqueue.coordinator.tags import TagTable

MAX_FEEDS = 256
"""Of one partition. Past it the longest unused one goes; it is made anew by one look over all rows
(5 ms at 1,000,000). Conditions that change every step, as ``policy_version >= k``, come and go."""

FeedKey: TypeAlias = tuple[str, frozenset[str], str]


class Feed:
    """The rows that claims of one (task, fields, condition) may have."""

    def __init__(self, key: FeedKey, where: Predicate | None, ready: RowSet) -> None:
        self.key = key
        self.task, self.fields, _ = key
        self.where = where
        self.reads: frozenset[str] = frozenset() if where is None else where.tags()
        self.ready = ready
        self.groups: dict[Grouping, ReadyGroups] = {}
        self.blocks: dict[str, Blocks] = {}
        """By the tag whose numbers they have."""

    def change(self, rows: Rows, eligible: NDArray[np.bool_]) -> bool:
        """Put in the rows that are eligible, take out the others. True if any went in."""
        inside = self.ready.contains(rows)
        added, removed = rows[eligible & ~inside], rows[inside & ~eligible]
        self.ready.add(added)
        self.ready.discard(removed)
        for groups in self.groups.values():
            groups.change(added, 1)
            groups.change(removed, -1)
        for blocks in self.blocks.values():
            blocks.touch(added)
            blocks.touch(removed)
        return len(added) > 0


class Feeds:
    """All feeds of one partition."""

    def __init__(self, table: Table, tags: TagTable, staleness: Staleness) -> None:
        self._table = table
        self._tags = tags
        self._staleness = staleness
        self._feeds: dict[FeedKey, Feed] = {}  # longest unused first
        self._indexes: dict[str, GroupIndex] = {}
        self.pinned: set[FeedKey] = set()
        """Feeds that claims wait on."""

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds.values())

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def num_bytes(self) -> int:
        """Memory of the sets."""
        return sum(feed.ready.num_bytes for feed in self)

    # -- finding one ----------------------------------------------------------------------------

    def get(self, task: str, fields: Iterable[str], where: Predicate | None) -> Feed:
        """The feed, made now if it is new."""
        key = (task, frozenset(fields), repr(where))
        feed = self._feeds.pop(key, None)
        if feed is None:
            feed = self._make(key, where)
            self._evict()
        self._feeds[key] = feed
        return feed

    def _make(self, key: FeedKey, where: Predicate | None) -> Feed:
        task, fields, _ = key
        self._table.add_task(task)
        every = slice(0, self._table.num_rows)
        mask = self._table.eligible_mask(task, fields) & ~self._staleness.is_stale(every)
        if where is not None:
            mask &= where.mask(self._tags, every)
        return Feed(key, where, RowSet.of_mask(mask, self._table.capacity))

    def _evict(self) -> None:
        if len(self._feeds) >= MAX_FEEDS:
            unused = next((key for key in self._feeds if key not in self.pinned), None)
            if unused is not None:
                del self._feeds[unused]

    def groups(self, feed: Feed, grouping: Grouping) -> ReadyGroups:
        """The complete groups of a feed, counted now if nobody asked before."""
        groups = feed.groups.get(grouping)
        if groups is None:
            index = self._indexes.get(grouping.tag)
            if index is None:
                rows = self._table.live_rows()
                index = GroupIndex(grouping.tag, self._tags, rows, self._table.capacity)
                self._indexes[grouping.tag] = index
            groups = feed.groups[grouping] = ReadyGroups(index, grouping.size, feed.ready)
        return groups

    def blocks(self, feed: Feed, tag: str) -> Blocks:
        """The numbers of a tag over the rows of a feed. O(rows) the first time, then O(changes)."""
        blocks = feed.blocks.get(tag)
        if blocks is None:
            blocks = feed.blocks[tag] = Blocks(tag, self._tags.column(tag), feed.ready)
        blocks.refresh()
        return blocks

    # -- keeping them right ---------------------------------------------------------------------

    def refresh(self, rows: Rows, feeds: Iterable[Feed] | None = None) -> list[Feed]:
        """Look at these rows again, in all feeds or in some. Returns the feeds that got more."""
        if not len(rows):
            return []
        usable = self._table.is_live(rows) & ~self._staleness.is_stale(rows)
        has: dict[str, NDArray[np.bool_]] = {}  # feeds share fields
        fed = []
        for feed in list(self) if feeds is None else feeds:
            eligible = usable & self._table.is_in_state(feed.task, rows, TaskState.FREE)
            for field in feed.fields:
                if field not in has:
                    has[field] = self._table.is_ready(field, rows)
                eligible &= has[field]
            if feed.where is not None:
                eligible &= feed.where.mask(self._tags, rows)
            if feed.change(rows, eligible):
                fed.append(feed)
        return fed

    def withdraw(self, rows: Rows, task: str | None = None) -> None:
        """Nobody can claim these rows now, or the claims of one task cannot."""
        nobody = np.zeros(len(rows), dtype=np.bool_)
        for feed in self if task is None else self.of_task(task):
            feed.change(rows, nobody)

    def of_task(self, task: str) -> list[Feed]:
        """The feeds of one task."""
        return [feed for feed in self if feed.task == task]

    def touched_by(self, fields: Iterable[str], tags: Iterable[str] = ()) -> list[Feed]:
        """The feeds that may change when rows get these fields and tags."""
        new_fields, new_tags = frozenset(fields), frozenset(tags)
        if self._staleness.policy.version_tag in new_tags:
            return list(self)
        return [
            feed
            for feed in self
            if not feed.fields
            or not new_fields.isdisjoint(feed.fields)
            or not new_tags.isdisjoint(feed.reads)
        ]

    def reserve(self) -> None:
        """The table has grown."""
        for feed in self:
            feed.ready.reserve(self._table.capacity)
            for blocks in feed.blocks.values():
                blocks.reserve()
        for index in self._indexes.values():
            index.reserve(self._table.capacity)

    def tag_rows(self, rows: Rows) -> None:
        """New rows have their tags."""
        for index in self._indexes.values():
            index.add(rows)

    def retag(self, rows: Rows, tags: Iterable[str]) -> None:
        """These tags were set on rows, ascending, that were in before. O(rows of the table) if
        that moves a row from one group to another."""
        for tag in tags:
            for feed in self:
                if tag in feed.blocks:
                    feed.blocks[tag].touch(rows)
            index = self._indexes.get(tag)
            if index is None:
                continue
            joined = index.retag(rows)
            if joined is None:
                self._rebuild(index)
                continue
            for feed, groups in self._grouped_by(index):
                groups.change(joined[feed.ready.contains(joined)], 1)

    def _rebuild(self, index: GroupIndex) -> None:
        index.rebuild(self._table.live_rows(), self._table.capacity)
        for _, groups in self._grouped_by(index):
            groups.rebuild()

    def _grouped_by(self, index: GroupIndex) -> Iterator[tuple[Feed, ReadyGroups]]:
        for feed in self:
            for groups in feed.groups.values():
                if groups.index is index:
                    yield feed, groups

    def keep(self, kept: Rows) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``."""
        for feed in self:
            feed.ready.keep(kept)
            for blocks in feed.blocks.values():
                blocks.reset()
        for index in self._indexes.values():
            self._rebuild(index)
