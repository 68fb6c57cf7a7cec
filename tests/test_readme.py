"""What the README shows works as it stands."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def block(name: str) -> str:
    """The code between the README's markers of that name."""
    text = (ROOT / "README.md").read_text()
    match = re.search(rf"<!-- ci:{name} -->\n```\w+\n(.*?)```\n<!-- ci -->", text, re.DOTALL)
    assert match, name
    return match[1]


def test_the_quick_start_runs_as_it_is_printed() -> None:
    code = block("quickstart")
    assert len([line for line in code.splitlines() if line.strip()]) <= 17
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_worker_runs_as_it_is_printed(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(block("worker"))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([10, 128])" in done.stdout
    assert "through the controller" in done.stdout


def test_the_choice_of_a_backend_runs_as_it_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block("backends")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'pixels': {'disk': 3145728}, 'label': {'shm': 64}}\n"


def test_each_command_is_one_line_that_makes_its_own_environment() -> None:
    for name in ("main", "test"):
        command = block(name).strip()
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && ")


def test_every_picture_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    assert len(shown) >= 6
    for path in map("".join, shown):
        assert (ROOT / path).is_file(), path


def test_the_closing_table_has_the_stages_that_the_example_runs() -> None:
    from examples.tiny.recipe import Recipe

    text = (ROOT / "README.md").read_text().partition("| stage | fetched |")[2]
    rows = text.partition("\n\n")[0].splitlines()[2:]
    named = [row.split("|")[1].strip() for row in rows]
    stages = Recipe().settings.dataflow().stages
    assert sorted(named) == sorted([*(stage.name for stage in stages), "all"])


def test_every_command_that_is_named_exists() -> None:
    from transferqueue.service.cli import main

    text = (ROOT / "README.md").read_text()
    section = text.partition("## The command line")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"`(\w+)", row)} - {"transferqueue", "UID"}
    assert named == set(main.commands)


PROMISES = [
    "`kill -9` of a shard",
    "host or arena lost",
    "`kill -9` of the coordinator",
    "`kill -9` of a worker in a put",
    "`kill -9` of a worker in a claim",
    "a reader dies holding mappings",
    "disk or memory full",
    "bytes that are not ours",
    "a peer without the key",
    "checkpoint interrupted",
]
"""What may go wrong, and has a promise."""


def promises() -> dict[str, list[str]]:
    """Fault -> the tests that are named for it. Rows without a fault go on with the one before."""
    text = (ROOT / "README.md").read_text().partition("| fault | what holds | test |\n")[2]
    found: dict[str, list[str]] = {}
    fault = ""
    for line in text.partition("\n\n")[0].splitlines()[1:]:
        first, holds, tests = (cell.strip() for cell in line.strip("|").split("|"))
        fault = first or fault
        named = re.findall(r"`(tests/[^`]+)`", tests)
        assert holds, line
        assert named, line
        found.setdefault(fault, []).extend(named)
    return found


def test_every_promise_has_tests_that_are_named_and_there() -> None:
    found = promises()
    assert set(PROMISES) <= set(found)
    for name in itertools.chain.from_iterable(found.values()):
        path, _, function = name.partition("::")
        file = ROOT / path
        assert file.is_file(), name
        defined = re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
        if function:
            assert function in defined, name
        else:
            assert defined or "TestCase" in file.read_text(), name
