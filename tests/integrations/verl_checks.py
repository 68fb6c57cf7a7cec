"""Checks that run where verl is installed: the same workers fat and by handle."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import ray
import torch
from verl.protocol import DataProto
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import (
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
)
from verl_workers import VOCABULARY, ActorWorker, CriticWorker

import transferqueue as tq
from transferqueue.integrations.verl import traffic_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKERS = {"actor": ActorWorker, "critic": CriticWorker}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def client(cluster: None) -> Iterator[tq.Client]:
    del cluster
    with tq.serve(budget_bytes=64 << 20) as service, tq.connect(service.address) as client:
        yield client


def make_groups(world_size: int, *, fused: bool) -> dict[str, Any]:
    classes = {name: RayClassWithInitArgs(ray.remote(cls)) for name, cls in WORKERS.items()}
    colocate = create_colocated_worker_cls_fused if fused else create_colocated_worker_cls
    pool = RayResourcePool([world_size], use_gpu=False, max_colocate_count=1)
    whole = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=colocate(classes), use_gpu=False)
    groups: dict[str, Any] = whole.spawn(prefix_set=WORKERS.keys())
    return groups


@pytest.fixture(scope="module")
def groups(client: tq.Client) -> Iterator[dict[str, Any]]:
    """Two ranks, actor and critic in one process each."""
    del client
    groups = make_groups(2, fused=False)
    yield groups
    for worker in groups["actor"].workers:
        ray.kill(worker)


def batch(num_rows: int = 8, prompt: int = 3, response: int = 5) -> DataProto:
    generator = torch.Generator().manual_seed(0)

    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(0, VOCABULARY, shape, generator=generator)

    prompts, responses = ids(num_rows, prompt), ids(num_rows, response)
    mask = torch.ones(num_rows, prompt + response, dtype=torch.int64)
    mask[::3, -1] = 0
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], 1),
            "attention_mask": mask,
            "advantages": torch.randn(num_rows, response, generator=generator),
            "returns": torch.randn(num_rows, response, generator=generator),
        },
        non_tensors={"uid": np.array([f"p{i}" for i in range(num_rows)], dtype=object)},
        meta_info={"temperature": 1.0},
    )


def fat_statistics(groups: dict[str, Any]) -> tuple[Any, Any]:
    """``(batch, columns)`` after the forward stages, as verl's loop has them."""
    data = batch()
    old = groups["actor"].compute_log_prob(data)
    values = groups["critic"].compute_values(data)
    values.meta_info.pop("metrics")
    joined = data.union(old).union(values)
    return joined, joined.batch


def handle_statistics(client: tq.Client, groups: dict[str, Any]) -> tuple[Any, Any]:
    """The same on a handle. Cells are written once, so each pass has samples of its own."""
    handle = client.put(batch(), partition="train")
    joined = groups["critic"].compute_values(groups["actor"].compute_log_prob(handle))
    return joined, client.get_columns(joined)


def two_steps(groups: dict[str, Any], statistics: Any) -> dict[str, Any]:
    """Forward stages and updates, twice, from the same weights: all numbers there are."""
    for group in groups.values():
        group.reset()
    numbers: dict[str, Any] = {"metrics": {}, "columns": []}
    for _ in range(2):
        joined, columns = statistics(groups)
        numbers["columns"].append({n: columns[n] for n in ("old_log_probs", "entropys", "values")})
        for name in ("actor", "critic"):
            updated = getattr(groups[name], f"update_{name}")(joined)
            for key, value in updated.meta_info["metrics"].items():
                numbers["metrics"].setdefault(key, []).append(value)
    return {**numbers, "weights": {name: group.weights() for name, group in groups.items()}}


def assert_equal(left: Any, right: Any, what: str = "") -> None:
    if isinstance(left, dict):
        assert left.keys() == right.keys(), what
        for key in left:
            assert_equal(left[key], right[key], f"{what}.{key}")
    elif isinstance(left, list):
        assert len(left) == len(right), what
        for number, pair in enumerate(zip(left, right, strict=True)):
            assert_equal(*pair, f"{what}[{number}]")
    elif isinstance(left, torch.Tensor):
        assert torch.equal(left, right), what
    else:
        assert left == right, what


def test_a_step_gives_equal_numbers_fat_and_by_handle(
    client: tq.Client, groups: dict[str, Any]
) -> None:
    fat = two_steps(groups, fat_statistics)
    by_handle = two_steps(groups, partial(handle_statistics, client))
    # Every rank reports its metrics; verl drops those of the ranks that do not collect.
    critic = by_handle["metrics"]["critic/loss"]
    assert all(len(ranks) == 2 and ranks[0] == ranks[1] for ranks in critic)
    by_handle["metrics"]["critic/loss"] = [ranks[1:] for ranks in critic]
    assert_equal(fat, by_handle)


def test_a_loop_that_is_written_for_a_dataproto_runs_on_a_view(
    client: tq.Client, groups: dict[str, Any]
) -> None:
    data = client.view(client.put(batch(), partition="train"))
    old = groups["actor"].compute_log_prob(data)
    values = groups["critic"].compute_values(data)
    for output in (old, values):
        output.meta_info.pop("metrics", None)
    joined = data.union(old.select(batch_keys=["old_log_probs"])).union(
        values.select(batch_keys=["values"])
    )
    assert set(joined.batch.keys()) >= {"old_log_probs", "values"}
    groups["actor"].update_actor(joined)
    assert joined.report()["fetched"] == {}, "the controller moved a column"


def test_rows_that_do_not_divide_are_split_unevenly(
    client: tq.Client, groups: dict[str, Any]
) -> None:
    for num_rows in (7, 1):
        after = groups["actor"].compute_log_prob(client.put(batch(num_rows)))
        assert len(after) == num_rows
        assert client.get(after)["old_log_probs"].shape == (num_rows, 5)


def test_calls_that_nobody_waits_for_follow_one_another(
    client: tq.Client, groups: dict[str, Any]
) -> None:
    handle = client.put(batch())
    first = groups["actor"].compute_without_waiting(handle)
    after = groups["actor"].compute_after(first).get()
    assert torch.equal(client.get(after)["after"], batch().batch["responses"].float() + 1)


def test_rank_zero_may_take_all_rows_alone(client: tq.Client, groups: dict[str, Any]) -> None:
    handle, responses = client.put(batch(7)), batch(7).batch["responses"]
    assert groups["actor"].total(handle, times=2) == 2 * int(responses.sum())
    assert groups["actor"].total(batch(7)) == int(responses.sum())
    after = groups["actor"].compute_alone(handle).get()
    assert torch.equal(client.get(after)["alone"], responses)


def test_undeclared_columns_are_refused_or_counted(
    client: tq.Client, groups: dict[str, Any]
) -> None:
    with pytest.raises(tq.errors.UndeclaredWrite, match=r"ActorWorker.write_wrongly on rank"):
        groups["actor"].write_wrongly(client.put(batch()))
    groups["actor"].touch_undeclared(client.put(batch()))
    report = traffic_report(groups["actor"])
    assert [row.field for row in report.undeclared] == ["responses"]
    assert set(report.of_method("compute_values")) == {
        "input_ids", "attention_mask", "responses", "values"
    }  # fmt: skip


def test_ranks_of_one_part_have_it_fetched_by_one_of_them(
    client: tq.Client, groups: dict[str, Any], tmp_path: Path
) -> None:
    critic = groups["critic"]
    handle = client.put({"shared": torch.arange(6.0)})
    for num_fetching, is_shared in ((critic.world_size, False), (1, True)):
        if is_shared:
            critic.share(str(tmp_path / "store"))
        before = traffic_report(critic).of_method("sum_of_shared").get("shared")
        answer = critic.sum_of_shared(handle)
        assert answer.meta_info["metrics"]["sum"] == [15.0] * critic.world_size
        now = traffic_report(critic).of_method("sum_of_shared")["shared"]
        read_bytes = now.read_bytes - (0 if before is None else before.read_bytes)
        assert read_bytes == num_fetching * 6 * 4


def test_a_fused_group_carries_it_too(client: tq.Client) -> None:
    groups = make_groups(1, fused=True)
    fat = two_steps(groups, fat_statistics)
    assert_equal(fat, two_steps(groups, partial(handle_statistics, client)))
    assert traffic_report(groups["critic"]).read_bytes > 0
    for worker in groups["actor"].workers:
        ray.kill(worker)
