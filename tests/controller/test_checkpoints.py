"""Checkpoints are complete or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controller.checkpoints import KEPT, CheckpointFolder, DriverState
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def state(step: int) -> DriverState:
    return DriverState(
        step=step,
        version=step + 1,
        prompts={"next_number": 7, "first": [3, 5]},
        trained=(b"\x00\xff",),
        about={"mode": "sync"},
    )


def save_nothing(_: Path) -> None:
    pass


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "new")
    assert folder.newest() is None
    written = folder.write(state(3), lambda path: (path / "actor.pt").write_text("weights"))
    assert folder.newest() == written
    assert folder.read(written) == state(3)
    assert (written / "actor.pt").read_text() == "weights"


def test_the_newest_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in (2, 4, 10, 12):
        folder.write(state(step), save_nothing)
    newest = folder.newest()
    assert newest is not None
    assert folder.read(newest).step == 12
    assert len(list(tmp_path.iterdir())) == KEPT


def test_one_that_was_interrupted_is_not_there(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.write(state(1), save_nothing)

    def dies(path: Path) -> None:
        (path / "actor.pt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.write(state(2), dies)
    newest = folder.newest()
    assert newest is not None
    assert folder.read(newest).step == 1
    folder.write(state(2), save_nothing)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000002"]


def test_a_step_that_is_done_again_replaces_what_was_there(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.write(state(2), lambda path: (path / "a").write_text("old"))
    again = folder.write(state(2), lambda path: (path / "a").write_text("new"))
    assert (again / "a").read_text() == "new"


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="no driver state of format 1"):
        DriverState.from_json('{"format": 99}')
