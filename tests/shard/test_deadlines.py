"""How long a shard waits for clients of other hosts."""

from __future__ import annotations

from transferqueue.shard.deadlines import SILENCE_S, Deadlines


def test_nothing_is_given_up_before_the_clients_own_deadline_while_no_chunk_moves() -> None:
    deadlines = Deadlines()
    deadlines.add(7, final_s=100.0)
    assert deadlines.next_s() == 100.0
    assert deadlines.pass_by(99.9) == []
    assert deadlines.pass_by(100.0) == [7]
    assert deadlines.next_s() is None
    assert len(deadlines) == 0


def test_silence_in_the_middle_ends_a_transfer_early() -> None:
    deadlines = Deadlines()
    deadlines.add(7, final_s=1000.0)
    deadlines.heard(7, 10.0, more_to_come=True)
    assert deadlines.pass_by(10.0 + SILENCE_S - 0.1) == []
    deadlines.heard(7, 20.0, more_to_come=True)
    assert deadlines.pass_by(10.0 + SILENCE_S) == []
    assert deadlines.pass_by(20.0 + SILENCE_S) == [7]


def test_a_transfer_that_is_through_waits_for_its_client_to_the_end() -> None:
    deadlines = Deadlines()
    deadlines.add(7, final_s=1000.0)
    deadlines.heard(7, 10.0, more_to_come=True)
    deadlines.heard(7, 11.0, more_to_come=False)
    assert deadlines.pass_by(999.0) == []


def test_no_chunk_puts_a_deadline_beyond_the_clients_own() -> None:
    deadlines = Deadlines()
    deadlines.add(7, final_s=100.0)
    deadlines.heard(7, 99.0, more_to_come=True)
    assert deadlines.next_s() == 100.0


def test_what_ended_otherwise_is_dropped_and_dropping_twice_is_nothing() -> None:
    deadlines = Deadlines()
    deadlines.add(7, final_s=100.0)
    deadlines.drop(7)
    deadlines.drop(7)
    assert deadlines.pass_by(1e9) == []
