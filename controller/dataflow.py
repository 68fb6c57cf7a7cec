"""What a training step does, as a table: which method of which role reads and writes what.

A table is checked when it is made (every input is written by an earlier stage, every field once),
and against the roles' own declarations before anything runs. Drivers take the order from it
(`controller.course`): stages whose inputs are there run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.errors import DataflowError
from transferqueue.errors import near_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from workers.roles.fields import MethodFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One row of the table."""

    name: str
    """Also the task under which a streaming stage claims its samples."""
    role: str
    method: str
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    """Empty for a stage that gives metrics."""
    streams: bool = False
    """Each sample on its own, so that it may run as samples come: true of a reward model, not of
    advantages that compare samples, nor of an update."""
    generates: bool = False
    """Draws tokens, under the newest published weights. One stage does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataflow:
    """The stages of one training step, in an order in which they may run.

    ``DataflowError`` for a name that stands twice, a field that two stages write, a stage that
    reads what no earlier one writes, or a streaming stage that reads what a later phase writes.
    """

    inputs: tuple[str, ...]
    """Fields that the dataset gives."""
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        self._check_names()
        writer = dict.fromkeys(self.inputs, "the dataset")
        for at, stage in enumerate(self.stages):
            for field in stage.reads:
                if field not in writer:
                    raise DataflowError(self._unwritten(stage, field, at, writer))
            for field in stage.writes:
                if field in writer:
                    raise DataflowError(
                        f"stage {stage.name!r} writes {field!r}, which {writer[field]} has "
                        f"written already; a field is written once"
                    )
                writer[field] = f"stage {stage.name!r}"
        self._check_streams()

    def _check_names(self) -> None:
        names = [stage.name for stage in self.stages]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataflowError(f"two stages are called {twice[0]!r}")
        generating = [stage.name for stage in self.stages if stage.generates]
        if len(generating) != 1:
            raise DataflowError(f"exactly one stage generates, here {generating} do")

    def _unwritten(self, stage: Stage, field: str, at: int, written: Collection[str]) -> str:
        later = [other.name for other in self.stages[at:] if field in other.writes]
        text = f"stage {stage.name!r} reads {field!r}, which no earlier stage writes"
        if later:
            return f"{text}; stage {later[0]!r} writes it: put that first"
        near = near_names(field, written)
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"{text}{meant or f'; there are {sorted(written)}'}"

    def _check_streams(self) -> None:
        there = {*self.inputs}
        for stage in self.stages:
            missing = [field for field in stage.reads if field not in there]
            if stage.streams and missing:
                raise DataflowError(
                    f"stage {stage.name!r} streams, but reads {missing[0]!r} of a stage that runs "
                    f"on whole batches only"
                )
            if stage.streams:
                there |= {*stage.writes}

    @property
    def streaming(self) -> tuple[Stage, ...]:
        """Stages that may run as samples come."""
        return tuple(stage for stage in self.stages if stage.streams)

    @property
    def on_batches(self) -> tuple[Stage, ...]:
        """Stages that need the whole batch of an update."""
        return tuple(stage for stage in self.stages if not stage.streams)

    @property
    def rollout(self) -> Stage:
        """The stage that generates."""
        return next(stage for stage in self.stages if stage.generates)

    def check(self, declared: Mapping[str, Mapping[str, MethodFields]]) -> None:
        """Compare with what the roles declare, by role and method.

        ``DataflowError`` for an unknown role or method (with near names), a field that the method
        needs and the table does not give it, one that it does not read, and writes that differ.
        """
        for stage in self.stages:
            if stage.role not in declared:
                what = f"role of stage {stage.name!r}:"
                raise DataflowError(_unknown(what, stage.role, list(declared)))
            methods = declared[stage.role]
            if stage.method not in methods:
                what = f"method of role {stage.role!r}, for stage {stage.name!r}:"
                raise DataflowError(_unknown(what, stage.method, list(methods)))
            _check_stage(stage, methods[stage.method])


def _check_stage(stage: Stage, fields: MethodFields) -> None:
    label = f"stage {stage.name!r}: {stage.role}.{stage.method}"
    lacking = [field for field in fields.reads if field not in stage.reads]
    if lacking:
        raise DataflowError(f"{label} needs {lacking[0]!r}, which the table does not list")
    known = [*fields.reads, *fields.optional_reads]
    for field in stage.reads:
        if field not in known:
            raise DataflowError(f"{label} does not read {field!r}{_meant(field, known)}")
        if field not in fields.reads and fields.reads_what_is_there:
            if stage.streams:
                raise DataflowError(
                    f"{label} streams, and so takes samples as soon as what it always reads is "
                    f"there, which {field!r} may not be; declare it in reads, not in optional"
                )
        elif field not in fields.reads:
            raise DataflowError(
                f"{label} can read {field!r}, but its settings leave it unread: take it out of "
                f"the table, or set the role up to use it"
            )
    if {*stage.writes} != {*fields.writes}:
        raise DataflowError(
            f"{label} writes {sorted(fields.writes)}, the table says {sorted(stage.writes)}"
        )


def fields_before(stages: Iterable[Stage]) -> list[str]:
    """Fields that must be there before the first of these stages, in the order of their use."""
    stages = list(stages)
    written = {field for stage in stages for field in stage.writes}
    wanted = (field for stage in stages for field in stage.reads if field not in written)
    return list(dict.fromkeys(wanted))


def _unknown(what: str, name: str, known: list[str]) -> str:
    return f"no {what} {name!r}{_meant(name, known)}"


def _meant(name: str, known: Collection[str]) -> str:
    near = near_names(name, known)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; there are {sorted(known)}"
