"""When rows are freed, and which are too stale to be given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.test_no_work_per_row import calls_of
from transferqueue.coordinator.lifetimes import Arrivals
from transferqueue.coordinator.policy import PartitionPolicy, Retention, StaleRows
from transferqueue.coordinator.predicate import tag
from transferqueue.coordinator.samplers import RankAware
from transferqueue.errors import (
    InvalidInput,
    NotReady,
    RowsGone,
    RowsLost,
    TagTypeMismatch,
    UnknownPartition,
)

if TYPE_CHECKING:
    from conftest import Driver


def _freed(driver: Driver) -> list[int]:
    return sorted(int(uid) for free in driver.frees for uid in free.uids)


# -- retention ------------------------------------------------------------------------------------


def test_consumed_rows_are_freed_when_every_listed_task_has_acked(driver: Driver) -> None:
    driver.declare(retention=Retention.CONSUMED, tasks=("a", "b"))
    uids = driver.put(4)
    driver.ack(driver.take(4, task="a"))
    assert driver.frees == []
    driver.ack(driver.take(2, task="b"))
    assert _freed(driver) == uids[:2].tolist()
    driver.free()
    assert driver.status()["rows"] == 2
    assert driver.status()["bytes"] == 2 * 32


def test_frees_are_told_to_the_shard_of_each_row(driver: Driver) -> None:
    driver.declare(retention=Retention.CONSUMED, tasks=("t",))
    rows = {slot: driver.put(2, slot=slot).tolist() for slot in (3, 5)}
    driver.ack(driver.take(4))
    assert {free.slot: free.uids.tolist() for free in driver.frees} == rows


def test_explicit_rows_stay(driver: Driver) -> None:
    driver.declare(tasks=("t",))
    driver.put(2)
    driver.ack(driver.take(2))
    driver.pass_time(1e6)
    assert driver.frees == []


def test_rows_live_as_long_as_their_ttl_and_claims_let_them(driver: Driver) -> None:
    driver.declare(retention=Retention.TTL, ttl_s=10)
    driver.put(2)
    driver.pass_time(4)
    driver.put(2)
    grant = driver.take(1, lease_s=100)
    driver.pass_time(6)
    assert _freed(driver) == [1]
    driver.pass_time(4)
    assert _freed(driver) == [1, 2, 3]
    driver.give_back(grant)
    assert _freed(driver) == [0, 1, 2, 3]
    assert driver.status()["old_rows_dropped"] == 4
    assert driver.plane.next_deadline_s() is None


def test_a_field_kept_for_one_task_goes_when_that_task_has_acked(driver: Driver) -> None:
    driver.declare(tasks=("actor", "critic"), release_after={"pixels": "actor"})
    uids = driver.put(2, ("pixels", "x"))
    driver.ack(driver.take(1, task="critic", fields=("pixels",)))
    assert driver.frees == []
    driver.ack(driver.take(1, task="actor"))
    (free,) = driver.frees
    assert free.fields == ("pixels",)
    assert free.uids.tolist() == uids[:1].tolist()
    assert driver.status()["bytes"] == 3 * 32
    assert driver.status()["fields"] == {"pixels": 1, "x": 2}
    driver.fill(uids[:1], ("pixels",))
    assert driver.status()["fields"]["pixels"] == 1, "a stream sent again does not bring it back"


def test_freed_rows_are_nobodys_at_once(driver: Driver) -> None:
    driver.declare(retention=Retention.CONSUMED, tasks=("a",))
    uids = driver.put(2)
    cells = driver.wait(uids, ("y",))
    driver.ack(driver.take(1, task="a"))
    assert isinstance(driver.answers[cells], RowsGone)
    with pytest.raises(RowsGone, match="1 of 2 rows"):
        driver.wait(uids, ("y",))


def test_a_stream_that_is_sent_again_does_not_bring_freed_rows_back(driver: Driver) -> None:
    driver.declare(retention=Retention.CONSUMED, tasks=("t",))
    uids = driver.put(8)
    driver.ack(driver.take(4))
    for freed in (False, True):
        if freed:
            driver.free()
        driver.fill(uids, ("x",))
        assert driver.status()["rows"] == 4
        assert driver.status()["bytes"] == (4 if freed else 8) * 32
    assert driver.take(4).uids.tolist() == uids[4:].tolist()


def test_a_shard_that_is_back_is_asked_again_for_what_it_has_not_freed(driver: Driver) -> None:
    driver.declare(retention=Retention.CONSUMED, tasks=("t",))
    uids = driver.put(4)
    driver.ack(driver.take(4))
    driver.frees.clear()
    driver.clear(uids[:1])
    driver.carry_out(driver.plane.slot_joined(0, now_s=driver.now_s))
    assert _freed(driver) == uids[1:].tolist()
    driver.free()
    driver.carry_out(driver.plane.slot_joined(0, now_s=driver.now_s))
    assert driver.frees == []


def test_the_rows_of_a_lost_shard_are_gone(driver: Driver) -> None:
    kept, lost = driver.put(2, slot=0), driver.put(2, slot=1)
    cells = driver.wait(lost, ("y",))
    driver.carry_out(driver.plane.slot_lost(1, now_s=driver.now_s))
    assert isinstance(driver.answers[cells], RowsLost)
    with pytest.raises(RowsLost, match=r"2 of 2 rows are lost: shard\(s\) \[1\]"):
        driver.claim(uids=lost)
    assert driver.status()["rows"] == 2
    assert driver.take(2).uids.tolist() == kept.tolist()


def test_memory_of_freed_rows_comes_back(driver: Driver) -> None:
    driver.declare(retention=Retention.CONSUMED, tasks=("t",))
    sizes = []
    for step in range(40):
        driver.put(1000, tags={"group": [f"{step}-{i // 8}" for i in range(1000)]})
        driver.ack(driver.take(1000))
        driver.free()
        sizes.append(driver.status()["coordinator_bytes"])
    assert max(sizes[20:]) <= max(sizes[:20])


# -- dropping a partition -------------------------------------------------------------------------


def test_a_dropped_partition_frees_all_and_refuses_what_waits(driver: Driver) -> None:
    uids = driver.put(4)
    driver.put(1, partition="other")
    grant = driver.take(2)
    claim, cells = driver.claim(9), driver.wait(uids[:1], ("y",))
    driver.carry_out(driver.plane.drop_partition("train", now_s=driver.now_s))
    assert _freed(driver) == uids.tolist()
    assert isinstance(driver.answers[claim], UnknownPartition)
    assert isinstance(driver.answers[cells], RowsGone)
    assert "train" not in driver.plane.status(now_s=driver.now_s)
    assert driver.plane.next_deadline_s() is None
    with pytest.raises(Exception, match="already acked"):
        driver.ack(grant)


def test_frees_of_a_dropped_partition_are_asked_again_until_done(driver: Driver) -> None:
    uids = driver.put(4)
    driver.carry_out(driver.plane.drop_partition("train", now_s=driver.now_s))
    driver.frees.clear()
    driver.clear(uids[:3])
    driver.carry_out(driver.plane.slot_joined(0, now_s=driver.now_s))
    assert _freed(driver) == uids[3:].tolist()
    driver.clear(uids[3:])
    driver.frees.clear()
    driver.carry_out(driver.plane.slot_joined(0, now_s=driver.now_s))
    assert driver.frees == []
    driver.fill(uids, ("x",))
    assert driver.status()["rows"] == 0


def test_an_unknown_partition_names_near_ones(driver: Driver) -> None:
    driver.put(1)
    with pytest.raises(UnknownPartition, match="did you mean 'train'"):
        driver.plane.drop_partition("trian", now_s=driver.now_s)


# -- declaring ------------------------------------------------------------------------------------


def test_a_partition_is_declared_once_or_alike(driver: Driver) -> None:
    driver.declare(tasks=("t",), max_rows=5)
    driver.declare(tasks=("t",), max_rows=5)
    with pytest.raises(InvalidInput, match="declared otherwise: max_rows 5, now 6"):
        driver.declare(tasks=("t",), max_rows=6)


def test_a_partition_that_was_used_first_can_be_declared_later(driver: Driver) -> None:
    driver.put(4, tags={"policy_version": [1, 5, 5, 5]})
    driver.ack(driver.take(2))
    driver.declare(tasks=("t",), retention=Retention.CONSUMED, max_staleness=2)
    assert _freed(driver) == [0, 1]
    driver.free()
    assert driver.take(2).uids.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retention": "consumed"}, "list tasks"),
        ({"retention": "ttl"}, "ttl_s goes with"),
        ({"ttl_s": 3.0}, "ttl_s goes with"),
        ({"retention": "ttl", "ttl_s": 0.0}, "ttl_s must be above 0"),
        ({"max_rows": 0}, "max_rows must be at least 1"),
        ({"max_staleness": -1}, "max_staleness must be 0 or more"),
        ({"max_deliveries": 63}, "max_deliveries must be 1 to 62"),
        ({"tasks": ["actor"], "release_after": {"x": "acto"}}, "did you mean 'actor'"),
        ({"tasks": "actor"}, "tasks must be a list of names"),
        ({"retention": "consumd"}, "consumd"),
        ({"max_row": 3}, "no partition setting 'max_row'; did you mean 'max_rows'"),
        ({"on_stale": "wait"}, r"on_stale must be one of \['drop', 'hold'\], got 'wait'"),
        ({"retention": "never"}, r"retention must be one of \[.*'explicit'.*\], got 'never'"),
        ({"samples_per_insert": {"ratio": 0, "slack_rows": 3}}, "ratio must be above 0"),
        ({"samples_per_insert": {"ratio": 1, "slack": 3}}, "slack"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PartitionPolicy.from_plain(settings)


def test_settings_survive_the_wire() -> None:
    plain = {
        "tasks": ["a", "b"],
        "retention": "consumed",
        "max_bytes": 1 << 40,
        "max_staleness": 0,
        "on_stale": "hold",
        "samples_per_insert": {"ratio": 2.0, "slack_rows": 8, "min_rows": 4},
        "release_after": {"pixels": "a"},
    }
    policy = PartitionPolicy.from_plain(plain)
    assert PartitionPolicy.from_plain(policy.to_plain()) == policy
    assert policy.on_stale is StaleRows.HOLD


# -- staleness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_stale", list(StaleRows))
def test_with_the_policy_at_7_and_staleness_2_rows_of_4_are_never_given(
    driver: Driver, on_stale: StaleRows
) -> None:
    driver.declare(max_staleness=2, on_stale=on_stale)
    uids = driver.put(3, tags={"policy_version": [4, 5, 6]})
    driver.carry_out(driver.plane.advance_policy(7, now_s=driver.now_s))
    late = driver.put(1, tags={"policy_version": 4})
    assert driver.take(2).uids.tolist() == uids[1:].tolist()
    waiting = driver.claim(1)
    driver.pass_time(100)
    assert isinstance(driver.answers[waiting], NotReady)
    status = driver.status()
    stale = [int(uids[0]), int(late[0])]
    if on_stale is StaleRows.DROP:
        assert _freed(driver) == stale
        assert (status["stale_rows_dropped"], status["stale_rows_held"]) == (2, 0)
    else:
        assert driver.frees == []
        assert (status["stale_rows_dropped"], status["stale_rows_held"]) == (0, 2)


def test_the_version_of_a_row_is_news_of_that_version(driver: Driver) -> None:
    driver.declare(max_staleness=1, on_stale=StaleRows.HOLD)
    driver.put(1, tags={"policy_version": 1})
    driver.put(1, tags={"policy_version": 3.0})
    assert driver.status()["newest_policy_version"] == 3
    assert driver.take(1).uids.tolist() == [1]


def test_a_claimed_row_that_gets_stale_is_let_finish(driver: Driver) -> None:
    driver.declare(tasks=("t",), max_staleness=1)
    driver.put(2, tags={"policy_version": 1})
    acked, returned = driver.take(1), driver.take(1)
    driver.carry_out(driver.plane.advance_policy(9, now_s=driver.now_s, partition="train"))
    assert driver.frees == []
    driver.give_back(returned)
    assert _freed(driver) == [1]
    driver.ack(acked)
    assert _freed(driver) == [0, 1]


def test_rows_without_a_version_never_get_stale(driver: Driver) -> None:
    driver.declare(max_staleness=0)
    driver.put(1)
    driver.put(1, tags={"policy_version": float("nan")})
    driver.put(1, tags={"policy_version": 3.0})
    assert driver.status()["newest_policy_version"] == 3
    assert len(driver.take(3).uids) == 3


def test_a_row_whose_version_is_corrected_can_be_given(driver: Driver) -> None:
    driver.declare(max_staleness=1, on_stale=StaleRows.HOLD)
    uids = driver.put(1, tags={"policy_version": 1})
    driver.carry_out(driver.plane.advance_policy(5, now_s=driver.now_s))
    waiting = driver.claim(1)
    driver.carry_out(
        driver.plane.update_tags(
            now_s=driver.now_s, partition="train", uids=uids, tags={"policy_version": 5}
        )
    )
    assert driver.answers[waiting].uids.tolist() == uids.tolist()


# -- tags -----------------------------------------------------------------------------------------


def test_updated_tags_decide_from_then_on(driver: Driver) -> None:
    uids = driver.put(3, tags={"score": [0.1, 0.2, 0.3]})
    waiting = driver.claim(2, where=tag("score") > 0.5)
    driver.carry_out(
        driver.plane.update_tags(
            now_s=driver.now_s, partition="train", uids=uids[[2, 0]], tags={"score": [0.9, 0.8]}
        )
    )
    assert driver.answers[waiting].uids.tolist() == uids[[0, 2]].tolist()


def test_an_update_of_tags_is_all_or_nothing(driver: Driver) -> None:
    uids = driver.put(2, tags={"score": 1})
    for wrong, tags, error in (
        (uids, {"score": "high"}, TagTypeMismatch),
        (np.array([0, 77]), {"score": 2}, RowsGone),
        (uids, {"score": [1, 2, 3]}, InvalidInput),
    ):
        with pytest.raises(error):
            driver.plane.update_tags(now_s=driver.now_s, partition="train", uids=wrong, tags=tags)
    assert driver.take(2).tags["score"].tolist() == [1, 1]


def test_a_stream_that_is_sent_again_does_not_undo_an_update(driver: Driver) -> None:
    uids = driver.put(2, tags={"score": 1})
    driver.carry_out(
        driver.plane.update_tags(
            now_s=driver.now_s, partition="train", uids=uids, tags={"score": 2}
        )
    )
    driver.fill(uids, ("x",), tags={"score": 1})
    assert driver.take(2).tags["score"].tolist() == [2, 2]


def test_a_bad_tag_does_not_stop_its_rows(driver: Driver) -> None:
    driver.put(2, tags={"score": 1})
    driver.put(2, tags={"score": "high", "shape": [1, 2, 3], "fine": "yes"})
    assert driver.status()["tag_values_refused"] == {"score": 2, "shape": 2}
    assert driver.take(4).tags["fine"] == [None, None, "yes", "yes"]


def test_tags_can_come_with_a_later_field(driver: Driver) -> None:
    uids = driver.put(2)
    driver.put(1, tags={"score": 0})
    waiting = driver.claim(1, where=tag("score") > 0)
    driver.fill(uids[1:2], ("y",), tags={"score": 1})
    assert driver.answers[waiting].uids.tolist() == uids[1:].tolist()


# -- reports --------------------------------------------------------------------------------------


def test_held_says_by_whom_and_since_when(driver: Driver) -> None:
    driver.declare(tasks=("a", "b"), retention=Retention.CONSUMED)
    driver.put(3)
    driver.pass_time(120)
    driver.put(1, ("x", "y"))
    driver.take(2, task="a")
    held = driver.plane.held(now_s=driver.now_s)["train"]
    assert held["rows"] == 4
    assert held["bytes_by_field"] == {"x": 128, "y": 32}
    assert held["tasks"]["a"] == {"free": 2, "claimed": 2, "acked": 0, "dead_letter": 0}
    assert held["rows_by_age"]["up to 60 s"] == 1
    assert held["rows_by_age"]["up to 600 s"] == 3
    assert held["oldest_s"] == 120
    assert held["held_by"] == (
        "task 'a' (2 not taken yet, 2 not acked yet), task 'b' (4 not taken yet)"
    )
    with pytest.raises(UnknownPartition):
        driver.plane.held(now_s=driver.now_s, partition="trian")


def test_bytes_are_held_by_the_sites_whose_rows_have_them(driver: Driver) -> None:
    driver.declare(tasks=("a",), retention=Retention.CONSUMED, release_after={"y": "a"})
    big = driver.put(2, ("x",), tags={"@site": "big.py:1"})
    driver.put(2, ("x", "y"), tags={"@site": "small.py:2"})
    driver.fill(big, ("y",), tags={"@site": "later.py:3"})

    def held() -> dict[str, int]:
        report = driver.plane.held(now_s=driver.now_s)["train"]
        by_site = {site: entry["bytes"] for site, entry in report["rows_by_site"].items()}
        assert sum(by_site.values()) == report["bytes"]
        return by_site

    assert held() == {"big.py:1": 128, "small.py:2": 128}
    driver.ack(driver.take(2, task="a"))
    assert held() == {"big.py:1": 64, "small.py:2": 128}, "its y was released early, x waits"
    driver.free()
    assert held() == {"small.py:2": 128}


def test_a_report_costs_no_python_a_row(make_driver: type[Driver]) -> None:
    def calls(rows: int) -> int:
        driver = make_driver()
        driver.declare(tasks=("a", "b"), retention=Retention.CONSUMED)
        for slot in (0, 1):
            driver.put(rows, ("x", "y"), slot=slot, tags={"@site": f"a.py:{slot}", "v": 1})
        driver.ack(driver.take(rows // 2, task="a"))
        counted = calls_of(lambda: driver.plane.held(now_s=driver.now_s))
        counted += calls_of(lambda: driver.plane.status(now_s=driver.now_s))
        return counted.total()

    few = calls(1_000)
    assert 100 < few < 2_000
    assert calls(500_000) <= few + 20


@given(
    commits=st.lists(st.integers(1, 4), min_size=1, max_size=8), kept=st.sets(st.integers(0, 31))
)
def test_rows_keep_their_arrival_when_they_are_renumbered(
    commits: list[int], kept: set[int]
) -> None:
    arrivals, times = Arrivals(), list[float]()
    for step, rows in enumerate(commits):
        arrivals.add(len(times), float(step // 2))
        times += [float(step // 2)] * rows
    order = [row for row in sorted(kept) if row < len(times)]
    assert arrivals.times_s(np.arange(len(times))).tolist() == times
    arrivals.keep(np.array(order, dtype=np.int64))
    if order:
        assert arrivals.times_s(np.arange(len(order))).tolist() == [times[r] for r in order]


# -- what was filtered out ------------------------------------------------------------------------


def test_discarded_rows_are_given_to_nobody_and_freed(driver: Driver) -> None:
    uids = driver.put(4)
    num_rows, effects = driver.plane.discard("train", uids[:3], now_s=driver.now_s)
    driver.carry_out(effects)
    assert num_rows == 3
    assert driver.take(1).uids.tolist() == uids[3:].tolist()
    assert driver.free() == 3
    assert driver.plane.discard("train", uids[:3], now_s=driver.now_s) == (0, [])


def test_a_discarded_row_stays_until_the_last_claim_on_it_ends(driver: Driver) -> None:
    uids = driver.put(3)
    of_a = driver.take(2, task="a")
    driver.take(3, task="b", lease_s=5)
    driver.carry_out(driver.plane.discard("train", uids, now_s=driver.now_s)[1])
    assert not driver.frees
    assert driver.status()["rows_being_freed"] == 3
    driver.ack(of_a)
    assert driver.free() == 0
    driver.pass_time(6)
    assert driver.free() == 3
    assert driver.status()["rows_being_freed"] == 0


def test_an_ack_may_drop_rows_for_every_task(driver: Driver) -> None:
    driver.declare(tasks=("filter", "actor"), retention=Retention.CONSUMED)
    uids = driver.put(4)
    grant = driver.take(4, task="filter")
    with pytest.raises(InvalidInput, match="1 of 1 rows are not of the claim"):
        driver.plane.ack(grant.claim_id, now_s=driver.now_s, drop=uids[:1] + 100)
    driver.carry_out(driver.plane.ack(grant.claim_id, now_s=driver.now_s, drop=uids[:3]))
    assert driver.free() == 3
    assert driver.take(1, task="actor").uids.tolist() == uids[3:].tolist()


def test_replicas_finish_a_batch_whose_rows_were_discarded(driver: Driver) -> None:
    uids = driver.put(2)
    ranks = [RankAware(1, 2, rank) for rank in (0, 1)]
    first = driver.take(2, sampler=ranks[0])
    driver.carry_out(driver.plane.discard("train", uids[:1], now_s=driver.now_s)[1])
    driver.ack(first)
    second = driver.take(2, sampler=ranks[1])
    assert second.uids.tolist() == first.uids.tolist()
    assert driver.free() == 0
    driver.ack(second)
    assert driver.free() == 1


def test_a_lost_shard_takes_its_waiting_puts_along(driver: Driver) -> None:
    driver.declare(max_rows=4)
    driver.put(4, slot=0)
    waiting = driver.admit(2, slot=1)
    driver.carry_out(driver.plane.slot_lost(1, now_s=driver.now_s))
    assert isinstance(driver.answers[waiting], RowsLost)


# -- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_can_be_tried_again_all_or_some(driver: Driver) -> None:
    driver.declare(tasks=("t",), max_deliveries=1)
    uids = driver.put(3)
    driver.give_back(driver.take(3))
    with pytest.raises(InvalidInput, match="no dead letters of task 't'"):
        driver.plane.redrive("train", "t", now_s=driver.now_s, uids=uids + 50)
    waiting = driver.claim(1)
    num_rows, effects = driver.plane.redrive("train", "t", now_s=driver.now_s, uids=uids[1:2])
    driver.carry_out(effects)
    assert num_rows == 1
    grant = driver.answers[waiting]
    assert grant.uids.tolist() == uids[1:2].tolist()
    assert grant.deliveries.tolist() == [1]
    driver.ack(grant)
    assert driver.plane.redrive("train", "t", now_s=driver.now_s)[0] == 2
    assert not len(driver.plane.dead_letters("train", "t").uids)
