"""Exit statuses: what happened, to whoever called from a script."""

from __future__ import annotations

from enum import IntEnum

from transferqueue.errors import (
    DeadlineExceeded,
    KeyRefused,
    NoKey,
    NoService,
    NotAllowed,
    ServiceUnreachable,
    TransferQueueError,
)


class Exit(IntEnum):
    """Every status there is. Click itself uses 2 for wrong usage."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_SERVICE = 3
    KEY_REFUSED = 4
    TIMED_OUT = 5
    UNHEALTHY = 6


MEANINGS = {
    Exit.DONE: "done",
    Exit.FAILED: "the service refused or failed",
    Exit.USAGE: "wrong usage",
    Exit.NO_SERVICE: "no service was found",
    Exit.KEY_REFUSED: "no key for the service, or one that it refuses or that does not allow this",
    Exit.TIMED_OUT: "timed out",
    Exit.UNHEALTHY: "doctor: something is wrong",
}

EPILOG = "Exit status: " + "; ".join(f"{int(code)} {text}" for code, text in MEANINGS.items()) + "."


def exit_for(error: TransferQueueError) -> Exit:
    """The status that tells this error."""
    if isinstance(error, (KeyRefused, NoKey, NotAllowed)):
        return Exit.KEY_REFUSED
    if isinstance(error, NoService) or _found_nobody(error):
        return Exit.NO_SERVICE
    return Exit.TIMED_OUT if isinstance(error, DeadlineExceeded) else Exit.FAILED


def _found_nobody(error: TransferQueueError) -> bool:
    """Whether nobody answered the first word, rather than a later one."""
    return isinstance(error, ServiceUnreachable) and error.args[1:2] == ("hello",)
