"""The backends of one shard as one: each has a number, and addresses of its own above it.

Byte ``k`` of backend ``n`` has the address ``(n << ADDRESS_BITS) + k``. What is reserved without a
word of where goes to the default one. ``copy_to`` is the way from one to another: it copies and
leaves what it copied as it was, so whoever calls it decides when the old ranges are freed, and
until then has both. So a kill at any point leaves at least one of them, and a journal that names
one of them is right.

Number 0 is *home*: the one that clients map, where there is one, and else the default. The journal
lies there, and what home has lost is lost with all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.backends.away import AwayBackend
from transferqueue.backends.base import Backend

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from transferqueue.backends.base import BackendConfig, Capabilities
    from transferqueue.devices.slots import SlotTable
    from transferqueue.errors import ServiceFailed

    Int64s = NDArray[np.int64]
    Ranges = tuple[Int64s, Int64s]

ADDRESS_BITS = 56
"""64 PiB of each, and 128 of them."""

_OWN = (1 << ADDRESS_BITS) - 1


def own_address(address: int) -> int:
    """Without the number of its backend."""
    return address & _OWN


def own_addresses(addresses: Int64s) -> Int64s:
    """As `own_address`. int64[addresses]"""
    return addresses & _OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of several backends."""

    name: str
    """By which partitions and reports name it."""
    backend: Backend
    budget_bytes: int


class SeveralBackends(Backend):
    """Room, sums, facts and capabilities are those of the default one; client access and journal
    are home's. Closing it closes all of them."""

    def __init__(self, members: Sequence[Member], *, default: int = 0) -> None:
        """``members``: by number. ``default``: the number of the default one."""
        self.members = tuple(members)
        self.default = default
        self._all = tuple(member.backend for member in members)
        self._chosen = self._all[default]
        self._with_ticks = [one for one in self._all if type(one).tick is not Backend.tick]
        self.devices = tuple(
            n for n, one in enumerate(self._all) if one.device_access() is not None
        )
        """The numbers of those on devices, which processes of this host may open."""
        self.refused: tuple[int, ...] = ()
        """Numbers of those that had no room when ``None`` was given last."""

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        raise NotImplementedError("made of some that are open")

    @property
    def names(self) -> list[str]:
        """By number."""
        return [member.name for member in self.members]

    def number_of(self, name: str) -> int | None:
        """``None``: there is none of this name."""
        return self.names.index(name) if name in self.names else None

    def absence(self, number: int) -> ServiceFailed | None:
        """Why it cannot be used now: its store is away. ``None``: it is not."""
        one = self._all[number]
        return one.absence() if isinstance(one, AwayBackend) else None

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return self._chosen.capabilities

    @property
    def lost(self) -> Int64s:
        """Numbers of those that do not have what they had before home was recovered."""
        return np.array([n for n, one in enumerate(self._all) if not one.recovered], np.int64)

    @property
    def without_unsealed(self) -> Int64s:
        """Numbers of those that were recovered, but for what was not sealed."""
        all_of_it = [one.capabilities.keeps_unsealed for one in self._all]
        found = [n for n, one in enumerate(self._all) if one.recovered and not all_of_it[n]]
        return np.array(found, np.int64)

    # -- room -----------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        return self._chosen.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self._chosen.used_bytes

    @property
    def largest_free(self) -> int:
        return self._chosen.largest_free

    def reserve(self, nbytes: Sequence[int]) -> Int64s | None:
        return self._reserve(self.default, nbytes)

    def _reserve(self, number: int, nbytes: Sequence[int]) -> Int64s | None:
        found = self._all[number].reserve(nbytes)
        if found is None:
            self.refused = (number,)
            return None
        return found if number == 0 else found + (number << ADDRESS_BITS)

    def reserve_in(self, nbytes: Sequence[int], numbers: Int64s) -> Int64s | None:
        """As ``reserve``, each size in the backend of its number; all of them or none."""
        sizes = np.asarray(nbytes, np.int64)
        found = np.zeros(len(sizes), np.int64)
        done = np.zeros(len(sizes), np.bool_)
        refused: list[int] = []
        try:
            for number in np.unique(numbers).tolist():
                mine = numbers == number
                addresses = self._reserve(number, sizes[mine].tolist())
                if addresses is None:
                    refused.append(number)
                else:
                    found[mine], done[mine] = addresses, True
        except BaseException:
            self._undo(found[done], sizes[done])
            raise
        if not refused:
            return found
        self._undo(found[done], sizes[done])
        self.refused = tuple(refused)
        return None

    def _undo(self, addresses: Int64s, nbytes: Int64s) -> None:
        self.free(addresses, self.extents_at(addresses, nbytes.tolist()))

    def reserve_for_saved(self, nbytes: Sequence[int], numbers: Sequence[int]) -> Ranges | None:
        """Addresses and extents in the first of these backends that has room: what did not fit
        into one alone when it was saved comes back all the same."""
        for number in numbers:
            found = self._reserve(number, nbytes)
            if found is not None:
                return found, self._all[number].extents(nbytes)
        return None

    def extents(self, nbytes: Sequence[int]) -> Int64s:
        return self._chosen.extents(nbytes)

    def extents_at(self, addresses: Int64s, nbytes: Sequence[int]) -> Int64s:
        """As ``extents``, of ranges that were reserved at these addresses."""
        numbers = addresses >> ADDRESS_BITS
        if not len(numbers) or (numbers == numbers[0]).all():
            return self._all[int(numbers[0]) if len(numbers) else self.default].extents(nbytes)
        sizes, found = np.asarray(nbytes, np.int64), np.zeros(len(numbers), np.int64)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            found[mine] = self._all[number].extents(sizes[mine].tolist())
        return found

    # -- moving ---------------------------------------------------------------------------------

    def copy_to(self, number: int, slabs: Sequence[Ranges]) -> Ranges | None:
        """Copy the bytes of each slab, which lie in these ranges, to the backend of this number,
        as one range each, sealed. Their addresses and extents; ``None``, and no change, when there
        is no room.

        ServiceFailed when it cannot be written there, BytesDamaged when they cannot be read here;
        no change then either.
        """
        target = self._all[number]
        sizes = [int(nbytes.sum()) for _, nbytes in slabs]
        found = target.reserve(sizes)
        if found is None:
            return None
        extents = target.extents(sizes)
        try:
            for address, ranges in zip(found.tolist(), slabs, strict=True):
                self._copy(target, address, *ranges)
            target.seal(found, np.array(sizes, np.int64))
        except BaseException:
            target.free(found, extents)
            raise
        return found + (number << ADDRESS_BITS), extents

    def _copy(self, target: Backend, address: int, starts: Int64s, nbytes: Int64s) -> None:
        if len(starts) == 1:
            block = self.readable(int(starts[0]), int(nbytes[0]))
        else:
            block = self.read_ranges(starts, nbytes).data
        target.write(address, block)

    # -- writing --------------------------------------------------------------------------------

    def writable(self, address: int, nbytes: int) -> memoryview:
        return self._at(address).writable(address & _OWN, nbytes)

    def write(self, address: int, data: memoryview) -> None:
        self._at(address).write(address & _OWN, data)

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        for one, starts, sizes in self._split(addresses, nbytes):
            one.seal(starts, sizes)

    # -- reading --------------------------------------------------------------------------------

    def read_into(self, address: int, out: memoryview) -> None:
        self._at(address).read_into(address & _OWN, out)

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> NDArray[np.uint8]:
        numbers = addresses >> ADDRESS_BITS
        if not len(numbers):
            return np.empty(0, np.uint8)
        if (numbers == numbers[0]).all():
            return self._all[int(numbers[0])].read_ranges(addresses & _OWN, nbytes)
        return super().read_ranges(addresses, nbytes)

    def readable(self, address: int, nbytes: int) -> memoryview:
        return self._at(address).readable(address & _OWN, nbytes)

    def lies_in_memory(self, addresses: Int64s) -> bool:
        numbers = addresses >> ADDRESS_BITS
        if not len(numbers) or (numbers == numbers[0]).all():
            one = self._all[int(numbers[0]) if len(numbers) else 0]
            return one.lies_in_memory(addresses & _OWN)
        return all(one.lies_in_memory(a) for one, a, _ in self._split(addresses, addresses))

    def are_in_arena(self, addresses: Int64s) -> NDArray[np.bool_]:
        """Which of these ranges lie in memory that processes of this host map. bool[ranges]"""
        is_home: NDArray[np.bool_] = addresses >> ADDRESS_BITS == 0
        return is_home & self._all[0].capabilities.mappable

    def are_on_device(self, addresses: Int64s) -> NDArray[np.bool_]:
        """Which of them lie in device memory that processes of this host open. bool[ranges]"""
        found = np.zeros(len(addresses), np.bool_)
        for number in self.devices:
            is_there = addresses >> ADDRESS_BITS == number
            found |= is_there & self._all[number].lies_on_device(addresses & _OWN)
        return found

    def on_one_device(self, addresses: Int64s) -> int | None:
        """The number of the device whose memory all these ranges begin in, if there is one."""
        if not len(addresses) or not self.are_on_device(addresses).all():
            return None
        numbers = addresses >> ADDRESS_BITS
        return int(numbers[0]) if (numbers == numbers[0]).all() else None

    def is_mappable(self, addresses: Int64s) -> bool:
        """Whether all of them are, now that they are sealed."""
        if not self._all[0].capabilities.mappable or (addresses >> ADDRESS_BITS).any():
            return False
        return self._all[0].lies_in_memory(addresses)

    # -- freeing --------------------------------------------------------------------------------

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        for one, starts, sizes in self._split(addresses, nbytes):
            one.free(starts, sizes)

    def adopt(self, addresses: Int64s, nbytes: Int64s) -> None:
        """Those that were not recovered have nothing to adopt."""
        numbers = addresses >> ADDRESS_BITS
        for number, one in enumerate(self._all):
            mine = numbers == number
            if one.recovered:
                one.adopt(addresses[mine] & _OWN, nbytes[mine])
            elif nbytes[mine].any():
                raise ValueError(f"backend {self.members[number].name!r} has lost these bytes")

    # -- the rest -------------------------------------------------------------------------------

    def tick(self, now_s: float) -> float | None:
        due = [one.tick(now_s) for one in self._with_ticks]
        return min((at_s for at_s in due if at_s is not None), default=None) if due else None

    def client_access(self) -> dict[str, Any] | None:
        return self._all[0].client_access()

    def files(self) -> dict[str, dict[str, Any]]:
        """`file_access` of those that have one, by number as text."""
        found = {str(n): one.file_access() for n, one in enumerate(self._all)}
        return {number: access for number, access in found.items() if access is not None}

    def in_one_file(self, addresses: Int64s) -> int | None:
        """The number of the backend in whose file all these ranges begin, if there is one."""
        numbers = addresses >> ADDRESS_BITS
        if not len(numbers) or not (numbers == numbers[0]).all():
            return None
        number = int(numbers[0])
        return None if self._all[number].file_access() is None else number

    @property
    def slot_tables(self) -> dict[int, SlotTable]:
        """Of those that have one, by number."""
        tables = {n: one.slots for n, one in enumerate(self._all)}
        return {number: table for number, table in tables.items() if table is not None}

    def device_accesses(self) -> list[dict[str, Any]]:
        """`device_access` of those on devices, with the ``number`` that is in the addresses."""
        found = {n: self._all[n].device_access() for n in self.devices}
        return [{**access, "number": n} for n, access in found.items() if access is not None]

    def facts(self) -> dict[str, Any]:
        return self._chosen.facts()

    def report(self) -> dict[str, dict[str, Any]]:
        """By name what each holds, for an operator."""
        return {
            member.name: {
                **member.backend.facts(),
                "used_bytes": member.backend.used_bytes,
                "budget_bytes": member.budget_bytes,
            }
            for member in self.members
        }

    @property
    def journal_path(self) -> str | None:
        return self._all[0].journal_path

    @property
    def recovered(self) -> bool:
        return self._all[0].recovered

    def close(self, *, keep: bool = False) -> None:
        for one in self._all:
            one.close(keep=keep)

    def _at(self, address: int) -> Backend:
        number = address >> ADDRESS_BITS
        if not 0 <= number < len(self._all):
            raise ValueError(f"address {address} is of no backend")
        return self._all[number]

    def _split(self, addresses: Int64s, nbytes: Int64s) -> Iterator[tuple[Backend, Int64s, Int64s]]:
        """Each backend that has some of the ranges, and these by its own addresses. Those of size
        zero mean nothing, and home hears of them."""
        numbers = np.asarray(addresses, np.int64) >> ADDRESS_BITS
        if not numbers.any():
            yield self._all[0], addresses, nbytes
            return
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            yield self._at(number << ADDRESS_BITS), addresses[mine] & _OWN, nbytes[mine]
