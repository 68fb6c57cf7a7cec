"""One JSON line an update."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from controller.async_ppo import StepReport


class MetricsFile:
    """Appends to a file that is complete after every update, also when the run is killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def write(self, report: StepReport, **more: float) -> None:
        """``more``: values of this update beside the report's own."""
        plain = asdict(report)
        metrics = plain.pop("metrics")
        with self._path.open("a") as file:
            file.write(json.dumps({**plain, **metrics, **more}) + "\n")
