"""Which key may ask for what."""

from __future__ import annotations

import pytest

from transferqueue.errors import ConfigError, NotAllowed
from transferqueue.net.access import Access
from transferqueue.net.keys import ServiceKeys
from transferqueue.wire import ops

KEYS = ServiceKeys.generate(readers={"all": None, "val": ["val"]})
ACCESS = Access(KEYS.grants)
ALL_OPS = {value for name, value in vars(ops).items() if name.isupper()}
LOOKING = {
    *(ops.HELLO, ops.STATUS, ops.HELD, ops.WAITS, ops.DESCRIBE, ops.POLICY, ops.DEAD_LETTERS),
    *(ops.GET, ops.READ, ops.READ_DONE, ops.WAIT, ops.SELECT),
}
OF_SHARDS = {
    ops.REGISTER, ops.EVENT, ops.ADMIT, ops.RETURN_ROOM, ops.JOIN, ops.STEP_DONE,
    ops.COPY, ops.FETCH_COPY,
}  # fmt: skip


def allowed(name: str | None, partition: str = "train") -> set[str]:
    found = set()
    for op in ALL_OPS:
        try:
            ACCESS.check(name, op, {"partition": partition})
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
    assert allowed("val", "val") == LOOKING - {ops.STATUS, ops.HELD, ops.WAITS}


def test_what_is_refused_names_the_key_and_the_request() -> None:
    with pytest.raises(NotAllowed, match="'val' does not allow 'get': reads val only"):
        ACCESS.check("val", ops.GET, {"partition": "train"})
    with pytest.raises(NotAllowed, match="'val' does not allow 'get'"):
        ACCESS.check("val", ops.GET, {})


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
