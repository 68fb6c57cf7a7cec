"""Client processes for tests to kill: ``fault_programs.py NAME ADDRESS ARGUMENT``.

Each says one JSON line when it is where its test wants it, and goes on when it gets one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

import transferqueue as tq
from tests.e2e import generations
from transferqueue.client.part_puts import PlacedPut


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def hear() -> None:
    sys.stdin.readline()


def handle_of(text: str) -> tq.BatchHandle:
    return tq.BatchHandle.from_bytes(bytes.fromhex(text))


def write_half(client: tq.Client, argument: str) -> None:
    """In the middle of a put, with space reserved and some of it written."""
    whole = PlacedPut.fill

    def write(put: PlacedPut, *arguments: Any) -> None:
        whole(put, *arguments)
        say(writing=True)
        hear()

    PlacedPut.fill = write  # type: ignore[method-assign]
    client.put({"x": torch.ones(int(argument), 1 << 18)}, partition="half")


def hold(client: tq.Client, argument: str) -> None:
    """Looking at mapped memory."""
    got = client.get(handle_of(argument))
    say(sums={name: float(got[name].sum()) for name in got.keys()})  # noqa: SIM118
    hear()


def edit(client: tq.Client, argument: str) -> None:
    """Writing into what it got, again and again."""
    got = client.get(handle_of(argument))["x"]
    say(before=float(got.sum()))
    hear()
    got += 1
    got[:, ::512] = -7.0
    say(after=float(got.sum()))
    hear()
    again = client.get(handle_of(argument))["x"]
    say(again=float(again.sum()), still=float(got.sum()))
    hear()


def churn(client: tq.Client, argument: str) -> None:
    """Putting, getting, holding and clearing, and looking at every byte: see `generations`."""
    seed, seconds = map(float, argument.split(","))
    say(**generations.churn(client, seed=int(seed), seconds=seconds))


PROGRAMS = {"write_half": write_half, "hold": hold, "edit": edit, "churn": churn}


def main(name: str, address: str, transport: str, argument: str) -> None:
    torch.set_num_threads(1)
    with tq.connect(address, transport=transport) as client:
        PROGRAMS[name](client, argument)


if __name__ == "__main__":
    np.seterr(all="raise")
    main(*sys.argv[1:])
