"""Puts and gets over a link that is slow, loses packets, or is cut in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import transferqueue as tq
from tests.e2e.far_client import batch, digest
from tests.e2e.two_hosts import NEAR, TwoHosts, reason_to_skip
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_REASON = reason_to_skip()
pytestmark = [
    pytest.mark.skipif(_REASON is not None, reason=str(_REASON)),
    pytest.mark.slow,
]

ROOT = Path(__file__).resolve().parents[2]
BUDGET_BYTES = 256 << 20


class Far:
    """A client process on the far host, doing one thing."""

    def __init__(self, hosts: TwoHosts, service: dict[str, str], *arguments: object) -> None:
        program = str(ROOT / "tests/e2e/far_client.py")
        self._process = _start(
            hosts, hosts.far, program, service["far"], service["keys"], *map(str, arguments)
        )

    def outcome(self) -> dict[str, Any]:
        """What it says when it is done."""
        return _line(self._process)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def far(hosts: TwoHosts, service: dict[str, str], *arguments: object) -> Iterator[Far]:
    client = Far(hosts, service, *arguments)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def serving(hosts: TwoHosts) -> Iterator[dict[str, str]]:
    program = str(ROOT / "tests/e2e/near_service.py")
    process = _start(hosts, hosts.near, program, NEAR, str(BUDGET_BYTES))
    try:
        yield _line(process)
    finally:
        process.communicate()


def _start(hosts: TwoHosts, host: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        hosts.command(host, "env", f"PYTHONPATH={ROOT}", sys.executable, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process ended without a word"
    said: dict[str, Any] = json.loads(line)
    return said


def shard(client: tq.Client) -> dict[str, Any]:
    status: dict[str, Any] = client.status()["shards"][0]
    return status


def test_a_batch_comes_over_a_slow_and_lossy_link_as_it_was_put() -> None:
    with (
        TwoHosts(delay_ms=10, loss=0.01) as hosts,
        serving(hosts) as service,
        tq.connect(service["here"]) as near,
    ):
        with far(hosts, service, 60, "put", 3) as putting:
            said = putting.outcome()
        assert "handle" in said, said
        handle = tq.BatchHandle.from_bytes(bytes.fromhex(said["handle"]))
        assert digest(near.get_columns(handle)) == digest(batch(3))
        with far(hosts, service, 60, "get", said["handle"]) as getting:
            assert getting.outcome().get("digest") == digest(batch(3))
        assert shard(near)["leases"] == 0


@pytest.mark.parametrize("cut_s", [0.5, 6.0])
def test_a_link_that_is_cut_and_mended_delays_a_put_and_a_get(cut_s: float) -> None:
    with (
        TwoHosts(delay_ms=10, rate_mbit=100) as hosts,
        serving(hosts) as service,
        tq.connect(service["here"]) as near,
    ):
        with far(hosts, service, 60, "put", 16) as putting:
            wait_until(lambda: shard(near)["requests"].get("write", 0) > 12, 20)
            assert shard(near)["rows"] == 0
            cut_and_mend(hosts, cut_s)
            said = putting.outcome()
        assert "handle" in said, said
        with far(hosts, service, 60, "get", said["handle"]) as getting:
            wait_until(lambda: shard(near)["requests"].get("read", 0) > 12, 20)
            cut_and_mend(hosts, cut_s)
            assert getting.outcome().get("digest") == digest(batch(16))


def cut_and_mend(hosts: TwoHosts, cut_s: float) -> None:
    hosts.set_link(up=False)
    time.sleep(cut_s)
    hosts.set_link(up=True)


def test_a_put_over_a_link_that_stays_cut_fails_in_time_and_leaves_nothing() -> None:
    with (
        TwoHosts(delay_ms=10, rate_mbit=100) as hosts,
        serving(hosts) as service,
        tq.connect(service["here"]) as near,
        far(hosts, service, 4, "put", 64) as putting,
    ):
        wait_until(lambda: shard(near)["requests"].get("write", 0) > 12, 20)
        hosts.set_link(up=False)
        said = putting.outcome()
        assert said["error"] == "TransferUnfinished", said
        assert said["took_s"] < 7
        assert shard(near)["rows"] == 0
        assert shard(near)["used_bytes"] > 64 << 20
        wait_until(lambda: shard(near)["used_bytes"] == 0, 20)


def test_a_get_over_a_link_that_stays_cut_fails_in_time_and_holds_nothing() -> None:
    with (
        TwoHosts(delay_ms=10, rate_mbit=100) as hosts,
        serving(hosts) as service,
        tq.connect(service["here"]) as near,
    ):
        handle = near.put(batch(64))
        with far(hosts, service, 4, "get", handle.to_bytes().hex()) as getting:
            wait_until(lambda: shard(near)["requests"].get("read", 0) > 12, 20)
            hosts.set_link(up=False)
            near.clear(handle)
            said = getting.outcome()
            assert said["error"] == "TransferUnfinished", said
            assert said["took_s"] < 7
            assert shard(near)["leases"] == 1
            wait_until(lambda: shard(near)["used_bytes"] == 0, 20)


def test_a_get_that_was_given_up_is_let_go_of_when_the_link_is_back() -> None:
    with (
        TwoHosts(delay_ms=10, rate_mbit=100) as hosts,
        serving(hosts) as service,
        tq.connect(service["here"]) as near,
    ):
        handle = near.put(batch(64))
        with far(hosts, service, 2, "get", handle.to_bytes().hex()) as getting:
            assert getting.outcome()["error"] == "TransferUnfinished"
            wait_until(lambda: shard(near)["leases"] == 0, 5)
