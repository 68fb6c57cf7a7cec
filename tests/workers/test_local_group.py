"""A group of threads or child processes: calls, answers, failures, deaths."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.workers.stage_workers import Plain, Unpicklable
from transferqueue.errors import Closed, ConfigError, NoService
from transferqueue.view import DataProto
from workers import (
    CallTimedOut,
    Dispatch,
    LocalWorkerGroup,
    Mesh,
    Worker,
    WorkerDied,
    WorkerFailed,
    WorkerSpec,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def _resource_tracker() -> None:
    """A process that multiprocessing starts with the first child and keeps."""
    resource_tracker.ensure_running()


@pytest.fixture
def group() -> Iterator[LocalWorkerGroup]:
    with LocalWorkerGroup(Plain, 3) as group:
        yield group


def proto(num_rows: int) -> DataProto:
    return DataProto.from_single_dict({"x": torch.arange(num_rows)})


def test_a_worker_knows_its_place(group: LocalWorkerGroup) -> None:
    assert group.where() == [(rank, 3, rank, "Plain") for rank in range(3)]


def test_rank_zero_alone_runs_what_is_for_rank_zero(group: LocalWorkerGroup) -> None:
    assert group.on_rank_zero([1, 2, 3], "x") == (0, ([1, 2, 3], "x"))


def test_a_batch_goes_around_and_the_callers_stays_as_it_was(group: LocalWorkerGroup) -> None:
    batch = proto(7)
    assert group.double(batch).batch["x"].tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert batch.batch["x"].tolist() == list(range(7))
    assert group.double(data=batch[:2]).batch["x"].tolist() == [0, 2]


def test_every_rank_answers_for_metrics(group: LocalWorkerGroup) -> None:
    assert group.count(proto(2)) == [{"rows": 1}, {"rows": 1}, {"rows": 0}]


def test_a_future_is_an_argument_before_it_is_ready(group: LocalWorkerGroup) -> None:
    future = group.double_later(proto(5))
    assert not future.done()
    assert group.double(group.double_later(future)).batch["x"].tolist() == [0, 8, 16, 24, 32]
    assert future.get().batch["x"].tolist() == [0, 2, 4, 6, 8]
    assert future.done()
    assert group.take(future)[2].batch["x"].tolist() == [0, 2, 4, 6, 8]


async def test_a_future_can_be_awaited(group: LocalWorkerGroup) -> None:
    both = await asyncio.gather(group.double_later(proto(2)), group.double_later(proto(3)))
    assert [len(batch) for batch in both] == [2, 3]


def test_coroutine_methods_overlap(group: LocalWorkerGroup) -> None:
    first = group.overlap(1, 2)
    second = group.overlap(2, 1)
    assert first.get() == [[rank, 1] for rank in range(3)]
    assert second.get() == [[rank, 2] for rank in range(3)]


def test_a_failure_names_rank_and_method_and_the_group_goes_on(group: LocalWorkerGroup) -> None:
    with pytest.raises(
        WorkerFailed, match=r"Plain.fail failed on rank 1: ValueError: no luck"
    ) as e:
        group.fail(1)
    assert (e.value.rank, e.value.method) == (1, "Plain.fail")
    assert isinstance(e.value.cause, ValueError)
    assert 'raise ValueError("no luck")' in str(e.value)
    assert group.fail(99) == [0, 1, 2]


def test_ranks_that_failed_too_are_noted() -> None:
    class All(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def fail(self) -> None:
            raise KeyError(self.rank)

    with LocalWorkerGroup(All, 3) as group, pytest.raises(WorkerFailed, match="rank 0") as error:
        group.fail()
    assert len(error.value.__notes__) == 2
    assert "rank 2 failed too" in error.value.__notes__[1]


def test_a_call_has_a_deadline_that_names_the_late() -> None:
    with (
        LocalWorkerGroup(Plain, 2, call_timeout_s=0.05) as group,
        pytest.raises(
            CallTimedOut, match=r"Plain.sleep: no answer from ranks \[0, 1\] after 0.1 s"
        ),
    ):
        group.sleep(0.3)


def test_a_worker_that_cannot_be_made_leaves_nothing_behind() -> None:
    with pytest.raises(WorkerFailed, match=r"Plain.__init__ failed on rank 1.*cannot be made"):
        LocalWorkerGroup(WorkerSpec(Plain, fail_on=1), 3)


def test_roles_in_one_rank_are_called_by_name() -> None:
    class Shouter(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def where(self) -> str:
            return f"{self.role}!"

    with LocalWorkerGroup({"plain": Plain, "loud": Shouter}, 2) as group:
        assert group["loud"].where() == ["loud!", "loud!"]
        assert group["plain"].where()[1] == (1, 2, 1, "plain")
        with pytest.raises(KeyError, match="no role 'quiet'"):
            group["quiet"]
        with pytest.raises(AttributeError, match="did you mean where"):
            group["loud"].were()


def test_an_unknown_method_is_named_with_the_nearest(group: LocalWorkerGroup) -> None:
    with pytest.raises(AttributeError, match="did you mean double"):
        group.doubel(proto(2))


def test_workers_may_declare_a_mesh_once_they_know_it() -> None:
    with LocalWorkerGroup(Plain, 4) as group:
        with pytest.raises(WorkerFailed, match="no mesh 'declared'"):
            group.double_by_declared_mesh(proto(4))
        group.declare("declared")
        assert group.double_by_declared_mesh(proto(5)).batch["x"].tolist() == [0, 2, 4, 6, 8]
        assert group.placement("declared", "Plain").part_of_rank == (0, 0, 1, 1)


def test_a_mesh_must_have_as_many_ranks_as_the_group() -> None:
    with pytest.raises(ConfigError, match="world_size=3, but the mesh has 4"):
        LocalWorkerGroup(Plain, 3, mesh=Mesh.of(dp=4))
    with pytest.raises(ConfigError, match="mesh 'other' is of 2 ranks, the group has 4"):
        LocalWorkerGroup(Plain, mesh=Mesh.of(dp=2, tp=2), meshes={"other": Mesh.of(dp=2)})


def test_a_method_may_not_take_the_name_of_one_of_the_groups() -> None:
    class Reporter(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def report(self) -> None: ...

    with pytest.raises(ConfigError, match="'report' has the name of a method of the group"):
        LocalWorkerGroup(Reporter, 1)


def test_a_closed_group_says_so(group: LocalWorkerGroup) -> None:
    group.close()
    group.close()
    with pytest.raises(Closed, match="LocalWorkerGroup"):
        group.where()


def test_a_worker_outside_of_a_group_says_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="is in no group"):
        _ = Plain.__new__(Plain).rank


def test_without_a_service_the_client_says_where_it_looked() -> None:
    class Reader(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def read(self) -> None:
            _ = self.client

    with LocalWorkerGroup(Reader, 1) as group, pytest.raises(WorkerFailed) as error:
        group.read()
    assert isinstance(error.value.cause, NoService)


def test_workers_are_closed_with_their_group() -> None:
    closed: list[int] = []

    class Closing(Worker):
        def close(self) -> None:
            closed.append(self.rank)

    LocalWorkerGroup(Closing, 2).close()
    assert sorted(closed) == [0, 1]


def test_a_script_that_starts_itself_again_and_again_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.workers.stage_workers import Plain\n"
        "from workers import LocalWorkerGroup\n"
        "LocalWorkerGroup(Plain, 1, processes=True)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert "WorkerDied: rank 0 died before it answered __init__" in last
    assert 'under `if __name__ == "__main__":`' in last


def test_child_processes_do_what_threads_do_and_may_die() -> None:
    with LocalWorkerGroup(Plain, 2, processes=True) as group:
        answers = group.process()
        assert [pid for pid, _ in answers] == group.pids
        assert [rank for _, rank in answers] == ["0", "1"]
        batch = proto(5)
        assert group.double(group.double_later(batch)).batch["x"].tolist() == [0, 4, 8, 12, 16]
        assert group.overlap(1, 2) is not group.overlap(2, 1)

        with pytest.raises(WorkerFailed, match="failed on rank 1: ValueError: no luck") as failed:
            group.fail(1)
        assert isinstance(failed.value.cause, ValueError)
        with pytest.raises(WorkerFailed, match="Unpicklable: 1 and 2") as failed:
            group.fail(0, picklable=False)
        assert failed.value.cause is None
        assert Unpicklable.__name__ in str(failed.value)
        with pytest.raises(WorkerFailed, match=r"Plain.unsendable failed on rank 0.*lock"):
            group.unsendable()
        with pytest.raises(WorkerFailed, match=r"Plain.take failed on rank 0"):
            group.take(lambda: None)
        with pytest.raises(WorkerFailed, match=r"Plain.take failed on rank 0: before it ran, .*Un"):
            group.take(Unpicklable(1, 2))
        with pytest.raises(WorkerFailed, match=r"rank 0: after it ran, when what .* unpickled in"):
            group.unpicklable()
        assert [where[0] for where in group.where()] == [0, 1]

        with pytest.raises(WorkerDied, match=r"rank 1 died before it answered Plain.die.*SIGKILL"):
            group.die(1)
        with pytest.raises(WorkerDied, match=r"rank 1 died before it answered Plain.where"):
            group.where()
        assert group.on_rank_zero() == (0, ())
