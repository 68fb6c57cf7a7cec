"""Calls and answers between a group and its child processes.

The one place of this package that pickles. Both ends are one program of one user, joined by a pipe
that nobody else can open, as `multiprocessing` itself has it. Plain pickles: torch's sharing of
storages between processes would show one side what the other edits in place.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def send(pipe: Connection, head: Any, body: Any) -> None:
    """``head``: plain values, that can be unpickled anywhere. ``OSError`` when the other end is
    gone; whatever pickling raises when the body cannot be sent, and then nothing was."""
    packed = pickle.dumps(body, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.send_bytes(pickle.dumps(head))
    pipe.send_bytes(packed)


class Parcel:
    """A body that has come, still pickled."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def open(self) -> Any:
        """What is in it, once: a batch is not kept twice. Raises anything: a class may not be
        importable here, and exceptions often cannot be made again from what they keep."""
        packed, self._packed = self._packed, b""
        return pickle.loads(packed)  # noqa: S301 - from a process that this one started


def receive(pipe: Connection) -> tuple[Any, Parcel]:
    """Whose call it is, in the head, is known also where the body cannot be unpickled.
    ``EOFError`` or ``OSError`` when the other end is gone."""
    head = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from a process that this one started
    return head, Parcel(pipe.recv_bytes())


def survives_pickling(value: Any) -> bool:
    """Whether a copy can be made: many exception classes can be pickled but not unpickled."""
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(value))  # noqa: S301 - from a process that this one started
        return True
    return False
