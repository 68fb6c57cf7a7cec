"""Which key may ask for what."""

from __future__ import annotations

import itertools

import pytest

from transferqueue.errors import ConfigError, NotAllowed, TooManyRequests
from transferqueue.net.access import READER_BURST, READER_REQUESTS_PER_S, Access
from transferqueue.net.keys import ServiceKeys
from transferqueue.wire import ops

KEYS = ServiceKeys.generate(readers={"all": None, "val": ["val"]})
ACCESS = Access(KEYS.grants)
SECONDS = itertools.count()
"""Between one question and the next: nobody asks too often."""
ALL_OPS = {value for name, value in vars(ops).items() if name.isupper()}
LOOKING = {
    *(ops.HELLO, ops.STATUS, ops.HELD, ops.WAITS, ops.DESCRIBE, ops.POLICY, ops.DEAD_LETTERS),
    *(ops.GET, ops.READ, ops.READ_DONE, ops.WAIT, ops.SELECT, ops.STORED, ops.PICTURE),
}
OF_SHARDS = {
    ops.REGISTER, ops.EVENT, ops.ADMIT, ops.RETURN_ROOM, ops.JOIN, ops.STEP_DONE,
    ops.COPY, ops.FETCH_COPY, ops.WHERE_COPY,
}  # fmt: skip


def allowed(name: str | None, partition: str = "train") -> set[str]:
    found = set()
    for op in ALL_OPS:
        try:
            ACCESS.check(name, op, {"partition": partition}, next(SECONDS))
        except NotAllowed:
            continue
        found.add(op)
    return found


def test_a_peer_of_this_host_and_the_services_own_processes_may_do_everything() -> None:
    assert allowed(None) == allowed("process") == ALL_OPS


def test_a_client_may_do_everything_but_be_a_shard() -> None:
    assert ALL_OPS - allowed("client") == OF_SHARDS


def test_a_reader_looks_and_changes_nothing() -> None:
    assert allowed("all") == LOOKING


def test_a_reader_of_some_partitions_sees_no_others() -> None:
    everywhere = {ops.HELLO, ops.READ, ops.READ_DONE}  # these look at the partition by themselves
    assert allowed("val", "train") == everywhere
    assert allowed("val", "val") == LOOKING - {ops.STATUS, ops.HELD, ops.STORED, ops.WAITS}


def test_what_is_refused_names_the_key_and_the_request() -> None:
    with pytest.raises(NotAllowed, match="'val' does not allow 'get': reads val only"):
        ACCESS.check("val", ops.GET, {"partition": "train"}, 0.0)
    with pytest.raises(NotAllowed, match="'val' does not allow 'get'"):
        ACCESS.check("val", ops.GET, {}, 0.0)


def test_keys_are_the_same_after_their_way_to_a_process() -> None:
    import json

    plain = json.loads(json.dumps(KEYS.to_plain()))
    assert ServiceKeys.from_plain(plain) == KEYS
    assert "secret" not in repr(KEYS)
    assert KEYS.grants["val"].secret not in repr(KEYS.grants)


def test_a_key_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="no key 'x'; there are all, client, process, val"):
        KEYS.of("x")
    with pytest.raises(ConfigError, match="cannot be named 'client'"):
        ServiceKeys.generate(readers={"client": None})


def test_a_reader_that_asks_without_a_pause_is_slowed_and_nobody_else_is() -> None:
    access = Access(KEYS.grants)
    body = {"partition": "val"}
    for _ in range(int(READER_BURST)):
        access.check("val", ops.GET, body, 10.0)
    with pytest.raises(TooManyRequests, match="'val' may begin 200 requests a second"):
        access.check("val", ops.GET, body, 10.0)
    for _ in range(5 * int(READER_BURST)):
        access.check("val", ops.READ, body, 10.0)  # chunks of what it has begun
        access.check("all", ops.READ_DONE, body, 10.0)
        access.check("client", ops.GET, body, 10.0)
        access.check(None, ops.GET, body, 10.0)
    access.check("all", ops.GET, body, 10.0)
    begun = 0
    for hundredth in range(1000):
        try:
            access.check("val", ops.GET, body, 10.0 + hundredth / 1000)
        except TooManyRequests:
            continue
        begun += 1
    assert abs(begun - READER_REQUESTS_PER_S) <= 1
