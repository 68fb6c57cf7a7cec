"""Copying large blocks of bytes, with the interpreter free to do other things meanwhile."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

MAX_THREADS = 4
BYTES_PER_THREAD = 16 << 20
"""A thread costs about 0.1 ms to start, as much as copying 1 MiB."""


def copy_into(dst: memoryview | Bytes, src: memoryview | Bytes) -> None:
    """Copy ``src`` over ``dst``: contiguous, of equal size in bytes.

    The GIL is released. Copies from 32 MiB on are shared among a few threads when there are at
    least four cores: one core fills about 10 GB/s, a socket's memory takes several of them. On two
    cores two threads gained nothing (320 MB: 28 ms by one, 29 to 43 ms by two).
    """
    target, source = as_bytes(dst), as_bytes(src)
    if len(target) != len(source):
        raise ValueError(f"dst has {len(target)} bytes, src {len(source)}")
    num_threads = _threads_for(len(target))
    if num_threads <= 1:
        np.copyto(target, source)
        return
    # Parts begin at a multiple of a page, so that no two threads write into one cache line.
    part = -(-len(target) // num_threads // 4096) * 4096
    helpers = [
        threading.Thread(
            target=np.copyto,
            args=(target[low : low + part], source[low : low + part]),
            name="transferqueue-copy",
        )
        for low in range(part, len(target), part)
    ]
    for helper in helpers:
        helper.start()
    np.copyto(target[:part], source[:part])
    for helper in helpers:
        helper.join()


def as_bytes(block: memoryview | Bytes) -> Bytes:
    """The same memory as uint8[n]; read-only if the block is. ``ValueError`` if not contiguous."""
    if isinstance(block, np.ndarray):
        if not block.flags.c_contiguous:
            raise ValueError("the block is not contiguous")
        return block.reshape(-1).view(np.uint8)
    if not block.c_contiguous:
        raise ValueError("the block is not contiguous")
    return np.frombuffer(block, np.uint8) if block.nbytes else np.empty(0, np.uint8)


def _threads_for(nbytes: int) -> int:
    if nbytes < 2 * BYTES_PER_THREAD:
        return 1
    return min(MAX_THREADS, len(os.sched_getaffinity(0)) // 2, nbytes // BYTES_PER_THREAD)
