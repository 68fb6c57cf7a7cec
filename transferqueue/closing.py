"""Who opens, closes: what is used in a ``with`` block and ended by ``close``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closing(ABC):
    """A context manager whose end is its ``close``, whatever happened in the block."""

    @abstractmethod
    def close(self) -> None:
        """End it; twice is as good as once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
