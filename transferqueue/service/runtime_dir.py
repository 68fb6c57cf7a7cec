"""The 0700 folder of a running service: sockets, client key, logs, and who owns it.

A service removes its folder when it closes. One whose owner was killed leaves it; the next service
of this user that starts on this host removes it.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from transferqueue.client import host_services
from transferqueue.environment import runtime_root
from transferqueue.errors import ConfigError
from transferqueue.process_id import ProcessId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_SOCKET_PATH = 107
"""The kernel's limit for the path of a Unix socket."""

UNDESCRIBED_GRACE_S = 3600.0
"""A folder without a description is of a service that is starting, or died while it did."""


class RuntimeDir:
    """The folder of one service. Made at construction; `remove` takes it away.

    ``resume``: take over the folder of a predecessor, if there is one, with all that is in it.
    """

    def __init__(self, service_id: str, *, resume: bool = False) -> None:
        root = _root()
        remove_leftovers(root, apart_from=service_id if resume else None)
        self.path = root / service_id
        if len(str(self.path / "shard-99999.sock")) > MAX_SOCKET_PATH:
            raise ConfigError(
                f"{root} is too long for a Unix socket ({MAX_SOCKET_PATH} characters in all); set "
                f"$TRANSFERQUEUE_RUNTIME_DIR to a shorter folder"
            )
        self.path.mkdir(mode=0o700, exist_ok=resume)
        self.key_file = self.path / host_services.KEY

    def describe(self, endpoints: Sequence[str], *, owner_pid: int | None = None) -> None:
        """Say where the coordinator listens, and whose service it is: this process's, or that of
        the one that would start this process again."""
        owner = ProcessId.of(owner_pid or os.getpid())
        assert owner is not None
        host_services.describe(self.path, endpoints, owner)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def remove_leftovers(root: Path, *, apart_from: str | None = None) -> None:
    """Take away the folders of services whose owner is dead, but not that of one service."""
    for path in root.glob("*/"):
        if path.name == apart_from:
            continue
        description, age_s = host_services.described(path), host_services.age_s(path)
        if description is None:
            is_dead = age_s is not None and age_s > UNDESCRIBED_GRACE_S
        else:
            is_dead = description[1].is_alive() is False
        if is_dead:
            shutil.rmtree(path, ignore_errors=True)


def _root() -> Path:
    root = runtime_root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise ConfigError(f"{root} belongs to another user; set $TRANSFERQUEUE_RUNTIME_DIR")
    return root
