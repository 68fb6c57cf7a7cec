"""Every process of the running example is killed in turn, the driver last, and it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import transferqueue as tq
from tests.controller.tiny_roles import num_rows
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NUM_ROLES = 6
"""Two rollouts, reward, reference, critic and actor."""
STEPS = 16
LIMIT_S = 400.0


def start(service: tq.Service, out: Path, *more: str) -> subprocess.Popen[str]:
    options = ["--task", "spelling", "--host", "processes", "--service", service.address]
    shape = ["--batch-rows", "64", "--steps", str(STEPS), "--checkpoint-every", "2"]
    program = [sys.executable, "-m", "examples.async_ppo", "--plain", "--out", str(out)]
    return subprocess.Popen(
        [*program, *options, *shape, *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def updates(run: subprocess.Popen[str]) -> Iterator[int]:
    """Number of each update, as it is printed."""
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("step"):
            yield int(line.split()[1].split("/")[0])


def role_pids(driver_pid: int) -> list[int]:
    """Of the children of the server that they are forked from."""
    (server,) = [c for c in psutil.Process(driver_pid).children() if _is_fork_server(c)]
    return [child.pid for child in server.children()]


def _is_fork_server(process: psutil.Process) -> bool:
    return any("multiprocessing.forkserver" in part for part in process.cmdline())


def test_whoever_is_killed_in_a_running_example_it_goes_on(tmp_path: Path) -> None:
    with tq.serve(shards=2, budget_bytes=128 << 20) as service:
        run = start(service, tmp_path)
        reports = updates(run)
        for _ in range(2):
            next(reports)  # so that there is a checkpoint
        victims = role_pids(run.pid)
        assert len(victims) == NUM_ROLES
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
            assert next(reports, None) is not None, run.communicate()[1]
        for process in ("shard-0", "coordinator", "shard-1"):
            os.kill(service.pids[process], signal.SIGKILL)
            assert next(reports, None) is not None, run.communicate()[1]
        assert not set(role_pids(run.pid)) & set(victims), "all were made again"
        run.kill()
        run.communicate()

        before = lines(tmp_path)
        run = start(service, tmp_path, "--resume")
        _, errors = run.communicate(timeout=LIMIT_S)
        assert run.returncode == 0, errors
        after = lines(tmp_path)
        with tq.connect(service.address) as client:
            wait_until(lambda: num_rows(client, "train") == 0, timeout_s=20.0)
    assert after[: len(before)] == before, "what was reported stays"
    resumed = after[len(before) :]
    checkpoint = resumed[0]["step"] - 1
    assert checkpoint % 2 == 0
    # One step behind the checkpoint: killed after it was written, before its update was reported.
    behind = checkpoint - before[-1]["step"]
    assert behind in (-1, 0, 1), "counters go on from the newest checkpoint"
    assert [line["step"] for line in resumed] == list(range(checkpoint + 1, STEPS + 1))
    versions = [line["version"] for line in after]
    assert versions == sorted(set(versions)), "no version of the weights is given twice"
    assert all(line["staleness_max"] <= 2 and line["rows"] == 64 for line in after)


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
