"""Which process of which host, told apart from all others, also later ones."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from transferqueue.errors import Malformed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process, told apart from a later one with the same number."""

    pid: int
    started: int
    """Clock ticks from boot to its start."""
    pid_namespace: str
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """``None`` when there is no such process."""
        started = _start_ticks(pid)
        if started is None:
            return None
        return cls(pid=pid, started=started, pid_namespace=pid_namespace(), boot_id=boot_id())

    def __str__(self) -> str:
        return f"process {self.pid}"

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> Self:
        """`Malformed` when the values are not of a process."""
        try:
            return cls(**plain)
        except TypeError as error:
            raise Malformed(f"not a process: {error}") from error

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    def is_alive(self) -> bool | None:
        """``None`` when it cannot be told from here: another pid namespace."""
        if self.boot_id != boot_id():
            return False
        if self.pid_namespace != pid_namespace():
            return None
        return _start_ticks(self.pid) == self.started


def this_process() -> ProcessId:
    """The one that runs this."""
    found = ProcessId.of(os.getpid())
    assert found is not None
    return found


def _start_ticks(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


def pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Changes with every start of the kernel; empty where it is hidden."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
