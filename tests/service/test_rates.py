"""What `top` makes of two answers of the status."""

from __future__ import annotations

from typing import Any

from transferqueue.service.commands.top import bar
from transferqueue.service.rates import snapshot

WAITS: dict[str, Any] = {"waits": [], "left_out": 0}


def report(time_s: float, puts: int, used: int, put: int, out: int) -> dict[str, Any]:
    shard = {
        "slot": 0, "rows": 4, "used_bytes": used, "budget_bytes": 100, "leases": 0,
        "puts_waiting": 1, "puts_over_quota": 2, "requests": {"put": puts, "get": 4},
    }  # fmt: skip
    partition = {"rows": 4, "bytes": used, "tasks": {}, "waiting": {"claims": 1},
                 "rows_put": put, "rows_handed_out": out}  # fmt: skip
    return {"service_id": "s", "uptime_s": 1.0, "time_s": time_s, "parked": 0, "shards": [shard],
            "partitions": {"train": partition}, "stages": []}  # fmt: skip


def test_rates_are_rises_over_the_time_between() -> None:
    page = snapshot(report(10, 100, 20, 50, 30), report(12, 110, 60, 60, 34), WAITS)
    (shard,) = page["shards"]
    assert page["interval_s"] == 2
    assert (shard["puts_per_s"], shard["gets_per_s"], shard["bytes_per_s"]) == (5, 0, 20)
    assert shard["puts_waiting"] == 3
    train = page["partitions"]["train"]
    assert (train["put_per_s"], train["handed_out_per_s"]) == (5, 2)


def test_a_process_that_was_started_again_counts_from_nought() -> None:
    page = snapshot(report(10, 100, 60, 50, 30), report(11, 3, 20, 2, 1), WAITS)
    assert page["shards"][0]["puts_per_s"] == 3
    assert page["shards"][0]["bytes_per_s"] == 0
    assert page["partitions"]["train"]["put_per_s"] == 2


def test_a_shard_and_a_partition_that_are_new_are_shown() -> None:
    before = {**report(10, 0, 0, 0, 0), "shards": [], "partitions": {}}
    page = snapshot(before, report(11, 7, 20, 5, 0), WAITS)
    assert page["shards"][0]["puts_per_s"] == 7
    assert page["partitions"]["train"]["put_per_s"] == 5


def test_a_bar_never_leaves_its_place() -> None:
    assert [bar(share) for share in (-1, 0, 0.5, 1, 7)] == [
        "." * 10, "." * 10, "#####.....", "#" * 10, "#" * 10,
    ]  # fmt: skip


def stage(field: str, read: int, untouched: int = 0) -> dict[str, Any]:
    return {"role": "critic", "method": "values", "field": field, "read_bytes": read, "calls": 2,
            "written_bytes": 0, "untouched_bytes": untouched, "undeclared_bytes": 0}  # fmt: skip


def test_a_stage_is_the_sum_of_its_fields() -> None:
    before, after = ({**report(at, 0, 0, 0, 0), "stages": fields} for at, fields in (
        (10, [stage("ids", 100)]), (12, [stage("ids", 200), stage("mask", 100, 75)]),
    ))  # fmt: skip
    (found,) = snapshot(before, after, WAITS)["stages"]
    assert (found["stage"], found["read_bytes"], found["calls"]) == ("critic.values", 300, 2)
    assert (found["read_bytes_per_s"], found["untouched_share"]) == (100, 0.25)
