"""Letting a sampler choose, and holding it to its contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.samplers import Candidates
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
    rows = _visible_rows(sampler, n, feed, feeds)
    if rows is None:
        return None
    unknown = [name for name in sampler.tags if name not in tags]
    if unknown:
        return None  # no row has that tag yet
    candidates = Candidates(
        uids=table.uids(rows),
        deliveries=table.deliveries(feed.task, rows),
        tags=tags.get(rows, sampler.tags),
    )
    try:
        chosen = sampler.choose(candidates, n, generator)
    except TransferQueueError:
        raise
    except Exception as err:
        raise SamplerFailed(sampler.name, f"{type(err).__name__}: {err}") from err
    if chosen is None:
        return None
    return rows[_checked(sampler, chosen, n, len(rows))]


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


def _checked(sampler: Sampler, chosen: Any, n: int, num_candidates: int) -> Rows:
    """The positions that a sampler returned, if they are what it promised."""
    positions = np.asarray(chosen)
    problem = ""
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        problem = f"returned {positions.dtype}{list(positions.shape)}, not positions"
    elif len(positions) != n:
        problem = f"returned {len(positions)} positions for a claim of {n}"
    elif n and not 0 <= int(positions.min()) <= int(positions.max()) < num_candidates:
        problem = f"returned positions outside its {num_candidates} candidates"
    elif sampler.exclusive and len(np.unique(positions)) != n:
        problem = "returned a candidate twice"
    if problem:
        raise SamplerFailed(sampler.name, problem)
    return positions.astype(np.int64)
