"""Child processes that begin with everything imported: forks of `service.template`.

One template serves every service of this process, for as long as one of them is open; so the second
service, and whatever is started again after a kill, is there in the time of a fork. What a new
interpreter would inherit from this process at its start (`Inherited`) a fork inherits from the
template instead; so where that has changed another template is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self

from transferqueue.closing import Closing
from transferqueue.service.interpreters import environment, start_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MODULE = "transferqueue.service.template"

_READ_BEFORE_THE_FORK = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_")
"""Environment variables with these prefixes are read by the interpreter, or as modules are
imported. All others are handed to each fork as they are then."""

_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))

_STATUS_S = 5.0
"""In which a template tells with which status a process has ended. It takes no time."""


class NotForked(Exception):
    """A template has ended, or did not answer in time, before it told of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What a process has from the one that started it, and cannot be told later."""

    parent_pid: int
    """After a fork of this process the template is still its parent's."""
    executable: str
    folder: str
    limits: tuple[tuple[int, int], ...]
    environment: tuple[tuple[str, str], ...]

    @classmethod
    def now(cls) -> Self:
        return cls(
            parent_pid=os.getpid(),
            executable=sys.executable,
            folder=_folder(),
            limits=tuple(map(resource.getrlimit, _LIMITS)),
            environment=tuple(
                item for item in os.environ.items() if item[0].startswith(_READ_BEFORE_THE_FORK)
            ),
        )


class ForkedProcess:
    """One fork: what `subprocess.Popen` is for a process that this one has started itself."""

    def __init__(self, pid: int, pidfd: int, asker: socket.socket, stdin: int, stdout: int) -> None:
        """All descriptors are its own from now on."""
        self.pid = pid
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self._pidfd = pidfd
        self._asker = asker
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or ``None`` while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. ``subprocess.TimeoutExpired``."""
        if self._status is None:
            if not _is_readable(self._pidfd, timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._status = self._read_status()
            os.close(self._pidfd)
            self._asker.close()
        return self._status

    def _read_status(self) -> int:
        self._asker.settimeout(_STATUS_S)
        with contextlib.suppress(OSError, ValueError):
            return int(self._asker.recv(32))
        # Somebody killed the template too, and nobody knows.
        return -signal.SIGKILL

    def kill(self) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def end_descriptor(self) -> int:
        """A new descriptor that turns readable when the process has ended. ``ProcessLookupError``
        when somebody has waited for that."""
        if self._status is not None:
            raise ProcessLookupError(self.pid)
        return os.dup(self._pidfd)


class Template(Closing):
    """The process that is forked from, seen from the one that has started it."""

    def __init__(self, log: IO[bytes]) -> None:
        """``log``: where it says why it could not start."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start_module(
                _MODULE, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=log
            )
        self.num_holders = 0

    def fork(self, name: str, log: IO[bytes], timeout_s: float) -> ForkedProcess:
        """A new process that reads its settings from ``stdin``, as `service.child` writes them.
        `NotForked`."""
        asker, theirs = socket.socketpair()
        stdin, stdout = os.pipe(), os.pipe()
        try:
            with theirs, _closing(stdin[0], stdout[1]):
                self._ask([theirs.fileno(), stdin[0], stdout[1], log.fileno()])
            asker.settimeout(max(0.0, timeout_s))
            asker.sendall(_as_line(name))
            pid, pidfd = _answer(asker)
        except OSError as error:
            asker.close()
            os.close(stdin[1])
            os.close(stdout[0])
            if not isinstance(error, TimeoutError):
                self._notice_end()
            raise NotForked(str(error)) from error
        return ForkedProcess(pid, pidfd, asker, stdin[1], stdout[0])

    def _ask(self, fds: Sequence[int]) -> None:
        socket.send_fds(self._control, [b"f"], fds)

    def _notice_end(self) -> None:
        """It closes its sockets a moment before it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it. What was forked from it goes on."""
        self._control.close()
        try:
            self._process.wait(_STATUS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
_templates: dict[Inherited, Template] = {}


class TemplateHold(Closing):
    """Whoever forks from the templates of this process, and keeps them until it is closed."""

    def __init__(self) -> None:
        self._held: list[Template] = []

    def start(self, log: IO[bytes]) -> Template:
        """Have the template for processes that would be started now; it may still be importing."""
        inherited = Inherited.now()
        with _lock:
            template = _templates.get(inherited)
            if template is None or not template.is_alive:
                template = _templates[inherited] = Template(log)
            if template not in self._held:
                self._held.append(template)
                template.num_holders += 1
            return template

    def fork(self, name: str, log: IO[bytes], timeout_s: float) -> ForkedProcess:
        """See `Template.fork`."""
        deadline_s = time.monotonic() + timeout_s
        template = self.start(log)
        try:
            return template.fork(name, log, timeout_s)
        except NotForked:
            if template.is_alive:
                raise
        # Somebody has killed it since it was looked at; the next one is new.
        return self.start(log).fork(name, log, deadline_s - time.monotonic())

    def close(self) -> None:
        """End the templates that nobody else holds. Idempotent."""
        with _lock:
            held, self._held = self._held, []
            for template in held:
                template.num_holders -= 1
            unused = [template for template in held if not template.num_holders]
            for inherited in [key for key, one in _templates.items() if one in unused]:
                del _templates[inherited]
        for template in unused:
            template.close()


def _folder() -> str:
    """Where this process is; empty when that has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _as_line(name: str) -> bytes:
    return json.dumps({"name": name, "environment": environment()}).encode() + b"\n"


def _answer(asker: socket.socket) -> tuple[int, int]:
    """Process id and a descriptor of the process."""
    said, fds, _, _ = socket.recv_fds(asker, 32, 1, socket.MSG_CMSG_CLOEXEC)
    if not fds:
        raise ConnectionError("the process that it was to be forked from has ended")
    return int(said), fds[0]


def _is_readable(fd: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))


@contextlib.contextmanager
def _closing(*fds: int) -> Iterator[None]:
    try:
        yield
    finally:
        for fd in fds:
            os.close(fd)
