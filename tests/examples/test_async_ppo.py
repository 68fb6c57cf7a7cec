"""The main job, in a short form, as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from controller.advantage_stage import Algorithm
from controller.driver_config import Mode
from examples import async_ppo
from examples.tiny.addition import Addition
from tests.waiting import wait_until
from transferqueue.backends.arena_owner import LockRecord

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 240.0
SHARED_MEMORY = Path("/dev/shm")


def start(out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.async_ppo", "--plain", "--out", str(out), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def updates(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_ends_with_its_curves_is_resumed_and_can_be_looked_at_on_a_timeline(
    tmp_path: Path,
) -> None:
    options = ["--task", "spelling", "--algorithm", "grpo", "--mode", "sync", "--host", "processes"]
    more = ["--batch-rows", "64", "--checkpoint-every", "1"]
    for steps, extra in (("2", []), ("3", ["--resume"])):
        run = start(tmp_path, "--steps", steps, *options, *more, *extra)
        printed, errors = run.communicate(timeout=START_TIMEOUT_S)
        assert run.returncode == 0, errors
        assert "Through the controller" in printed
        assert (tmp_path / "curves.png").stat().st_size > 10_000
        (tmp_path / "curves.png").unlink()
        assert updates(tmp_path)[-1]["held_out_accuracy"] is not None
    assert [line["step"] for line in updates(tmp_path)] == [1, 2, 3]
    trace = json.loads((tmp_path / "timeline.json").read_text())
    busy = {event["name"] for event in trace["traceEvents"] if event.get("cat") == "busy"}
    assert {"rollout.generate_sequences", "reward.compute_scores", "actor.update_actor"} <= busy
    assert {"s", "f"} <= {event["ph"] for event in trace["traceEvents"]}, "samples are followed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mode", "fully_async", "--transport", "fat"], "needs transport 'handles'"),
        (["--mode", "one_step_off", "--max-staleness", "0"], "max_staleness=0 rules out"),
        (["--algorithm", "grpo", "--samples-per-prompt", "1"], "leaves 0 others"),
        (["--batch-rows", "10", "--samples-per-prompt", "4"], "no multiple of"),
        (["--samples-per-prompt", "0"], "samples_per_prompt must be at least 1, got 0"),
        (["--seed", "-1"], "seed must be 0 or more, got -1"),
        (["--steps", "0"], "num_steps must be at least 1, got 0"),
        (["--task", "adition"], "no task 'adition'; did you mean 'addition'"),
        (["--mode", "async"], "no mode 'async'; did you mean 'sync' or 'fully_async'"),
        (["--config", "nowhere.toml"], "nowhere.toml: [Errno 2]"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        async_ppo.parse(options)
    assert message in capsys.readouterr().err


def test_a_file_says_what_to_run_and_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        """
        [recipe]
        algorithm = "grpo"
        batch_rows = 64
        actor_learning_rate = 1
        task_options = {digits = 3, reversed_answer = true}
        [driver]
        num_steps = 7
        mode = "one_step_off"
        evaluate_every = 3
        """
    )
    options = async_ppo.parse(["--config", str(path), "--steps", "9", "--seed", "4"])
    recipe, config = options.recipe, options.config
    assert (recipe.algorithm, recipe.batch_rows, recipe.seed) == (Algorithm.GRPO, 64, 4)
    assert recipe.make_task() == Addition(digits=3, reversed_answer=True)
    assert (config.num_steps, config.mode, config.evaluate_every) == (9, Mode.ONE_STEP_OFF, 3)
    assert (config.samples_per_prompt, config.prompts_per_step) == (4, 16)
    assert options.out == Path("runs/addition-seed4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[driver]\nmax_stalenes = 1", "no driver setting 'max_stalenes'; did you mean 'max_stale"),
        ("[recipe]\nbatch_row = 1", "no recipe setting 'batch_row'; did you mean 'batch_rows'"),
        ("[recipe]\nbatch_rows = '64'", "batch_rows='64' is no int"),
        ("[recipe]\nalgorithm = 'gea'", "no algorithm 'gea'; did you mean 'gae'"),
        ("[recipe.task_options]\ndigit = 3", "no parameter of task 'addition' 'digit'; did you"),
        ("[recipe.task_options]\ndigits = '3'", "task 'addition' settings: digits='3' is no int"),
        ("[recipe.task_options]\ndigits = 1", "holds out about"),
        ("[recipe]\nslots = 0", "slots=0 must be at least 1"),
        ("[recipe]\nepochs = 0", "epochs=0 must be at least 1"),
        ("[recipe]\nwidth = 63", "width=63 is not a multiple of num_heads=4"),
        ("[recipe]\nwarmup_accuracy = 20", "warmup_accuracy must be 0 to 1, got 20"),
        ("[recipe]\nactor_learning_rate = nan", "actor_learning_rate must be above 0, got nan"),
        ("[recipe]\nimportance_cap = -1", "importance_cap must be above 0, got -1"),
        ("[driver]\nlease_s = inf", "lease_s must be above 0 and finite, got inf"),
        ("[driver]\nsamples_per_prompt = 4", "follows from the recipe"),
        ("[drivers]\n", "did you mean 'driver'"),
        ("driver = 3", "'driver' is a table"),
        ("[driver", "run.toml: "),
    ],
)
def test_a_wrong_key_or_value_of_a_file_is_named(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(SystemExit):
        async_ppo.parse(["--config", str(path)])
    assert message in " ".join(capsys.readouterr().err.split())


def arenas_of(pid: int) -> list[str]:
    """What the files of each arena are called whose shard would be started again by a process."""
    records = {
        path.stem: LockRecord.from_json(path.read_bytes())
        for path in SHARED_MEMORY.glob("transferqueue-*.lock")
    }
    return [
        stem
        for stem, record in records.items()
        if record is not None and record.guardian is not None and record.guardian.pid == pid
    ]


@pytest.mark.slow
def test_as_it_is_by_default_it_keeps_staleness_bounded_and_ctrl_c_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    run = start(tmp_path, "--steps", "1000")
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("step") and line.split()[1] == "4":
            break
    wait_until(lambda: len(updates(tmp_path)) >= 4)  # written after it is printed
    reported = updates(tmp_path)
    assert [line["step"] for line in reported[:4]] == [1, 2, 3, 4]
    assert all(line["staleness_max"] <= 2 for line in reported)
    assert all(line["rows"] == 512 for line in reported)
    descendants = psutil.Process(run.pid).children(recursive=True)
    assert len(descendants) > 6, "the roles are processes"
    arenas = arenas_of(run.pid)
    assert len(arenas) == 2, "one a shard"
    os.kill(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130, errors
    _gone, alive = psutil.wait_procs(descendants, timeout=15)
    assert not alive
    wait_until(lambda: not [file for stem in arenas for file in SHARED_MEMORY.glob(f"{stem}*")])
