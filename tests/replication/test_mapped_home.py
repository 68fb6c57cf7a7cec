"""A guard that reads what its home puts in the home's own memory, when that home is lost."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.replication.pair import Pair
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.several import Member, SeveralBackends
from transferqueue.backends.shm import ShmBackend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
CELL_BYTES = 256 << 10
"""Enough that it does not come along with the message."""

SUCCESSOR = """
import sys
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.shm import ShmBackend

config = BackendConfig(
    service_id="mapped", slot=3, budget_bytes=8 << 20, directory=sys.argv[1], recover=True
)
with ShmBackend.open(config) as backend:
    assert backend.recovered
    (address,) = backend.reserve([4 << 20]).tolist()
    assert address == 0  # nothing is known of what was there
    backend.write(address, memoryview(bytes(4 << 20)))
    backend.close(keep=True)
"""


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[ShmBackend]:
    config = BackendConfig(
        service_id="mapped", slot=3, budget_bytes=8 * MIB, directory=str(tmp_path)
    )
    with ShmBackend.open(config) as backend:
        yield backend


@pytest.fixture
def pair(backend: ShmBackend) -> Pair:
    member = Member(name="shm", backend=backend, budget_bytes=8 * MIB)
    pair = Pair(guard_bytes=8 * MIB, home_backend=SeveralBackends([member]))
    pair.settle()
    pair.put(b"a" * CELL_BYTES)
    pair.exchange()
    assert pair.mirrored() == pair.model.state != {}
    return pair


def overwrite(pair: Pair) -> None:
    """Not acknowledged, and under way to the guard."""
    pair.put(b"b" * CELL_BYTES, uids=pair.uids)
    assert any("mapped" in message.body for message in pair.home.wire.to_guard)


def serve_what_is_on_its_way(pair: Pair) -> None:
    while pair.home.wire.to_guard:
        pair.guard.serve(pair.home.wire)


def test_what_a_successor_may_have_overwritten_is_not_taken(
    pair: Pair, backend: ShmBackend, tmp_path: Path
) -> None:
    overwrite(pair)
    pair.put(b"behind it")
    backend.close(keep=True)  # as when it is killed
    subprocess.run([sys.executable, "-c", SUCCESSOR, str(tmp_path)], check=True)
    serve_what_is_on_its_way(pair)
    assert pair.mirrored() == pair.model.state


def test_what_a_home_had_put_is_taken_when_it_is_dead_and_nobody_has_followed(
    pair: Pair, backend: ShmBackend
) -> None:
    overwrite(pair)
    backend.close(keep=True)
    serve_what_is_on_its_way(pair)
    assert pair.mirrored() == {"p": {pair.uids[0]: {"x": b"b" * CELL_BYTES}}}
