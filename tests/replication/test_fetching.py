"""A shard that gets its rows from its guard, when the process that it is in ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.replication.two_shards import SLOT, heap
from transferqueue.errors import Closed
from transferqueue.net.server import Reply, Request, Server
from transferqueue.process_id import boot_id
from transferqueue.replication import fetching
from transferqueue.replication.fetching import Fetcher
from transferqueue.replication.settings import CopySettings
from transferqueue.service.process import make_server
from transferqueue.shard.store import Store
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Coordinator:
    """Says where the second copy is. ``guard``: ``None`` while it waits for that."""

    def __init__(self, folder: Path, guard: str | None) -> None:
        self.endpoint = f"ipc://{folder}/coordinator.sock"
        self._guard = guard
        self._server = Server(
            endpoints=[self.endpoint],
            keys=None,
            handlers={ops.WHERE_COPY: self._where},
            mutating=frozenset(),
            on_cancel=lambda key: None,
        )
        self._thread = threading.Thread(target=self._server.run, args=(lambda now_s: 0.05,))
        self._thread.start()

    def _where(self, request: Request) -> Reply:
        if self._guard is None:
            return Reply(body={"is_awaited": True})
        guard = {"slot": 0, "endpoints": [self._guard], "boot_id": boot_id()}
        return Reply(body={"copy": "all of it", "epoch": 0, "guard": guard})

    def close(self) -> None:
        self._server.stop()
        self._thread.join()
        self._server.close()


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[str]:
    """The endpoint of a guard that listens and says nothing, as one whose loop has ended."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/guard.sock")
        listener.listen(64)
        yield f"ipc://{folder}/guard.sock"


def fetch_until_stopped(coordinator: Coordinator) -> None:
    """The process goes on when the fetch looks first, and ends before it looks again."""
    looks = iter([False])
    with contextlib.closing(coordinator):
        fetch = Fetcher(
            slot=SLOT,
            lineage="",
            coordinator=coordinator.endpoint,
            keys=None,
            should_stop=lambda: next(looks, True),
        )
        backend = heap(1 << 16)
        with pytest.raises(Closed, match=f"shard {SLOT}"):
            fetch(Store(slot=SLOT, space=backend), backend, 1)


def test_a_fetch_from_a_guard_that_says_nothing_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ANSWER_S", 0.1)
    with silent(tmp_path) as guard:
        fetch_until_stopped(Coordinator(tmp_path, guard))


def test_a_fetch_that_waits_for_its_guard_to_come_ends_with_its_process(tmp_path: Path) -> None:
    fetch_until_stopped(Coordinator(tmp_path, None))


def test_a_server_of_another_slot_ends_with_the_process_that_it_begins_in(tmp_path: Path) -> None:
    with contextlib.closing(Coordinator(tmp_path, None)) as coordinator:
        settings = {
            "role": "shard",
            "service_id": "0123",
            "slot": SLOT,
            "epoch": 1,
            "endpoints": [f"ipc://{tmp_path}/shard.sock"],
            "coordinator": coordinator.endpoint,
            "backend": "heap",
            "budget_bytes": 1 << 16,
            "arena_dir": None,
            "backend_options": {},
            "others": [],
            "spill": None,
            "copies": CopySettings(bytes_per_s=1e9, silence_s=5.0).to_plain(),
        }
        with pytest.raises(Closed, match=f"shard {SLOT}"):
            make_server(settings, should_stop=lambda: True)
