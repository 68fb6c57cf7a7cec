"""A real Ray of one node for tests, by its command line, on a port of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHead:
    """One that runs."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill_raylet(self) -> None:
        """The node of this host has died; the cluster, which may be elsewhere, has not."""
        os.kill(self.process.pid, signal.SIGSTOP)  # it would end the rest
        for process in psutil.Process(self.process.pid).children(recursive=True):
            if process.name() == "raylet":
                process.kill()

    def kill(self) -> None:
        """All of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def ray_head(port: int) -> Iterator[RayHead]:
    """Killed at the end, and nothing of it is left."""
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"),
        *(f"--port={port}", "--num-cpus=1", "--object-store-memory=100000000"),
        *("--include-dashboard=false", "--disable-usage-stats"),
    ]
    # Its sockets lie in there: their paths have to be short.
    with tempfile.TemporaryDirectory(prefix="tq-ray-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "head.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, f"--temp-dir={folder}/ray"],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "RAY_AUTH_MODE": "disabled"},  # no token in a file at home
            )
        head = RayHead(process=process, port=port)
        try:
            _wait_started(process, log)
            yield head
        finally:
            head.kill()


def _wait_started(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while b"Ray runtime started" not in log.read_bytes():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.05)
