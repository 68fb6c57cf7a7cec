"""Puts that wait for space: first come, first served, and not for ever."""

from __future__ import annotations

import math
from dataclasses import replace

from transferqueue.fields import FieldSpec
from transferqueue.net.server import Request
from transferqueue.shard.waiting_puts import WaitingPut, WaitingPuts
from transferqueue.wire.put import ColumnPlan, PutPlan


def waiting(
    number: int, nbytes: int = 8, deadline_s: float = 10.0, needs: tuple[int, ...] = (0,)
) -> WaitingPut:
    spec = FieldSpec(dtype="uint8", shape=(nbytes,))
    column = ColumnPlan(name="x", spec=spec, lengths=None, nbytes=nbytes)
    return WaitingPut(
        request=Request(peer=b"p", request_id=number, op="put", body={}, frames=(), received_s=0.0),
        plan=PutPlan(partition="p", num_rows=1, uids=None, columns=[column]),
        since_s=0.0,
        deadline_s=deadline_s,
        needs=dict.fromkeys(needs, nbytes),
    )


def numbers(puts: list[WaitingPut]) -> list[int]:
    return [put.request.request_id for put in puts]


def test_space_goes_to_the_first_and_a_small_put_behind_a_large_one_waits() -> None:
    queue = WaitingPuts()
    for number, nbytes in ((1, 100), (2, 1), (3, 1)):
        queue.add(waiting(number, nbytes))
    offered: list[WaitingPut] = []

    def try_put(put: WaitingPut) -> tuple[int, ...]:
        offered.append(put)
        return () if put.plan.nbytes <= 50 else (0,)

    queue.admit(try_put)
    assert numbers(offered) == [1]
    assert len(queue) == 3
    assert queue.num_bytes == 102
    queue.admit(lambda put: ())
    assert len(queue) == 0


def test_puts_of_who_is_gone_are_taken_out() -> None:
    queue = WaitingPuts()
    theirs = waiting(1)
    queue.add(theirs)
    queue.add(replace(waiting(2), request=replace(theirs.request, peer=b"q", request_id=2)))
    assert numbers(queue.leave({b"p", b"r"})) == [1]
    assert numbers(list(queue)) == [2]


def test_a_put_whose_deadline_has_passed_is_taken_out() -> None:
    queue = WaitingPuts()
    queue.add(waiting(1, deadline_s=5.0))
    queue.add(waiting(2, deadline_s=3.0))
    queue.add(waiting(3, deadline_s=math.inf))
    assert queue.next_deadline_s() == 3.0
    assert numbers(queue.expire(3.0)) == [2]
    assert numbers(queue.expire(6.0)) == [1]
    assert len(queue) == 1


def test_a_put_that_was_cancelled_is_taken_out() -> None:
    queue = WaitingPuts()
    queue.add(waiting(1))
    queue.add(waiting(2))
    queue.remove((b"p", 1))
    queue.remove((b"other", 2))
    offered: list[WaitingPut] = []
    queue.admit(lambda put: offered.append(put) or ())
    assert numbers(offered) == [2]


def test_a_put_goes_past_those_that_wait_for_other_backends() -> None:
    queue = WaitingPuts()
    full = {1}
    for number, needs in ((1, (1,)), (2, (0, 1)), (3, (0,)), (4, (0, 1)), (5, (1,))):
        queue.add(waiting(number, needs=needs))
    offered: list[WaitingPut] = []

    def try_put(put: WaitingPut) -> set[int]:
        offered.append(put)
        return full & put.needs.keys()

    queue.admit(try_put)
    assert numbers(offered) == [1, 3], "2, 4 and 5 are behind 1"
    assert numbers(list(queue)) == [1, 2, 4, 5]
    assert not queue.are_ahead_of(waiting(6, needs=(0,)))
    assert queue.are_ahead_of(waiting(6, needs=(0, 1)))
    assert queue.first_for(0) is None
    first = queue.first_for(1)
    assert first is not None
    assert numbers([first]) == [1]


def test_what_a_put_lacked_once_is_kept_for_it_until_it_is_in() -> None:
    queue = WaitingPuts()
    queue.add(waiting(1, needs=(0, 1)), (1,))
    queue.admit(lambda put: (0,))
    assert queue.are_ahead_of(waiting(2, needs=(0,)))
    assert queue.are_ahead_of(waiting(2, needs=(1,)))
    queue.add(waiting(2, needs=(0, 2)))
    assert not queue.are_ahead_of(waiting(3, needs=(2,))), "2 was not refused there"
    queue.admit(lambda put: ())
    assert len(queue) == 0


def test_when_all_are_kept_off_nobody_else_is_asked() -> None:
    queue = WaitingPuts()
    for number in range(5):
        queue.add(waiting(number))
    offered: list[WaitingPut] = []

    def full(put: WaitingPut) -> tuple[int, ...]:
        offered.append(put)
        return (0,)

    queue.admit(full)
    assert numbers(offered) == [0]
