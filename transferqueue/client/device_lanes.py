"""The streams of one device that puts and gets copy on, each with a ring of page-locked chunks.

A put or get has a lane of its own for as long as it copies, so nobody waits for another's copies,
and no lock is held while anybody waits for the device. A lane whose work was broken off is set
aside, with what its copies may write to yet, until the device has made them.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.closing import Closing
from transferqueue.devices.base import WAIT_S
from transferqueue.devices.staging import Staging
from transferqueue.errors import Closed, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transferqueue.devices.base import Device, Event


@dataclass(frozen=True, slots=True)
class _BrokenOff:
    lane: Staging
    serial: int
    mark: Event | None
    """After all that it was given; ``None``: the device cannot say when that is done."""
    keep: object


def _is_reached(mark: Event | None) -> bool:
    try:
        return mark is not None and mark.is_done()
    except DeviceError:
        return False


class DeviceLanes(Closing):
    """Safe to use from several threads; each lane is one thread's at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        first = Staging(device)
        self.why_not_pinned = first.why_not_pinned
        self._idle = [first]
        self._broken_off: list[_BrokenOff] = []
        self._serials = itertools.count()
        self._at_work: set[int] = set()
        self._closed = False

    @contextmanager
    def lane(self, timeout_s: float = WAIT_S, keep: object = None) -> Iterator[Staging]:
        """``timeout_s``: for each wait for the device. Whoever leaves the block without an error
        has waited for all of its copies; after an error ``keep`` lives until they are done."""
        serial, lane = self._taken()
        lane.timeout_s = timeout_s
        try:
            yield lane
        except BaseException:
            self._break_off(serial, lane, keep)
            raise
        self._put_back(serial, lane)

    def _taken(self) -> tuple[int, Staging]:
        with self._lock:
            self._recover()
            lane = self._idle.pop() if self._idle else None
        lane = Staging(self._device) if lane is None else lane
        with self._lock:
            serial = next(self._serials)
            self._at_work.add(serial)
        return serial, lane

    def _put_back(self, serial: int, lane: Staging) -> None:
        with self._lock:
            self._at_work.discard(serial)
            if not self._closed:
                self._idle.append(lane)
                return
        lane.close()

    def _break_off(self, serial: int, lane: Staging, keep: object) -> None:
        mark: Event | None = None
        with suppress(DeviceError, Closed):
            mark = lane.record()
        with self._lock:
            self._broken_off.append(_BrokenOff(lane, serial, mark, keep))
            self._at_work.discard(serial)

    def _recover(self) -> None:
        """Lanes that were set aside and have nothing to do any more."""
        looked = [(one, _is_reached(one.mark)) for one in self._broken_off]
        self._broken_off = [one for one, is_over in looked if not is_over]
        self._idle += [one.lane for one, is_over in looked if is_over]

    def end_of_copies(self) -> Callable[[], bool]:
        """Whether all is done that broken-off work has given to the device until now."""
        with self._lock:
            marks = [one.mark for one in self._broken_off]
        return lambda: all(map(_is_reached, marks))

    def end_of_work(self) -> Callable[[], bool]:
        """Whether all is over that has a lane now, or was broken off and may copy yet."""
        with self._lock:
            before = next(self._serials)

        def is_over() -> bool:
            with self._lock:
                late = [one for one in self._broken_off if one.serial < before]
                at_work = any(serial < before for serial in self._at_work)
            return not at_work and all(_is_reached(one.mark) for one in late)

        return is_over

    def close(self) -> None:
        """Waits for the device; a lane that is in use is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            idle += [one.lane for one in self._broken_off]
            self._broken_off = []
        for lane in idle:
            lane.close()
