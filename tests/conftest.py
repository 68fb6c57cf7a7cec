"""A test that leaves a thread, process, file descriptor or arena file behind fails."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import zmq

from transferqueue.backends.arena_owner import LockRecord
from transferqueue.service.forked import TemplateHold
from workers.forking import ensure_server

if TYPE_CHECKING:
    from collections.abc import Iterator

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell: children would never hear of Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")  # how long an example takes is no outcome

GRACE_S = 8.0
"""Reaping a closed socket or an ended process takes a moment; a client that has leases to give back
to a shard that does not answer takes up to `lease_returns.GIVE_UP_S`."""


PATIENCE_S = 0.05
"""Most of it is gone in a few ms; a collection of all that is loaded takes 0.2 s."""


def _open_files() -> Counter[str]:
    """What the file descriptors of this process point to. Pipes and sockets by kind only."""
    targets: Counter[str] = Counter()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        targets[target.split(":")[0] if target.startswith(("socket:", "pipe:")) else target] += 1
    return targets


def _arena_files(family: set[int]) -> Counter[str]:
    """Arena files that no live shard owns. Those of other services on this machine come and go,
    and some are between a shard that was killed and its successor. ``family``: this process and
    those that it has started."""
    return Counter(
        str(path)
        for path in Path("/dev/shm").glob("transferqueue-*")
        if not _is_owned(path.with_suffix(".lock"))
        and not _is_awaited_elsewhere(path.with_suffix(".lock"), family)
    )


def _is_awaited_elsewhere(lock: Path, family: set[int]) -> bool:
    """Whether a process that is none of ours lives to start the shard again."""
    try:
        record = LockRecord.from_json(lock.read_bytes())
    except OSError:
        return False
    if record is None or record.guardian is None or record.guardian.pid in family:
        return False
    return record.guardian.is_alive() is not False


def _is_owned(lock: Path) -> bool:
    """Whether a process holds the lock of an arena, as its owner does for life."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


_strangers: set[int] = set()
"""Processes that this one has not started. None of them ever becomes its own."""


def _children() -> set[int]:
    """Processes that this one has started, and theirs. `psutil` would read of every process of the
    machine twice a test, which takes longer than most tests."""
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    _strangers.intersection_update(pids)
    parents = {pid: _parent_of(pid) for pid in pids - _strangers}
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    _strangers.update(parents.keys() - family)
    return family - {os.getpid()}


def _parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # it has ended
        return None
    return int(stat[stat.rindex(b")") + 1 :].split()[1])


def _held() -> dict[str, Counter[str]]:
    children = _children()
    return {
        "thread": Counter(thread.name for thread in threading.enumerate()),
        "process": Counter(map(str, children)),
        "file descriptor": _open_files(),
        "arena file": _arena_files({os.getpid(), *children}),
    }


OPENED_LATE = (
    *("socket", "anon_inode:[eventfd]", "anon_inode:[eventpoll]"),  # a socket of libzmq
    f"/proc/{os.getpid()}/pagemap",  # asked by `private_views` about memory that was given back
)
"""What a client that several tests share opens when it first needs it, in whichever test."""


def _left_over(before: dict[str, Counter[str]], *, may_open: bool) -> dict[str, list[str]]:
    now = _held()
    if may_open:
        for name in OPENED_LATE:
            del now["file descriptor"][name]
    return {
        kind: sorted((now[kind] - before[kind]).elements())
        for kind in now
        if now[kind] - before[kind]
    }


shared_fixtures: set[int] = set()
"""Fixtures of test modules that live longer than a test, such as a client. What it has
`OPENED_LATE`, `no_leaks_of_module` sees closed."""


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    if fixturedef.scope != "function" and fixturedef.baseid not in ("", "tests"):
        shared_fixtures.add(id(fixturedef))


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[object]) -> None:
    shared_fixtures.discard(id(fixturedef))


@pytest.fixture(scope="session", autouse=True)
def _pyzmq_collector() -> None:
    """pyzmq starts one thread a process at the first zero-copy send, for as long as it runs."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://first")
        two.connect("inproc://first")
        one.send(bytes(1 << 20), copy=False)
        two.recv()


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """The process that ranks are forked from, and what it keeps open here, live as long as this."""
    ensure_server()


@pytest.fixture(scope="session", autouse=True)
def _service_template() -> Iterator[None]:
    """The process that those of services are forked from, kept for the next service."""
    with TemplateHold() as hold, open(os.devnull, "wb") as log:
        hold.start(log)
        yield


@pytest.fixture(scope="module", autouse=True)
def no_leaks_of_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare what the process holds before and after a module, with what its tests shared."""
    of_module = [item for item in request.session.items if item.path == request.node.path]
    if any(item.get_closest_marker("may_leak") for item in of_module):
        yield
        return
    before = _held()
    yield
    _assert_nothing_left(before)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, no_leaks_of_module: None) -> Iterator[None]:
    """Compare what the process holds before and after the test."""
    if request.node.get_closest_marker("may_leak"):
        yield
        return
    before = _held()
    yield
    _assert_nothing_left(before, may_open=bool(shared_fixtures))


def _assert_nothing_left(before: dict[str, Counter[str]], *, may_open: bool = False) -> None:
    deadline_s = time.monotonic() + GRACE_S
    left = _left_over(before, may_open=may_open)
    collect_s = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < deadline_s:
        time.sleep(0.002)
        if time.monotonic() > collect_s:
            gc.collect()
            collect_s = time.monotonic() + PATIENCE_S
        left = _left_over(before, may_open=may_open)
    assert not left, f"left behind: {left}"
