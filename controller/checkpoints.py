"""What a run goes on from: a folder a step, complete or not there.

::

    checkpoints/
      step-000012/          renamed into place when everything in it is written
        driver.json         DriverState
        actor@actor.pt      state of role ``actor`` in process ``actor``, written by it
        ...
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FORMAT = 1
KEPT = 2
"""Complete checkpoints that stay."""

_PREFIX = "step-"
_DRIVER = "driver.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """The driver's part of a checkpoint."""

    step: int
    """Updates done."""
    version: int
    """Policy version of the weights."""
    prompts: Mapping[str, Any]
    """`PromptQueue.state`."""
    trained: tuple[bytes, ...] = ()
    """Handles of samples that these weights have been trained on and that may not be acked yet."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What must be the same when the run goes on, such as mode and algorithm."""

    def to_json(self) -> str:
        plain = asdict(self)
        plain["trained"] = [base64.b64encode(one).decode() for one in self.trained]
        return json.dumps({"format": FORMAT, **plain}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> DriverState:
        """``ConfigError`` for a file of another format."""
        plain = json.loads(text)
        if plain.pop("format", None) != FORMAT:
            raise ConfigError(f"this is no driver state of format {FORMAT}: {text[:80]!r}")
        plain["trained"] = tuple(base64.b64decode(one) for one in plain["trained"])
        return cls(**plain)


class CheckpointFolder:
    """Checkpoints of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def newest(self) -> Path | None:
        """The newest complete checkpoint, if there is any."""
        found = self._complete()
        return found[-1] if found else None

    def _complete(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        folders = [p for p in self.path.iterdir() if p.name.startswith(_PREFIX)]
        return sorted(p for p in folders if not p.name.endswith(".tmp") and p.is_dir())

    def read(self, folder: Path) -> DriverState:
        return DriverState.from_json((folder / _DRIVER).read_text())

    def write(self, state: DriverState, save_roles: Callable[[Path], object]) -> Path:
        """All of it or nothing: a crash at any moment leaves the earlier ones as they are."""
        final = self.path / f"{_PREFIX}{state.step:06d}"
        unfinished = final.with_name(final.name + ".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        save_roles(unfinished)
        (unfinished / _DRIVER).write_text(state.to_json())
        for path in unfinished.iterdir():
            _flush(path)
        shutil.rmtree(final, ignore_errors=True)  # of a run that was rolled back behind it
        unfinished.rename(final)
        _flush(self.path)
        for outdated in self._complete()[:-KEPT]:
            shutil.rmtree(outdated)
        return final


def _flush(path: Path) -> None:
    """To the disk, so that a rename never arrives before what it names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
