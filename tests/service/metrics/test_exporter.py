"""Metrics as Prometheus gets them, over HTTP, from processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import transferqueue as tq
from transferqueue import errors
from transferqueue.service.cli import main
from transferqueue.service.metrics.exporter import Exporter, exposition
from transferqueue.service.metrics.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def client() -> Iterator[tq.Client]:
    with (
        tq.serve(in_process=True, budget_bytes=32 << 20) as service,
        tq.connect(service.address) as client,
    ):
        client.put({"ids": torch.zeros(6, 8)}, partition="train")
        yield client


def scrape(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(address, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_over_http_has_the_numbers_of_the_status(client: tq.Client) -> None:
    with Exporter(client.status, host="127.0.0.1", port=0) as exporter:
        found = scrape(exporter.address)
    shard = client.status()["shards"][0]
    of_shard = frozenset({"shard": "0"}.items())
    assert found["transferqueue_up", frozenset()] == 1
    assert found["transferqueue_shard_used_bytes", of_shard] == shard["used_bytes"]
    put = {"process": "shard-0", "operation": "put"}
    assert found["transferqueue_request_seconds_count", frozenset(put.items())] == 1
    assert found["transferqueue_request_seconds_bucket", frozenset({**put, "le": "+Inf"}.items())]


def test_a_scrape_is_what_the_families_say(client: tq.Client) -> None:
    found = {family.name: family for family in text_string_to_metric_families(
        exposition(client.status)
    )}  # fmt: skip
    assert {family.name: family.kind.value for family in FAMILIES} == {
        name: family.type for name, family in found.items()
    }


def test_a_service_that_does_not_answer_is_down_and_not_an_error() -> None:
    def ask() -> dict[str, object]:
        raise errors.ServiceUnreachable("ipc:///gone", "status", 1.0)

    (family,) = text_string_to_metric_families(exposition(ask))
    assert [(sample.name, sample.value) for sample in family.samples] == [("transferqueue_up", 0)]


def test_a_port_that_is_taken_is_said(client: tq.Client) -> None:
    with Exporter(client.status, host="127.0.0.1", port=0) as exporter:
        port = int(exporter.address.rpartition(":")[2].partition("/")[0])
        with pytest.raises(errors.ConfigError, match=f"127.0.0.1:{port}"):
            Exporter(client.status, host="127.0.0.1", port=port)


def test_a_service_exports_from_its_start_and_the_command_reads_the_same() -> None:
    program = [sys.executable, "-m", "transferqueue.service.cli"]
    served = subprocess.Popen(
        [*program, "serve", "--budget-mib", "16", "--metrics-port", "0"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert served.stdout is not None
        said = [served.stdout.readline().split() for _ in range(3)]
        assert [line[0] for line in said] == ["address", "key", "metrics"]
        address = said[0][1]
        found = scrape(said[2][1])
        assert found["transferqueue_up", frozenset()] == 1
        once = CliRunner().invoke(main, ["metrics", "--once", "--address", address])
        assert once.exit_code == 0
        assert "transferqueue_shard_budget_bytes" in once.output
        as_json = CliRunner().invoke(main, ["metrics", "--json", "--address", address])
        budgets = {each["name"]: each["samples"] for each in json.loads(as_json.output)}
        assert budgets["transferqueue_shard_budget_bytes"] == [
            {"labels": {"shard": "0"}, "value": 16 << 20}
        ]
    finally:
        served.send_signal(signal.SIGTERM)
        assert served.wait(20) == 0
        served.stdout.close()
