"""How an interpreter for a process of a service is started: flags, import path, environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

_FLAGS = ("-X", "frozen_modules=on")


def start_module(
    module: str,
    *,
    stdin: int,
    stdout: int,
    stderr: IO[bytes],
) -> subprocess.Popen[bytes]:
    """Run a module of this package in a session of its own: Ctrl-C reaches the parent, which stops
    its children."""
    return subprocess.Popen(
        [sys.executable, *_FLAGS, "-m", module],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """The parent's, with this package importable wherever the parent found it, and one BLAS
    thread: numpy would start one a core for a process that multiplies nothing."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
