"""The services of this user on this host, as their folders tell: where each listens, the key that
clients need, and whose it is. `service.runtime_dir` makes the folders.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from transferqueue.environment import runtime_root
from transferqueue.process_id import ProcessId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

KEY = "client.key"

_DESCRIPTION = "service.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """A service of this user on this host, as its folder tells."""

    service_id: str
    endpoints: list[str]
    """Of its coordinator."""
    key_file: Path
    owner_pid: int
    age_s: float
    """Since its coordinator has listened."""


def running_services() -> Iterator[RunningService]:
    """The services of this user on this host whose owner lives."""
    for path in sorted(runtime_root().glob("*/")):
        description, up_s = described(path), age_s(path / _DESCRIPTION)
        if description is None or up_s is None or description[1].is_alive() is False:
            continue
        yield RunningService(
            service_id=path.name,
            endpoints=description[0],
            key_file=path / KEY,
            owner_pid=description[1].pid,
            age_s=up_s,
        )


def describe(path: Path, endpoints: Sequence[str], owner: ProcessId) -> None:
    """Write into a folder where the coordinator listens, and whose service it is."""
    description = {"endpoints": list(endpoints), "owner": asdict(owner)}
    (path / _DESCRIPTION).write_text(json.dumps(description))


def described(path: Path) -> tuple[list[str], ProcessId] | None:
    """Endpoints and owner; ``None`` when there is no readable description."""
    try:
        plain = json.loads((path / _DESCRIPTION).read_text())
        return list(plain["endpoints"]), ProcessId(**plain["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def age_s(path: Path) -> float | None:
    """``None``: its service has just ended, and taken it away."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
