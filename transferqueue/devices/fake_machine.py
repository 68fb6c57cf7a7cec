"""A machine whose GPUs are files in a folder: every process that opens the folder has the same.

What it models, because real drivers do it and programs break on it:

* memory of a GPU is one for all processes; what one takes, others lack, and `room` says so;
* blocks of a process that ended are freed with it, and their bytes are soon another's. Here they
  are filled with `POISON` when they are freed, so that a stale read is seen;
* each process numbers the GPUs in another order;
* `Fault` can be had at any moment, in every process at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections import deque
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transferqueue.errors import DeviceFull, DeviceMissing
from transferqueue.process_id import ProcessId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POISON = 0xDB
"""What freed memory is filled with."""

_POISONED = bytes([POISON]) * (256 << 10)

ALIGN_BYTES = 512
"""Blocks begin at a multiple of this, as those of drivers do."""


class Fault(StrEnum):
    """What can be made to fail, for as long as a test likes."""

    REFUSE_EXPORT = "refuse_export"
    WRONG_UUID = "wrong_uuid"
    """Handles name a device that nobody has: as a driver's reset, or a container that shows other
    GPUs under the same numbers, makes them."""
    POOL_FULL = "pool_full"
    REFUSE_PINNING = "refuse_pinning"
    REFUSE_PEER = "refuse_peer"
    STUCK = "stuck"
    """Streams do not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeBlock:
    """Memory that some process has taken."""

    offset: int
    nbytes: int
    serial: int
    """Of the device, never used twice."""
    owner: ProcessId

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class FakeMachine:
    """The folder. Holds nothing open."""

    def __init__(self, folder: str) -> None:
        """`DeviceMissing` when there is none."""
        self.folder = Path(folder)
        try:
            plain = json.loads((self.folder / "machine.json").read_text())
        except (OSError, ValueError) as error:
            raise DeviceMissing(f"fake:{folder}", f"no machine is there: {error}") from error
        self.uuids: list[str] = plain["uuids"]
        self.memory_bytes: int = plain["memory_bytes"]
        self._peers: bool = plain["peers"]

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        num_gpus: int = 2,
        memory_bytes: int = 64 << 20,
        peers: bool = True,
    ) -> FakeMachine:
        """In a folder that is there. ``peers``: whether its GPUs reach one another's memory."""
        where = Path(folder)
        uuids = [f"FAKE-{os.urandom(6).hex()}" for _ in range(num_gpus)]
        for uuid in uuids:
            with (where / f"{uuid}.memory").open("wb") as memory:
                memory.truncate(memory_bytes)
            (where / f"{uuid}.blocks").write_text("[0, []]")
        plain = {"uuids": uuids, "memory_bytes": memory_bytes, "peers": peers}
        (where / "machine.json").write_text(json.dumps(plain))
        return cls(str(where))

    def order(self, pid: int | None = None) -> list[str]:
        """The GPUs as a process numbers them: of two that follow one another, differently."""
        turn = (os.getpid() if pid is None else pid) % len(self.uuids)
        return self.uuids[turn:] + self.uuids[:turn]

    def name_of(self, uuid: str) -> str:
        """As `find_device` takes it."""
        return f"fake:{self.folder}:{uuid}"

    def are_peers(self, uuids: Sequence[str]) -> bool:
        return self._peers and all(uuid in self.uuids for uuid in uuids)

    # -- faults ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        """It is there while the block runs, for all processes."""
        self._marker(fault).touch()
        try:
            yield
        finally:
            self._marker(fault).unlink(missing_ok=True)

    def has(self, fault: Fault) -> bool:
        return self._marker(fault).exists()

    def _marker(self, fault: Fault) -> Path:
        return self.folder / f"fault-{fault}"

    # -- memory ---------------------------------------------------------------------------------

    def memory_path(self, uuid: str) -> Path:
        return self.folder / f"{uuid}.memory"

    def free_bytes(self, uuid: str) -> int:
        """What no live process has taken."""
        with self._table(uuid) as table:
            return self.memory_bytes - sum(block.nbytes for block in table.blocks)

    def take(self, uuid: str, nbytes: int, owner: ProcessId) -> FakeBlock:
        """The first gap that is large enough. `DeviceFull`."""
        nbytes = -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
        with self._table(uuid) as table:
            offset = table.gap(nbytes, self.memory_bytes)
            if offset is None or self.has(Fault.POOL_FULL):
                taken = sum(block.nbytes for block in table.blocks)
                raise DeviceFull(self.name_of(uuid), nbytes, self.memory_bytes - taken)
            table.serial += 1
            block = FakeBlock(offset=offset, nbytes=nbytes, serial=table.serial, owner=owner)
            table.blocks.append(block)
            return block

    def give_back(self, uuid: str, serial: int) -> None:
        """Safe in a finalizer, which may run while its own thread is at a table."""
        _given_back.append((self, uuid, serial))
        _take_back()

    def drop(self, uuid: str, serial: int) -> None:
        with self._table(uuid) as table:
            table.drop([block for block in table.blocks if block.serial == serial])

    def find(self, uuid: str, serial: int) -> FakeBlock | None:
        """A block that is still there."""
        with self._table(uuid) as table:
            return next((block for block in table.blocks if block.serial == serial), None)

    @contextlib.contextmanager
    def _table(self, uuid: str) -> Iterator[_BlockTable]:
        """The blocks of one GPU, for this process alone while the block runs; those of processes
        that ended are freed before."""
        _here.is_at_a_table = True
        try:
            with (self.folder / f"{uuid}.blocks").open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                table = _BlockTable(json.load(file), self.memory_path(uuid))
                table.drop([block for block in table.blocks if not block.owner.is_alive()])
                yield table
                file.seek(0)
                file.write(table.to_json())
                file.truncate()
        finally:
            _here.is_at_a_table = False
        _take_back()


class _Here(threading.local):
    is_at_a_table = False


_here = _Here()
_given_back: deque[tuple[FakeMachine, str, int]] = deque()
"""Blocks that are to be dropped from their tables, maybe by the next who leaves one."""


def _take_back() -> None:
    while _given_back and not _here.is_at_a_table:
        with contextlib.suppress(IndexError):  # another thread was faster
            machine, uuid, serial = _given_back.popleft()
            machine.drop(uuid, serial)


class _BlockTable:
    def __init__(self, plain: list[Any], memory: Path) -> None:
        self.serial: int = plain[0]
        self.blocks = [
            FakeBlock(**{**block, "owner": ProcessId(**block["owner"])}) for block in plain[1]
        ]
        self._memory = memory

    def to_json(self) -> str:
        return json.dumps([self.serial, [asdict(block) for block in self.blocks]])

    def gap(self, nbytes: int, total_bytes: int) -> int | None:
        start = 0
        for block in sorted(self.blocks, key=lambda block: block.offset):
            if block.offset - start >= nbytes:
                return start
            start = block.end
        return start if total_bytes - start >= nbytes else None

    def drop(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            self.blocks.remove(block)
            with self._memory.open("r+b") as memory:
                memory.seek(block.offset)
                for low in range(0, block.nbytes, len(_POISONED)):
                    memory.write(_POISONED[: block.nbytes - low])
