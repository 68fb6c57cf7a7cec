"""What the checks of the backend contract are written with."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.base import Backend, BackendConfig
from transferqueue.testing.broken import ContractBroken, expect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

Maker = Callable[[BackendConfig], Backend]
Check = Callable[[Maker], None]

BUDGET_BYTES = 8 << 20


def fresh_config() -> BackendConfig:
    return BackendConfig(
        service_id=f"contract-{secrets.token_hex(4)}", slot=0, budget_bytes=BUDGET_BYTES
    )


def recovering(config: BackendConfig) -> BackendConfig:
    return BackendConfig(
        service_id=config.service_id,
        slot=config.slot,
        budget_bytes=config.budget_bytes,
        recover=True,
    )


@contextlib.contextmanager
def opened(maker: Maker) -> Iterator[Backend]:
    with maker(fresh_config()) as backend:
        yield backend


def pattern(seed: int, nbytes: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def reserve(backend: Backend, nbytes: Sequence[int]) -> list[int]:
    addresses = backend.reserve(nbytes)
    if addresses is None:
        raise ContractBroken(f"no room for {nbytes} with {backend.used_bytes} bytes used")
    return [int(address) for address in addresses]


def seal(backend: Backend, address: int, nbytes: int) -> None:
    backend.seal(np.array([address], np.int64), np.array([nbytes], np.int64))


def put(backend: Backend, data: Bytes) -> int:
    address = reserve(backend, [len(data)])[0]
    backend.write(address, data.data)
    seal(backend, address, len(data))
    return address


def expect_bytes(backend: Backend, address: int, data: Bytes) -> None:
    out = np.empty(len(data), np.uint8)
    backend.read_into(address, out.data)
    expect(bool((out == data).all()), f"read_into({address}) of {len(data)} bytes: other bytes")
    view = backend.readable(address, len(data))
    expect(bytes(view) == data.tobytes(), f"readable({address}, {len(data)}): other bytes")


def free_in_pieces(
    backend: Backend, slabs: Sequence[tuple[int, Bytes]], random: np.random.Generator
) -> None:
    """Free whole slabs, each cut in two somewhere, pieces shuffled."""
    starts: list[int] = []
    sizes: list[int] = []
    for address, data in slabs:
        extent = int(backend.extents([len(data)])[0])
        cut = int(random.integers(0, extent + 1))
        starts += [address, address + cut]
        sizes += [cut, extent - cut]
    order = random.permutation(len(starts))
    backend.free(np.array(starts, np.int64)[order], np.array(sizes, np.int64)[order])
