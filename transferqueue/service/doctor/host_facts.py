"""What there is to know of this host and process. Reads, decides nothing, imports no torch."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from transferqueue.backends.huge_pages import gives_huge_pages
from transferqueue.environment import default_arena_dir, runtime_root
from transferqueue.net.greeting import library_facts

PACKAGES = ("transferqueue-dataplane", "pyzmq", "torch", "tensordict", "numpy", "msgpack", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One reading."""

    python: str
    packages: dict[str, str]
    """Name -> version, "" where it is not installed."""
    curve: bool
    libzmq: str
    arena_dir: str
    arena_is_writable: bool
    arena_file_system: str
    """As the kernel names it, e.g. ``tmpfs``."""
    arena_size_bytes: int
    arena_free_bytes: int
    huge_pages: bool
    memory_limit_bytes: int | None
    """Of the container; ``None`` without one."""
    max_open_files: int
    num_gpus: int
    runtime_dir: str


def read_host() -> HostFacts:
    """Look around."""
    zmq = library_facts()
    directory = default_arena_dir()
    size_bytes, free_bytes = _space(directory)
    return HostFacts(
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        curve=bool(zmq["curve"]),
        libzmq=str(zmq["libzmq"]),
        arena_dir=directory,
        arena_is_writable=os.access(directory, os.W_OK | os.X_OK),
        arena_file_system=_file_system(directory),
        arena_size_bytes=size_bytes,
        arena_free_bytes=free_bytes,
        huge_pages=gives_huge_pages(directory),
        memory_limit_bytes=_memory_limit(),
        max_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        num_gpus=_num_gpus(),
        runtime_dir=str(runtime_root()),
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _space(directory: str) -> tuple[int, int]:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _file_system(directory: str) -> str:
    """The type of the mount that the directory is in."""
    try:
        device = os.stat(directory).st_dev
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        if head.split()[2] == wanted:
            return tail.split()[0]
    return ""


def _memory_limit() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:  # v1 says "none" by a huge number
            return int(text)
    return None


def _num_gpus() -> int:
    """Those that the driver shows to this process; no library of CUDA is loaded for it."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
