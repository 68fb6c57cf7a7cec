"""Sends what is nearly right to a live service, and looks at how it bears that."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import zmq

from tests.fuzz.mutations import Mutator
from tests.fuzz.traffic import SHARD_OPS
from transferqueue.net.sockets import IDENTITY_BYTES
from transferqueue.wire import ops
from transferqueue.wire.format import ERROR_OP, Message, decode_message, encode_message

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = 64
"""Messages under way to one process at a time."""

SETTLE_EVERY = 2_000


@dataclass(kw_only=True)
class Sizes:
    """What one process of the service takes."""

    rss_bytes: int
    num_fds: int
    num_threads: int

    @classmethod
    def of(cls, pid: int) -> Sizes:
        process = psutil.Process(pid)
        return cls(
            rss_bytes=process.memory_info().rss,
            num_fds=process.num_fds(),
            num_threads=process.num_threads(),
        )


@dataclass(kw_only=True)
class Report:
    """How an attack went."""

    sent: int = 0
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Answers that were errors, by class."""
    accepted: Counter[str] = field(default_factory=Counter)
    """Answers that were none, by operation: a mutation may be right by chance."""


class Attacker:
    """One stranger with the key, or in the 0700 folder: everything that a peer may send it sends.
    Now and then it is gone, and comes as another."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._endpoint = endpoint
        self._socket = self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.routing_id = b"\x01" + os.urandom(IDENTITY_BYTES - 1)
        socket.connect(self._endpoint)
        return socket

    def send(self, frames: Sequence[bytes]) -> None:
        self._socket.send_multipart(frames)

    def drain(self, report: Report, *, wait_ms: int = 0) -> set[int]:
        """Take the answers that have come; the requests that they answer."""
        answered = set()
        while self._socket.poll(wait_ms):
            message = decode_message(self._socket.recv_multipart())
            report.answered += 1
            if message.op == ERROR_OP:
                report.refused[str(message.body["cls"])] += 1
            else:
                report.accepted[message.op] += 1
            answered.add(message.request_id)
        return answered

    def wait_until_heard(self, report: Report, *, timeout_s: float = 30.0) -> None:
        """Until everything sent so far has been looked at: messages of a connection keep their
        order, and this one is answered."""
        request_id = (1 << 63) + report.sent
        self.send(encode_message(Message(op=ops.STATUS, request_id=request_id)))
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if request_id in self.drain(report, wait_ms=100):
                return
        raise TimeoutError(f"{self._endpoint} did not answer for {timeout_s} s")

    def reconnect(self) -> None:
        """Leave, as a process does that is killed, and come as another."""
        self._socket.close()
        self._socket = self._connect()

    def close(self) -> None:
        self._socket.close()
        self._context.destroy(linger=0)


def attack(
    *,
    coordinator: str,
    shard: str,
    recorded: Sequence[Message],
    num_messages: int,
    seed: int,
) -> Report:
    """Send ``num_messages`` mutations, each to the process that its operation is for or, now and
    then, to the other one."""
    report = Report()
    mutator = Mutator(recorded, seed)
    attackers = {"coordinator": Attacker(coordinator), "shard": Attacker(shard)}
    try:
        for number in range(num_messages):
            op, frames = mutator.next()
            is_for_shard = (op in SHARD_OPS) != (number % 17 == 0)
            attackers["shard" if is_for_shard else "coordinator"].send(frames)
            report.sent += 1
            if number % WINDOW == 0:
                for attacker in attackers.values():
                    attacker.drain(report)
            if number % SETTLE_EVERY == SETTLE_EVERY - 1:
                for attacker in attackers.values():
                    attacker.wait_until_heard(report)
                    attacker.reconnect()
        for attacker in attackers.values():
            attacker.wait_until_heard(report)
    finally:
        for attacker in attackers.values():
            attacker.close()
    return report


def wait_until_steady(pid: int, *, timeout_s: float = 20.0) -> None:
    """Until a process does nothing more for what was sent to it."""
    process, until_s = psutil.Process(pid), time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        before_s = sum(process.cpu_times()[:2])
        time.sleep(0.25)
        if sum(process.cpu_times()[:2]) - before_s < 0.02:
            return


def sockets_of(address: str) -> tuple[str, str]:
    """The coordinator's and the first shard's Unix sockets of a service of this host."""
    folder = Path(address.removeprefix("ipc://")).parent
    return f"ipc://{folder / 'coordinator.sock'}", f"ipc://{folder / 'shard-0.sock'}"
