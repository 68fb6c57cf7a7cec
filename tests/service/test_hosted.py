"""Servers of other slots on threads of a process, as they are begun, fail and end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tests.waiting import wait_until
from transferqueue.errors import Closed, ConfigError
from transferqueue.service import hosted
from transferqueue.service.hosted import HostedShards

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

SETTINGS = {
    "service_id": "0123",
    "slot": 1,
    "endpoints": ["ipc:///run/tq/shard-1.sock", "tcp://10.0.0.5:4711"],
    "restore": {"path": "/saved"},
    "draining": True,
    "transports": {"sockets": {"port": 4712}, "mine": {"fast": True}},
}
ONE = {"slot": 7, "lineage": "abcdef0123456789", "epoch": 3, "uids": [1, 2]}


class Server:
    """What is made; it runs until it is stopped."""

    failure = None
    endpoints: list[str] = []  # noqa: RUF012

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.kept: bool | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        assert self._stopped.wait(10)

    def stop(self) -> None:
        self._stopped.set()

    def close(self, *, keep: bool = False) -> None:
        assert self.kept is None, "closed twice"
        self.kept = keep

    def watch(self, readable: int, callback: Any) -> None:
        raise NotImplementedError

    def drain(self) -> None:
        raise NotImplementedError


class Made(list[Server]):
    def __call__(self, settings: dict[str, Any], should_stop: Callable[[], bool]) -> Server:
        self.append(Server(settings))
        return self[-1]


def test_a_slot_is_begun_once_beside_the_shard_and_with_files_of_its_own() -> None:
    made = Made()
    shards = HostedShards(SETTINGS, made)
    for _ in range(5):
        shards.hear([ONE])
    wait_until(lambda: len(made) == 1)
    settings = made[0].settings
    assert settings["slot"] == 7
    assert settings["epoch"] == 3
    assert settings["service_id"] == "0123abcdef01"
    assert settings["endpoints"] == ["ipc:///run/tq/shard-1.sock.7", "tcp://10.0.0.5:0"]
    assert settings["transports"] == {"sockets": {}, "mine": {"fast": True}}, "4712 is taken"
    assert settings.keys().isdisjoint({"restore", "draining"})
    shards.close(keep=True)
    assert made[0].kept is True


def test_one_that_has_lost_its_place_is_closed_and_may_begin_again() -> None:
    made = Made()
    shards = HostedShards(SETTINGS, made)
    shards.hear([ONE])
    wait_until(lambda: len(made) == 1)
    made[0].stop()
    wait_until(lambda: made[0].kept is False)

    def begun_again() -> bool:
        shards.hear([{**ONE, "epoch": 4}])
        return len(made) == 2

    wait_until(begun_again)
    shards.close(keep=False)
    assert [server.settings["epoch"] for server in made] == [3, 4]
    assert made[1].kept is False


def test_one_that_cannot_start_is_tried_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosted, "AGAIN_S", 0.05)
    tries = []

    def fail(settings: dict[str, Any], should_stop: Callable[[], bool]) -> Server:
        tries.append(settings)
        raise ConfigError("no room")

    shards = HostedShards(SETTINGS, fail)

    def tried_twice() -> bool:
        shards.hear([ONE])
        return len(tries) == 2

    wait_until(tried_twice)
    shards.close(keep=False)


def test_one_that_still_fetches_its_rows_does_not_hold_the_end_of_its_process_up() -> None:
    begun = threading.Event()

    def fetch(settings: dict[str, Any], should_stop: Callable[[], bool]) -> Server:
        begun.set()
        wait_until(should_stop)
        raise Closed("shard 7")

    shards = HostedShards(SETTINGS, fetch)
    shards.hear([ONE])
    assert begun.wait(10)
    shards.close(keep=True)
