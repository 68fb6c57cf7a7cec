"""What the checks of the transport contract are written with."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from transferqueue.closing import Closing
from transferqueue.errors import TransportFailed
from transferqueue.testing.broken import ContractBroken, expect
from transferqueue.transports.base import ClientEnd, EndConfig, ShardEnd, WindowTransport

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

TIMEOUT_S = 10.0
"""Of moves that should succeed."""

SHORT_S = 1.0
"""Of moves that should fail."""

CLOSE_S = 1.0
"""How long ``close_window`` may take."""

LATE_S = 0.5
"""On a busy machine a deadline may be kept so much too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The transport that is checked."""

    transport: type[WindowTransport]
    options: Mapping[str, Any]
    host: str | None = "127.0.0.1"
    encrypt: bool = False

    @contextlib.contextmanager
    def shard_end(self) -> Iterator[ShardEnd]:
        with tempfile.TemporaryDirectory(prefix="transferqueue-contract-") as folder:
            config = EndConfig(
                service_id="contract",
                slot=0,
                host=self.host,
                directory=folder,
                encrypt=self.encrypt,
                options=self.options,
            )
            with self.transport.open_shard_end(config) as end:
                yield end

    @contextlib.contextmanager
    def pair(self) -> Iterator[tuple[ShardEnd, ClientEnd]]:
        with self.shard_end() as shard, self.client_end(shard) as client:
            yield shard, client

    def client_end(self, shard: ShardEnd) -> ClientEnd:
        """From the facts as they come over a wire."""
        return self.transport.open_client_end(json.loads(json.dumps(dict(shard.facts))))


Check = Callable[[Subject], None]


def pattern(seed: int, nbytes: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def views(pieces: Sequence[Bytes], *, writable: bool = False) -> list[memoryview]:
    return [piece.data if writable else piece.data.toreadonly() for piece in pieces]


def read(client: ClientEnd, ticket: bytes, offset: int, nbytes: int) -> Bytes:
    out = np.zeros(nbytes, np.uint8)
    client.read(ticket, offset, out.data, timeout_s=TIMEOUT_S)
    return out


def expect_refused(what: str, move: Callable[[], object]) -> None:
    """`TransportFailed`, in time."""
    begun_s = time.monotonic()
    try:
        move()
    except TransportFailed:
        took_s = time.monotonic() - begun_s
        expect(took_s <= SHORT_S + LATE_S, f"{what}: refused after {took_s:.2f} s only")
        return
    raise ContractBroken(f"{what}: no TransportFailed")


def close_window(shard: ShardEnd, ticket: bytes) -> None:
    begun_s = time.monotonic()
    shard.close_window(ticket)
    took_s = time.monotonic() - begun_s
    expect(took_s <= CLOSE_S, f"close_window took {took_s:.2f} s")


class OtherProcess(Closing):
    """A client of a process of its own that reads or writes a window again and again, until it is
    refused."""

    def __init__(
        self, subject: Subject, shard: ShardEnd, ticket: bytes, nbytes: int, *, writes: bool
    ) -> None:
        transport = subject.transport
        module = sys.modules[transport.__module__]
        settings = {
            "module": transport.__module__,
            "file": module.__file__,
            "class": transport.__qualname__,
            "facts": dict(shard.facts),
            "ticket": ticket.hex(),
            "nbytes": nbytes,
            "writes": writes,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "transferqueue.testing.transport_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(settings).encode() + b"\n")
        self._process.stdin.flush()

    @classmethod
    def moving(
        cls, subject: Subject, shard: ShardEnd, ticket: bytes, nbytes: int, *, writes: bool
    ) -> Self:
        """One that has moved something."""
        found = cls(subject, shard, ticket, nbytes, writes=writes)
        assert found._process.stdout is not None
        if found._process.stdout.readline() != b"moving\n":
            found.close()
            raise ContractBroken("a client in another process could not move anything")
        return found

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """How it ended: 0 after a refusal."""
        return self._process.wait(TIMEOUT_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
