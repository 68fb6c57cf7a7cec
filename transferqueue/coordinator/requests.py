"""Checking what requests say before anything is changed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.tag_values import TagValues, tag_values
from transferqueue.errors import (
    DuplicateRows,
    InvalidInput,
    UnknownClaim,
    UnknownField,
    UnknownTask,
    near_names,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.predicate import Predicate
    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.coordinator.uid_ranges import Uids
    from transferqueue.homes import Homes

MAX_NAME_CHARS = 256


def claim_id_of(body: Mapping[str, Any]) -> int:
    """The claim that a request is about."""
    claim_id = body["claim_id"]
    if not isinstance(claim_id, int):
        raise UnknownClaim(claim_id)
    return claim_id


def check_names(what: str, names: Iterable[Any]) -> None:
    """InvalidInput unless these are names."""
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
            raise InvalidInput(
                f"a {what}'s name is a str of 1 to {MAX_NAME_CHARS} characters, got {name!r:.40}"
            )


def check_duration(what: str, value_s: float) -> None:
    """InvalidInput unless this many seconds can be waited or leased."""
    if not (value_s > 0 and math.isfinite(value_s)):
        raise InvalidInput(f"{what} must be finite and above 0, got {value_s}")


def checked_uids(uids: Uids) -> Uids:
    """The uids, if they are a list of distinct uids of at least one row."""
    uids = np.asarray(uids)
    if uids.ndim != 1 or uids.dtype != np.int64:
        raise InvalidInput(f"uids must be int64 [rows], got {uids.dtype}{list(uids.shape)}")
    if not len(uids):
        raise InvalidInput("uids: at least one row is needed")
    return uids


def check_among(uids: Uids, claimed: Uids) -> None:
    """InvalidInput unless all of these uids are the claim's."""
    strange = ~np.isin(checked_uids(uids), claimed)
    if bool(strange.any()):
        raise InvalidInput(
            f"drop: {int(strange.sum())} of {len(uids)} rows are not of the claim, e.g. "
            f"{uids[strange][:5].tolist()}"
        )


def distinct_uids(uids: Uids) -> Uids:
    """The uids, if none is there twice."""
    uids = checked_uids(uids)
    unique, counts = np.unique(uids, return_counts=True)
    if len(unique) < len(uids):
        raise DuplicateRows(len(uids), len(unique), unique[counts > 1].tolist())
    return uids


def committed_uids(slot: int, uids: Uids, homes: Homes) -> tuple[Uids, Uids]:
    """The uids of a commit in ascending order, and the positions that put them so."""
    uids = checked_uids(uids)
    order = np.arange(len(uids))
    if not bool((uids[1:] > uids[:-1]).all()):
        order = np.argsort(uids, kind="stable")
        uids = uids[order]
        if not bool((uids[1:] > uids[:-1]).all()):
            raise InvalidInput(f"a commit of slot {slot} names a row twice")
    if not bool((homes.of(uids) == slot).all()):
        raise InvalidInput(f"a commit of slot {slot} names rows of another slot")
    return uids, order


def committed_tags(tags: Mapping[str, Any], order: Uids) -> tuple[dict[str, TagValues], list[str]]:
    """The tags of a commit, in the order of its rows, and the names of those that are none.

    The rows are stored and their put was answered, so a bad tag is left out and counted.
    """
    good: dict[str, TagValues] = {}
    bad: list[str] = []
    for name, value in tags.items():
        try:
            check_names("tag", (name,))
            values = tag_values(name, value, len(order))
        except InvalidInput:
            bad.append(str(name)[:MAX_NAME_CHARS])
            continue
        if values is not None:
            good[name] = values.take(order)
    return good, bad


def check_task(partition: Partition, task: str) -> None:
    """UnknownTask unless the partition has, or can have, this task."""
    declared = partition.policy.tasks
    if declared and task not in declared:
        raise UnknownTask(task, near_names(task, declared), f"partition {partition.name!r}")


def check_fields(partition: Partition, fields: Sequence[str]) -> None:
    """UnknownField unless the partition has, or can have, these fields."""
    declared = partition.policy.fields
    for field in fields if declared else ():
        if field not in declared and field not in partition.table.fields:
            near = near_names(field, (*declared, *partition.table.fields))
            raise UnknownField(field, near, f"partition {partition.name!r}")


def check_count(n: int, sampler: Sampler) -> None:
    """InvalidInput if no rows at all could satisfy a claim of ``n``."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidInput(f"n must be an int of at least 1, got {n!r}")
    sampler.check(n)


def check_tags(partition: Partition, sampler: Sampler, where: Predicate | None) -> None:
    """UnknownTag or TagTypeMismatch if a claim asks for tags that no row has."""
    if not partition.table.num_rows:
        return  # nothing is known of its tags yet
    for tag in sampler.tags:
        partition.tags.column(tag)
    if where is not None:
        where.check(partition.tags)
