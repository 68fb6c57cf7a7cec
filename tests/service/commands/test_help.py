"""Asking the command line what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from transferqueue.byte_text import size
from transferqueue.errors import (
    ConfigError,
    KeyRefused,
    NoKey,
    NoService,
    NotReady,
    RowsGone,
    ServiceUnreachable,
)
from transferqueue.service.cli import main
from transferqueue.service.commands.exits import MEANINGS, Exit, exit_for
from transferqueue.service.commands.output import span, who

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"torch", "ray", "tensordict", "numpy", "zmq", "rich", "asyncio", "msgpack"}


@pytest.mark.parametrize("arguments", [["--help"], ["top", "--help"], ["explain", "NotReady"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom transferqueue.service.cli import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        f"print('HEAVY', sorted({HEAVY!r} & set(sys.modules)), len(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    heavy, _, num = done.stdout.rpartition("HEAVY")[2].strip().rpartition(" ")
    assert heavy == "[]"
    assert int(num) < 450


@pytest.mark.parametrize("name", main.commands)
def test_every_command_explains_itself(name: str) -> None:
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0
    command = main.commands[name]
    assert len(command.get_short_help_str(60)) <= 60
    assert not command.get_short_help_str(60).endswith("..."), "cut off in the list of commands"
    options = {option for parameter in command.params for option in parameter.opts}
    if name != "serve":
        assert "--json" in options
        assert "JSON keys:" in shown.output
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.show_default, parameter.opts


def test_exit_statuses_are_documented_and_each_means_one_thing() -> None:
    text = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    for code, meaning in MEANINGS.items():
        assert f"{int(code)} {meaning}" in text
    assert set(MEANINGS) == set(Exit)
    assert [exit_for(error) for error in (
        ServiceUnreachable("tcp://x", "hello", 1.0),
        ServiceUnreachable("tcp://x", "status", 1.0),
        KeyRefused("tcp://x", "hello", 1.0),
        NoKey("tcp://x"),
        NoService([]),
        NotReady(2, 1, {}, 1.0),
        RowsGone(1, 1, []),
        ConfigError("no"),
    )] == [
        Exit.NO_SERVICE, Exit.TIMED_OUT, Exit.KEY_REFUSED, Exit.KEY_REFUSED, Exit.NO_SERVICE,
        Exit.TIMED_OUT, Exit.FAILED, Exit.FAILED,
    ]  # fmt: skip


def test_numbers_are_shown_in_the_unit_that_suits_them() -> None:
    assert [span(s) for s in (0.04, 59.9, 190, 7500, 273_600)] == [
        "0.0 s", "59.9 s", "3 min 10 s", "2 h 5 min", "3 d 4 h",
    ]  # fmt: skip
    assert [size(n) for n in (0, 1023, 1536, 5 << 30, 3 << 40)] == [
        "0 B", "1,023 B", "1.5 KiB", "5.0 GiB", "3.0 TiB",
    ]  # fmt: skip
    assert [who(name) for name in ("node:7/ab", "pid 7 a/b.py:3", "abcd")] == [
        "node:7", "pid 7 a/b.py:3", "abcd",
    ]  # fmt: skip
