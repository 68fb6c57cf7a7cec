"""What of a host's facts is well, and what is not. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.service.doctor.check import Check, fail, ok, warn

if TYPE_CHECKING:
    from transferqueue.service.doctor.host_facts import HostFacts

SMALL_ARENA_BYTES = 1 << 30
"""A batch of 1,024 samples of 9,216 tokens is 640 MiB; Docker gives 64 MiB by default."""

FEW_FILES = 4096
"""A shard and the coordinator hold a descriptor for every client, clients one for every shard."""

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "hugetlbfs")


def check_host(facts: HostFacts) -> list[Check]:
    """Everything, in the order in which it is to be read."""
    return [
        _versions(facts),
        _encryption(facts),
        _arena(facts),
        _huge_pages(facts),
        _memory_limit(facts),
        _open_files(facts),
        ok("gpu", f"{facts.num_gpus} on this host" if facts.num_gpus else "none on this host"),
    ]


def _versions(facts: HostFacts) -> Check:
    there = [f"{name} {version}" for name, version in facts.packages.items() if version]
    found = ", ".join([f"Python {facts.python}", *there])
    needed = ("torch", "tensordict", "pyzmq", "msgpack", "numpy")
    missing = [name for name in needed if not facts.packages.get(name)]
    if missing:
        return fail("versions", f"{found}; missing: {', '.join(missing)}",
                    f"pip install {' '.join(missing)}")  # fmt: skip
    return ok("versions", found)


def _encryption(facts: HostFacts) -> Check:
    if facts.curve:
        return ok("encryption", f"libzmq {facts.libzmq} with CURVE")
    return fail(
        "encryption",
        f"libzmq {facts.libzmq} without CURVE: no TCP service can be started or reached",
        "install pyzmq from a wheel, or build libzmq with libsodium",
    )


def _arena(facts: HostFacts) -> Check:
    directory = facts.arena_dir
    if not facts.arena_is_writable:
        return fail("arena folder", f"{directory} is not there, or not writable",
                    "set $TRANSFERQUEUE_ARENA_DIR to a folder in memory")  # fmt: skip
    free = f"{facts.arena_free_bytes / 2**30:.1f}"
    found = (
        f"{directory} ({facts.arena_file_system}): {free} of "
        f"{facts.arena_size_bytes / 2**30:.1f} GiB free"
    )
    if facts.arena_file_system not in MEMORY_FILE_SYSTEMS:
        return warn("arena folder", f"{found}; it is not in memory",
                    "set $TRANSFERQUEUE_ARENA_DIR to a tmpfs")  # fmt: skip
    if facts.arena_free_bytes < SMALL_ARENA_BYTES:
        return warn(
            "arena folder",
            found,
            "docker run --shm-size=8g; in Kubernetes an emptyDir with medium: Memory at /dev/shm",
        )
    return ok("arena folder", found)


def _huge_pages(facts: HostFacts) -> Check:
    if facts.huge_pages:
        return ok("huge pages", f"{facts.arena_dir} gives them")
    return warn(
        "huge pages",
        f"none to be had in {facts.arena_dir} (they take Linux 6.1, and 2 MiB of memory in one "
        "piece): the first read of an arena runs at a third of the speed",
        f"mount -o remount,huge=within_size {facts.arena_dir}; see that "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled is not 'deny'",
    )


def _memory_limit(facts: HostFacts) -> Check:
    limit_bytes = facts.memory_limit_bytes
    if limit_bytes is None:
        return ok("memory limit", "none but the host's")
    found = f"{limit_bytes / 2**30:.1f} GiB for this container, arenas included"
    if limit_bytes < facts.arena_free_bytes:
        return warn("memory limit", f"{found}: less than the arena folder has free",
                    "keep budgets below it: beyond it processes are killed")  # fmt: skip
    return ok("memory limit", found)


def _open_files(facts: HostFacts) -> Check:
    found = f"{facts.max_open_files:,} descriptors for a process"
    if facts.max_open_files < FEW_FILES:
        return warn("open files", found, "ulimit -n 65536 before a service of many clients starts")
    return ok("open files", found)
