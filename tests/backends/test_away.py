"""A backend whose store is away when its shard is started again."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.backends.object_store import DictBackend
from tests.waiting import wait_until
from transferqueue.backends.away import LOOK_S, AwayBackend
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.looking_again import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    PATIENCE_S,
    LookingAgain,
)
from transferqueue.errors import ConfigError, ServiceFailed

if TYPE_CHECKING:
    from transferqueue.backends.base import Backend

MIB = 1 << 20
CONFIG = BackendConfig(service_id="svc", slot=3, budget_bytes=MIB, epoch=1)


class Store:
    """Each try ends with what the test says: a backend, or an error."""

    def __init__(self) -> None:
        self.ends: queue.SimpleQueue[Backend | Exception] = queue.SimpleQueue()
        self.num_tries = 0

    def open(self) -> Backend:
        self.num_tries += 1
        end = self.ends.get(timeout=10)
        if isinstance(end, Exception):
            raise end
        return end

    def is_missing(self) -> None:
        self.ends.put(ConfigError("nobody listens at h:1; start it with: storectl up"))

    def away(self) -> AwayBackend:
        return AwayBackend("store", CONFIG, self.open, what_to_do="start it with: storectl up")


def ended(backend: AwayBackend, now_s: float) -> float | None:
    """What `tick` says when the try that is under way has ended."""
    assert backend._try is not None
    backend._try.wait(10)
    return backend.tick(now_s)


def put(backend: Backend, data: bytes) -> int:
    found = backend.reserve([len(data)])
    assert found is not None
    backend.write(int(found[0]), memoryview(data))
    backend.seal(found, np.array([len(data)]))
    return int(found[0])


def test_pauses_double_up_to_the_last_and_only_the_first_try_is_waited_for() -> None:
    looking = LookingAgain(100.0, "start it")
    assert looking.is_worth_waiting(100.0 + PATIENCE_S - 1)
    assert not looking.is_worth_waiting(100.0 + PATIENCE_S)
    assert "start it" in looking.why
    now_s, pauses = 100.0, []
    for _ in range(8):
        assert not looking.is_due(now_s)
        looking.failed("nobody listens", now_s)
        assert looking.again_s is not None
        pauses.append(looking.again_s - now_s)
        assert not looking.is_due(looking.again_s - 0.01)
        now_s = looking.again_s
        assert looking.is_due(now_s)
        looking.begun()
        assert not looking.is_worth_waiting(now_s)
    assert pauses == [min(LAST_PAUSE_S, FIRST_PAUSE_S * 2**n) for n in range(8)]
    assert (looking.why, looking.num_failed) == ("nobody listens", 8)


def test_what_opens_at_once_stands_for_itself() -> None:
    store, there = Store(), DictBackend(MIB)
    store.ends.put(there)
    assert store.away().at_once(10) is there


def test_puts_wait_for_the_first_try_as_for_space_and_what_has_to_be_there_is_refused() -> None:
    store = Store()
    backend = store.away()
    began_s = backend._now_s
    assert backend.at_once(0) is backend
    assert backend.reserve([100]) is None
    assert backend.tick(began_s + 1) == began_s + 1 + LOOK_S
    backend.tick(began_s + PATIENCE_S)
    with pytest.raises(ServiceFailed, match=r"10 s ago; .* does not answer; start it with: storec"):
        backend.reserve([100])
    with pytest.raises(ServiceFailed, match=r"'store': was not there when this shard was started"):
        backend.readable(0, 1)
    store.ends.put(DictBackend(MIB))
    ended(backend, began_s + 60)
    assert backend.absence() is None
    backend.close()


def test_a_store_that_comes_back_is_the_backend_from_the_next_tick_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    backend = store.away()
    began_s = backend._now_s
    store.is_missing()
    again_s = ended(backend, began_s)
    assert again_s == began_s + FIRST_PAUSE_S
    facts = backend.facts()
    assert (facts["times_looked"], "nobody listens" in facts["away"]) == (1, True)
    assert facts["away_since_s"] > 1e9
    with pytest.raises(ServiceFailed, match=r"looked for 1 times, and is again in 1 s: nobody"):
        backend.reserve([100])
    assert (backend.used_bytes, backend.capacity_bytes) == (0, MIB)
    backend.free(np.array([0]), np.array([0]))
    with pytest.raises(ValueError, match="away"):
        backend.free(np.array([0]), np.array([1]))
    backend.tick(again_s - 0.01)
    assert store.num_tries == 1
    backend.tick(again_s)
    store.is_missing()
    again_s = ended(backend, again_s)
    assert again_s == began_s + 3 * FIRST_PAUSE_S
    backend.tick(again_s)
    store.ends.put(DictBackend(MIB))
    with pytest.raises(ServiceFailed, match="is again now"):
        backend.reserve([100])
    assert ended(backend, again_s) is None
    at = put(backend, b"x" * 100)
    assert bytes(backend.readable(at, 100)) == b"x" * 100
    assert backend.used_bytes == backend.extents([100])[0]
    backend.free(np.array([at]), backend.extents([100]))
    assert "away" not in backend.facts()
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    said = [record.getMessage() for record in caplog.records]
    assert "shard 3 goes on without backend 'store': nobody listens" in said[0]
    assert "shard 3: backend 'store' is there again, after 3 s and 3 tries" in said[1]
    backend.close()


def test_an_error_that_is_not_ours_is_a_store_that_is_away() -> None:
    store = Store()
    store.ends.put(ZeroDivisionError("of a plugin"))
    backend = store.away().at_once(10)
    with pytest.raises(ServiceFailed, match="ZeroDivisionError"):
        backend.reserve([1])


def test_a_backend_that_opens_after_the_end_is_closed() -> None:
    store, late = Store(), DictBackend(MIB)
    backend = store.away()
    backend.close()
    store.ends.put(late)
    wait_until(lambda: late._closed)
    wait_until(lambda: all("opens-store" not in t.name for t in threading.enumerate()))


def test_one_that_has_opened_and_was_not_taken_is_closed_with_it() -> None:
    store, there = Store(), DictBackend(MIB)
    backend = store.away()
    store.ends.put(there)
    assert backend._try is not None
    backend._try.wait(10)
    backend.close()
    assert there._closed
