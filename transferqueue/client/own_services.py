"""The services that this process started and has not closed. `connect` finds the newest of them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transferqueue.net.keys import ClientKeys


class OwnService(Protocol):
    """What clients are told of it."""

    @property
    def address(self) -> str: ...
    @property
    def client_keys(self) -> ClientKeys: ...


_running: list[tuple[int, OwnService]] = []  # with the process: one that was forked has none


def started(service: OwnService) -> None:
    _running.append((os.getpid(), service))


def closed(service: OwnService) -> None:
    """Also of one that never came so far as to be `started`."""
    with contextlib.suppress(ValueError):
        _running.remove((os.getpid(), service))


def running_service() -> OwnService | None:
    """The newest service that this process started and has not closed."""
    return _running[-1][1] if _running and _running[-1][0] == os.getpid() else None
