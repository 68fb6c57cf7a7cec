"""The tasks, by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from examples.tiny.addition import Addition
from examples.tiny.spelling import Spelling
from transferqueue.errors import ConfigError, near_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.tiny.problems import Task

TASKS: dict[str, Callable[..., Task]] = {"addition": Addition, "spelling": Spelling}


def make_task(name: str, **parameters: Any) -> Task:
    """The task of that name. ``ConfigError`` names an unknown task or parameter, and near ones."""
    if name not in TASKS:
        raise ConfigError(_unknown("task", name, list(TASKS)))
    kind = TASKS[name]
    known = [f.name for f in dataclasses.fields(kind) if f.init]  # type: ignore[arg-type]
    for parameter in parameters:
        if parameter not in known:
            raise ConfigError(_unknown(f"parameter of task {name!r}", parameter, known))
    return kind(**parameters)


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = near_names(name, known)
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"unknown {what} {name!r}; {meant}there are {', '.join(sorted(known))}"
