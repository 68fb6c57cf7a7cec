"""Starts child processes of a service, and starts them again when they die.

A child that dies is started again with the settings and endpoints that it had, and the number of
processes there have been before it; it finds what the last one left. One that cannot start is
tried again a few times and then given up: what is wrong with it is in its log and in `failures`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.errors import ServiceUnreachable, SlotTakenOver, TransferQueueError
from transferqueue.service.child import ChildProcess
from transferqueue.service.forked import TemplateHold

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)

MAX_FAILED_STARTS = 5
"""In a row, of one child, that ended by themselves. One that somebody kills is tried for ever."""

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 0.5
"""Before a child that did not live long is started again, rising."""

LONG_LIFE_S = 5.0

SAY_S = 0.5
"""For a line that has begun to come."""


@dataclass(slots=True)
class _Ward:
    """One child, over all of its lives."""

    name: str
    settings: dict[str, Any]
    process: ChildProcess
    started_s: float
    num_starts: int = 1
    num_failed: int = 0
    pause_s: float = 0.0
    again_s: float | None = None
    """When to start it again, if it is not running."""
    ready_by_s: float | None = None
    """When it is to be ready at the latest, if it is being started again."""
    pidfd: int = field(default=-1)


class Supervisor:
    """Children by name. Only its owner starts and closes it; a thread watches in between."""

    def __init__(
        self, log_dir: Path, *, start_timeout_s: float, restart_timeout_s: float | None = None
    ) -> None:
        """``restart_timeout_s``: for children that are started again; ``None``: the same."""
        self._log_dir = log_dir
        self._templates = TemplateHold()
        self._start_timeout_s = start_timeout_s
        self._restart_timeout_s = restart_timeout_s or start_timeout_s
        self._wards: dict[str, _Ward] = {}
        self.failures: dict[str, TransferQueueError] = {}
        """Children that were given up, by name."""
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = False
        self._thread: threading.Thread | None = None
        self._is_watching = threading.Event()

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a child; `wait_ready` tells whether it could."""
        self._wards[name] = _Ward(
            name=name,
            settings=dict(settings),
            process=self._spawn(name, settings, self._start_timeout_s),
            started_s=time.monotonic(),
        )

    def amend(self, name: str, **settings: Any) -> None:
        """What a child is told from its next start on."""
        self._wards[name].settings.update(settings)

    def _spawn(self, name: str, settings: Mapping[str, Any], timeout_s: float) -> ChildProcess:
        return ChildProcess(
            name,
            settings,
            self._log_dir / f"{name}.log",
            fork_from=self._templates,
            start_timeout_s=timeout_s,
        )

    def wait_ready(self, deadline_s: float) -> dict[str, list[str]]:
        """The endpoints of every child, by name. Its own error, or ServiceFailed."""
        for ward in self._wards.values():
            said = ward.process.wait_ready(deadline_s)
            # It listens there again when it is started again, and clients find it by themselves.
            ward.settings["endpoints"] = said["endpoints"]
        return {name: list(ward.settings["endpoints"]) for name, ward in self._wards.items()}

    @property
    def pids(self) -> dict[str, int]:
        return {name: ward.process.pid for name, ward in self._wards.items()}

    @property
    def num_restarts(self) -> int:
        """Of all children together."""
        return sum(ward.num_starts - 1 for ward in self._wards.values())

    def watch(self) -> None:
        """Begin to start again what dies, from when this returns."""
        self._thread = threading.Thread(
            target=self._run, name="transferqueue-supervisor", daemon=True
        )
        self._thread.start()
        self._is_watching.wait()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            for ward in self._wards.values():
                self._watch_end(ward, selector)
            self._is_watching.set()
            while not self._closing:
                selector.select(self._pause_s())
                self._look_after(selector)
            for ward in self._wards.values():
                self._forget_end(ward, selector)
                self._forget_start(ward, selector)

    def _pause_s(self) -> float | None:
        wards = self._wards.values()
        due = [at for ward in wards for at in (ward.again_s, ward.ready_by_s) if at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _look_after(self, selector: selectors.BaseSelector) -> None:
        now_s = time.monotonic()
        for ward in self._wards.values():
            if ward.pidfd >= 0 and not ward.process.is_alive:
                self._has_ended(ward, selector, now_s)
            if ward.ready_by_s is not None and (
                ward.process.has_spoken or ward.ready_by_s <= now_s
            ):
                self._look_at_start(ward, selector)
            if ward.again_s is not None and ward.again_s <= now_s:
                self._start_again(ward, selector)

    def _has_ended(self, ward: _Ward, selector: selectors.BaseSelector, now_s: float) -> None:
        _log.warning("%s (process %d) has ended; starting it again", ward.name, ward.process.pid)
        self._forget_end(ward, selector)
        if ward.process.has_lost_its_place:
            self.failures[ward.name] = SlotTakenOver(int(ward.settings["slot"]))
            return
        ward.process.stop()
        if now_s - ward.started_s >= LONG_LIFE_S:
            ward.pause_s = 0.0
        ward.again_s = now_s + ward.pause_s
        ward.pause_s = min(LAST_PAUSE_S, max(FIRST_PAUSE_S, 2 * ward.pause_s))

    def _start_again(self, ward: _Ward, selector: selectors.BaseSelector) -> None:
        """Without waiting for it: it may wait for another, which is to be started again as well."""
        ward.again_s = None
        ward.settings["epoch"] = ward.num_starts
        ward.num_starts += 1
        ward.started_s = time.monotonic()
        try:
            ward.process = self._spawn(ward.name, ward.settings, self._restart_timeout_s)
        except TransferQueueError as error:
            self._could_not_start(ward, error)
            return
        ward.ready_by_s = ward.started_s + self._restart_timeout_s
        selector.register(ward.process.spoken_descriptor, selectors.EVENT_READ)

    def _look_at_start(self, ward: _Ward, selector: selectors.BaseSelector) -> None:
        """It has said how its start went, or has had its time."""
        self._forget_start(ward, selector)
        try:
            ward.process.wait_ready(time.monotonic() + SAY_S)
        except TransferQueueError as error:
            self._could_not_start(ward, error)
            return
        ward.num_failed = 0
        self._watch_end(ward, selector)

    def _forget_start(self, ward: _Ward, selector: selectors.BaseSelector) -> None:
        if ward.ready_by_s is not None:
            ward.ready_by_s = None
            selector.unregister(ward.process.spoken_descriptor)

    def _could_not_start(self, ward: _Ward, error: TransferQueueError) -> None:
        was_killed = ward.process.was_killed  # not by the next line, which ends one that hangs
        ward.process.stop()
        # It waits for the coordinator, which may be about to be started again as well.
        is_alone = isinstance(error, ServiceUnreachable)
        ward.num_failed += not (was_killed or is_alone)
        if ward.num_failed >= MAX_FAILED_STARTS:
            _log.error("%s could not be started again, and is given up: %s", ward.name, error)
            self.failures[ward.name] = error
            return
        _log.warning("%s could not be started again: %s", ward.name, error)
        ward.again_s = time.monotonic() + ward.pause_s
        ward.pause_s = min(LAST_PAUSE_S, max(FIRST_PAUSE_S, 2 * ward.pause_s))

    def _watch_end(self, ward: _Ward, selector: selectors.BaseSelector) -> None:
        try:
            ward.pidfd = ward.process.end_descriptor()
        except ProcessLookupError:  # it has ended, and somebody waited for it
            ward.again_s = time.monotonic()
            return
        selector.register(ward.pidfd, selectors.EVENT_READ)

    def _forget_end(self, ward: _Ward, selector: selectors.BaseSelector) -> None:
        pidfd, ward.pidfd = ward.pidfd, -1
        if pidfd >= 0:
            selector.unregister(pidfd)
            os.close(pidfd)

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Start nothing again, and end every child. Idempotent."""
        if self._wake_read < 0:
            return
        self._closing = True
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")
        if self._thread is not None:
            self._thread.join()
        for ward in self._wards.values():
            ward.process.let_go()
        for ward in self._wards.values():
            ward.process.stop()
        self._templates.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._wake_read = -1
