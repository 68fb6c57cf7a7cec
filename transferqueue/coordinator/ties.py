"""Puts that wait for room and claims that wait for rows, so that never both wait for the other.

Why there can be a tie, and the rules that break it: see ``quotas.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.coordinator.quotas import Demand, Quota
from transferqueue.coordinator.table import Table, TaskState
from transferqueue.errors import ClaimTooLarge

if TYPE_CHECKING:
    from transferqueue.coordinator.claims import Claims
    from transferqueue.coordinator.effects import Effect
    from transferqueue.coordinator.waiters import ClaimWaiter


def settle(
    partition: str, quota: Quota, claims: Claims, table: Table, now_s: float
) -> list[Effect]:
    """Let in the puts that there is room for, then those whose wait would never end."""
    effects = quota.admit()
    while quota.waiting:
        progress = _break_one(partition, quota, claims, table, now_s)
        if not progress:
            break
        effects += progress + quota.admit()
    return effects


def _break_one(
    partition: str, quota: Quota, claims: Claims, table: Table, now_s: float
) -> list[Effect]:
    if claims.has_rest:
        return []  # who waits may still be served
    heads = [claim for claim in claims.heads() if claim.uids is None]
    held_up = {claim.feed.task for claim in heads if _is_held_up(claim, quota, table)}
    if not held_up:
        return []
    idle_rows = table.count_idle(held_up)
    for claim in heads:
        demand = Demand(
            n=claim.n,
            available_rows=_available(claim, quota, table),
            idle_rows=idle_rows,
        )
        ratio_blocks = not quota.may_hand_out(claim.n)
        if ratio_blocks and quota.waits_for_claims(demand):
            served = claims.serve_past_ratio(claim, now_s)
            if served:
                return served
        outcome = quota.break_tie(demand, ratio_blocks=ratio_blocks)
        if isinstance(outcome, str):
            return claims.refuse(claim, ClaimTooLarge(partition, outcome), now_s)
        if outcome:
            return outcome
    return []


def _is_held_up(claim: ClaimWaiter, quota: Quota, table: Table) -> bool:
    """Whether its task takes no row before a put comes, or the ratio lets it."""
    return _available(claim, quota, table) < claim.n or not quota.may_hand_out(claim.n)


def _available(claim: ClaimWaiter, quota: Quota, table: Table) -> int:
    counts = table.count_by_state(claim.feed.task)
    mine = counts.get(TaskState.FREE, 0) + counts.get(TaskState.CLAIMED, 0)
    return mine + quota.credit.rows
