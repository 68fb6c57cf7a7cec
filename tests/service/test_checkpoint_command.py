"""Saving and restoring from a shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import transferqueue as tq

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "transferqueue.service.cli"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_a_service_is_saved_and_begun_with_again(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    with tq.serve(shards=2, budget_bytes=16 << 20) as service, tq.connect(service.address) as c:
        handle = c.put({"x": list(range(100))}, partition="train")
        shown = run("checkpoint", path, "--address", service.address, "--json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["num_rows"] == 100
        shown = run("checkpoint", path, "--address", service.address)
        assert shown.stdout.startswith("100 samples, ")
    serve = [*COMMAND, "serve", "--budget-mib", "16", "--restore", path]
    server = subprocess.Popen(serve, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split()[1]
    with tq.connect(address) as client:
        assert client.get_columns(handle)["x"].tolist() == list(range(100))
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=20) == 0
    server.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("serve", "--restore", "/nowhere/at/all"), "holds no finished checkpoint"),
        (("checkpoint", "/proc/nowhere"), "checkpoint /proc/nowhere"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_status_1(
    arguments: tuple[str, ...], expected: str
) -> None:
    with tq.serve(budget_bytes=16 << 20) as service:
        more = ("--address", service.address) if arguments[0] == "checkpoint" else ()
        refused = run(*arguments, *more)
    assert refused.returncode == 1
    assert expected in refused.stderr.splitlines()[0]


def test_a_service_on_threads_is_saved_and_restored(tmp_path: Path) -> None:
    with (
        tq.serve(shards=2, budget_bytes=16 << 20, in_process=True) as service,
        tq.connect(service.address) as client,
    ):
        handle = client.put({"x": list(range(10))}, partition="train")
        client.checkpoint(tmp_path)
    with (
        tq.serve(shards=3, budget_bytes=16 << 20, in_process=True, restore=tmp_path) as service,
        tq.connect(service.address) as client,
    ):
        assert client.get_columns(handle)["x"].tolist() == list(range(10))
