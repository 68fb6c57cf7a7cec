"""How ``meta_info`` of several batches becomes one.

Keys that only some have are kept. A key that two have must hold equal content, with two
exceptions: ``metrics`` of concatenated parts are collected, and under a timing key the longer of
two measured times stays, because no two clocks agree and a step must not die of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.errors import MetaConflict
from transferqueue.meta import TIMING_PREFIX
from transferqueue.view.equality import same_content

if TYPE_CHECKING:
    from collections.abc import Iterable

METRICS_KEY = "metrics"

_SHOWN_CHARS = 200


def united(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Both, as ``union`` needs it; neither is changed. A conflict names the key and both values."""
    merged = dict(mine)
    for key, value in theirs.items():
        merged[key] = _agreed(key, merged[key], value) if key in merged else value
    return merged


def concatenated(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """All, as ``concat`` needs it, with the parts' ``metrics`` under one dict of lists."""
    merged: dict[str, Any] = {}
    metrics: list[Any] = []
    for part in parts:
        merged = united(merged, {key: part[key] for key in part if key != METRICS_KEY})
        found = part.get(METRICS_KEY)
        metrics += found if isinstance(found, list) else [] if found is None else [found]
    return {**merged, METRICS_KEY: collected(metrics)} if metrics else merged


def collected(metrics: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """One list a metric with one entry a dict; ``None`` where a dict lacks the metric."""
    for one in metrics:
        if not isinstance(one, dict):
            raise TypeError(
                f"meta_info[{METRICS_KEY!r}] must be a dict, a list of dicts or None, got {one!r}"
            )
    names = dict.fromkeys(name for one in metrics for name in one)
    return {name: [one.get(name) for one in metrics] for name in names}


def _agreed(key: str, mine: Any, theirs: Any) -> Any:
    if same_content(mine, theirs):
        return mine
    if isinstance(key, str) and key.startswith(TIMING_PREFIX):
        return _longer_times(key, mine, theirs)
    raise _conflict(key, mine, theirs)


def _longer_times(key: str, mine: Any, theirs: Any) -> Any:
    """The larger of two numbers, name by name in dicts, place by place in lists."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        shared = {n: _longer_times(key, mine[n], theirs[n]) for n in mine if n in theirs}
        return {**mine, **theirs, **shared}
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return [_longer_times(key, a, b) for a, b in zip(mine, theirs, strict=True)]
    if isinstance(mine, int | float) and isinstance(theirs, int | float):
        return max(mine, theirs)
    if same_content(mine, theirs):
        return mine
    raise _conflict(key, mine, theirs)


def _conflict(key: str, mine: Any, theirs: Any) -> MetaConflict:
    return MetaConflict(key, *(repr(value)[:_SHOWN_CHARS] for value in (mine, theirs)))
