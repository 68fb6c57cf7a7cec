"""Claims under leases: who gets what, and what becomes of it."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from transferqueue.coordinator.claims import MAX_AT_ONCE
from transferqueue.coordinator.leases import Ending
from transferqueue.coordinator.predicate import tag
from transferqueue.coordinator.samplers import (
    Fifo,
    FreshestFirst,
    Groups,
    LengthBalanced,
    RankAware,
    Sampler,
    SamplerRegistry,
    Weighted,
)
from transferqueue.errors import (
    AlreadyAcked,
    ClaimTooLarge,
    Closed,
    DuplicateRows,
    FieldSpecMismatch,
    InvalidInput,
    LeaseExpired,
    NotReady,
    RowsConsumed,
    RowsGone,
    SamplerFailed,
    TagTypeMismatch,
    UnknownClaim,
    UnknownField,
    UnknownTag,
    UnknownTask,
)

if TYPE_CHECKING:
    from conftest import Driver


# -- readiness ------------------------------------------------------------------------------------


def test_a_claim_gets_the_oldest_rows_with_their_specs_and_tags(driver: Driver) -> None:
    uids = driver.put(6, ("x", "y"), tags={"policy_version": 3, "length": np.arange(6)})
    grant = driver.take(4, fields=("x",))
    assert grant.uids.tolist() == uids[:4].tolist()
    assert grant.fields == {"x": ("float32", (8,), None, "tensor")}
    assert grant.tags["policy_version"].tolist() == [3] * 4
    assert grant.tags["length"].tolist() == [0, 1, 2, 3]
    assert grant.deliveries.tolist() == [1] * 4
    assert grant.lease_deadline_s == driver.now_s + grant.lease_s


def test_a_claim_waits_for_its_own_fields_not_for_others(driver: Driver) -> None:
    uids = driver.put(4, ("x",))
    waiting = driver.claim(4, fields=("x", "y"))
    assert driver.take(4, task="other", fields=("x",)).uids.tolist() == uids.tolist()
    driver.fill(uids[:3], ("y",))
    assert waiting not in driver.answers
    driver.fill(uids[3:], ("z",))
    assert waiting not in driver.answers
    driver.fill(uids[3:], ("y",))
    assert driver.answers[waiting].uids.tolist() == uids.tolist()


def test_a_claim_of_no_fields_takes_rows_as_such(driver: Driver) -> None:
    uids = driver.put(2)
    assert driver.take(2, fields=()).uids.tolist() == uids.tolist()


def test_rows_of_several_shards_go_in_order_of_arrival(driver: Driver) -> None:
    first, second, third = (driver.put(2, slot=slot) for slot in (1, 0, 1))
    expected = [*first.tolist(), *second.tolist(), *third.tolist()]
    assert driver.take(6).uids.tolist() == expected


def test_rows_of_different_sizes_have_minus_one_in_their_spec(driver: Driver) -> None:
    driver.put(1, spec=("int64", (7,), None, "tensor"))
    driver.put(1, spec=["int64", [9], None, "tensor"])
    assert driver.take(2).fields == {"x": ("int64", (-1,), None, "tensor")}


def test_rows_of_different_types_fail_the_claim_and_stay(driver: Driver) -> None:
    driver.put(1, spec=("int64", (7,), None, "tensor"))
    driver.put(1, spec=("float32", (7,), None, "tensor"))
    with pytest.raises(FieldSpecMismatch, match="'x' is int64"):
        driver.take(2)
    assert len(driver.take(1).uids) == 1
    assert len(driver.take(1).uids) == 1


def test_tasks_consume_independently(driver: Driver) -> None:
    uids = driver.put(3)
    assert driver.take(3, task="a").uids.tolist() == uids.tolist()
    assert driver.take(3, task="b").uids.tolist() == uids.tolist()


def test_two_field_sets_of_one_task_share_its_rows(driver: Driver) -> None:
    uids = driver.put(4, ("x", "y"))
    assert driver.take(2, fields=("x",)).uids.tolist() == uids[:2].tolist()
    grant = driver.take(2, fields=("y",))
    assert grant.uids.tolist() == uids[2:].tolist()
    driver.give_back(grant)
    assert driver.take(2, fields=("x",)).uids.tolist() == uids[2:].tolist()


# -- ack, give back, leases -----------------------------------------------------------------------


def test_an_acked_row_is_never_given_again(driver: Driver) -> None:
    driver.put(2)
    driver.ack(driver.take(2))
    waiting = driver.claim(1)
    driver.pass_time(1000)
    assert isinstance(driver.answers[waiting], NotReady)


def test_rows_given_back_come_first_again(driver: Driver) -> None:
    uids = driver.put(4)
    driver.give_back(driver.take(2))
    grant = driver.take(3)
    assert grant.uids.tolist() == uids[:3].tolist()
    assert grant.deliveries.tolist() == [2, 2, 1]


def test_a_lease_that_runs_out_gives_the_rows_again(driver: Driver) -> None:
    uids = driver.put(2)
    late = driver.take(2, lease_s=10)
    waiting = driver.claim(2)
    driver.pass_time(9)
    assert waiting not in driver.answers
    driver.pass_time(1)
    assert driver.answers[waiting].uids.tolist() == uids.tolist()
    assert driver.answers[waiting].deliveries.tolist() == [2, 2]
    driver.pass_time(2.5)
    with pytest.raises(LeaseExpired, match=r"ended 2\.5 s ago"):
        driver.ack(late)
    with pytest.raises(LeaseExpired):
        driver.give_back(late)


def test_a_lease_that_is_extended_does_not_run_out(driver: Driver) -> None:
    driver.put(1)
    grant = driver.take(1, lease_s=10)
    driver.pass_time(8)
    assert driver.plane.extend(grant.claim_id, 10, now_s=driver.now_s) == driver.now_s + 10
    driver.pass_time(9)
    driver.ack(grant)


def test_a_lease_is_over_at_its_deadline_also_before_the_server_notices(driver: Driver) -> None:
    driver.put(1)
    grant = driver.take(1, lease_s=10)
    driver.now_s += 10.5
    for late in (driver.ack, driver.give_back):
        with pytest.raises(LeaseExpired, match=r"0\.5 s"):
            late(grant)
    with pytest.raises(LeaseExpired):
        driver.plane.extend(grant.claim_id, 5, now_s=driver.now_s)


def test_a_claim_is_acked_or_given_back_once(driver: Driver) -> None:
    driver.put(2)
    acked, returned = driver.take(1), driver.take(1)
    driver.ack(acked)
    driver.give_back(returned)
    for grant in (acked, returned):
        for again in (driver.ack, driver.give_back):
            with pytest.raises(AlreadyAcked):
                again(grant)
    with pytest.raises(UnknownClaim):
        driver.plane.ack(12345, now_s=driver.now_s)


def test_a_row_that_is_given_too_often_is_a_dead_letter(driver: Driver) -> None:
    driver.declare(tasks=("t",), max_deliveries=2)
    uids = driver.put(2)
    driver.give_back(driver.take(1))
    driver.give_back(driver.take(1))
    assert driver.take(1).uids.tolist() == uids[1:].tolist()
    assert driver.plane.dead_letters("train", "t").uids.tolist() == uids[:1].tolist()
    assert driver.status()["tasks"]["t"]["dead_letter"] == 1


def test_a_claim_that_nobody_heard_of_is_as_if_it_had_not_been_made(driver: Driver) -> None:
    driver.declare(tasks=("t",), max_deliveries=1)
    driver.put(2)
    unheard = driver.take(2).claim_id
    driver.carry_out(driver.plane.give_back(unheard, now_s=driver.now_s, ending=Ending.UNHEARD))
    assert driver.status()["rows_handed_out"] == 0
    heard = driver.take(2)
    assert heard.deliveries.tolist() == [1, 1]
    driver.give_back(heard)
    assert driver.status()["tasks"]["t"]["dead_letter"] == 2


def test_an_unheard_claim_takes_back_as_many_rows_as_it_gave_also_of_those_that_are_gone(
    driver: Driver,
) -> None:
    uids = driver.put(3)
    unheard = driver.take(3).claim_id
    driver.clear(uids[:2])
    driver.carry_out(driver.plane.give_back(unheard, now_s=driver.now_s, ending=Ending.UNHEARD))
    assert driver.status()["rows_handed_out"] == 0


def test_rows_that_were_cleared_while_claimed_are_acked_in_silence(driver: Driver) -> None:
    uids = driver.put(3)
    grant = driver.take(3)
    driver.clear(uids[:2])
    driver.ack(grant)
    assert driver.status()["tasks"]["t"]["acked"] == 1


def test_delivery_counts_stop_at_63(driver: Driver) -> None:
    driver.put(1)
    for _ in range(70):
        grant = driver.take(1)
        driver.give_back(grant)
    assert grant.deliveries.tolist() == [63]
    driver.ack(driver.take(1))


# -- waiting --------------------------------------------------------------------------------------


def test_waiting_claims_are_served_in_the_order_they_came(driver: Driver) -> None:
    large, small = driver.claim(3), driver.claim(1)
    uids = driver.put(2)
    assert driver.answers == {}, "a small claim does not starve the large one before it"
    more = driver.put(2)
    assert driver.answers[large].uids.tolist() == [*uids.tolist(), more[0]]
    assert driver.answers[small].uids.tolist() == [more[1]]


def test_a_claim_that_comes_later_does_not_pass_those_that_wait(driver: Driver) -> None:
    driver.put(1)
    first, second = driver.claim(2), driver.claim(1)
    assert driver.answers == {}
    driver.put(1)
    assert first in driver.answers
    assert second not in driver.answers


def test_claims_of_other_conditions_do_not_wait_for_each_other(driver: Driver) -> None:
    blocked = driver.claim(1, where=tag("kind") == "a")
    served = driver.claim(1, where=tag("kind") == "b")
    driver.put(1, tags={"kind": "b"})
    assert served in driver.answers
    assert blocked not in driver.answers


def test_a_cancelled_claim_frees_its_place(driver: Driver) -> None:
    driver.put(1)
    large, small = driver.claim(2), driver.claim(1)
    driver.carry_out(driver.plane.cancel(large, now_s=driver.now_s))
    assert small in driver.answers
    assert large not in driver.answers
    driver.carry_out(driver.plane.cancel(large, now_s=driver.now_s))


def test_a_claim_whose_deadline_comes_frees_its_place(driver: Driver) -> None:
    driver.put(1)
    large, small = driver.claim(2, timeout_s=5), driver.claim(1, timeout_s=50)
    driver.pass_time(6)
    assert isinstance(driver.answers[large], NotReady)
    assert driver.answers[small].uids.tolist() == [0]


def test_a_client_that_is_gone_waits_for_nothing(driver: Driver) -> None:
    gone, other = driver.claim(1, client="a"), driver.claim(1, client="b")
    cells = driver.wait(np.array([0]), ("y",), client="a")
    driver.carry_out(driver.plane.client_gone("a", now_s=driver.now_s))
    uids = driver.put(1, ("x", "y"))
    assert isinstance(driver.answers[gone], Closed)
    assert isinstance(driver.answers[cells], Closed)
    assert len(driver.answers[other].uids) == 1
    assert driver.answers[other].uids.tolist() == uids.tolist()
    assert gone != cells


def test_the_claims_of_a_client_that_is_gone_can_be_given_at_once(driver: Driver) -> None:
    driver.put(2)
    grant = driver.take(2, client="a")
    driver.carry_out(driver.plane.client_gone("a", now_s=driver.now_s))
    waiting = driver.claim(2)
    assert waiting not in driver.answers
    driver.carry_out(driver.plane.client_gone("a", now_s=driver.now_s, give_back=True))
    assert driver.answers[waiting].uids.tolist() == grant.uids.tolist()


def test_a_deadline_says_how_many_rows_lack_which_field(driver: Driver) -> None:
    uids = driver.put(8, ("x",))
    driver.fill(uids[:3], ("rewards",))
    waiting = driver.claim(8, fields=("x", "rewards"), timeout_s=30)
    driver.pass_time(30)
    assert str(driver.answers[waiting]) == (
        "3 of 8 samples ready after 30.0 s; still missing: rewards (5 samples)."
    )


def test_a_deadline_names_near_fields(driver: Driver) -> None:
    driver.put(1, ("rewards",))
    waiting = driver.claim(1, fields=("rewardz",))
    driver.pass_time(31)
    assert "has had 'rewardz', did you mean 'rewards'" in str(driver.answers[waiting])


def test_a_deadline_names_near_partitions(driver: Driver) -> None:
    driver.put(1)
    waiting = driver.claim(1, partition="trian")
    driver.pass_time(31)
    assert "into partition 'trian', did you mean 'train'" in str(driver.answers[waiting])


def test_a_partial_claim_takes_what_is_there_at_its_deadline(driver: Driver) -> None:
    uids = driver.put(5, tags={"group": [1, 1, 2, 1, 2], "length": 3})
    plain = driver.claim(9, timeout_s=5, allow_partial=True)
    grouped = driver.claim(6, task="g", timeout_s=5, allow_partial=True, sampler=Groups(2))
    balanced = driver.claim(8, task="b", timeout_s=5, allow_partial=True, sampler=LengthBalanced(2))
    nothing = driver.claim(8, fields=("y",), timeout_s=5, allow_partial=True)
    driver.pass_time(5)
    assert driver.answers[plain].uids.tolist() == uids.tolist()
    assert driver.answers[grouped].uids.tolist() == uids[[0, 1, 2, 4]].tolist()
    assert sorted(driver.answers[balanced].uids.tolist()) == uids[:4].tolist()
    assert isinstance(driver.answers[nothing], NotReady)


# -- by uids --------------------------------------------------------------------------------------


def test_a_claim_by_uids_gets_exactly_these_in_this_order(driver: Driver) -> None:
    uids = driver.put(4)
    assert driver.take(uids=uids[[2, 0]]).uids.tolist() == uids[[2, 0]].tolist()
    assert driver.take(2).uids.tolist() == uids[[1, 3]].tolist()


def test_a_claim_by_uids_waits_until_others_give_them_back(driver: Driver) -> None:
    uids = driver.put(2)
    holder = driver.take(2)
    waiting = driver.claim(uids=uids[:1])
    behind = driver.claim(1)
    driver.give_back(holder)
    assert driver.answers[waiting].uids.tolist() == uids[:1].tolist()
    assert driver.answers[behind].uids.tolist() == uids[1:].tolist()


def test_a_claim_by_uids_waits_for_rows_that_are_not_in_yet(driver: Driver) -> None:
    waiting = driver.claim(uids=np.array([0, 1]))
    driver.put(1)
    assert waiting not in driver.answers
    driver.put(1)
    assert driver.answers[waiting].uids.tolist() == [0, 1]


def test_a_claim_by_uids_of_rows_that_are_done_is_refused(driver: Driver) -> None:
    uids = driver.put(3)
    holder = driver.take(2)
    waiting = driver.claim(uids=uids)
    driver.ack(holder)
    assert isinstance(driver.answers[waiting], RowsConsumed)
    with pytest.raises(RowsConsumed, match="task 't' is done with 2 of 3 rows"):
        driver.take(uids=uids)


def test_a_claim_by_uids_of_rows_that_go_is_refused(driver: Driver) -> None:
    uids = driver.put(3)
    waiting = driver.claim(uids=uids, fields=("y",))
    driver.clear(uids[:1])
    assert isinstance(driver.answers[waiting], RowsGone)
    with pytest.raises(RowsGone, match="1 of 3 rows"):
        driver.claim(uids=uids)


def test_a_claim_names_each_row_once(driver: Driver) -> None:
    uids = driver.put(2)
    with pytest.raises(DuplicateRows):
        driver.claim(uids=uids[[0, 0]])


# -- samplers at work -----------------------------------------------------------------------------


def test_of_groups_of_4_3_and_4_the_third_waits(driver: Driver) -> None:
    uids = driver.put(11, tags={"group": ["a"] * 4 + ["b"] * 3 + ["c"] * 4})
    grant = driver.take(8, sampler=Groups(4))
    assert grant.uids.tolist() == uids[[0, 1, 2, 3, 7, 8, 9, 10]].tolist()
    waiting = driver.claim(4, sampler=Groups(4))
    last = driver.put(1, tags={"group": "b"})
    assert driver.answers[waiting].uids.tolist() == [*uids[4:7].tolist(), *last.tolist()]


def test_a_group_is_complete_when_its_last_row_has_the_fields(driver: Driver) -> None:
    uids = driver.put(4, tags={"group": [1, 2, 1, 2]})
    waiting = driver.claim(2, fields=("y",), sampler=Groups(2))
    driver.fill(uids[[0, 3]], ("y",))
    assert waiting not in driver.answers
    driver.fill(uids[[1]], ("y",))
    assert driver.answers[waiting].uids.tolist() == uids[[1, 3]].tolist()


def test_a_group_is_complete_when_its_last_row_gets_the_tag(driver: Driver) -> None:
    uids = driver.put(2, tags={"group": [1, None]})
    waiting = driver.claim(2, sampler=Groups(2))
    driver.carry_out(
        driver.plane.update_tags(
            now_s=driver.now_s, partition="train", uids=uids[1:], tags={"group": 1}
        )
    )
    assert driver.answers[waiting].uids.tolist() == uids.tolist()


def test_a_group_is_complete_when_a_later_put_tags_its_last_row(driver: Driver) -> None:
    uids = driver.put(4, tags={"group": [1, 1, 2, 2]})
    waiting = driver.claim(4, fields=("x", "y"), sampler=Groups(4))
    driver.fill(uids, ("y",), tags={"group": [1, 1, 1, 1]})
    assert driver.answers[waiting].uids.tolist() == uids.tolist()


def test_balanced_claims_give_each_rank_as_many_tokens(driver: Driver) -> None:
    driver.put(8, tags={"length": [9, 1, 8, 2, 7, 3, 6, 4]})
    lengths = driver.take(8, sampler=LengthBalanced(4)).tags["length"].reshape(4, 2)
    assert lengths.sum(axis=1).tolist() == [10] * 4


def test_the_freshest_rows_go_first(driver: Driver) -> None:
    driver.put(4, tags={"policy_version": [1, 3, 2, 3]})
    assert driver.take(3, sampler=FreshestFirst()).uids.tolist() == [1, 3, 2]


def test_rows_drawn_with_replacement_stay(driver: Driver) -> None:
    driver.put(3, tags={"w": [0.0, 1.0, 0.0]})
    sampler = Weighted("w", replacement=True)
    first, second = driver.take(4, sampler=sampler), driver.take(4, sampler=sampler)
    assert first.uids.tolist() == second.uids.tolist() == [1] * 4
    driver.ack(first)
    driver.give_back(second)
    assert driver.take(3).uids.tolist() == [0, 1, 2]


def test_draws_without_replacement_go_on_from_where_they_were(driver: Driver) -> None:
    driver.put(64, tags={"w": 1.0})
    drawn = [driver.take(16, sampler=Weighted("w")).uids.tolist() for _ in range(4)]
    assert sorted(functools.reduce(operator.iadd, drawn, [])) == list(range(64))
    assert drawn[0] != sorted(drawn[0])


def test_all_replicas_of_a_rank_get_the_same_rows_claim_by_claim(driver: Driver) -> None:
    driver.put(16)
    sampler = RankAware(dp_size=2, replicas=2)
    order = [0, 2, 1, 0, 3, 1, 2, 3]
    got: dict[int, list[list[int]]] = {rank: [] for rank in range(4)}
    for rank in order:
        grant = driver.take(4, sampler=sampler.for_rank(rank))
        got[rank].append(grant.uids.tolist())
        driver.ack(grant)
    assert got[0] == got[1]
    assert got[2] == got[3]
    assert sorted(functools.reduce(operator.iadd, got[0] + got[2], [])) == list(range(16))
    assert driver.status()["tasks"]["t"]["acked"] == 16


def test_a_replica_that_is_started_again_gets_the_batch_it_had(driver: Driver) -> None:
    driver.put(8)
    ranks = [RankAware(1, 2, rank) for rank in (0, 1)]
    first = driver.take(4, sampler=ranks[0])
    driver.ack(first)
    second = driver.take(4, sampler=ranks[0])
    died = driver.take(4, sampler=ranks[1], lease_s=5)
    assert died.uids.tolist() == first.uids.tolist()
    again = driver.take(4, sampler=ranks[1], lease_s=5, client="started again")
    assert again.uids.tolist() == first.uids.tolist()
    with pytest.raises(AlreadyAcked):
        driver.ack(died)
    driver.pass_time(10)
    restarted = driver.take(4, sampler=ranks[1])
    assert restarted.uids.tolist() == first.uids.tolist()
    driver.ack(restarted)
    assert driver.take(4, sampler=ranks[1]).uids.tolist() == second.uids.tolist()


def test_a_replica_may_work_ahead_and_its_partner_gets_the_same_batches(driver: Driver) -> None:
    driver.put(6)
    ranks = [RankAware(1, 2, rank) for rank in (0, 1)]
    ahead = [driver.take(2, sampler=ranks[0], client="a") for _ in range(3)]
    behind = [driver.take(2, sampler=ranks[1], client="b") for _ in range(3)]
    assert [g.uids.tolist() for g in ahead] == [g.uids.tolist() for g in behind]
    again = [driver.take(2, sampler=ranks[0], client="a, restarted") for _ in range(3)]
    assert [g.uids.tolist() for g in again] == [g.uids.tolist() for g in behind]
    for grant in (*again, *behind):
        driver.ack(grant)
    assert driver.status()["tasks"]["t"]["acked"] == 6


def test_a_batch_that_no_replica_has_acked_or_holds_goes_back(driver: Driver) -> None:
    uids = driver.put(2)
    sampler = RankAware(1, 2)
    driver.give_back(driver.take(2, sampler=sampler.for_rank(0)))
    assert driver.take(2).uids.tolist() == uids.tolist()


def test_a_batch_whose_rows_were_cleared_is_passed_over(driver: Driver) -> None:
    driver.put(4)
    sampler = RankAware(1, 2)
    driver.ack(driver.take(2, sampler=sampler.for_rank(0)))
    driver.clear(np.array([0, 1]))
    grant = driver.take(2, sampler=sampler.for_rank(1))
    assert grant.uids.tolist() == [2, 3]


def test_a_waiting_replica_gets_the_batch_that_another_makes(driver: Driver) -> None:
    sampler = RankAware(2, 2)
    waiting = [driver.claim(2, sampler=sampler.for_rank(rank)) for rank in (0, 1, 2, 3)]
    driver.put(2)
    assert driver.answers.keys() == set(waiting[:2])
    driver.put(2)
    got = [driver.answers[w].uids.tolist() for w in waiting]
    assert got == [[0, 1], [0, 1], [2, 3], [2, 3]]


@dataclass(frozen=True, slots=True)
class Broken(Sampler):
    """Does what it is told."""

    how: str
    name: ClassVar[str] = "broken"

    def choose(self, candidates: Any, n: int, rng: Any) -> Any:
        if self.how == "raises":
            raise RuntimeError("oops")
        return {
            "text": "abc",
            "floats": np.zeros(n),
            "too few": np.arange(n - 1),
            "outside": np.arange(n) + 1,
            "negative": np.arange(n) - 1,
            "twice": np.zeros(n, dtype=np.int64),
        }[self.how]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "RuntimeError: oops"),
        ("text", "not positions"),
        ("floats", "not positions"),
        ("too few", "returned 3 positions for a claim of 4"),
        ("outside", "outside its 4 candidates"),
        ("negative", "outside its 4 candidates"),
        ("twice", "a candidate twice"),
    ],
)
def test_a_broken_sampler_fails_its_claim_and_nothing_else(
    make_driver: type[Driver], how: str, message: str
) -> None:
    driver = make_driver(SamplerRegistry([Broken]))
    broken = driver.claim(4, sampler=Broken(how))
    fine = driver.claim(4, sampler=Fifo())
    driver.put(4)
    assert isinstance(driver.answers[broken], SamplerFailed)
    assert message in str(driver.answers[broken])
    assert driver.answers[fine].uids.tolist() == [0, 1, 2, 3]


# -- bad input ------------------------------------------------------------------------------------


def test_unknown_names_are_refused_at_once_and_change_nothing(driver: Driver) -> None:
    driver.declare(tasks=("actor", "critic"), fields=("x", "rewards"))
    driver.put(2, tags={"policy_version": 1, "kind": "a"})
    claims: list[tuple[dict[str, Any], type[Exception], str]] = [
        (
            {"task": "acto"},
            UnknownTask,
            "no task 'acto' in partition 'train'; did you mean 'actor'",
        ),
        ({"task": "actor", "fields": ("rewardz",)}, UnknownField, "did you mean 'rewards'"),
        (
            {"task": "actor", "where": tag("policy_versoin") > 1},
            UnknownTag,
            "did you mean 'policy_version'",
        ),
        ({"task": "actor", "where": tag("kind") > 1}, TagTypeMismatch, "'kind' is str"),
        ({"task": "actor", "n": 2, "sampler": Groups(2)}, UnknownTag, "no tag 'group'"),
        (
            {"task": "actor", "n": 3, "sampler": LengthBalanced(2, "policy_version")},
            InvalidInput,
            "ask for 4",
        ),
        ({"task": "actor", "n": 0}, InvalidInput, "n must be"),
        ({"task": "actor", "lease_s": 0.0}, InvalidInput, "lease_s must be"),
        ({"task": "actor", "lease_s": float("nan")}, InvalidInput, "lease_s must be"),
        ({"task": ""}, InvalidInput, "task's name"),
        ({"task": "actor", "fields": (3,)}, InvalidInput, "field's name"),
    ]
    before = driver.status()
    for kwargs, error, message in claims:
        with pytest.raises(error, match=message):
            driver.claim(**kwargs)
    assert driver.status() == before
    with pytest.raises(UnknownField):
        driver.wait(np.array([0]), ("rewardz",))


def test_a_field_that_nobody_has_put_yet_is_waited_for(driver: Driver) -> None:
    driver.declare(tasks=("actor",))
    waiting = driver.claim(1, task="actor", fields=("advantages",))
    driver.put(1, ("advantages",))
    assert waiting in driver.answers


def test_a_condition_on_an_empty_partition_waits_for_its_tag(driver: Driver) -> None:
    waiting = driver.claim(1, where=tag("policy_version") >= 3)
    driver.put(1, tags={"policy_version": 2})
    assert waiting not in driver.answers
    driver.put(1, tags={"policy_version": 3})
    assert driver.answers[waiting].uids.tolist() == [1]


def test_more_rows_than_the_quota_lets_in_are_refused_with_the_arithmetic(driver: Driver) -> None:
    driver.declare(max_rows=64)
    with pytest.raises(ClaimTooLarge, match="a claim of 65 rows, but max_rows lets in 64"):
        driver.claim(65)


def test_rows_drawn_with_replacement_may_be_more_than_the_quota_lets_in(driver: Driver) -> None:
    driver.declare(max_rows=4)
    driver.put(4, tags={"w": [0.0, 1.0, 0.0, 0.0]})
    drawn = driver.take(9, sampler=Weighted("w", replacement=True))
    assert drawn.uids.tolist() == [1] * 9


# -- many at once ---------------------------------------------------------------------------------


def test_of_many_claims_that_wake_at_once_some_are_answered_in_each_turn_in_their_order(
    driver: Driver,
) -> None:
    claims = [driver.claim(1) for _ in range(3 * MAX_AT_ONCE)]
    driver.put(3 * MAX_AT_ONCE - 10)
    turns = []
    while driver.plane.next_deadline_s() == 0.0:
        turns.append(sum(claim in driver.answers for claim in claims))
        driver.carry_out(driver.plane.tick(driver.now_s))
    assert turns == [MAX_AT_ONCE, 2 * MAX_AT_ONCE], "and then there are no more rows"
    answered = [claim in driver.answers for claim in claims]
    assert answered == [True] * (3 * MAX_AT_ONCE - 10) + [False] * 10
    driver.put(10)
    assert all(claim in driver.answers for claim in claims)


def test_one_row_for_many_that_wait_costs_a_look_at_two_of_them(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2000):
        driver.claim(1)
    looks = []
    claims = driver.plane.partitions.known("train").claims
    attempt = claims._try
    monkeypatch.setattr(
        claims, "_try", lambda waiter, *of, **more: (looks.append(waiter), attempt(waiter, *of))[1]
    )
    driver.put(1)
    assert len(looks) == 2


def test_a_claim_that_ends_beside_incomplete_groups_says_so(driver: Driver) -> None:
    driver.put(7, tags={"group": [1, 1, 1, 1, 2, 2, 2]})
    driver.take(4, sampler=Groups(4))
    waiting = driver.claim(4, sampler=Groups(4), timeout_s=5)
    driver.pass_time(6)
    told = str(driver.answers[waiting])
    assert "0 of 4 samples ready" in told
    assert "3 have all of the fields, but only complete groups count: 4 samples of one" in told
