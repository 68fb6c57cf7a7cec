"""A coordinator or shard as a child process, seen from its parent.

The child reads one JSON line with its settings and keys from stdin, prints one JSON line when it
listens, and ends when stdin closes: whoever holds the other end has then died or let go. One that
is let go of hears `STOP` first. Nothing secret is in argv or the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from transferqueue.errors import ServiceFailed
from transferqueue.service.forked import ForkedProcess, NotForked
from transferqueue.service.interpreters import start_module
from transferqueue.wire.format import decode_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.service.forked import TemplateHold

_MODULE = "transferqueue.service.process"

STOP = b"stop\n"
"""What a child hears when it is to end, and not only its parent has."""

NOT_AGAIN = 3
"""The exit status of a child that is not to be started again: another one has its place."""

STOP_TIMEOUT_S = 5.0


class ChildProcess:
    """Starts at construction; `wait_ready` returns what it printed; `stop` ends it."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        log_path: Path,
        *,
        fork_from: TemplateHold | None = None,
        start_timeout_s: float = 30.0,
    ) -> None:
        """``fork_from``: rather than run a new interpreter, which takes 0.3 s longer. Then
        ServiceFailed when there is no process in ``start_timeout_s``."""
        self.name = name
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = (
                _run(log) if fork_from is None else self._fork(fork_from, log, start_timeout_s)
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # wait_ready tells why it died
            self._process.stdin.write(json.dumps(settings).encode() + b"\n")
            self._process.stdin.flush()

    def _fork(self, hold: TemplateHold, log: IO[bytes], timeout_s: float) -> ForkedProcess:
        try:
            return hold.fork(self.name, log, timeout_s)
        except NotForked as error:
            raise ServiceFailed(self.name, f"did not start: {error}\n{self._log_tail()}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def end_descriptor(self) -> int:
        """A new descriptor that turns readable when the process ends. ``ProcessLookupError`` when
        somebody has waited for that."""
        if isinstance(self._process, ForkedProcess):
            return self._process.end_descriptor()
        return os.pidfd_open(self.pid)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def has_lost_its_place(self) -> bool:
        """Whether it ended because another one has its place."""
        return self._process.poll() == NOT_AGAIN

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it."""
        status = self._process.poll()
        return status is not None and status < 0

    @property
    def spoken_descriptor(self) -> int:
        """Readable when it has said something that `wait_ready` has not read, or has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def has_spoken(self) -> bool:
        """Whether `wait_ready` need not wait."""
        poll = select.poll()
        poll.register(self.spoken_descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def wait_ready(self, deadline_s: float) -> dict[str, Any]:
        """What the child said when it began to listen. Its own error, or ServiceFailed."""
        assert self._process.stdout is not None
        line = _read_line(self._process.stdout, deadline_s)
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)  # it closes its output a moment before it has ended
            reason = (
                f"did not start in time (log: {self._log_path})"
                if self.is_alive
                else f"ended with exit status {self._process.wait()}:\n{self._log_tail()}"
            )
            raise ServiceFailed(self.name, reason)
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise decode_error(said["error"])
        return said

    def stop(self) -> None:
        """Let go of the child and wait for its end; kill it when it does not end. Idempotent."""
        self.let_go()
        if self._process.stdout is not None:
            with contextlib.suppress(OSError):
                self._process.stdout.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def let_go(self) -> None:
        """Tell the child to end, without waiting: so that several end at once."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.write(STOP)
                self._process.stdin.flush()
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-15:])
        return ""


def _run(log: IO[bytes]) -> subprocess.Popen[bytes]:
    return start_module(_MODULE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)


def sampler_settings(samplers: Sequence[str]) -> dict[str, Any]:
    """What a coordinator is told of own samplers: their paths, and where this process would look
    for them."""
    if not samplers:
        return {}
    return {"samplers": list(samplers), "import_from": [str(Path(p).resolve()) for p in sys.path]}


def tracing_settings(tracing: str | None) -> dict[str, Any]:
    """What a process is told of spans: who makes them, and where this process would look."""
    if tracing is None:
        return {}
    return {"tracing": tracing, "import_from": [str(Path(p).resolve()) for p in sys.path]}


def _read_line(pipe: IO[bytes], deadline_s: float) -> bytes:
    """One line, or what there was of it when the pipe closed or time ran out."""
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                return b""
            chunk = os.read(pipe.fileno(), 1 << 16)
            if not chunk:
                return b""
            line += chunk
    return line
