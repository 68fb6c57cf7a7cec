"""Metrics for TensorBoard, if it is installed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from controller.step_report import StepReport


class Board:
    """Event files, or nothing."""

    def __init__(self, writer: Any = None) -> None:
        self._writer = writer

    def write(self, report: StepReport, more: Mapping[str, float]) -> None:
        if self._writer is None:
            return
        plain = asdict(report)
        scalars = {**plain.pop("metrics"), **plain, **more}
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, report.step)
        self._writer.flush()


@contextmanager
def board(folder: Path | None) -> Iterator[Board]:
    """Writes to ``folder``; to nowhere when it is ``None``."""
    if folder is None:
        yield Board()
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "--tensorboard needs the package tensorboard: pip install "
            "'transferqueue-dataplane[tensorboard]'"
        ) from error
    with SummaryWriter(str(folder)) as writer:
        yield Board(writer)
