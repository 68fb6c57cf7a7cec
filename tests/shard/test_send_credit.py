"""What waits to be sent is bounded, and stalled readers stop nobody."""

from __future__ import annotations

import threading

from transferqueue.shard.send_credit import SendCredit

MIB = 1 << 20


def test_under_the_limit_anybody_may_send() -> None:
    credit = SendCredit(4 * MIB)
    assert all(credit.take(b"a", MIB) for _ in range(4))
    assert not credit.take(b"a", MIB)


def test_a_hundred_stalled_readers_hold_one_chunk_each_beyond_the_limit() -> None:
    credit = SendCredit(8 * MIB)
    for _ in range(20):
        for reader in range(100):
            credit.take(b"%d" % reader, MIB)
    assert credit.used_bytes <= (8 + 100) * MIB
    assert credit.take(b"a newcomer", MIB)


def test_what_has_left_makes_room_from_any_thread() -> None:
    credit = SendCredit(2 * MIB)
    assert credit.take(b"a", MIB)
    assert credit.take(b"a", MIB)
    assert not credit.settle()
    sender = threading.Thread(target=credit.give_back, args=(b"a", MIB))
    sender.start()
    sender.join()
    assert not credit.take(b"a", MIB), "counted when the shard's own thread says so"
    assert credit.settle()
    assert credit.take(b"a", MIB)
    credit.give_back(b"a", MIB)
    credit.give_back(b"a", MIB)
    credit.settle()
    assert credit.used_bytes == 0
