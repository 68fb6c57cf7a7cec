"""The limit of memory: a put is one copy into warm memory, a get is memory that is there already.

In one process: there is nothing to share it with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tests.benchmarks.adapter import Adapter, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.columns import Columns


class Memcpy(Adapter):
    """Copies with numpy, in one thread."""

    def start(self) -> str:
        self._target: dict[str, np.ndarray] = {}
        return ""

    def join(self, address: str) -> None:
        raise Unsupported("one process alone")

    def prepare(self, columns: Columns) -> dict[str, np.ndarray]:
        """Flat arrays; strings as the bytes they would be stored as."""
        arrays = {name: _flat(value) for name, value in columns.items()}
        self._target = {name: np.zeros_like(array) for name, array in arrays.items()}
        return arrays

    def put(self, prepared: dict[str, np.ndarray]) -> str:
        for name, array in prepared.items():
            np.copyto(self._target[name], array)
        return "the batch"

    def token(self, reference: str) -> str:
        return reference

    def reference(self, token: str) -> str:
        return token

    def get(
        self, reference: str, *, fields: Sequence[str] | None, rows: Sequence[int] | None
    ) -> Mapping[str, Any]:
        names = list(self._target) if fields is None else fields
        columns = {name: self._target[name] for name in names}
        return columns if rows is None else {k: v[list(rows)] for k, v in columns.items()}

    def clear(self, reference: str) -> None:
        pass

    def close(self) -> None:
        pass


def _flat(value: Any) -> np.ndarray:
    if isinstance(value, list):
        return np.frombuffer("".join(value).encode(), dtype=np.uint8)
    if isinstance(value, torch.Tensor) and value.is_nested:
        value = value.values()
    array: np.ndarray = value.numpy()
    return array
