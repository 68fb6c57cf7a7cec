"""Letting a sampler choose, and holding it to its contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.samplers import BlockSampler, Candidates
from transferqueue.coordinator.samplers.blocks import BLOCK_ROWS
from transferqueue.errors import SamplerFailed, TransferQueueError

if TYPE_CHECKING:
    from transferqueue.coordinator.feeds import Feed, Feeds
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.coordinator.table import Table
    from transferqueue.coordinator.tags import TagTable


def choose_rows(
    sampler: Sampler,
    n: int,
    feed: Feed,
    feeds: Feeds,
    table: Table,
    tags: TagTable,
    generator: np.random.Generator,
) -> Rows | None:
    """The rows that a claim of ``n`` gets from a feed, ``None`` if it has to wait.

    SamplerFailed if the sampler raises, or returns what is not ``n`` of its candidates.
    """
    unknown = [name for name in sampler.tags if name not in tags]
    if unknown:
        return None  # no row has that tag yet
    try:
        if isinstance(sampler, BlockSampler):
            return _pick(sampler, n, feed, feeds, generator)
        return _choose(sampler, n, feed, feeds, table, tags, generator)
    except TransferQueueError:
        raise
    except Exception as err:
        raise SamplerFailed(sampler.name, f"{type(err).__name__}: {err}") from err


def _choose(
    sampler: Sampler,
    n: int,
    feed: Feed,
    feeds: Feeds,
    table: Table,
    tags: TagTable,
    generator: np.random.Generator,
) -> Rows | None:
    rows = _visible_rows(sampler, n, feed, feeds)
    if rows is None:
        return None
    candidates = Candidates(
        uids=table.uids(rows),
        deliveries=table.deliveries(feed.task, rows),
        tags=tags.get(rows, sampler.tags),
    )
    chosen = sampler.choose(candidates, n, generator)
    if chosen is None:
        return None
    positions = _numbers(sampler, chosen, n, len(rows))
    if n and not 0 <= int(positions.min()) <= int(positions.max()) < len(rows):
        reason = f"returned positions outside its {len(rows)} candidates"
        raise SamplerFailed(sampler.name, reason)
    return rows[positions]


def _pick(
    sampler: BlockSampler, n: int, feed: Feed, feeds: Feeds, generator: np.random.Generator
) -> Rows | None:
    if len(feed.ready) < (n if sampler.exclusive else 1):
        return None
    chosen = sampler.pick(feeds.blocks(feed, sampler.tag), n, generator)
    if chosen is None:
        return None
    rows = _numbers(sampler, chosen, n, len(feed.ready))
    known = (rows >= 0) & (rows < feed.ready.num_words * BLOCK_ROWS)
    if not (bool(known.all()) and bool(feed.ready.contains(rows).all())):
        reason = f"returned rows that are none of its {len(feed.ready)} candidates"
        raise SamplerFailed(sampler.name, reason)
    return rows


def _visible_rows(sampler: Sampler, n: int, feed: Feed, feeds: Feeds) -> Rows | None:
    """The candidates that the sampler gets to see; ``None`` if they cannot be enough."""
    grouping = sampler.grouping
    if grouping is not None:
        groups = feeds.groups(feed, grouping)
        num_groups = -(-n // grouping.size)
        return groups.first(num_groups) if groups.num_complete >= num_groups else None
    if len(feed.ready) < (n if sampler.exclusive else 1):
        return None
    window = sampler.window(n)
    return feed.ready.all() if window is None else feed.ready.first(window)


def _numbers(sampler: Sampler, chosen: Any, n: int, num_candidates: int) -> Rows:
    """What a sampler returned, if it is ``n`` whole numbers, and distinct where they must be."""
    numbers = np.asarray(chosen)
    problem = ""
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        problem = f"returned {numbers.dtype}{list(numbers.shape)}, not positions"
    elif len(numbers) != n:
        problem = f"returned {len(numbers)} positions for a claim of {n}"
    elif sampler.exclusive and len(np.unique(numbers)) != n:
        problem = f"returned a candidate twice, of {num_candidates}"
    if problem:
        raise SamplerFailed(sampler.name, problem)
    return numbers.astype(np.int64)
