"""A real ``mooncake_master`` for tests, on ports of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import wait_until
from transferqueue.backends.mooncake import LIBRARIES, PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """One that runs."""

    process: subprocess.Popen[bytes]
    rpc_port: int
    http_port: int

    @property
    def options(self) -> dict[str, Any]:
        """Of the backend."""
        return {
            "master": f"127.0.0.1:{self.rpc_port}",
            "metadata": f"http://127.0.0.1:{self.http_port}/metadata",
        }

    def stop(self) -> None:
        """It does not answer any more, and does not hang up. A process stops when the one of its
        threads that takes the signal comes to run; until then the others answer."""
        os.kill(self.process.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        wait_until(lambda: all(_is_stopped(thread) for thread in threads.iterdir()))

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def mooncake_master(folder: Path, *, like: Master | None = None) -> Iterator[Master]:
    """``like``: one that has ended, whose ports it takes. `AssertionError` without the package: a
    test that needs it fails, and says so."""
    package = find_spec("mooncake")  # not imported: that starts threads
    assert package is not None, f"pip install {PACKAGE}; apt-get install {LIBRARIES}"
    assert package.origin is not None
    rpc_port, http_port, metrics_port = (free_port() for _ in range(3))
    if like is not None:
        rpc_port, http_port = like.rpc_port, like.http_port
    with (folder / "mooncake_master.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(Path(package.origin).with_name("mooncake_master")),
                f"--rpc_port={rpc_port}",
                "--rpc_address=127.0.0.1",
                "--enable_http_metadata_server=true",
                "--http_metadata_server_host=127.0.0.1",
                f"--http_metadata_server_port={http_port}",
                f"--metrics_port={metrics_port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        for port in (rpc_port, http_port):
            _wait_listening(port, process)
        yield Master(process=process, rpc_port=rpc_port, http_port=http_port)
    finally:
        process.kill()
        process.wait()


def _wait_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        assert process.poll() is None, f"mooncake_master ended with {process.returncode}"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline_s, "mooncake_master does not listen"
            time.sleep(0.02)
        else:
            return


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
