"""Whoever is killed, the run goes on, and no sample counts twice in the weights that come of it."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

import pytest

import transferqueue as tq
from controller.driver_config import Mode
from tests.controller import restart_program
from tests.controller.tiny_roles import num_rows
from tests.waiting import wait_until
from workers.errors import WorkerDied
from workers.forking import start_child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from workers.role_groups import RoleGroups

pytestmark = pytest.mark.slow

STEPS = 10
MANY_STEPS = 80
"""Some seconds of them, on any machine: time to kill everybody once."""


@pytest.fixture(scope="module", autouse=True)
def _resource_tracker() -> None:
    """A process of `multiprocessing`, one for all of its children, that stays."""
    resource_tracker.ensure_running()


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=64 << 20) as service:
        yield service


def history(folder: Path) -> list[list[str]]:
    """The updates that the final weights are made of."""
    lines = [json.loads(line) for line in (folder / "trained.jsonl").read_text().splitlines()]
    last = {line["weight"]: line["uids"] for line in lines}
    assert sorted(last) == list(range(1, max(last) + 1))
    return [last[weight] for weight in sorted(last)]


def check(folder: Path, num_steps: int = STEPS) -> None:
    updates = history(folder)
    assert len(updates) == num_steps
    prompts = [uid for uids in updates for uid in set(uids)]
    assert len(prompts) == len(set(prompts)), "a prompt counts once"
    assert all(uids.count(uid) == 2 for uids in updates for uid in uids), "with its whole group"


@pytest.mark.parametrize("victim", ["rollout", "scorers", "trainer"])
def test_a_killed_role_is_made_again_and_the_run_goes_on(
    service: tq.Service, tmp_path: Path, victim: str
) -> None:
    with (
        tq.connect(service.address) as client,
        restart_program.role_groups(service.address, tmp_path, processes=True) as roles,
        restart_program.driver(client, roles, tmp_path, STEPS, Mode.FULLY_ASYNC) as driver,
    ):
        steps = []
        for report in driver.run():
            steps.append(report.step)
            if len(steps) == 5:
                os.kill(roles.groups[victim].pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
        assert driver.num_restarts == 1
        wait_until(lambda: num_rows(client, "train") == 0)
    assert steps[-1] == STEPS
    # What holds no state is made again where it was; the trainer goes back to its checkpoint.
    assert steps == [1, 2, 3, 4, 5, *range(4 if victim == "trainer" else 6, STEPS + 1)]
    check(tmp_path)


@pytest.mark.parametrize("victim", ["shard-0", "coordinator"])
@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ONE_STEP_OFF, Mode.FULLY_ASYNC])
def test_a_killed_process_of_the_service_is_not_noticed_by_the_run(
    service: tq.Service, tmp_path: Path, victim: str, mode: Mode
) -> None:
    with (
        tq.connect(service.address) as client,
        restart_program.role_groups(service.address, tmp_path, processes=False) as roles,
        restart_program.driver(client, roles, tmp_path, STEPS, mode) as driver,
    ):
        steps = []
        for report in driver.run():
            steps.append(report.step)
            if report.step in (3, 6):
                os.kill(service.pids[victim], signal.SIGKILL)
        assert driver.num_restarts == 0
        wait_until(lambda: num_rows(client, "train") == 0, timeout_s=20.0)
    assert steps == list(range(1, STEPS + 1))
    check(tmp_path)


@pytest.mark.parametrize("seed", [0, 1])
def test_whoever_is_killed_at_whatever_moment_no_sample_is_lost_and_none_counts_twice(
    service: tq.Service, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with (
        tq.connect(service.address, timeout_s=60) as client,
        restart_program.role_groups(service.address, tmp_path, processes=True) as roles,
        restart_program.driver(client, roles, tmp_path, MANY_STEPS, Mode.FULLY_ASYNC) as driver,
    ):
        killed: list[str] = []
        stop = threading.Event()

        def kill_now_and_then() -> None:
            everybody = [*roles.groups, "shard-0", "shard-1", "coordinator"]
            rng.shuffle(everybody)
            for victim in everybody:
                if stop.wait(rng.uniform(0.05, 0.5)):
                    return
                pid = victim_pid(service, roles, victim)
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(victim)

        running = driver.run()
        for _ in range(3):  # so that there is a checkpoint to go back to
            next(running)
        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            steps = [report.step for report in running]
        finally:
            stop.set()
            killer.join()
        assert killed
        assert driver.num_restarts <= len(set(killed) & set(roles.groups))
        wait_until(lambda: num_rows(client, "train") == 0, timeout_s=20.0)
    assert steps[-1] == MANY_STEPS
    check(tmp_path, MANY_STEPS)


def victim_pid(service: tq.Service, roles: RoleGroups, victim: str) -> int | None:
    """``None`` when it is not there just now: it was killed, and is being made again."""
    if victim not in roles.groups:
        return service.pids.get(victim)
    group = roles.groups.get(victim)
    return None if group is None else group.pids[0]  # type: ignore[attr-defined]


def test_a_killed_trainer_of_a_sync_run_goes_back_to_its_checkpoint(
    service: tq.Service, tmp_path: Path
) -> None:
    with (
        tq.connect(service.address) as client,
        restart_program.role_groups(service.address, tmp_path, processes=True) as roles,
        restart_program.driver(client, roles, tmp_path, STEPS, Mode.SYNC) as driver,
    ):
        for report in driver.run():
            if report.step == 5 and not driver.num_restarts:
                os.kill(roles.groups["trainer"].pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
    check(tmp_path)
    assert sorted({uid for uids in history(tmp_path) for uid in uids}) == sorted(
        f"prompt-{number}" for number in range(3 * STEPS)
    )


def test_a_killed_trainer_without_a_checkpoint_ends_the_run_and_says_why(
    service: tq.Service, tmp_path: Path
) -> None:
    with (
        tq.connect(service.address) as client,
        restart_program.role_groups(service.address, tmp_path, processes=True) as roles,
        restart_program.driver(client, roles, tmp_path, STEPS, Mode.FULLY_ASYNC) as driver,
    ):
        running = driver.run()
        next(running)
        os.kill(roles.groups["trainer"].pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(WorkerDied) as caught:
            list(running)
        assert "no checkpoint" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        (Mode.SYNC, [5]),
        (Mode.ONE_STEP_OFF, [5]),
        (Mode.FULLY_ASYNC, [5]),
        (Mode.FULLY_ASYNC, [4, 2]),
    ],
)
def test_a_killed_driver_goes_on_where_its_checkpoint_is(
    service: tq.Service, tmp_path: Path, mode: Mode, kills: list[int]
) -> None:
    for number, num_reports in enumerate(kills):
        with running(service.address, tmp_path, mode, resume=number > 0) as (process, reports):
            for _ in range(num_reports):
                assert next(reports), "it reports"
            process.kill()
    with running(service.address, tmp_path, mode, resume=True) as (process, reports):
        assert list(reports)[-1] == STEPS
        process.join(120)
        assert process.exitcode == 0
    check(tmp_path)
    with tq.connect(service.address) as client:
        wait_until(lambda: num_rows(client, "train") == 0)


@contextmanager
def running(
    address: str, folder: Path, mode: Mode, *, resume: bool
) -> Iterator[tuple[BaseProcess, Iterator[int]]]:
    """A driver in a process of its own, and the updates that it reports, until it ends."""
    program = partial(
        restart_program.run,
        address=address,
        folder=folder,
        steps=STEPS,
        mode=mode,
        resume=resume,
    )
    process, pipe = start_child(program, "driver")

    def reports() -> Iterator[int]:
        with suppress(EOFError):
            while True:
                yield pipe.recv()

    with pipe:
        try:
            yield process, reports()
        finally:
            process.kill()
            process.join()
            process.close()
