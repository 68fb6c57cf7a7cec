"""Stages over one batch on their way: which may begin, and which to wait for. Pure.

A stage begins when what it reads is there, not when all that began before it has ended. A process
runs its calls one after another, so a stage may also be given to the process that is still to
write what it reads: it comes to it when that is stored, without a word from the driver between.
Updates, which write nothing, begin when every stage that writes has begun: these see the roles as
they were.

The order of waiting is the table's, but for stages that others wait for, which come first; it does
not depend on who is faster, so neither does the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from controller.dataflow import Dataflow, Stage
    from workers.roles.fields import MethodFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Which stages stand in one line: those of one process. The default knows of none."""

    process_of: Mapping[str, str] = field(default_factory=dict)
    """Stage -> its process, where it has one and no more."""
    needed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Stage -> fields that it reads though the handle that it is given does not list them yet."""

    @classmethod
    def of(
        cls,
        dataflow: Dataflow,
        processes_of: Callable[[str], Sequence[str]],
        declared: Mapping[str, Mapping[str, MethodFields]],
    ) -> Lines:
        """For batches that go by handle: a whole batch has to come back first."""
        process_of, needed = {}, {}
        for stage in dataflow.stages:
            processes = processes_of(stage.role)
            if len(processes) == 1:
                process_of[stage.name] = processes[0]
            fields = declared[stage.role][stage.method]
            always = fields.reads if fields.reads_what_is_there else stage.reads
            needed[stage.name] = frozenset(always)
        return cls(process_of=process_of, needed=needed)

    def may_follow(self, stage: Stage, writer: Stage) -> bool:
        """Whether a stage may be given to its process before ``writer``, which has been, ends."""
        process = self.process_of.get(stage.name)
        if process is None or process != self.process_of.get(writer.name):
            return False
        return {*stage.reads} & {*writer.writes} <= self.needed[stage.name]


class Course:
    """Of the stages of one table, in its order."""

    def __init__(self, stages: Sequence[Stage], lines: Lines | None = None) -> None:
        self._left = list(stages)
        self._begun: list[Stage] = []
        self._lines = lines or Lines()

    def has_all_begun(self) -> bool:
        return not self._left

    def begin(self, *, updates: bool = True) -> list[Stage]:
        """Stages that may begin now, in the order in which they must; they count as begun.
        ``updates``: stages that write nothing, too."""
        ready = []
        for stage in list(self._left):
            if self._may_begin(stage) and (stage.writes or updates):
                self._left.remove(stage)
                self._begun.append(stage)
                ready.append(stage)
        is_stuck = self._left and not self._begun and (updates or self._is_anything_to_write)
        assert not is_stuck, "a checked table has no cycle"
        return ready

    def _may_begin(self, stage: Stage) -> bool:
        if not stage.writes and self._is_anything_to_write:
            return False
        reads = {*stage.reads}
        if any(reads & {*other.writes} for other in self._left):
            return False
        return all(self._lines.may_follow(stage, writer) for writer in self._writing(stage))

    @property
    def _is_anything_to_write(self) -> bool:
        return any(stage.writes for stage in self._left)

    def _writing(self, stage: Stage) -> list[Stage]:
        """Stages that are at what this one reads."""
        return [other for other in self._begun if {*other.writes} & {*stage.reads}]

    def next_to_end(self) -> Stage | None:
        """The one to wait for; it counts as ended. ``None`` when all have."""
        wanted = {name for stage in self._left for name in stage.reads}
        first = next((stage for stage in self._begun if wanted & {*stage.writes}), None)
        stage = first or next(iter(self._begun), None)
        # What went wrong in the first of a line is what went wrong.
        while stage is not None and (before := self._writing(stage)):
            stage = before[0]
        if stage is not None:
            self._begun.remove(stage)
        return stage
