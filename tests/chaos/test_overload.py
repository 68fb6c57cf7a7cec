"""More is offered than there is room for: puts wait or are refused, in time, and nothing breaks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

import transferqueue as tq
from tests.chaos.record import FLOW
from tests.waiting import wait_until
from transferqueue.errors import NotReady
from transferqueue.net.calls import GRACE_S

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SECONDS = float(os.environ.get("TQ_OVERLOAD_SECONDS", "12"))
"""``TQ_OVERLOAD_SECONDS=60`` for the whole of it."""

BUDGET_MIB, PUT_MIB = 64, 16
NUM_PROCESSES, CLIENTS_EACH = 2, 8
"""Sixteen clients of 16 MiB each offer four times the budget at any time."""

TIMEOUT_S = 4.0
SLACK_S = 3.0
"""For two cores that all of them share."""


@pytest.mark.slow
def test_four_times_the_budget_offered_is_borne() -> None:
    with tq.serve(budget_bytes=BUDGET_MIB * MIB) as service, tq.connect(service.address) as client:
        client.create_partition(FLOW, tasks=["t"], retention="consumed")
        pids = dict(service.pids)
        before = {name: psutil.Process(pid).memory_full_info().uss for name, pid in pids.items()}
        offerers = [_start(service.address) for _ in range(NUM_PROCESSES)]
        consumed, waits_s = _consume_until(client, offerers)
        said = [json.loads(offerer.communicate()[0]) for offerer in offerers]
        consumed += _consume_rest(client)
        ended = Counter(end for one in said for end in one["ended"])
        assert ended["put"] * PUT_MIB == consumed  # what was acknowledged was handed out, once
        assert ended["put"] * PUT_MIB > 2 * BUDGET_MIB, ended
        assert set(ended) <= {"put", "StorageFull", "TransferExpired"}
        assert max(s for one in said for s in one["took_s"]) < TIMEOUT_S + GRACE_S + SLACK_S
        assert max(waits_s) < SLACK_S  # who does not put is served all along
        assert service.pids == pids
        wait_until(lambda: not _shard(client)["used_bytes"], timeout_s=20)
        assert _shard(client)["puts_waiting"] == 0
        for name, pid in pids.items():
            grown = psutil.Process(pid).memory_full_info().uss - before[name]
            assert grown < 32 * MIB, name


def _start(address: str) -> subprocess.Popen[str]:
    arguments = [address, *map(str, (CLIENTS_EACH, SECONDS, PUT_MIB, TIMEOUT_S))]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.offerer", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _consume_until(
    client: tq.Client, offerers: list[subprocess.Popen[str]]
) -> tuple[int, list[float]]:
    """One slow consumer. How many samples it had, and how long each ``status`` took meanwhile."""
    consumed, waits_s = 0, [0.0]
    while any(offerer.poll() is None for offerer in offerers):
        began_s = time.monotonic()
        client.status()
        waits_s.append(time.monotonic() - began_s)
        with contextlib.suppress(NotReady):
            consumed += _claim(client, timeout_s=0.5)
        time.sleep(0.05)
    return consumed, waits_s


def _consume_rest(client: tq.Client) -> int:
    consumed = 0
    with contextlib.suppress(NotReady):
        while True:
            consumed += _claim(client, timeout_s=2.0)
    return consumed


def _claim(client: tq.Client, *, timeout_s: float) -> int:
    claim = client.claim(
        task="t", partition=FLOW, fields=["n"], n=8, allow_partial=True, timeout_s=timeout_s
    )
    claim.ack()
    return len(claim.handle)


def _shard(client: tq.Client) -> dict[str, int]:
    (shard,) = client.status()["shards"]
    return dict(shard)
