"""Arguments of a call that are not there yet."""

from __future__ import annotations

from typing import Any


class Pending:
    """An argument that becomes a value where the method runs. No ABC: every argument of every call
    is asked whether it is one, which of an ABC takes longer."""

    def resolve(self) -> Any:
        """The value. Waits; raises what the call behind it raised."""
        raise NotImplementedError


class PendingBatch(Pending):
    """One that becomes a batch."""

    def chunk(self, chunks: int) -> list[Any]:
        """As ``chunks`` arguments that are cut when they arrive."""
        raise NotImplementedError
