"""What a failure on a rank becomes for its caller: who failed, when, and where in the user's code.

A failure of the method itself shows the frames of the method. One before or after it, when columns
are fetched or stored, has no frame that means anything to its reader: it is a sentence.
"""

from __future__ import annotations

import asyncio
import traceback
from enum import Enum
from pathlib import Path
from typing import Self

import tensordict

import transferqueue
from transferqueue.errors import TransferQueueError, WrongOutput
from workers.errors import WorkerError, WorkerFailed
from workers.process_wire import survives_pickling

_HERE = Path(__file__).parent
_CALLERS = {str(_HERE / name) for name in ("failing.py", "host.py", "worker.py")}
"""Whose frames lead to every method."""

_LIBRARIES = tuple(f"{Path(str(of.__file__)).parent}/" for of in (transferqueue, tensordict))
"""Whose frames a method's call of theirs ends in: their error says what is wrong."""


class Step(Enum):
    """When something failed."""

    BEFORE = "before it ran, when what it reads was fetched: "
    METHOD = ""
    AFTER = "after it ran, when what it returned was stored: "
    ARRIVING = (
        "before it ran, when its arguments were unpickled in the child process, which must be able "
        "to import what they are made of, and cannot from a notebook or `python -c`: "
    )
    RETURNING = "after it ran, when what it returned was unpickled in this process: "


class wrapping:
    """Every exception of the block as one that names rank and method.

    What does already, such as the failure of an earlier call that this one waited for, passes. The
    exit of an interpreter is a failure too: a method that parses arguments, say, may ask for it,
    and its rank may be a thread of the caller's process. So is a cancellation, but that of the
    coroutine which runs the block.
    """

    __slots__ = ("_label", "_rank", "step")

    def __init__(self, label: str, rank: int, step: Step = Step.METHOD) -> None:
        self._label = label
        self._rank = rank
        self.step = step
        """The block says so when it goes on to the next."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        if not isinstance(error, Exception | SystemExit | asyncio.CancelledError):
            return
        if isinstance(error, WorkerError | WrongOutput) or _is_meant_for_others(error):
            return
        # No variable has it: it refers to this frame, and both would live until the next search
        # for cycles, with the batch of the method.
        raise _told(error, self._label, self._rank, self.step) from None


def _is_meant_for_others(error: BaseException) -> bool:
    """For Ray, which is asked by an exit of its own to end an actor, or for the event loop."""
    if isinstance(error, SystemExit):
        return hasattr(error, "ray_terminate_msg")
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return False
    return task is not None and task.cancelling() > 0


def _told(error: BaseException, label: str, rank: int, step: Step) -> Exception:
    earlier = getattr(error, "cause", None)  # Ray wraps what the earlier call raised
    if isinstance(earlier, WorkerError | WrongOutput):
        return earlier
    # What is no error of ours is a fault in what moves columns: then every frame counts.
    is_told = step is not Step.METHOD and isinstance(error, TransferQueueError)
    text = "" if is_told else traceback_of(error)
    what = f"{step.value}{type(error).__name__}: {error}"
    failed = WorkerFailed(label, rank, what, text)
    return failed.caused_by(error if survives_pickling(error) else None)


def traceback_of(error: BaseException) -> str:
    """From the method on: how it came to be called is the same every time."""
    shown = error.__traceback__
    while shown is not None and shown.tb_next is not None:
        if shown.tb_frame.f_code.co_filename not in _CALLERS:
            break
        shown = shown.tb_next
    whole = traceback.TracebackException(type(error), error, shown)
    if isinstance(error, TransferQueueError):
        whole.stack = _without_library_frames(whole.stack)
        whole.__suppress_context__ = True  # what went on inside of us
    return "".join(whole.format())


def _without_library_frames(stack: traceback.StackSummary) -> traceback.StackSummary:
    """Up to the call into a library, unless it is all within one."""
    last = len(stack)
    while last and stack[last - 1].filename.startswith(_LIBRARIES):
        last -= 1
    return traceback.StackSummary.from_list(stack[:last] or stack)
