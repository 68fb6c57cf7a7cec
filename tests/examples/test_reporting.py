"""What a run writes: metrics by line, events for TensorBoard, bytes by stage."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest

from controller.ppo_settings import PpoSettings
from controller.step_report import StepReport
from examples.reporting.bytes_table import stage_traffic
from examples.reporting.metrics_file import MetricsFile
from examples.reporting.tensorboard import Board, board
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def report(step: int) -> StepReport:
    return StepReport(
        step=step,
        version=step,
        reward=0.5,
        held_out_accuracy=None,
        staleness_max=1,
        staleness_mean=0.5,
        rows=8,
        samples_per_s=4.0,
        step_s=2.0,
        wait_s=0.5,
        metrics={"actor/loss": 0.25},
    )


def test_metrics_are_a_line_an_update_and_a_resumed_run_goes_on_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path).write(report(1), seconds=3.0)
    MetricsFile(path, keep_before=True).write(report(2))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["actor/loss"] == 0.25
    assert lines[0]["seconds"] == 3.0
    MetricsFile(path)
    assert path.read_text() == "", "a new run begins anew"


class FakeWriter:
    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars[name] = (value, step)

    def flush(self) -> None:
        pass


def test_every_number_of_an_update_is_a_scalar_for_tensorboard() -> None:
    writer = FakeWriter()
    Board(writer).write(report(3), {"fetched_bytes/actor": 7})
    assert writer.scalars["actor/loss"] == (0.25, 3)
    assert writer.scalars["fetched_bytes/actor"] == (7, 3)
    assert "held_out_accuracy" not in writer.scalars, "there was no evaluation"


def test_without_tensorboard_nothing_is_written_and_asking_for_it_says_what_to_install(
    tmp_path: Path,
) -> None:
    with board(None) as nothing:
        nothing.write(report(1), {})
    if importlib.util.find_spec("tensorboard") is not None:
        pytest.skip("tensorboard is installed here")
    with pytest.raises(ConfigError, match="pip install"), board(tmp_path):
        pass


def test_bytes_are_by_stage_beside_what_whole_batches_would_have_been() -> None:
    field = {"put_bytes": 0, "put_rows": 0, "got_bytes": 80, "got_rows": 8}
    totals = {"rows": 4, "read_bytes": 40, "unread_bytes": 10, "written_bytes": 16}
    reports: dict[str, Any] = {
        "reward": {
            "fields": {"responses": field, "reward_model": field},
            "stages": {"reward.compute_scores": totals},
        }
    }
    by_stage = {one.name: one for one in stage_traffic(PpoSettings().dataflow(), reports)}
    reward = by_stage["reward"]
    assert (reward.fetched_bytes, reward.unread_bytes, reward.stored_bytes) == (40, 10, 16)
    assert reward.whole_batch_bytes == 4 * (10 + 10), "4 rows of the two fields known"
    assert by_stage["update_actor"].fetched_bytes == 0
