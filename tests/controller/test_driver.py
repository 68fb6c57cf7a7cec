"""The driver in every mode, with roles in threads over a real service."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from controller.advantage_stage import Algorithm
from controller.checkpoints import CheckpointFolder
from controller.dataflow import Dataflow, DataflowError
from controller.driver import PpoDriver
from controller.driver_config import DriverConfig, Mode, Transport
from controller.ppo_settings import PpoSettings
from tests.controller.tiny_roles import FakeEngine, Trained, num_rows, prompt, role_groups
from tests.waiting import wait_until
from transferqueue.errors import ConfigError
from workers.errors import WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from controller.step_report import StepReport

GRPO = PpoSettings(algorithm=Algorithm.GRPO)


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=64 << 20) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        yield client


def table(settings: PpoSettings) -> Dataflow:
    """With what the fake actor looks at besides."""
    flow = settings.dataflow()
    seen = {"update_actor": ("token_versions", "uid")}
    return replace(
        flow,
        stages=tuple(
            replace(stage, reads=(*stage.reads, *seen.get(stage.name, ()))) for stage in flow.stages
        ),
    )


def config(**changes: Any) -> DriverConfig:
    settings = {"num_steps": 4, "prompts_per_step": 3, "samples_per_prompt": 2, "lease_s": 5.0}
    return DriverConfig(**{**settings, "evaluate_every": 2, **changes})


def run(
    service: tq.Service,
    client: tq.Client,
    run_config: DriverConfig,
    settings: PpoSettings = GRPO,
    trained: Trained | None = None,
    engines: list[FakeEngine] | None = None,
) -> tuple[list[StepReport], Trained]:
    trained = trained or Trained()
    with (
        role_groups(service, settings, trained, engines=engines) as roles,
        PpoDriver(client, roles, prompt, table(settings), run_config) as driver,
    ):
        return list(driver.run()), trained


MODES = [
    (Mode.SYNC, Transport.HANDLES),
    (Mode.SYNC, Transport.FAT),
    (Mode.ONE_STEP_OFF, Transport.HANDLES),
    (Mode.ONE_STEP_OFF, Transport.FAT),
    (Mode.FULLY_ASYNC, Transport.HANDLES),
]


@pytest.mark.parametrize(("mode", "transport"), MODES)
def test_every_mode_trains_on_whole_groups_of_every_prompt_and_leaves_nothing(
    service: tq.Service, client: tq.Client, mode: Mode, transport: Transport
) -> None:
    reports, trained = run(service, client, config(mode=mode, transport=transport))
    assert [report.step for report in reports] == [1, 2, 3, 4]
    assert [report.held_out_accuracy for report in reports] == [None, 0.2, None, 0.4]
    for uids in trained.uids:
        assert len(uids) == 6
        assert all(uids.count(uid) == 2 for uid in uids), "a group is not torn"
    every = {uid for uids in trained.uids for uid in uids}
    assert len(every) == 12, "no prompt is trained on twice"
    assert all(0.0 < report.reward < 1.0 for report in reports)
    wait_until(lambda: num_rows(client, "train") == 0)
    wait_until(lambda: num_rows(client, "weights/policy") <= 2)


@pytest.mark.parametrize(
    ("mode", "expected"), [(Mode.SYNC, [0, 0, 0, 0]), (Mode.ONE_STEP_OFF, [0, 1, 1, 1])]
)
def test_samples_are_as_old_as_the_mode_says(
    service: tq.Service, client: tq.Client, mode: Mode, expected: list[int]
) -> None:
    reports, _ = run(service, client, config(mode=mode))
    assert [report.staleness_max for report in reports] == expected


def test_handles_are_small_and_whole_batches_are_not(
    service: tq.Service, client: tq.Client
) -> None:
    more = {"prompts_per_step": 32, "num_steps": 2, "mode": Mode.SYNC}
    by_handle, _ = run(service, client, config(**more))
    whole, _ = run(service, client, config(**more, transport=Transport.FAT))
    assert by_handle[1].batch_bytes < 16_384
    assert whole[1].batch_bytes > 4 * by_handle[1].batch_bytes


def test_the_greedy_baselines_of_remax_go_along_and_are_not_trained_on(
    service: tq.Service, client: tq.Client
) -> None:
    engines = [FakeEngine()]
    settings = PpoSettings(algorithm=Algorithm.REMAX)
    for mode, transport in (MODES[0], MODES[1], MODES[4]):
        run_config = config(mode=mode, transport=transport, num_steps=2, samples_per_prompt=1)
        reports, trained = run(service, client, run_config, settings, engines=engines)
        assert [report.rows for report in reports] == [3, 3], mode
        assert all(len(uids) == len(set(uids)) == 3 for uids in trained.uids), mode
    drawn = engines[0].temperatures
    assert any(isinstance(t, torch.Tensor) and {*t.tolist()} == {0.0, 1.0} for t in drawn)


def test_no_update_gets_a_sample_beyond_the_bound_however_slow_the_workers_are(
    service: tq.Service, client: tq.Client
) -> None:
    """One rollout is stuck for several updates at a time, the other goes on."""
    trained = Trained()
    updates_seen = 0
    patience = threading.Event()

    def stuck_for_three_updates() -> None:
        nonlocal updates_seen
        for _ in range(200):
            if len(trained.batches) >= updates_seen + 3 or len(trained.batches) >= 12:
                break
            patience.wait(0.01)
        updates_seen = len(trained.batches)

    engines = [FakeEngine(slow=stuck_for_three_updates), FakeEngine()]
    run_config = config(num_steps=12, max_staleness=1, samples_per_prompt=2)
    reports, _ = run(service, client, run_config, trained=trained, engines=engines)
    for update, versions in enumerate(trained.batches):
        newest = reports[update].version - 1
        assert newest - int(versions.min()) <= 1, "by the token, not only by the tag"
    assert max(report.staleness_max for report in reports) <= 1
    last = reports[-1]
    assert last.stale_rows_dropped + last.generations_dropped > 0, "the slow one was too slow"


def test_a_generation_that_new_weights_interrupt_goes_on_and_says_which_tokens_are_whose(
    service: tq.Service, client: tq.Client
) -> None:
    trained = Trained()
    patience = threading.Event()

    def one_segment_an_update() -> None:
        seen = len(trained.batches)
        for _ in range(100):
            if len(trained.batches) > seen:
                break
            patience.wait(0.01)

    engines = [FakeEngine(slow=one_segment_an_update), FakeEngine()]
    # As old as that, so that none of the slow ones is dropped, and long enough that they are used.
    run_config = config(num_steps=12, max_staleness=8)
    reports, _ = run(service, client, run_config, trained=trained, engines=engines)
    assert reports[-1].generations_resumed > 0
    mixed = [row for batch in trained.batches for row in batch.tolist() if len({*row}) > 1]
    assert mixed, "some responses are of two versions"
    assert all(row == sorted(row) for row in mixed), "later tokens are of later versions"


def test_the_next_batch_is_taken_and_begun_while_an_update_runs(
    service: tq.Service, client: tq.Client
) -> None:
    trained = Trained()

    def until_two_batches_are_held() -> None:
        if len(trained.batches) + 1 < 4:
            wait_until(lambda: num_claimed(client) == 2 * 6)

    trained.before_update = until_two_batches_are_held
    reports, _ = run(service, client, config(num_steps=4), trained=trained)
    assert [report.step for report in reports] == [1, 2, 3, 4]
    one = ["log_prob", "update", "publish"]
    assert trained.events == ["publish", *one, *one, *one, *one]


def num_claimed(client: tq.Client) -> int:
    """Samples that the trainer has."""
    return int(client.status()["partitions"]["train"]["tasks"]["update"]["claimed"])


def test_a_driver_that_stops_early_gives_back_what_it_took_ahead(
    service: tq.Service, client: tq.Client
) -> None:
    with (
        role_groups(service, GRPO, Trained()) as roles,
        PpoDriver(client, roles, prompt, table(GRPO), config()) as driver,
    ):
        running = driver.run()
        next(running)
        wait_until(lambda: num_claimed(client) == 6)
    wait_until(lambda: num_claimed(client) == 0, timeout_s=2.0)  # the lease is longer
    running.close()


def test_what_is_taken_ahead_is_as_fresh_as_if_it_were_not(
    service: tq.Service, client: tq.Client
) -> None:
    reports, trained = run(service, client, config(max_staleness=0))
    assert [report.staleness_max for report in reports] == [0, 0, 0, 0]
    assert [int(versions.min()) for versions in trained.batches] == [0, 1, 2, 3]


def test_a_checkpoint_has_nothing_in_it_of_the_update_after(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    trained = Trained()
    every_other = config(num_steps=4, checkpoint_every=2)
    with (
        role_groups(service, GRPO, trained) as roles,
        PpoDriver(
            client, roles, prompt, table(GRPO), every_other, checkpoints=CheckpointFolder(tmp_path)
        ) as driver,
    ):
        assert len(list(driver.run())) == 4
    one = ["log_prob", "update", "publish"]
    both = ["save", "save"]  # the actor is the evaluation too
    assert trained.events == ["publish", *one, *one, *both, *one, *one, *both]


def test_the_time_from_a_publish_to_the_first_token_is_reported(
    service: tq.Service, client: tq.Client
) -> None:
    reports, _ = run(service, client, config())
    assert all(report.first_token_s is not None for report in reports)
    assert all(0.0 <= report.first_token_s < 60.0 for report in reports if report.first_token_s)


def test_the_failure_of_a_streaming_stage_ends_the_run(
    service: tq.Service, client: tq.Client
) -> None:
    def broken() -> None:
        raise RuntimeError("the engine broke")

    with pytest.raises(WorkerFailed, match="the engine broke"):
        run(service, client, config(), engines=[FakeEngine(slow=broken)])


def test_a_table_that_does_not_fit_the_roles_is_refused_before_anything_runs(
    service: tq.Service, client: tq.Client
) -> None:
    with (
        role_groups(service, GRPO, Trained()) as roles,
        pytest.raises(DataflowError, match="no role of stage 'values': 'critic'"),
    ):
        PpoDriver(client, roles, prompt, PpoSettings().dataflow(), config())


def test_a_run_of_other_settings_does_not_go_on_from_a_checkpoint(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    folder = CheckpointFolder(tmp_path)
    with role_groups(service, GRPO, Trained()) as roles:
        first = config(mode=Mode.SYNC, num_steps=2, checkpoint_every=1)
        with PpoDriver(client, roles, prompt, table(GRPO), first, checkpoints=folder) as driver:
            assert len(list(driver.run())) == 2
        with PpoDriver(client, roles, prompt, table(GRPO), first, checkpoints=folder) as driver:
            assert list(driver.run(resume=True)) == [], "all has been done"
        other = config(mode=Mode.ONE_STEP_OFF, checkpoint_every=1)
        with (
            PpoDriver(client, roles, prompt, table(GRPO), other, checkpoints=folder) as driver,
            pytest.raises(ConfigError, match="a run with mode='sync', this one has 'one_step_off'"),
        ):
            next(driver.run(resume=True))


def test_checkpoints_need_a_folder(service: tq.Service, client: tq.Client) -> None:
    with (
        role_groups(service, GRPO, Trained()) as roles,
        pytest.raises(ConfigError, match="checkpoint_every=1 needs a folder"),
    ):
        PpoDriver(client, roles, prompt, table(GRPO), config(checkpoint_every=1))
