"""A store of objects in memory, of which a test breaks what it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from transferqueue.backends.object_backend import ObjectBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from transferqueue.backends.base import BackendConfig
    from transferqueue.backends.object_backend import Piece


class DictBackend(ObjectBackend):
    """Objects by number."""

    def __init__(self, budget_bytes: int) -> None:
        super().__init__(budget_bytes, "fake")
        self.objects: dict[int, np.ndarray] = {}
        self._num_stored = 0

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        return cls(config.budget_bytes)

    def _store(self, data: np.ndarray) -> int:
        self._num_stored += 1
        self.objects[self._num_stored] = data.copy()
        return self._num_stored

    def _load(self, pieces: Sequence[Piece], out: np.ndarray) -> list[int]:
        return [self._load_one(piece, out) for piece in pieces]

    def _load_one(self, piece: Piece, out: np.ndarray) -> int:
        got = self.objects[piece.stored][piece.offset : piece.offset + piece.nbytes]
        out[piece.at : piece.at + len(got)] = got
        return len(got)

    def _drop(self, stored: Sequence[Any]) -> None:
        for number in stored:
            del self.objects[number]
