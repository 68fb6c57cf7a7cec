"""One fuzzing run: a service of its own, attacked, measured, attacked again, and used once more."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import transferqueue as tq
from tests.fuzz.attack import Report, Sizes, wait_until_steady

if TYPE_CHECKING:
    from collections.abc import Mapping

BUDGET_BYTES = 256 << 20
REPOSITORY = Path(__file__).resolve().parents[2]
GIVEN_BACK_WITHIN_S = 30.0
"""A put whose bytes come in chunks has its own deadline, and some seconds beyond it."""


@dataclass(kw_only=True)
class Outcome:
    """What a run found."""

    report: Report
    before: Mapping[str, Sizes]
    """By process, after a first half: what that made the service keep is kept for good."""
    after: Mapping[str, Sizes]
    num_restarts: int
    puts_under_way: int
    """Some time after the attacker's end."""
    used_bytes: int
    """After every partition was cleared."""


def run(num_messages: int, seed: int) -> Outcome:
    """``num_messages`` in two halves, each with a seed of its own."""
    with tq.serve(budget_bytes=BUDGET_BYTES) as service:
        first = _attack(service, num_messages // 2, seed)
        before = _sizes(service)
        second = _attack(service, num_messages - num_messages // 2, seed + 1)
        after = _sizes(service)
        with tq.connect(service.address) as client:
            _use(client)
            puts_under_way = _puts_under_way_at_last(client)
            for partition in client.status()["partitions"]:
                client.clear(partition=partition)
            used_bytes = sum(shard["used_bytes"] for shard in client.status()["shards"])
        return Outcome(
            report=_sum(first, second),
            before=before,
            after=after,
            num_restarts=service.num_restarts,
            puts_under_way=puts_under_way,
            used_bytes=used_bytes,
        )


def _attack(service: tq.Service, num_messages: int, seed: int) -> Report:
    command = [sys.executable, "-m", "tests.fuzz.attacker", service.address]
    done = subprocess.run(
        [*command, str(num_messages), str(seed)],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    for pid in service.pids.values():
        wait_until_steady(pid)
    plain = json.loads(done.stdout)
    return Report(
        sent=plain["sent"],
        answered=plain["answered"],
        refused=Counter(plain["refused"]),
        accepted=Counter(plain["accepted"]),
    )


def _sum(one: Report, other: Report) -> Report:
    return Report(
        sent=one.sent + other.sent,
        answered=one.answered + other.answered,
        refused=one.refused + other.refused,
        accepted=one.accepted + other.accepted,
    )


def _sizes(service: tq.Service) -> dict[str, Sizes]:
    return {name: Sizes.of(pid) for name, pid in service.pids.items()}


def _use(client: tq.Client) -> None:
    """The next client is served, and gets what it put."""
    columns = {"x": torch.arange(64.0), "text": [f"row {row}" for row in range(64)]}
    handle = client.put(columns, partition="afterwards")
    got = client.get_columns(handle)
    assert torch.equal(got["x"], columns["x"])
    assert list(got["text"]) == columns["text"]
    with client.claim(task="t", partition="afterwards", fields=["x"], n=64) as claim:
        assert len(claim.handle) == 64


def _puts_under_way_at_last(client: tq.Client) -> int:
    until_s = time.monotonic() + GIVEN_BACK_WITHIN_S
    while True:
        left = sum(shard["puts_under_way"] for shard in client.status()["shards"])
        if not left or time.monotonic() > until_s:
            return left
        time.sleep(0.2)
