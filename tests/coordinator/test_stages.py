"""What stages tell of themselves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from transferqueue.coordinator.stages import COUNTERS, MAX_ROWS, Stages
from transferqueue.dispatch import FieldCounts
from transferqueue.errors import InvalidInput


def row(field: str = "ids", **counts: int) -> dict[str, Any]:
    return {
        "role": "critic", "method": "values", "field": field, **dict.fromkeys(COUNTERS, 0), **counts
    }  # fmt: skip


def test_the_counters_are_those_of_a_worker() -> None:
    assert tuple(one.name for one in fields(FieldCounts)) == COUNTERS


def test_counts_add_up_by_role_method_and_field() -> None:
    stages = Stages()
    stages.add([row(read_bytes=5, calls=1), row("mask", read_bytes=7)])
    stages.add([row(read_bytes=5, calls=1)])
    assert stages.rows() == [row(read_bytes=10, calls=2), row("mask", read_bytes=7)]


@pytest.mark.parametrize("bad", [row(calls=-1), {**row(), "calls": 1.5}, row("x" * 300)])
def test_what_is_no_count_changes_nothing(bad: dict[str, Any]) -> None:
    stages = Stages()
    with pytest.raises(InvalidInput):
        stages.add([row(calls=1), bad])
    assert stages.rows() == []


def test_names_without_end_do_not_grow_it_without_end() -> None:
    stages = Stages()
    stages.add([row(f"step-{i}", calls=1) for i in range(MAX_ROWS + 9)])
    stages.add([row("step-0", calls=1)])
    assert len(stages.rows()) == MAX_ROWS
    assert stages.rows()[0]["calls"] == 2
