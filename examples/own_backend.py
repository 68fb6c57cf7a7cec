"""A storage backend of your own: where the bytes of slabs lie is one class.

This one keeps them in an anonymous file, as a template for a store that has "write these bytes
there" and "read them back": put its client in place of ``os.pwrite`` and ``os.pread``. Room and
addresses come from `AllocatingBackend`; `transferqueue.backends.base` is the manual of the rest.

In a package of its own, this is what makes it known (pyproject.toml)::

    [project.entry-points."transferqueue.backends"]
    memfile = "own_backend:MemfileBackend"

and ``tq.serve(backend="memfile")`` what uses it. Before that: ``python own_backend.py`` runs the
whole contract, kills and all, against it.
"""

from __future__ import annotations

import os
from typing import Any

from transferqueue.backends.allocating import AllocatingBackend
from transferqueue.backends.base import BackendConfig, Capabilities
from transferqueue.errors import ConfigError


class MemfileBackend(AllocatingBackend):
    """Bytes in a ``memfd``. Option: ``name``, by which /proc shows it."""

    capabilities = Capabilities()

    def __init__(self, capacity_bytes: int, name: str) -> None:
        super().__init__(capacity_bytes)
        self._fd = os.memfd_create(name)
        self._staged: dict[int, bytearray] = {}

    @classmethod
    def open(cls, config: BackendConfig) -> MemfileBackend:
        unknown = set(config.options) - {"name"}
        if unknown:
            raise ConfigError(f"backend 'memfile' has no options {sorted(unknown)}")
        return cls(config.budget_bytes, str(config.options.get("name", "slabs")))

    def writable(self, address: int, nbytes: int) -> memoryview:
        self._check(address, nbytes)
        self._staged[address] = bytearray(nbytes)  # what cannot be mapped is filled here
        return memoryview(self._staged[address])

    def write(self, address: int, data: memoryview) -> None:
        self._check(address, data.nbytes)
        os.pwrite(self._fd, data, address)

    def seal(self, addresses: Any, nbytes: Any) -> None:
        self._refuse_closed()
        for address, data in self._staged.items():  # one thread: all of it is of this put
            os.pwrite(self._fd, data, address)
        self._staged.clear()

    def read_into(self, address: int, out: memoryview) -> None:
        self._check(address, out.nbytes)
        got = os.preadv(self._fd, [out], address)
        assert got == out.nbytes, "a memory file was cut off"

    def readable(self, address: int, nbytes: int) -> memoryview:
        copy = bytearray(nbytes)
        self.read_into(address, memoryview(copy))
        return memoryview(copy).toreadonly()

    def close(self, *, keep: bool = False) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._fd)


if __name__ == "__main__":
    from transferqueue.testing import check_backend

    check_backend(MemfileBackend.open)
    print("MemfileBackend keeps the contract")
