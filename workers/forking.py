"""Child processes that begin with everything imported.

They are forked from a server process (`multiprocessing`'s "forkserver") that has done what takes
longest, the import of torch: 2.2 s of processor time that every rank of every group would spend
again. The server itself computes nothing and opens nothing, so a fork of it is as clean as a new
interpreter; it ends with the process that started it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext
    from multiprocessing.process import BaseProcess

    Program = Callable[[Connection], None]

_IMPORTED = ["torch", "tensordict", "workers.host", "transferqueue.view"]
"""Before the first fork. What cannot be imported there is imported by each child."""


def ensure_server() -> ForkServerContext:
    """Have the server running, now or soon. It lives as long as this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    forkserver.ensure_running()
    return context


def start_child(program: Program, name: str) -> tuple[BaseProcess, Connection]:
    """Run ``program`` with one end of a pipe in a child process; returns the other end too.

    The child has this process's environment, import path and folder as they are now; but what
    torch reads when it is imported, such as ``OMP_NUM_THREADS``, is as it was at the first start.
    It is a daemon: it ends when this process does.
    """
    context = ensure_server()
    pipe, theirs = context.Pipe()
    process = context.Process(
        target=_begin,
        args=(program, theirs, dict(os.environ), list(sys.path)),
        name=name,
        daemon=True,
    )
    process.start()
    theirs.close()
    return process, pipe


def _begin(
    program: Program, pipe: Connection, environment: Mapping[str, str], path: list[str]
) -> None:
    os.environ.clear()  # what the server has is of when it was started
    os.environ.update(environment)
    sys.path[:] = path
    np.random.seed()  # the global one would be the same in every fork
    program(pipe)
