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


def send(pipe: Connection, message: Any) -> None:
    """``OSError`` when the other end is gone; whatever pickling raises when it cannot be sent."""
    pipe.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(pipe: Connection) -> Any:
    """``EOFError`` or ``OSError`` when the other end is gone."""
    return pickle.loads(pipe.recv_bytes())  # noqa: S301 - from a process that this one started


def survives_pickling(value: Any) -> bool:
    """Whether a copy can be made: many exception classes can be pickled but not unpickled."""
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(value))  # noqa: S301 - from a process that this one started
        return True
    return False
