"""What lies under each backend, used as it is: the same copies, none of our checks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from transferqueue.backends.base import Backend


class RawStore(Protocol):
    """``put`` brings bytes together in a buffer of the store's kind and stores them; ``get`` has
    them in memory of the caller's own, or of the store's if it gives that out."""

    def put(self, data: np.ndarray) -> None: ...
    def get(self) -> np.ndarray: ...


class Memory:
    """Of shm and heap: a copy in and a copy out."""

    def __init__(self, backend: Backend, nbytes: int) -> None:
        del backend
        self._place = np.zeros(nbytes, np.uint8)

    def put(self, data: np.ndarray) -> None:
        np.copyto(self._place, data)

    def get(self) -> np.ndarray:
        return self._place.copy()


class File:
    """Of disk: one file beside the backend's."""

    def __init__(self, backend: Backend, nbytes: int) -> None:
        self._nbytes = nbytes
        self._path = os.path.join(backend.facts()["directory"], "raw")
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def put(self, data: np.ndarray) -> None:
        os.pwrite(self._fd, data.data, 0)

    def get(self) -> np.ndarray:
        out = np.empty(self._nbytes, np.uint8)
        os.preadv(self._fd, [out.data], 0)
        return out


class Mooncake:
    """The client of the backend."""

    def __init__(self, backend: Any, nbytes: int) -> None:
        self._client, self._pinned = backend.inner._mooncake, backend.inner._pinned
        self._buffer = np.zeros(nbytes, np.uint8)
        self._number = 0

    @property
    def _key(self) -> str:
        return f"raw/{len(self._buffer)}/{self._number}"

    def put(self, data: np.ndarray) -> None:
        np.copyto(self._buffer, data)
        self._client.remove(self._key, True)
        self._number += 1
        code = self._client.put_from(self._key, self._buffer.ctypes.data, len(data), self._pinned)
        assert code == 0, f"mooncake: code {code}"

    def get(self) -> np.ndarray:
        out = np.empty(len(self._buffer), np.uint8)
        got = self._client.get_into(self._key, out.ctypes.data, len(out))
        assert got == len(out), f"mooncake: code {got}"
        return out


class Ray:
    """``ray.put`` and ``ray.get``, which gives a view of its store."""

    def __init__(self, backend: Any, nbytes: int) -> None:
        self._ray = backend.inner._ray
        self._buffer = np.zeros(nbytes, np.uint8)
        self._reference: Any = None

    def put(self, data: np.ndarray) -> None:
        np.copyto(self._buffer, data)
        self._reference = self._ray.put(self._buffer)

    def get(self) -> np.ndarray:
        found: np.ndarray = self._ray.get(self._reference)
        return found
