"""One JSON line an update."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from controller.step_report import StepReport


class MetricsFile:
    """Appends to a file that is complete after every update, also when the run is killed."""

    def __init__(self, path: Path, *, keep_before: bool = False) -> None:
        """``keep_before``: go on behind the lines that are there, of a run that is resumed. A step
        that is done again has two lines; the later one counts."""
        self._path = path
        if not keep_before:
            path.write_text("")

    def write(self, report: StepReport, **more: float) -> None:
        """``more``: values of this update beside the report's own."""
        plain = asdict(report)
        metrics = plain.pop("metrics") | {"idle_share": report.idle_share}
        with self._path.open("a") as file:
            file.write(json.dumps({**plain, **metrics, **more}) + "\n")
