"""What a workload is given: running systems, a tally for what they took, and a place for rows."""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tests.benchmarks.actor_process import NotRun
from tests.benchmarks.report import Cell, Missing, Row, Samples, Unit
from tests.benchmarks.systems import RunningSystem, System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.benchmarks.environment import Environments

SETTLE_S = 0.03
"""Pause after a get: leases and freed memory go back before the next system has its turn."""


class Workload(Protocol):
    """One benchmark. ``name`` is what ``--only`` takes."""

    name: str
    title: str

    def run(self, stage: Stage) -> list[Row]: ...


@dataclass(slots=True, kw_only=True)
class Tally:
    """Samples by what was measured and by system, and why a system has none."""

    samples: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    missing: dict[str, str] = field(default_factory=dict)
    """System label to the reason why it was not measured, or not to the end."""

    def add(self, what: str, label: str, *values: float) -> None:
        self.samples[what][label].extend(values)

    def note_failures(self, systems: Sequence[RunningSystem]) -> None:
        for running in systems:
            if running.failure is not None:
                self.missing[running.label] = running.failure

    def cell(self, what: str, label: str) -> Cell:
        """The samples of a system; those made before it failed do not count."""
        if label in self.missing:
            return Missing(reason=self.missing[label])
        values = self.samples[what][label]
        return Samples(values=tuple(values)) if values else Missing(reason="not measured")

    def row(
        self,
        workload: str,
        what: str,
        labels: Sequence[str],
        *,
        unit: Unit = Unit.SECONDS,
        key: str | None = None,
        percentile: float | None = None,
    ) -> Row:
        """A row of the samples under ``key`` (the row's own name by default)."""
        found = {label: self.cell(key or what, label) for label in labels}
        # A system with nothing under this key has nothing to do with the row.
        cells = {
            label: cell
            for label, cell in found.items()
            if isinstance(cell, Samples) or cell.reason != "not measured"
        }
        return Row(workload=workload, what=what, unit=unit, cells=cells, percentile=percentile)


@dataclass(slots=True, kw_only=True)
class Stage:
    """Where workloads run."""

    rounds: int
    is_quick: bool
    environments: Environments
    log_dir: Path
    say: Callable[[str], None]

    @contextlib.contextmanager
    def systems(self, *systems: System, readers: int = 1) -> Iterator[list[RunningSystem]]:
        """Start systems, one after the other; all are ended in the end."""
        with contextlib.ExitStack() as stack:
            running = []
            for system in systems:
                self.say(f"  starting {system.label}")
                one = RunningSystem(system, self.environments, self.log_dir, readers=readers)
                running.append(stack.enter_context(one))
                if one.failure is not None:
                    self.say(f"  {system.label}: {one.failure}")
            yield running

    def make(self, systems: Sequence[RunningSystem], maker: str, **shape: int) -> dict[str, Any]:
        """Let every writer hold a batch; returns its bytes and its digest.

        All make the same one, so the answer of any of them will do.
        """
        facts: dict[str, Any] = {}
        for running in alive(systems):
            with running.attempt():
                facts = running.writer.call("make", maker=maker, **shape) or facts
        return facts

    def in_rounds(
        self,
        systems: Sequence[RunningSystem],
        step: Callable[[RunningSystem, int], None],
        *,
        rounds: int | None = None,
        limit: str | None = None,
    ) -> None:
        """``step`` for every system, in turns: round 0 is a warm-up and not to be counted.

        In another order each round: who comes next finds memory and caches as the one before left
        them. ``limit``: the label of what the first system is measured by, whose turn is next to
        its own.
        """
        for number in range((rounds or self.rounds) + 1):
            for running in _turns(alive(systems), number, limit):
                if running.failure is not None:
                    continue
                with running.attempt():
                    step(running, number)
                if running.failure is not None:
                    self.say(f"  {running.label}: {running.failure}")
                time.sleep(SETTLE_S)


def alive(systems: Sequence[RunningSystem]) -> list[RunningSystem]:
    """The systems that have not failed."""
    return [running for running in systems if running.failure is None]


def _turns(systems: Sequence[RunningSystem], number: int, limit: str | None) -> list[RunningSystem]:
    order = random.Random(number)
    turns = [running for running in systems if running.label != limit]
    first = turns[:1]
    order.shuffle(turns)
    for running in systems:
        if running.label == limit:
            beside = turns.index(first[0]) if first else 0
            turns.insert(beside + order.randrange(2), running)
    return turns


def check_digest(answer: dict[str, Any], expected: str) -> None:
    """NotRun when something else came back than was put."""
    if any(digest != expected for digest in answer["digests"]):
        raise NotRun("what came back is not what was put")


def labels_of(systems: Sequence[RunningSystem]) -> list[str]:
    return [running.label for running in systems]
