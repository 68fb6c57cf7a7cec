"""The program that service processes are forked from: ``python -m transferqueue.service.template``.

A coordinator or shard spends most of its start on imports, 0.3 s of processor time each; so they
are done once, here. This process has one thread, computes nothing and opens nothing beside what it
is asked over, so a fork of it is as clean as a new interpreter. It imports neither torch nor ray;
a shard that needs one of them imports it after the fork.

`service.forked` is the other end. Its requests come over a socket that is this program's stdin; it
ends when that closes, and what was forked does not end with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

from transferqueue.service import process

PRELOADED = (
    "transferqueue.backends.shm",
    "transferqueue.coordinator.samplers.registry",
    "transferqueue.coordinator.server",
    "transferqueue.replication.settings",
    "transferqueue.shard.opening",
    "transferqueue.shard.server",
    "transferqueue.transports.sockets",
)
"""What `service.process` imports when it knows what it is to be."""

NUM_FDS = 4
"""With each request come the child's own socket to whoever asked, stdin, stdout and stderr."""


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    pidfd: int
    asker: socket.socket


class Template:
    """Forks on request, and tells whoever asked with which status its child has ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}
        self._selector = selectors.PollSelector()
        self._selector.register(control, selectors.EVENT_READ)

    def run(self) -> int | None:
        """``None`` when nobody will ask any more. In a forked child: its program's exit status."""
        while True:
            for key, _ in self._selector.select():
                if key.fd != self._control.fileno():
                    self._tell_end(self._children[key.fd])
                    continue
                _, fds, _, _ = socket.recv_fds(self._control, 1, NUM_FDS)
                if len(fds) != NUM_FDS:
                    return None
                asker = socket.socket(fileno=fds[0])
                if self._fork(asker, fds[1:]):
                    return _begin(asker, fds[1:])

    def _fork(self, asker: socket.socket, streams: list[int]) -> bool:
        """Whether this is the child."""
        try:
            pid = os.fork()
        except OSError:  # a limit; whoever asked sees its socket close, and this in the log
            with open(streams[2], "w", closefd=False) as log:
                traceback.print_exc(file=log)
            asker.close()
        else:
            if pid == 0:
                self._forget()
                return True
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = _Child(pid, pidfd, asker)
            self._selector.register(pidfd, selectors.EVENT_READ)
            with contextlib.suppress(OSError):  # nobody waits any more
                socket.send_fds(asker, [b"%d" % pid], [pidfd])
        for fd in streams:
            os.close(fd)
        return False

    def _forget(self) -> None:
        """In a child: close what is the template's."""
        self._selector.close()
        self._control.close()
        for child in self._children.values():
            os.close(child.pidfd)
            child.asker.close()

    def _tell_end(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.pidfd)
        del self._children[child.pidfd]
        os.close(child.pidfd)
        with child.asker, contextlib.suppress(OSError):
            child.asker.send(b"%d" % os.waitstatus_to_exitcode(status))


def _begin(asker: socket.socket, streams: list[int]) -> int:
    """Become what was asked for, as if newly started."""
    os.setsid()
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
        os.close(fd)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    with asker, asker.makefile("rb") as said:
        asked: dict[str, Any] = json.loads(said.readline())
    _name_process(asked["name"])
    os.environ.clear()  # what this one has is of when the template was started
    os.environ.update(asked["environment"])
    np.random.seed()  # the global one would be the same in every fork
    return process.main()


def _name_process(name: str) -> None:
    """In ``top`` and ``ps -o comm``; the command line is the template's in every fork."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(name)


def main() -> int:
    control = socket.socket(fileno=os.dup(0))
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # so that a child's collections do not touch, and copy, what it shares
    status = Template(control).run()
    if status is None:
        os._exit(0)  # there is nothing to clean up, and somebody waits
    return status


if __name__ == "__main__":
    sys.exit(main())
