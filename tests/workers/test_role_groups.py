"""Roles by name over their processes, here threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from transferqueue.errors import ConfigError
from workers import LocalWorkerGroup
from workers.errors import WorkerFailed
from workers.role_groups import RoleGroups
from workers.roles.fields import stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class Doubler:
    def __init__(self, offset: int) -> None:
        self.offset = offset

    @stage(reads=("x",), writes=("y",), optional_reads=("z",))
    def double(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": data["x"] * 2 + self.offset}

    @stage(reads=("x",))
    def mean(self, data: Mapping[str, Any]) -> dict[str, float]:
        return {"mean": float(data["x"].float().mean())}

    def save_state(self) -> dict[str, Any]:
        return {"offset": self.offset}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.offset = state["offset"]

    def broken(self) -> None:
        raise RuntimeError("this role broke")


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=16 << 20) as service:
        yield service


@pytest.fixture
def groups(service: tq.Service) -> Iterator[RoleGroups]:
    factories = {
        "first": lambda: {"doubler": Doubler(0)},
        "second": lambda: {"doubler": Doubler(100), "alone": Doubler(7)},
    }
    with RoleGroups(
        factories, lambda _, worker: LocalWorkerGroup(worker, 1, service=service)
    ) as groups:
        yield groups


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_batch_is_cut_over_the_processes_of_a_role_in_order(
    groups: RoleGroups, service: tq.Service, rows: int
) -> None:
    expected = [2 * x + (100 if x >= rows // 2 and rows > 1 else 0) for x in range(rows)]
    with tq.connect(service.address) as client:
        handle = client.put({"x": torch.arange(rows)})
        written = groups.run("doubler", "double", handle).get()
        assert written.uids.tolist() == handle.uids.tolist()
        assert client.get(written, fields=["y"])["y"].tolist() == expected
    whole = groups.run("doubler", "double", tq.DataProto.from_dict({"x": torch.arange(rows)})).get()
    assert whole.batch["y"].tolist() == expected


def test_metrics_of_several_processes_are_averaged(groups: RoleGroups) -> None:
    batch = tq.DataProto.from_dict({"x": torch.tensor([1, 1, 3, 3])})
    assert groups.run("doubler", "mean", batch).get() == {"mean": 2.0}


def test_an_unknown_role_is_named_with_near_ones(groups: RoleGroups) -> None:
    with pytest.raises(ConfigError, match="no role 'dubler'; did you mean 'doubler'"):
        groups.run("dubler", "double", tq.DataProto.from_dict({"x": torch.arange(1)}))


def test_declarations_are_by_role(groups: RoleGroups) -> None:
    declared = groups.declarations()
    assert set(declared) == {"doubler", "alone"}
    assert declared["alone"]["double"].writes == ("y",)
    assert declared["alone"]["double"].optional_reads == ("z",)


def test_what_a_role_raises_is_raised_where_the_answer_is_asked_for(groups: RoleGroups) -> None:
    answer = groups.call("alone", "broken")
    with pytest.raises(WorkerFailed, match="this role broke"):
        answer.get()
    assert groups.dead() == [], "it failed, and lives"


def test_state_goes_to_a_folder_by_process_and_comes_back(
    groups: RoleGroups, tmp_path: Path
) -> None:
    assert groups.save(tmp_path) == {"first": ["doubler"], "second": ["doubler", "alone"]}
    (tmp_path / "doubler@first.pt").write_bytes((tmp_path / "doubler@second.pt").read_bytes())
    groups.restore(tmp_path)
    batch = tq.DataProto.from_dict({"x": torch.arange(2)})
    assert groups.run("doubler", "double", batch).get().batch["y"].tolist() == [100, 102]


def test_a_process_that_is_made_again_is_as_its_factory_makes_it(
    groups: RoleGroups, tmp_path: Path
) -> None:
    groups.restart("second")
    batch = tq.DataProto.from_dict({"x": torch.arange(2)})
    assert groups.run("doubler", "double", batch).get().batch["y"].tolist() == [0, 102]
