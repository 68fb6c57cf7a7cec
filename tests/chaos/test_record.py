"""The checker finds what it is there to find."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos.record import FLOW, KEPT, Found, Ledger, broken_promises, read_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def ledger_of(*entries: dict[str, Any]) -> Ledger:
    ledger = Ledger()
    for entry in entries:
        ledger.take(entry)
    return ledger


def put(partition: str, *rows: int, certain: bool = True) -> list[dict[str, Any]]:
    began = {"did": "putting", "partition": partition, "rows": list(rows)}
    return [began, {**began, "did": "put"}] if certain else [began]


def acked(*rows: int) -> list[dict[str, Any]]:
    return [{"did": "acking", "rows": list(rows)}, {"did": "acked", "rows": list(rows)}]


def found(kept: Sequence[int] = (), flow: Sequence[int] = ()) -> Found:
    return Found(kept=Counter(kept), flow=Counter(flow))


def test_nothing_is_wrong_when_what_was_put_is_there_or_was_acked() -> None:
    ledger = ledger_of(*put(KEPT, 1, 2), *put(FLOW, 11, 12), *acked(11))
    assert broken_promises(ledger, found([1, 2], [12])) == []


def test_what_was_perhaps_done_may_be_either_way() -> None:
    clearing = {"did": "clearing", "rows": [1]}
    acking = {"did": "acking", "rows": [11]}
    entries = [*put(KEPT, 1), *put(KEPT, 2, certain=False), *put(FLOW, 11), clearing, acking]
    for kept in ([], [1], [2], [1, 2]):
        for flow in ([], [11]):
            assert broken_promises(ledger_of(*entries), found(kept, flow)) == []


CLEARED = [{"did": "clearing", "rows": [1]}, {"did": "cleared", "rows": [1]}]


@pytest.mark.parametrize(
    ("entries", "there", "words"),
    [
        (put(KEPT, 1, 2), found([1]), "'kept' are lost: 1, e.g. 2"),
        (put(KEPT, 1), found([1, 1]), "'kept' are there twice"),
        ([*put(KEPT, 1), *CLEARED], found([1]), "cleared rows are back"),
        (put(KEPT, 1), found([1, 7]), "'kept' that nobody put: 1, e.g. 7"),
        (put(FLOW, 1), found(), "never handed out"),
        (put(FLOW, 1), found(flow=[1, 1]), "'flow' are there twice"),
        ([*put(FLOW, 1), *acked(1)], found(flow=[1]), "handed out again"),
        ([*put(FLOW, 1), *acked(1), *acked(1)], found(), "acked twice"),
        (put(FLOW, 1), found(flow=[1, 9]), "'flow' that nobody put"),
        ([{"did": "torn", "what": "row 3"}], found(), "torn: 1, e.g. row 3"),
    ],
)
def test_each_broken_promise_is_named(
    entries: list[dict[str, Any]], there: Found, words: str
) -> None:
    (said,) = broken_promises(ledger_of(*entries), there)
    assert words in said


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(b'{"did": "putting", "partition": "kept", "rows": [1]}\n{"did": "put", "par')
    ledger = read_records([path])
    assert ledger.putting[KEPT] == {1}
    assert ledger.put[KEPT] == set()
