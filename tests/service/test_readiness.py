"""When a service with two copies of each row can be used, by what its shards say."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from transferqueue.client import connecting
from transferqueue.errors import ServiceFailed
from transferqueue.net.keys import ServiceKeys
from transferqueue.service import readiness
from transferqueue.service.readiness import wait_in_step

if TYPE_CHECKING:
    from collections.abc import Sequence


def status(*is_complete: bool, away: Sequence[int] = ()) -> dict[str, Any]:
    """``is_complete``: of each shard that has answered."""
    shards = [
        {"slot": slot, "copies": {"is_complete": said}} for slot, said in enumerate(is_complete)
    ]
    return {"shards": shards, "shards_away": list(away)}


class Client:
    """Says one after the other, and the last again and again."""

    def __init__(self, *said: dict[str, Any]) -> None:
        self.said = list(said)

    def status(self) -> dict[str, Any]:
        return self.said.pop(0) if len(self.said) > 1 else self.said[0]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "POLL_EVERY_S", 0.0)


def wait(client: Client, monkeypatch: pytest.MonkeyPatch, *, timeout_s: float) -> None:
    def connect(*args: Any, **options: Any) -> AbstractContextManager[Client]:
        return nullcontext(client)

    monkeypatch.setattr(connecting, "connect", connect)
    keys = ServiceKeys.generate(encrypted=False).for_clients()
    wait_in_step("ipc:///service", keys, num_shards=2, timeout_s=timeout_s)


def test_shards_are_waited_for_that_are_slow_to_say_or_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = status(True, True)
    client = Client(
        status(),
        status(away=[0, 1]),
        status(True, away=[1]),
        status(True),
        status(True, False),
        last,
    )
    wait(client, monkeypatch, timeout_s=30.0)
    assert client.said == [last]


@pytest.mark.parametrize(
    ("said", "lack"),
    [
        (status(False, away=[1]), r"shards \[0, 1\] have no second copy"),
        (status(True), "only 1 of 2 shards are there"),
    ],
)
def test_what_has_not_come_is_named(
    said: dict[str, Any], lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServiceFailed, match=f"{lack} after 0 s"):
        wait(Client(said), monkeypatch, timeout_s=0.0)
