"""A child that was forked from the server is as good as a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from workers.forking import start_child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 30.0


def tell(pipe: Connection) -> None:
    """What this process is, then wait for the other end to go."""
    modules = sorted(name for name in ("torch", "tensordict") if name in sys.modules)
    pipe.send(
        {
            "drawn": np.random.random(4).tolist(),
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "path": sys.path,
            "modules": modules,
        }
    )
    try:
        pipe.recv()
    except EOFError:
        return


@pytest.fixture
def children() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for process, pipe in started:
        pipe.close()
        process.join(ANSWER_S)
        process.close()


def ask(children: list[Any]) -> dict[str, Any]:
    process, pipe = start_child(tell, f"child-{len(children)}")
    children.append((process, pipe))
    assert pipe.poll(ANSWER_S)
    answer: dict[str, Any] = pipe.recv()
    return answer


def test_it_has_what_its_parent_has_now(
    children: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLOUR", "red")
    assert ask(children)["environment"]["COLOUR"] == "red"
    monkeypatch.delenv("COLOUR")
    monkeypatch.setenv("SHAPE", "round")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/of/mine")
    told = ask(children)
    assert told["environment"] == dict(os.environ)
    assert told["folder"] == str(tmp_path)
    assert told["path"] == sys.path


def test_it_has_imported_what_takes_long_and_shares_no_random_numbers(
    children: list[Any],
) -> None:
    one, other = ask(children), ask(children)
    assert one["modules"] == ["tensordict", "torch"]
    assert one["drawn"] != other["drawn"]


def test_how_it_ended_is_known(children: list[Any]) -> None:
    ask(children)
    process, _ = children[0]
    os.kill(process.pid, signal.SIGKILL)
    process.join(ANSWER_S)
    assert process.exitcode == -signal.SIGKILL


PROGRAM = """
import sys, time
from tests.workers.test_forking import tell
from workers.forking import start_child

if __name__ == "__main__":
    kept = [start_child(tell, f"child-{k}") for k in range(2)]
    for _, pipe in kept:
        pipe.recv()
    print("ready", flush=True)
    time.sleep(600)
"""


def test_it_and_the_server_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        descendants = psutil.Process(parent.pid).children(recursive=True)
        assert len(descendants) >= 3, "the server, and its two children"
        parent.kill()
    _, alive = psutil.wait_procs(descendants, timeout=ANSWER_S)
    assert not alive
