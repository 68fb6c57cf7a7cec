"""One value of more than 4 GiB, which no 32-bit length holds: by a socket and by shared memory."""

from __future__ import annotations

import psutil
import pytest
import torch

import transferqueue as tq

GIB = 1 << 30
NBYTES = 4 * GIB + 12_345

MARKED = sorted({0, NBYTES - 1, *(edge + by for edge in (2 * GIB, 4 * GIB) for by in (-1, 0, 1))})
"""Bytes that are not zero: around what 31 and 32 bits can count, and at both ends."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        psutil.virtual_memory().available < 12 * GIB, reason="needs 12 GiB of memory"
    ),
]


def test_a_value_of_over_4_gib_comes_and_goes_whole() -> None:
    value = torch.zeros(1, NBYTES, dtype=torch.uint8)
    value[0, MARKED] = torch.arange(1, len(MARKED) + 1, dtype=torch.uint8)
    with (
        tq.serve(budget_bytes=5 * GIB, host="127.0.0.1") as service,
        tq.connect(service.address, transport="sockets", timeout_s=300) as far,
        tq.connect(service.address, transport="shm", timeout_s=300) as near,
    ):
        handle = far.put({"x": value})
        for reader in (near, far):
            got = reader.get(handle)["x"]
            assert got.shape == (1, NBYTES)
            assert got[0, MARKED].tolist() == list(range(1, len(MARKED) + 1))
            assert int(got.count_nonzero()) == len(MARKED)
            del got
