"""What a measured system has to be able to do, seen from one process that uses it.

An adapter lives in the actor process of its system and may import what only that system's
environment has. What is called between two clock readings does nothing that the system's own
users would not do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.benchmarks.columns import Columns


class Unsupported(Exception):
    """The system cannot do this, and why. It is said in the table."""


class Adapter(ABC):
    """One system, as one process uses it. The process that starts it is the first to join."""

    drives: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    """Measurements that make sense for this system alone: name to a method, JSON in and out."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.start_seconds: float | None = None
        """What `start` took of the system itself; ``None``: all of it."""

    @abstractmethod
    def start(self) -> str:
        """Start the system, and join it; returns the address by which other processes join."""

    @abstractmethod
    def join(self, address: str) -> None:
        """Use the system that another process has started."""

    def renew(self) -> None:  # noqa: B027
        """Forget what the client has cached or mapped, as a new process would not have it."""

    def prepare(self, columns: Columns) -> Any:
        """The columns in the form that the system's users hold them in. Not timed."""
        return columns

    @abstractmethod
    def put(self, prepared: Any) -> Any:
        """Store a batch; returns what names it in this process. Timed."""

    @abstractmethod
    def token(self, reference: Any) -> str:
        """What names the batch in any process. Not timed."""

    @abstractmethod
    def reference(self, token: str) -> Any:
        """What this process gets the batch by. Not timed."""

    @abstractmethod
    def get(
        self, reference: Any, *, fields: Sequence[str] | None, rows: Sequence[int] | None
    ) -> Mapping[str, Any]:
        """The columns; all of them and all rows without ``fields`` and ``rows``. Timed."""

    @abstractmethod
    def clear(self, reference: Any) -> None:
        """Remove a batch and free its memory. Not timed."""

    @abstractmethod
    def close(self) -> None:
        """Leave; the process that started the system ends it."""
