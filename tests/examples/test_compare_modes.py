"""The comparison's figures, and a short run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from controller.step_report import StepReport
from examples import compare_modes
from examples.reporting.comparison import ModeRun, Point, common_accuracy, first_batch_at_s
from workers.spans import NO_SAMPLES, Span

ROOT = Path(__file__).resolve().parents[2]


def run(mode: str, *points: tuple[float, float]) -> ModeRun:
    report = StepReport(
        step=1,
        version=1,
        reward=0.5,
        held_out_accuracy=None,
        staleness_max=0,
        staleness_mean=0.0,
        rows=8,
        samples_per_s=1.0,
        step_s=10.0,
        wait_s=4.0,
    )
    return ModeRun(
        mode=mode,
        seed=0,
        points=tuple(Point(seconds=s, accuracy=a) for s, a in points),
        reports=(report,),
        seconds=10.0,
        trainer_busy_s=5.0,
        idle_share_at_work=0.4,
    )


def test_the_same_accuracy_is_what_every_run_reaches() -> None:
    sync = run("sync", (1, 0.0), (2, 0.6), (3, 0.9), (4, 0.9))
    behind = run("async", (1, 0.3), (2, 0.9), (3, 0.6), (4, 0.3))
    assert [p.accuracy for p in sync.smoothed] == pytest.approx([0.0, 0.3, 0.5, 0.8])
    assert [p.seconds for p in sync.smoothed] == [1, 2, 3, 4]
    assert common_accuracy([sync, behind]) == pytest.approx(0.6)
    assert [one.seconds_to(0.59) for one in (sync, behind)] == [4, 2]
    assert behind.seconds_to(0.7) is None


def test_idle_is_when_no_trainer_is_at_work_and_waiting_when_it_has_no_batch() -> None:
    assert run("sync").idle_share == pytest.approx(0.5)
    assert run("sync").wait_share == pytest.approx(0.4)


def test_the_first_batch_is_there_when_the_first_stage_runs_not_when_weights_go_out() -> None:
    def span(name: str, start_s: float) -> Span:
        return Span(name=name, start_s=start_s, end_s=start_s + 1.0, uids=NO_SAMPLES)

    work = [span("actor.update_actor", 3.0), span("critic.compute_values", 2.0)]
    assert first_batch_at_s([span("actor.publish", 0.0), *work]) == 2.0


@pytest.mark.slow
def test_a_short_comparison_writes_its_table_its_picture_and_its_timelines(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.compare_modes", "--steps", "2", "--token-s", "0.001",
         "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for mode in ("sync", "one_step_off", "fully_async"):
        assert mode in done.stdout
        assert json.loads((tmp_path / f"timeline-{mode}-seed0.json").read_text())["traceEvents"]
    assert (tmp_path / "modes.png").stat().st_size > 10_000
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-staleness", "1"], "max_staleness=1 drops it"),
        (["--token-s", "-1"], "token_s must be 0 or more, got -1.0"),
        (["--rollouts", "0"], "must be at least 1, got 0"),
        (["--seeds", "0", "-2"], "seed must be 0 or more, got -2"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        compare_modes.parse(options)
    assert message in capsys.readouterr().err
