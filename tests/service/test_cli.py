"""The command line, as a shell sees it."""

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


def test_status_tells_what_the_service_holds() -> None:
    with tq.serve(budget_bytes=64 << 20) as service, tq.connect(service.address) as client:
        client.wait(client.put({"x": [1, 2, 3]}, partition="train"))
        shown = run("status", "--address", service.address, "--json")
        assert shown.returncode == 0, shown.stderr
        report = json.loads(shown.stdout)
        assert report["partitions"]["train"]["rows"] == 3
        assert report["shards"][0]["rows"] == 3
        table = run("status", "--address", service.address)
        assert "train" in table.stdout


def test_bench_measures_what_it_is_asked_for() -> None:
    with tq.serve(budget_bytes=64 << 20) as service:
        asked = ("--address", service.address, "--transport", "shm", "--transport", "ipc")
        shown = run("bench", *asked, "--size-kib", "12", "--seconds", "0.2", "--json")
        assert shown.returncode == 0, shown.stderr
        results = json.loads(shown.stdout)
        assert [(r["transport"], r["operation"]) for r in results] == [
            (transport, operation)
            for transport in ("shm", "ipc")
            for operation in ("put", "get", "get + read")
        ]
        assert all(r["p50_s"] > 0 and r["num_bytes"] >= 12 << 10 for r in results)
        table = run("bench", *asked, "--seconds", "0.1", "--size-kib", "12")
        assert "get + read" in table.stdout


def test_no_service_is_exit_status_3(tmp_path: Path) -> None:
    missing = run("status", "--address", f"ipc://{tmp_path}/none", "--timeout-s", "0.2")
    assert missing.returncode == 3
    assert "no answer to hello" in missing.stderr


def test_wrong_settings_are_exit_status_1() -> None:
    refused = run("serve", "--host", "0.0.0.0")
    assert refused.returncode == 1
    assert "every interface" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_an_address_and_ends_with_a_signal(number: signal.Signals) -> None:
    server = subprocess.Popen(
        [*COMMAND, "serve", "--budget-mib", "64"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = server.stdout.readline().split()[1]
    with tq.connect(address) as client:
        assert client.put({"x": [1]}).partition == "default"
    server.send_signal(number)
    assert server.wait(timeout=20) == 0
    server.stdout.close()
