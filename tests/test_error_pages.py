"""Every error is explained, and what the explanations say to run is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import transferqueue as tq
from tests.test_errors import ALL, example
from transferqueue.error_pages import ErrorPages
from transferqueue.errors import PAGES as PAGE_OF_MODULE
from transferqueue.errors import StorageFull, TransferQueueError
from transferqueue.service.cli import main

PAGES = ErrorPages.read()
ROOT = Path(__file__).resolve().parents[1]
CLASSES = {cls.__name__: cls for cls in ALL}


def code_in(text: str) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def test_every_class_has_an_entry_and_every_entry_a_class() -> None:
    assert set(PAGES.names) == set(CLASSES)
    assert len(PAGES.names) == len(set(PAGES.names))


@pytest.mark.parametrize("name", PAGES.names)
def test_an_entry_has_a_meaning_three_causes_and_something_to_run(name: str) -> None:
    text = PAGES.entry(name)["text"].removeprefix(f"{name}\n\n")
    meaning, causes, run = text.split("\n\n")
    assert meaning.endswith((".", ".)"))
    assert [line[:3] for line in causes.splitlines()] == ["1. ", "2. ", "3. "]
    assert run.startswith("Run: ")


@pytest.mark.parametrize("name", PAGES.names)
def test_every_command_and_call_that_is_named_exists(name: str) -> None:
    for code in code_in(PAGES.entry(name)["text"]):
        if code.startswith("transferqueue "):
            check_command(code.split()[1:])
        for owner, attribute in re.findall(r"\b(tq|client)\.(\w+)", code.replace("client.key", "")):
            assert hasattr({"tq": tq, "client": tq.Client}[owner], attribute), code


def check_command(words: list[str]) -> None:
    """The command is there, with these options, and takes as many words as it is given."""
    command = main.commands[words[0]]
    flags = {o: p for p in command.params if isinstance(p, click.Option) for o in p.opts}
    num_arguments, rest = 0, iter(words[1:])
    for word in rest:
        if word == "--help":
            continue
        if not word.startswith("--"):
            num_arguments += 1
        elif not flags[word].is_flag:
            next(rest)
    takes = [p for p in command.params if isinstance(p, click.Argument)]
    assert num_arguments <= len(takes), words


def test_each_error_names_its_entry() -> None:
    for cls in ALL:
        path, _, anchor = example(cls).page.partition("#")
        assert path == PAGE_OF_MODULE[cls.__module__]
        assert f"\n### {cls.__name__}\n" in (ROOT / path).read_text()
        assert PAGES.entry(cls.__name__)["page"] == example(cls).page
        assert anchor == cls.__name__.lower()  # as sites make anchors of headings


def test_an_error_of_another_package_is_explained_by_its_nearest_parent() -> None:
    class Ours(StorageFull):
        pass

    assert Ours(1, 2, 3, 4.0, 5).page.endswith("#storagefull")
    assert TransferQueueError().page.endswith("#transferqueueerror")


def test_explain_prints_the_entry_in_whatever_case() -> None:
    runner = CliRunner()
    for name in ("StorageFull", "storagefull", "transferqueue.errors.StorageFull"):
        shown = runner.invoke(main, ["explain", name])
        assert shown.exit_code == 0
        assert "transferqueue held" in shown.output
    assert "call_timeout_s" in runner.invoke(main, ["explain", "CallTimedOut"]).output
    assert "did you mean StorageFull?" in runner.invoke(main, ["explain", "StorageFul"]).output
    assert runner.invoke(main, ["explain"]).output.split() == PAGES.names


def test_each_page_is_in_its_package() -> None:
    import tomllib

    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for page in PAGE_OF_MODULE.values():
        package, _, name = page.partition("/")
        assert name in data["tool"]["setuptools"]["package-data"][package]


def test_packages_that_are_not_there_or_somebody_elses_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transferqueue.error_pages.PAGES", {
        "transferqueue.errors": "transferqueue/ERRORS.md",
        "no_such_package.errors": "no_such_package/ERRORS.md",
        "email.errors": "email/ERRORS.md",
    })  # fmt: skip
    assert ErrorPages.read().find("StorageFull")
    assert ErrorPages.read().find("WorkerFailed") is None
