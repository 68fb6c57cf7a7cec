"""Whether somebody listens, for who may wait and for who may not."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until
from transferqueue.net import listening
from transferqueue.net.listening import ListeningProbe, is_listening

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_who_listens_is_there_and_who_has_ended_is_not(kind: str, tmp_path: Path) -> None:
    if kind == "ipc":
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / "a.sock"))
        endpoint = f"ipc://{tmp_path}/a.sock"
    else:
        server = socket.create_server(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    with server:
        server.listen()
        probe = ListeningProbe(endpoint)
        assert is_listening(endpoint)
        assert probe.is_there()
    assert not is_listening(endpoint)
    wait_until(lambda: not probe.is_there())


def test_a_host_that_says_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()

    def connect(endpoint: str) -> None:
        silent.wait(5)
        raise TimeoutError(endpoint)

    monkeypatch.setattr(listening, "_connect", connect)
    probe = ListeningProbe("tcp://192.0.2.1:9")
    began_s = time.monotonic()
    before = threading.active_count()
    assert all(probe.is_there() for _ in range(50)), "it is not known"
    assert time.monotonic() - began_s < 4.0, "less than one of them takes"
    assert threading.active_count() == before + 1, "one asks at a time"
    silent.set()
    wait_until(lambda: threading.active_count() == before)
