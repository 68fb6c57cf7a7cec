"""The tasks, by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from controller.plain_settings import check_names, from_plain
from examples.tiny.addition import Addition
from examples.tiny.spelling import Spelling

if TYPE_CHECKING:
    from examples.tiny.problems import Task

TASKS: dict[str, type[Task]] = {"addition": Addition, "spelling": Spelling}


def make_task(name: str, **parameters: Any) -> Task:
    """The task of that name. ``ConfigError`` names an unknown task or parameter, and near
    ones, and a value of another type."""
    check_names("task", [name], TASKS)
    kind = TASKS[name]
    known = [f.name for f in dataclasses.fields(kind) if f.init]  # type: ignore[arg-type]
    check_names(f"parameter of task {name!r}", parameters, known)
    return from_plain(kind, f"task {name!r}", parameters)
