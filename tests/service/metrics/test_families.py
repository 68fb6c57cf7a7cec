"""What a status becomes, and that a dashboard asks for nothing that is not there."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from transferqueue.service.commands.metrics import DASHBOARD
from transferqueue.service.metrics.families import FAMILIES, PREFIX, Distribution, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def status() -> Iterator[Any]:
    with (
        tq.serve(in_process=True, budget_bytes=32 << 20) as service,
        tq.connect(service.address) as client,
    ):
        client.create_partition("train", tasks=["actor"], max_staleness=4)
        handle = client.put(
            {"ids": torch.zeros(6, 8), "big": torch.zeros(6, 1 << 16)},
            partition="train",
            tags={"policy_version": 3},
        )
        client.claim(task="actor", fields=["ids"], n=2, partition="train")
        client.get(handle, fields=["ids"])
        client.get(handle, fields=["big"])
        client.put({f"layer.{i}": torch.zeros(1, 4) for i in range(70)}, partition="weights/policy")
        with pytest.raises(tq.errors.NotReady):
            client.claim(task="actor", fields=["reward"], n=1, partition="train", timeout_s=0)
        client.tell_stages([
            {"role": "critic", "method": "values", "field": "ids", "read_bytes": 192,
             "written_bytes": 0, "untouched_bytes": 64, "undeclared_bytes": 0, "calls": 1}
        ] * 2)  # fmt: skip
        yield client.status()


def values(status: Any, name: str) -> dict[tuple[str, ...], Any]:
    (family,) = [family for family in FAMILIES if family.name == PREFIX + name]
    return {sample.labels: sample.value for sample in family.read(status)}


def test_bytes_are_counted_by_field_and_direction_and_way(status: Any) -> None:
    moved = values(status, "field_bytes")
    ids, big = 6 * 8 * 4, 6 * (4 << 16)
    assert moved["0", "ids", "put"] == moved["0", "ids", "get"] == ids
    assert moved["0", "big", "put"] == moved["0", "big", "get"] == big
    ways = values(status, "way_bytes")
    weights = 70 * 16
    assert sum(num for (_, _, what), num in ways.items() if what == "put") == ids + big + weights
    assert ways["0", "inline", "get"] == ids


def test_weights_are_one_name_and_not_seventy(status: Any) -> None:
    assert values(status, "field_bytes")["0", "weights/policy", "put"] == 70 * 16
    assert {partition for partition, _ in values(status, "partition_field_rows")} == {"train"}


def test_latencies_are_histograms_of_all_answers(status: Any) -> None:
    claim = values(status, "request_seconds")["coordinator", "claim"]
    assert isinstance(claim, Distribution)
    assert sum(claim.counts) == values(status, "requests")["coordinator", "claim"] == 2
    assert len(claim.counts) == len(claim.bounds) + 1
    assert values(status, "busy_seconds")["shard-0", "put"] > 0


def test_tasks_claims_and_errors_are_there(status: Any) -> None:
    assert values(status, "task_rows")["train", "actor", "claimed"] == 2
    assert values(status, "claims_out")[()] == 1
    assert values(status, "errors")["coordinator", "NotReady"] == 1
    assert values(status, "partition_policy_version") == {("train",): 3}
    assert values(status, "partition_longest_wait_seconds")["train", "claims"] == 0


def test_what_stages_tell_adds_up(status: Any) -> None:
    told = values(status, "stage_bytes")
    assert told["critic", "values", "ids", "read"] == 384
    assert told["critic", "values", "ids", "untouched"] == 128


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_can_be_read_and_has_one_value_for_each_label(
    status: Any, family: Any
) -> None:
    samples = list(family.read(status))
    assert all(len(sample.labels) == len(family.labels) for sample in samples)
    assert len({sample.labels for sample in samples}) == len(samples)
    if not family.name.startswith(f"{PREFIX}spill_"):
        assert samples or family.kind is Kind.COUNTER, "nothing shows that it works"


def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    known = {name: set(family.labels) for family in FAMILIES for name in family.exported}
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    used: set[str] = set()
    for target in asked:
        (name, *_), expression = re.findall(rf"{PREFIX}\w+", target["expr"]), target["expr"]
        assert name in known, name
        used |= set(re.findall(rf"{PREFIX}\w+", expression))
        labels = known[name] | {"le", "job"}
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        assert {label for by in grouped for label in by.split(", ")} <= labels, expression
        assert set(re.findall(r"(\w+)=~?\"", expression)) <= labels, expression
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, expression
    assert used <= known.keys()
    assert len(used) > 30
