"""Puts that wait for space: first come, first served, and not for ever."""

from __future__ import annotations

import math

from transferqueue.fields import FieldSpec
from transferqueue.net.server import Request
from transferqueue.shard.waiting_puts import WaitingPut, WaitingPuts
from transferqueue.wire.put import ColumnPlan, PutPlan


def waiting(number: int, nbytes: int = 8, deadline_s: float = 10.0) -> WaitingPut:
    spec = FieldSpec(dtype="uint8", shape=(nbytes,))
    column = ColumnPlan(name="x", spec=spec, lengths=None, nbytes=nbytes)
    return WaitingPut(
        request=Request(peer=b"p", request_id=number, op="put", body={}, frames=(), received_s=0.0),
        plan=PutPlan(partition="p", num_rows=1, uids=None, columns=[column]),
        since_s=0.0,
        deadline_s=deadline_s,
    )


def numbers(puts: list[WaitingPut]) -> list[int]:
    return [put.request.request_id for put in puts]


def test_space_goes_to_the_first_and_a_small_put_behind_a_large_one_waits() -> None:
    queue = WaitingPuts()
    for number, nbytes in ((1, 100), (2, 1), (3, 1)):
        queue.add(waiting(number, nbytes))
    offered: list[WaitingPut] = []

    def try_put(put: WaitingPut) -> bool:
        offered.append(put)
        return put.plan.nbytes <= 50

    queue.admit(try_put)
    assert numbers(offered) == [1]
    assert len(queue) == 3
    assert queue.num_bytes == 102
    queue.admit(lambda put: True)
    assert len(queue) == 0


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
    queue.admit(lambda put: not offered.append(put))
    assert numbers(offered) == [2]
