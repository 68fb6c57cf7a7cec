"""Client processes for tests to kill.

Each says something when it is where its test wants it, and goes on when it hears something.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import transferqueue as tq
from tests.e2e import generations
from transferqueue.client.part_puts import PlacedPut
from workers.forking import start_child

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
    from multiprocessing.connection import Connection


class Program:
    """One of them, seen from its test."""

    def __init__(
        self, name: str, service: tq.Service, argument: object, transport: str = "auto"
    ) -> None:
        program = partial(run, name, service.address, transport, str(argument))
        self._process, self._pipe = start_child(program, name)

    def said(self) -> dict[str, Any]:
        """``EOFError`` when it has ended."""
        said: dict[str, Any] = self._pipe.recv()
        return said

    def go_on(self) -> None:
        self._pipe.send(None)

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self.kill()
        self._process.close()
        self._pipe.close()


@contextmanager
def program(
    name: str, service: tq.Service, argument: object, transport: str = "auto"
) -> Iterator[Program]:
    running = Program(name, service, argument, transport)
    try:
        yield running
    finally:
        running.close()


class Ear:
    """Its test, seen from one of them."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def say(self, **what: Any) -> None:
        self._pipe.send(what)

    def hear(self) -> None:
        self._pipe.recv()


def handle_of(text: str) -> tq.BatchHandle:
    return tq.BatchHandle.from_bytes(bytes.fromhex(text))


def write_half(test: Ear, client: tq.Client, argument: str) -> None:
    """In the middle of a put, with space reserved and some of it written."""
    whole = PlacedPut.fill

    def write(put: PlacedPut, *arguments: Any) -> None:
        whole(put, *arguments)
        test.say(writing=True)
        test.hear()

    PlacedPut.fill = write  # type: ignore[method-assign]
    client.put({"x": torch.ones(int(argument), 1 << 18)}, partition="half")


def hold(test: Ear, client: tq.Client, argument: str) -> None:
    """Looking at mapped memory."""
    got = client.get(handle_of(argument))
    test.say(sums={name: float(got[name].sum()) for name in got.keys()})  # noqa: SIM118
    test.hear()


def edit(test: Ear, client: tq.Client, argument: str) -> None:
    """Writing into what it got, again and again."""
    got = client.get(handle_of(argument))["x"]
    test.say(before=float(got.sum()))
    test.hear()
    got += 1
    got[:, ::512] = -7.0
    test.say(after=float(got.sum()))
    test.hear()
    again = client.get(handle_of(argument))["x"]
    test.say(again=float(again.sum()), still=float(got.sum()))
    test.hear()


def churn(test: Ear, client: tq.Client, argument: str) -> None:
    """Putting, getting, holding and clearing, and looking at every byte: see `generations`."""
    seed, seconds = map(float, argument.split(","))
    test.say(**generations.churn(client, seed=int(seed), seconds=seconds))


PROGRAMS = {"write_half": write_half, "hold": hold, "edit": edit, "churn": churn}


def run(name: str, address: str, transport: str, argument: str, pipe: Connection) -> None:
    """The program of the child."""
    torch.set_num_threads(1)
    np.seterr(all="raise")
    with tq.connect(address, transport=transport) as client:
        PROGRAMS[name](Ear(pipe), client, argument)
