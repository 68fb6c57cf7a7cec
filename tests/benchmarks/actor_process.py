"""A measured process, seen from the harness."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).resolve().parents[2]
CLOSE_TIMEOUT_S = 40.0


# verl installs a package of its own that is named ``tests``.
_PROGRAM = f"""
import runpy, sys, types
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [{str(REPOSITORY / "tests")!r}]
runpy.run_module("tests.benchmarks.actor", run_name="__main__")
"""


class NotRun(Exception):
    """Something could not be measured. The message is the reason, as the table says it."""


class ActorProcess:
    """One ``tests.benchmarks.actor``. Requests may be sent to several before any is awaited."""

    def __init__(
        self, name: str, python: str, log_path: Path, *, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [python, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
                start_new_session=True,
            )
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, op: str, *, timeout_s: float = 120.0, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer. NotRun when it failed, with the reason."""
        self.send(op, **arguments)
        return self.receive(timeout_s=timeout_s)

    def send(self, op: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NotRun(self._end_reason()) from None

    def receive(self, *, timeout_s: float = 120.0) -> dict[str, Any]:
        answer: Mapping[str, Any] = json.loads(self._read_line(time.monotonic() + timeout_s))
        if "unsupported" in answer:
            raise NotRun(str(answer["unsupported"]))
        if "error" in answer:
            raise NotRun(" ".join(str(answer["error"]).split())[:300])
        return dict(answer)

    def _read_line(self, deadline_s: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise NotRun("no answer within the time allowed")
                chunk = os.read(self._process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise NotRun(self._end_reason())
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _end_reason(self) -> str:
        status = self._process.wait()
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        return f"{self.name} ended with exit status {status}: {lines[-1] if lines else ''}"

    def family(self) -> list[psutil.Process]:
        """The process and all that it has started."""
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        """Ask it to end, and end it with all it has started when it does not. Idempotent."""
        family = self.family()
        if self._process.poll() is None:
            with contextlib.suppress(NotRun):
                self.call("close", timeout_s=CLOSE_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _end_all(family)


def _end_all(processes: list[psutil.Process]) -> None:
    """End what is left of a family: a system that failed may leave its servers behind."""
    _, left = psutil.wait_procs(processes, timeout=3.0)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs(left, timeout=3.0)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
