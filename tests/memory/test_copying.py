"""Copies of any size, by one thread or a few."""

from __future__ import annotations

import os

import numpy as np
import pytest

from transferqueue.memory import copying
from transferqueue.memory.copying import as_bytes, copy_into
from transferqueue.testing.leaks import no_leaks


@pytest.mark.parametrize("cores", [1, 8])
@pytest.mark.parametrize("nbytes", [0, 1, 5000, 100_000, 123_457])
def test_every_byte_is_copied(cores: int, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(copying, "BYTES_PER_THREAD", 4096)
    source = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    target = bytearray(nbytes)
    with no_leaks():
        copy_into(memoryview(target), source)
    assert bytes(target) == source.tobytes()


def test_blocks_of_other_formats_are_copied_as_bytes() -> None:
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    target = np.zeros(6, np.float32)
    copy_into(target.data, source)
    assert target.tolist() == [0, 1, 2, 3, 4, 5]
    copy_into(np.zeros(0, np.uint8), memoryview(b""))


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="dst has 3 bytes, src 2"):
        copy_into(memoryview(bytearray(3)), memoryview(b"ab"))
    with pytest.raises(ValueError, match="not contiguous"):
        as_bytes(np.zeros((4, 4), np.uint8)[:, ::2])
    with pytest.raises(ValueError, match="not contiguous"):
        as_bytes(memoryview(b"abcd")[::2])
    with pytest.raises(ValueError, match="read-only"):
        copy_into(memoryview(b"ab"), memoryview(b"cd"))
