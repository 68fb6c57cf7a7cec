"""The five stages of a PPO step on four workers: by handle, and with whole batches.

Moving data is what the five dispatches of a step take by the wall clock, every method reading all
of what it declares and writing what it declares, less the same arithmetic on columns that lie in
the ranks' own memory. Whatever a dispatch costs beside that, empty calls of Ray included, counts
as moving data; so do the page faults of a first touch, which happen in the methods. It is the same
for all modes, in turns, in one process on one Ray.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import systems as s
from tests.benchmarks.report import Missing, Unit, at_least, at_most
from tests.benchmarks.stage import Tally, alive

if TYPE_CHECKING:
    from tests.benchmarks.report import Row
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.systems import RunningSystem

SHAPE = {"rows": 1024, "prompt": 128, "response": 1024}
"""An eighth of 1,024 + 8,192 tokens, at the full number of samples."""

QUICK_SHAPE = {"rows": 64, "prompt": 16, "response": 64}
SHORT_SHAPE = {"rows": 1024, "prompt": 16, "response": 128}
"""For the controller's memory, which columns never touch."""

LONG_STEPS, QUICK_LONG_STEPS = 200, 10
WARM_STEPS = 0.1
"""Of the long run, before memory is looked at."""

EMPTY_CALLS, QUICK_EMPTY_CALLS = 300, 30
FAT = "ours, whole batches"
TIMEOUT_S = 600.0


class Dispatch:
    """Ours by `Dispatch.HANDLE` against ours by ``DP_COMPUTE_PROTO`` and verl's mode of that name,
    in verl's environment; where that cannot be made, ours alone."""

    name = "dispatch"
    title = "5 stages of a PPO step, 1,024 samples × (128 + 1,024) tokens, 4 workers on Ray"

    def run(self, stage: Stage) -> list[Row]:
        tally = Tally()
        with stage.systems(s.STAGE_MODES, readers=0) as systems:
            if systems[0].failure is None:
                return self._rows(tally, self._measure(stage, systems, tally))
            tally.missing["verl"] = systems[0].failure
        with stage.systems(s.STAGE_MODES_WITHOUT_VERL, readers=0) as systems:
            labels = self._measure(stage, systems, tally)
        return self._rows(tally, [*labels, "verl"])

    def _measure(self, stage: Stage, systems: list[RunningSystem], tally: Tally) -> list[str]:
        labels: list[str] = ["ours"]
        shape = QUICK_SHAPE if stage.is_quick else SHAPE

        def step(running: RunningSystem, number: int) -> None:
            labels[:] = running.writer.call("drive", name="modes")["labels"]
            computing = running.writer.call("drive", name="computing", **shape)
            for label in labels:
                answer = running.writer.call("drive", name="step", label=label, **shape)
                if number > 0:
                    tally.add("step", label, answer["seconds"])
                    tally.add("moving", label, max(answer["seconds"] - computing["seconds"], 0.0))
                    tally.add("controller", label, answer["controller_bytes"])

        # First: memory that whole batches leave free in the process would hide what grows.
        for running in alive(systems):
            with running.attempt():
                self._many_steps(stage, running, tally)
                self._empty_calls(stage, running, tally)
        stage.in_rounds(systems, step)
        tally.note_failures(systems)
        return labels

    def _empty_calls(self, stage: Stage, running: RunningSystem, tally: Tally) -> None:
        calls = QUICK_EMPTY_CALLS if stage.is_quick else EMPTY_CALLS
        answer = running.writer.call("drive", name="empty_calls", calls=calls, rows=1024)
        tally.add("empty", "ours", *answer["by_handle"])
        tally.add("empty", "Ray, empty", *answer["plain"])

    def _many_steps(self, stage: Stage, running: RunningSystem, tally: Tally) -> None:
        steps = QUICK_LONG_STEPS if stage.is_quick else LONG_STEPS
        answer = running.writer.call(
            "drive", timeout_s=TIMEOUT_S, name="many_steps", steps=steps, **SHORT_SHAPE
        )
        seen = answer["resident_bytes"][int(steps * WARM_STEPS) :]
        tally.add("resident", "ours", *seen)
        tally.add("spread", "ours", max(seen) / min(seen) - 1)

    def _rows(self, tally: Tally, labels: list[str]) -> list[Row]:
        step = tally.row(self.name, "step, arithmetic too", labels, key="step")
        moving = tally.row(self.name, "moving data", labels, key="moving")
        through = tally.row(
            self.name, "through the controller", labels, key="controller", unit=Unit.BYTES
        )
        empty = tally.row(self.name, "empty call, 4 ranks", ["ours", "Ray, empty"], key="empty")
        resident = tally.row(
            self.name, "controller's memory, 200 steps", ["ours"], key="resident", unit=Unit.BYTES
        )
        spread = tally.cell("spread", "ours")
        through_bytes, empty_times = through.number("ours"), empty.speedup("Ray, empty")
        return [
            step,
            replace(moving, figures=(at_least(moving, 8, FAT), at_least(moving, 8, "verl"))),
            replace(
                through,
                figures=(
                    at_least(through, 20, FAT),
                    at_most(
                        None if through_bytes is None else through_bytes / 1024, 128, "KiB a step"
                    ),
                ),
            ),
            replace(
                empty,
                figures=(
                    at_most(None if empty_times is None else 1 / empty_times, 1.5, "× Ray's"),
                ),
            ),
            replace(
                resident,
                figures=(
                    at_most(
                        None if isinstance(spread, Missing) else spread.median * 100,
                        5,
                        "% between least and most",
                    ),
                ),
            ),
        ]
