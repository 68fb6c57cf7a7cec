"""Every error this package raises, one class a situation.

::

    TransferQueueError
    ├── ConfigError                     (ValueError) a setting that cannot work
    │   ├── ArenaTooSmall               the arena's directory cannot hold the budget
    │   ├── MemoryOutOfReach            memory must be mapped, and cannot be
    │   ├── PackageMissing              a part needs a package that is not installed
    │   ├── NoKey                       a TCP service, and no client key for it
    │   ├── CannotListen                an address that this host does not have, or that is taken
    │   ├── DeviceMissing               no such GPU in this process
    │   ├── DeviceFull                  a GPU has not as much memory free
    │   ├── RungRefused                 a way for bytes that was required cannot be had
    │   └── CheckpointTooLarge          what was saved does not fit the budget it is restored to
    ├── InvalidInput                    (ValueError) the caller's data; nothing was changed
    │   ├── UnsupportedObject           (TypeError) an object column holds what cannot be carried
    │   ├── UnsupportedTensor           (TypeError) a tensor layout that cannot be carried
    │   ├── FieldSpecMismatch           one field, two dtypes, layouts or shapes
    │   ├── TagTypeMismatch             (TypeError) a tag set or compared with another type
    │   ├── RowCountMismatch            columns or handles that do not line up
    │   ├── DuplicateRows               a put names one row twice
    │   ├── MetaTooLarge                meta_info is for small plain values
    │   ├── MetaConflict                two batches or handles disagree on a meta_info value
    │   ├── BatchInconsistent           columns of a DataProto that are no columns, or no batch
    │   ├── NotDivisible                rows that must split evenly and do not
    │   ├── ColumnConflict              union: one column, two contents
    │   ├── ColumnsDiffer               (KeyError) concat: parts with different columns
    │   ├── NothingToConcat             (IndexError)
    │   ├── NameTaken                   rename onto a column that exists
    │   ├── BadRowIndex                 (IndexError) rows picked by what is no row index
    │   └── WrongService                a handle of another service
    ├── Missing                         (LookupError) something asked for is not there
    │   ├── UnknownField                no row has this field, or the handle does not
    │   │   └── UnknownColumn           (KeyError) a DataProto does not
    │   ├── UnknownPartition
    │   ├── UnknownTask
    │   ├── UnknownBackend
    │   ├── UnknownTag
    │   ├── FieldsMissing               some rows lack a field
    │   ├── RowsGone                    rows were cleared
    │   ├── UnknownUids                 no sample has or had these uids
    │   ├── TransferExpired             a put or get that a shard no longer keeps for its client
    │   ├── ArenaReplaced               a shard began anew, and its memory is another one
    │   ├── RowsLost                    rows were on a shard that is gone for good
    │   ├── NoSecondCopy                a shard has no complete copy of another one's rows
    │   └── SlotTakenOver               a shard was away for so long that another one has its rows
    ├── TransportFailed                 a way for bytes that was required broke
    ├── ShardDraining                   a shard takes no new samples any more
    ├── FieldExists                     a cell is written once
    ├── PutCut                          new fields are stored for some of the samples only
    ├── WrongOutput                     a dispatched method returned what it does not declare
    │   ├── UndeclaredWrite
    │   ├── WriteMissing
    │   └── WrongRowCount
    ├── ClaimError
    │   ├── LeaseExpired                too late: the samples may be with someone else
    │   ├── AlreadyAcked
    │   ├── UnknownClaim
    │   ├── RowsConsumed                rows asked for by uid that the task is done with
    │   ├── ClaimTooLarge               more rows than can ever be ready under the quota
    │   └── SamplerFailed               a sampler raised or returned nonsense
    ├── DeadlineExceeded                (TimeoutError) a wait ended without what it waited for
    │   ├── NotReady                    samples or cells did not become ready
    │   ├── StorageFull                 no space came free
    │   ├── QuotaExceeded               a partition's quota did not come free
    │   ├── ServiceUnreachable          no answer from a peer
    │   │   └── KeyRefused              there is one, and it does not take our key
    │   ├── DeviceStuck                 a GPU did not finish its copies
    │   └── TransferUnfinished          a large put or get was under way when its time was up
    ├── UidsUsedUp                      a shard has given every uid that it may give
    ├── NoService                       no address given and no running service found
    ├── NotAllowed                      the key of this client does not allow it
    ├── TooManyRequests                 a read key asked more often than it may
    ├── ServiceFailed                   a service process did not start or has died
    ├── JournalDamaged                  what a restarted process should go on from cannot be trusted
    ├── CheckpointError
    │   ├── CheckpointFailed            it was not written; the last good one is intact
    │   ├── CheckpointUnreachable       a host of the service does not see the folder
    │   ├── CheckpointBusy              another one is being written there
    │   ├── CheckpointMissing           there is none
    │   ├── CheckpointFormat            it is of another format version
    │   └── CheckpointDamaged           a file of it is not what was written
    ├── DeviceError                     a GPU, or its driver, did not do what was asked
    │   ├── ExportRefused               its memory cannot be shown to other processes
    │   ├── HandleRefused               memory of another process that cannot be opened here
    │   ├── PinningRefused              host memory that cannot be page-locked
    │   ├── PeerRefused                 one GPU cannot reach the memory of another
    │   ├── StaleGeneration             device memory that was given on since it was lent
    │   └── OwnerLost                   the process whose device memory this was has ended
    ├── BytesDamaged                    a disk gave back other bytes than were written
    ├── Closed                          the client or service was closed
    ├── ForkedClient                    a client used in a process that its own was forked into
    ├── WireError                       bytes that are not ours
    │   ├── Malformed
    │   ├── VersionMismatch
    │   └── TooLarge
    └── RemoteError                     the peer failed in a way this version has no class for

Those that a ``DataProto`` raises where verl asserts are an ``AssertionError`` as well, because the
loops written against verl catch that.

What each means, its usual causes and what to run stands in ``ERRORS.md``, an entry a class;
so it is with those of ``workers`` and ``controller``.

An error is rebuilt from ``args`` on the far side of a socket or a pickle, so every constructor
takes exactly the plain values that it passes on to ``super().__init__``.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAGES = {
    f"{package}.errors": f"{package}/ERRORS.md"
    for package in ("transferqueue", "workers", "controller")
}
"""Where the errors of each module are explained. The packages above this one are named, not
imported: they need not be there."""

SHARED_MEMORY = "/dev/shm"
"""Whose size in a container is a setting of the container."""

UID_SAMPLE = 5
"""How many uids a message shows; the count is always exact. Errors keep one more, to tell whether
there are more."""


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of ``known`` that look like ``name``, best first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def _did_you_mean(near: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def _uids(uids: Sequence[int]) -> str:
    shown = ", ".join(f"{uid:#x}" for uid in uids[:UID_SAMPLE])
    return f"uids {shown}{', …' if len(uids) > UID_SAMPLE else ''}" if uids else "no uids given"


class TransferQueueError(Exception):
    """Root of every error of this package."""

    @property
    def page(self) -> str:
        """Where it is explained; ``transferqueue explain`` prints that entry."""
        cls = next(cls for cls in type(self).__mro__ if cls.__module__ in PAGES)
        return f"{PAGES[cls.__module__]}#{cls.__name__.lower()}"

    def for_some_partitions(self) -> TransferQueueError:
        """The same, for who may know of some partitions only: it names no others."""
        return self


class ConfigError(TransferQueueError, ValueError):
    """A setting that cannot work. ``args``: the message."""


class ArenaTooSmall(ConfigError):
    """The arena's directory cannot hold the budget.

    ``directory_bytes``: of its file system, in all. ``num_arenas``: of so many shards, each with a
    budget like this one, that are to be there together.
    """

    def __init__(
        self,
        directory: str,
        needed_bytes: int,
        available_bytes: int,
        directory_bytes: int = 0,
        num_arenas: int = 1,
    ) -> None:
        super().__init__(directory, needed_bytes, available_bytes, directory_bytes, num_arenas)

    def of_each(self, num_arenas: int) -> ArenaTooSmall:
        """The same, as whoever starts so many shards there wants to read it."""
        directory, needed, available, size, _ = self.args
        return ArenaTooSmall(directory, needed, available, size, num_arenas)

    def __str__(self) -> str:
        directory, needed, available, size, num_arenas = self.args
        together = num_arenas * needed
        each = f" for each of {num_arenas} shards, {together:,} in all" if num_arenas > 1 else ""
        # What is there already, and is not ours, needs its room as well.
        enough_mib = -(-max(together, size + needed - available) // (1 << 20))
        larger = (
            f"Give the container a larger one (docker run --shm-size={enough_mib}m)"
            if directory == SHARED_MEMORY
            else f"Make room there ({enough_mib} MiB in all)"
        )
        return (
            f"{directory} has {available:,} bytes free, the budget needs {needed:,}{each}. "
            f"{larger}, lower budget_bytes, or set arena_dir (or $TRANSFERQUEUE_ARENA_DIR) to a "
            f"larger directory."
        )


class PackageMissing(ConfigError):
    """A part that was asked for needs a package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)

    def __str__(self) -> str:
        package, extra = self.args
        return (
            f"package {package!r} is not installed: pip install 'transferqueue-dataplane[{extra}]'"
        )


class NoKey(ConfigError):
    """A TCP service answers only to its client key, and none was given or found."""

    def __init__(self, address: str) -> None:
        super().__init__(address)

    def __str__(self) -> str:
        return (
            f"no key for {self.args[0]}: a TCP service answers only to its client key. Pass keys= "
            f"(--key-file), or copy the service's client.key here and set "
            f"$TRANSFERQUEUE_KEY_FILE to it"
        )


class CannotListen(ConfigError):
    """A server cannot listen where it was told to. ``why``: as the system says it."""

    def __init__(self, endpoint: str, why: str) -> None:
        super().__init__(endpoint, why)

    def __str__(self) -> str:
        endpoint, why = self.args
        return (
            f"cannot listen at {endpoint}: {why}. host= takes an address of this host "
            f"(`ip -brief address` lists them); `ss -lntp` lists the ports that are taken."
        )


class MemoryOutOfReach(ConfigError):
    """``transport="shm"`` is asked for where a shard's memory cannot be mapped."""

    def __init__(self, slot: int, why: str) -> None:
        super().__init__(slot, why)

    def __str__(self) -> str:
        slot, why = self.args
        return (
            f"transport='shm', but this process cannot map the memory of shard {slot} ({why}): it "
            f"must run on the shard's host, as its user, and see the same arena folder and process "
            f"ids"
        )


class DeviceMissing(ConfigError):
    """No such device in this process."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)

    def __str__(self) -> str:
        name, why = self.args
        return f"no device {name!r} here: {why}."


class DeviceFull(ConfigError):
    """A device has not as much memory free as an arena needs."""

    def __init__(self, device: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(device, needed_bytes, free_bytes)

    def __str__(self) -> str:
        device, needed, free = self.args
        return (
            f"{device} has {free:,} bytes free, {needed:,} are needed. Lower budget_bytes, or what "
            f"the other processes of this GPU take (nvidia-smi)."
        )


class RungRefused(ConfigError):
    """A way for bytes that was required cannot be had."""

    def __init__(self, required: str, shard: int, best: str, why: str) -> None:
        super().__init__(required, shard, best, why)

    def __str__(self) -> str:
        required, shard, best, why = self.args
        return (
            f"required={required!r}, but the best way to shard {shard} is {best!r}: {why}. Leave "
            f"required= out to take the best there is."
        )


class CheckpointTooLarge(ConfigError):
    """What was saved does not fit where it is to be restored."""

    def __init__(self, path: str, live_bytes: int, budget_bytes: int, shards: int) -> None:
        super().__init__(path, live_bytes, budget_bytes, shards)

    def __str__(self) -> str:
        path, live_bytes, budget_bytes, shards = self.args
        return (
            f"checkpoint {path} takes {live_bytes:,} bytes, but the budget of {shards} shards of "
            f"{budget_bytes:,} is {shards * budget_bytes:,}; raise budget_bytes, or add shards."
        )


class InvalidInput(TransferQueueError, ValueError):
    """The caller's data cannot be taken. Nothing was stored or changed. ``args``: the message."""


class UnsupportedObject(InvalidInput, TypeError):
    """An object column holds a value that cannot be carried exactly."""

    def __init__(self, field: str, row: int, type_name: str, hint: str = "") -> None:
        super().__init__(field, row, type_name, hint)

    def __str__(self) -> str:
        field, row, type_name, hint = self.args
        way_out = hint or (
            "convert it to plain values, arrays or tensors, or pass objects='pickle' on both ends"
        )
        return f"field {field!r}, row {row}: cannot carry a {type_name}; {way_out}."


class UnsupportedTensor(InvalidInput, TypeError):
    """A tensor's layout, device or dtype cannot be carried."""

    def __init__(self, field: str, what: str, hint: str) -> None:
        super().__init__(field, what, hint)

    def __str__(self) -> str:
        field, what, hint = self.args
        return f"field {field!r}: cannot carry {what}; {hint}."


class FieldSpecMismatch(InvalidInput, AssertionError):
    """The same field with two dtypes, layouts or shapes."""

    def __init__(self, field: str, have: str, got: str, hint: str = "") -> None:
        super().__init__(field, have, got, hint)

    def __str__(self) -> str:
        field, have, got, hint = self.args
        return f"field {field!r} is {have}, got {got}" + (f"; {hint}." if hint else ".")


class TagTypeMismatch(InvalidInput, TypeError):
    """A tag has one type; it was set to or compared with a value of another."""

    def __init__(self, tag: str, kind: str, got: str) -> None:
        super().__init__(tag, kind, got)

    def __str__(self) -> str:
        tag, kind, got = self.args
        return f"tag {tag!r} is {kind}, got {got}."


class RowCountMismatch(InvalidInput, AssertionError):
    """Columns or handles whose rows do not line up."""

    def __init__(self, what: str, expected: int, got: int, hint: str = "") -> None:
        super().__init__(what, expected, got, hint)

    def __str__(self) -> str:
        what, expected, got, hint = self.args
        return f"{what}: expected {expected} rows, got {got}" + (f"; {hint}." if hint else ".")


class DuplicateRows(InvalidInput):
    """A put names the same row twice. Reads may, writes may not. ``column``: one of a view that
    has several values for one sample."""

    def __init__(
        self, num_rows: int, num_unique: int, uids: Sequence[int], column: str = ""
    ) -> None:
        super().__init__(num_rows, num_unique, list(uids)[: UID_SAMPLE + 1], column)

    def __str__(self) -> str:
        num_rows, num_unique, uids, column = self.args
        if column:
            return (
                f"column {column!r} differs between rows that are one sample: the view has "
                f"{num_rows} rows of {num_unique} samples ({_uids(uids)} repeat); make each row a "
                f"sample: view = client.view(client.put(view, partition=…))."
            )
        return (
            f"the handle has {num_rows} rows but only {num_unique} distinct samples "
            f"({_uids(uids)} repeat); put to the handle before repeat(), or put new samples."
        )


class MetaTooLarge(InvalidInput):
    """``meta_info`` is carried with every handle, so it holds small plain values only."""

    def __init__(self, key: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(key, size_bytes, limit_bytes)

    def __str__(self) -> str:
        key, size, limit = self.args
        return (
            f"meta_info[{key!r}] takes {size:,} bytes, the limit is {limit:,}; put it as a field: "
            f"client.put({{{key!r}: value}}, handle=h)."
        )


class MetaConflict(InvalidInput, AssertionError):
    """Two batches or handles disagree on a ``meta_info`` value."""

    def __init__(self, key: str, left: str, right: str) -> None:
        super().__init__(key, left, right)

    def __str__(self) -> str:
        key, left, right = self.args
        return f"meta_info[{key!r}] is {left} on one side and {right} on the other."


class BatchInconsistent(InvalidInput, AssertionError):
    """A ``DataProto`` whose parts are not a batch. ``args``: the message."""


class NotDivisible(InvalidInput, AssertionError):
    """Something that must split evenly does not."""

    def __init__(self, what: str, size: int, parts: int, hint: str = "") -> None:
        super().__init__(what, size, parts, hint)

    def __str__(self) -> str:
        what, size, parts, hint = self.args
        return f"{what}: {size} does not divide by {parts}" + (f"; {hint}." if hint else ".")


class ColumnConflict(InvalidInput, AssertionError):
    """Two batches hold the same column with different content."""

    def __init__(self, column: str, left: str, right: str, where: str = "") -> None:
        super().__init__(column, left, right, where)

    def __str__(self) -> str:
        column, left, right, where = self.args
        return (
            f"column {column!r} is on both sides with different content"
            f"{f' ({where})' if where else ''}: {left} and {right}; drop or rename one of them."
        )


class ColumnsDiffer(InvalidInput, KeyError, AssertionError):
    """Parts of one batch that do not have the same columns."""

    def __init__(self, part: int, missing: Sequence[str], extra: Sequence[str]) -> None:
        super().__init__(part, list(missing), list(extra))

    def __str__(self) -> str:
        part, missing, extra = self.args
        differences = [f"lacks {missing}"] * bool(missing) + [f"adds {extra}"] * bool(extra)
        return f"part {part} {' and '.join(differences)} against part 0; select() the same columns."


class NothingToConcat(InvalidInput, IndexError):
    """An empty list was given where at least one part is needed."""

    def __init__(self) -> None:
        super().__init__()

    def __str__(self) -> str:
        return "cannot concatenate an empty list: its columns and meta_info are unknown."


class NameTaken(InvalidInput):
    """A rename that would overwrite a column."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(old, new)

    def __str__(self) -> str:
        old, new = self.args
        return f"cannot rename {old!r} to {new!r}: there is a column {new!r}; pop it first."


class BadRowIndex(InvalidInput, IndexError):
    """Rows picked by something that is no index into them. ``args``: the message."""


class WrongService(InvalidInput):
    """A handle that another service made."""

    def __init__(self, handle_service: str, this_service: str) -> None:
        super().__init__(handle_service, this_service)

    def __str__(self) -> str:
        theirs, ours = self.args
        return f"the handle belongs to service {theirs}, this client is connected to {ours}."


class Missing(TransferQueueError, LookupError):
    """Something that was asked for is not there. ``args``: the message."""


class _UnknownName(Missing):
    """A name nobody knows."""

    noun = "name"

    def __init__(self, name: str, near: Sequence[str] = (), where: str = "") -> None:
        super().__init__(name, list(near), where)

    def __str__(self) -> str:
        name, near, where = self.args
        return f"no {self.noun} {name!r}{f' in {where}' if where else ''}{_did_you_mean(near)}"


class UnknownField(_UnknownName):
    """No row has this field, or the handle does not list it."""

    noun = "field"


class UnknownColumn(UnknownField, KeyError, AssertionError):
    """A ``DataProto`` has no such column (or ``meta_info`` key: ``where`` tells)."""


class UnknownPartition(_UnknownName):
    """No such partition."""

    noun = "partition"

    def for_some_partitions(self) -> UnknownPartition:
        name, _, where = self.args
        return UnknownPartition(name, (), where)


class UnknownTask(_UnknownName):
    """The partition was created with a list of tasks and this is none of them."""

    noun = "task"


class UnknownBackend(_UnknownName):
    """The shards have no backend of this name."""

    noun = "backend"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(name, near_names(name, known))
        self.args = (name, list(known))

    def __str__(self) -> str:
        name, known = self.args
        return (
            f"no backend {name!r}; the shards have {', '.join(sorted(known))} (others by "
            f"serve(backends=...)){_did_you_mean(near_names(name, known))}"
        )


class UnknownTag(_UnknownName):
    """No sample of the partition carries this tag."""

    noun = "tag"


class FieldsMissing(Missing):
    """Some of the rows asked for do not have a field (yet)."""

    def __init__(
        self, missing: dict[str, int], num_rows: int, uids: Sequence[int], near: Sequence[str] = ()
    ) -> None:
        super().__init__(dict(missing), num_rows, list(uids)[: UID_SAMPLE + 1], list(near))

    def __str__(self) -> str:
        missing, num_rows, uids, near = self.args
        per_field = ", ".join(f"{f!r} ({n} of {num_rows} rows)" for f, n in missing.items())
        return (
            f"missing: {per_field}; {_uids(uids)}{_did_you_mean(near) or '.'} Wait for them with "
            f"client.wait(), or pass optional=[...] where absence is fine."
        )


class RowsGone(Missing):
    """Rows that were cleared."""

    def __init__(self, num_gone: int, num_rows: int, uids: Sequence[int]) -> None:
        super().__init__(num_gone, num_rows, list(uids)[: UID_SAMPLE + 1])

    def __str__(self) -> str:
        num_gone, num_rows, uids = self.args
        return f"{num_gone} of {num_rows} rows were cleared; {_uids(uids)}."


class UnknownUids(Missing):
    """No sample has these uids, and none had."""

    def __init__(self, uids: Sequence[int]) -> None:
        super().__init__(list(uids)[: UID_SAMPLE + 1])

    def __str__(self) -> str:
        return (
            f"no sample has these {_uids(self.args[0])}, and none had: the service has not given "
            f"them out. `transferqueue describe PARTITION` shows some that are there."
        )


class RowsLost(Missing):
    """Rows of a shard that is gone for good, or that has lost what it kept them in."""

    def __init__(self, num_lost: int, num_rows: int, shard_slots: Sequence[int]) -> None:
        super().__init__(num_lost, num_rows, list(shard_slots))

    def __str__(self) -> str:
        num_lost, num_rows, slots = self.args
        return (
            f"{num_lost} of {num_rows} rows are lost: shard(s) {slots}, which had them, are gone, "
            f"or what these kept them in is."
        )


class SlotTakenOver(Missing):
    """A shard comes whose slot another one has: it was away for too long, or another owner's."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)

    def __str__(self) -> str:
        (slot,) = self.args
        return (
            f"slot {slot} is served by another shard since this one was away for too long; what it "
            f"holds is of no use any more. Let a new shard join in its place."
        )


class NoSecondCopy(Missing):
    """Rows of a shard that does not answer were asked for where their second copy should be."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)

    def __str__(self) -> str:
        (slot,) = self.args
        return f"there is no complete second copy of the rows of shard {slot}."


class TransferExpired(Missing):
    """What a shard had set aside for a put or get under way is not there: it was given up, or the
    client was silent for too long. Nothing of a put was stored."""

    def __init__(self, operation: str, number: int, slot: int) -> None:
        super().__init__(operation, number, slot)

    def __str__(self) -> str:
        operation, number, slot = self.args
        return f"no {operation} {number} is under way on shard {slot}: do it again."


class ArenaReplaced(Missing):
    """The client has the memory mapped that a shard had before it began anew without its rows."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)

    def __str__(self) -> str:
        return f"shard {self.args[0]} was started again with another memory: do it again."


class TransportFailed(TransferQueueError):
    """A transport did not move bytes. Unless it was required they then go in chunks over the socket
    of the requests, and this is never seen."""

    def __init__(self, transport: str, why: str) -> None:
        super().__init__(transport, why)

    def __str__(self) -> str:
        transport, why = self.args
        return f"transport {transport!r}: {why}."


class ShardDraining(TransferQueueError):
    """A shard is to go, and takes no new samples. Clients put them on another by themselves; this
    is raised when every shard of the service is draining."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)

    @property
    def slot(self) -> int:
        return int(self.args[0])

    def __str__(self) -> str:
        return (
            f"shard {self.slot} is draining and takes no new samples, and no other shard does: "
            f"add one first."
        )


class FieldExists(TransferQueueError):
    """A cell is written once."""

    def __init__(self, field: str, num_rows: int, uids: Sequence[int]) -> None:
        super().__init__(field, num_rows, list(uids)[: UID_SAMPLE + 1])

    def __str__(self) -> str:
        field, num_rows, uids = self.args
        return (
            f"field {field!r} is already there for {num_rows} of the rows ({_uids(uids)}); "
            f"pass overwrite=True to write a new version."
        )


class WrongOutput(TransferQueueError):
    """What a dispatched method returned is not what it declares. Its rank stored nothing of it.
    ``args``: the message."""


class UndeclaredWrite(WrongOutput):
    """A column that the method does not declare to write."""

    def __init__(self, method: str, rank: int, field: str, declared: Sequence[str]) -> None:
        super().__init__(method, rank, field, list(declared))

    def __str__(self) -> str:
        method, rank, field, declared = self.args
        return (
            f"{method} on rank {rank} returned a column {field!r}, which it does not declare "
            f"(writes={declared}){_did_you_mean(near_names(field, declared)) or '.'} Add it to "
            f"writes, or leave it out. Nothing was stored by this rank."
        )


class WriteMissing(WrongOutput):
    """Declared columns that the method did not return."""

    def __init__(self, method: str, rank: int, fields: Sequence[str], got: Sequence[str]) -> None:
        super().__init__(method, rank, list(fields), list(got))

    def __str__(self) -> str:
        method, rank, fields, got = self.args
        return (
            f"{method} on rank {rank} returned no {', '.join(map(repr, fields))}, which it "
            f"declares to write; it returned {got}. Nothing was stored by this rank."
        )


class WrongRowCount(WrongOutput):
    """A column with another number of rows than the method was given."""

    def __init__(self, method: str, rank: int, field: str, expected: int, got: int) -> None:
        super().__init__(method, rank, field, expected, got)

    def __str__(self) -> str:
        method, rank, field, expected, got = self.args
        return (
            f"{method} on rank {rank} was given {expected} rows and returned {got} of {field!r}; "
            f"a written column has one value for each row given. Nothing was stored by this rank."
        )


class PutCut(TransferQueueError):
    """A put to several shards was cut between their commits: of new fields, or of new samples that
    could not be taken out again."""

    def __init__(
        self,
        fields: Sequence[str],
        num_stored: int,
        num_rows: int,
        shard_slots: Sequence[int],
        reason: str,
        partition: str = "",
    ) -> None:
        """``partition``: of new samples, which may still be there on these shards."""
        super().__init__(list(fields), num_stored, num_rows, list(shard_slots), reason, partition)

    def __str__(self) -> str:
        fields, num_stored, num_rows, slots, reason, partition = self.args
        if partition:
            return (
                f"{num_stored} of {num_rows} new samples may still be in partition {partition!r}: "
                f"shard(s) {slots} did not confirm that they were taken out again after {reason} "
                f"Look for them with client.select({partition!r}) before you put them again."
            )
        return (
            f"fields {fields} are stored for {num_stored} of {num_rows} samples; shard(s) {slots} "
            f"did not confirm the rest: {reason} Put the same again with overwrite=True."
        )


class ClaimError(TransferQueueError):
    """Something is wrong with a claim. ``args``: the message."""


class LeaseExpired(ClaimError):
    """The lease ended before this call; the samples may be with another worker by now."""

    def __init__(self, claim_id: int, late_s: float) -> None:
        super().__init__(claim_id, late_s)

    def __str__(self) -> str:
        claim_id, late_s = self.args
        return (
            f"the lease of claim {claim_id} ended {late_s:.1f} s ago and its samples are being "
            f"given again; ask for a longer lease_s, or call claim.extend() while working."
        )


class AlreadyAcked(ClaimError):
    """The claim was acked or given back before."""

    def __init__(self, claim_id: int) -> None:
        super().__init__(claim_id)

    def __str__(self) -> str:
        return f"claim {self.args[0]} was already acked or given back."


class UnknownClaim(ClaimError):
    """No such claim."""

    def __init__(self, claim_id: int) -> None:
        super().__init__(claim_id)

    def __str__(self) -> str:
        return f"no claim {self.args[0]}."


class RowsConsumed(ClaimError):
    """A claim by uids names rows that the task has acked, or given up on as dead letters."""

    def __init__(self, task: str, num_consumed: int, num_rows: int, uids: Sequence[int]) -> None:
        super().__init__(task, num_consumed, num_rows, list(uids)[: UID_SAMPLE + 1])

    def __str__(self) -> str:
        task, num_consumed, num_rows, uids = self.args
        return (
            f"task {task!r} is done with {num_consumed} of {num_rows} rows ({_uids(uids)}); "
            f"read them without a claim, or claim them under another task."
        )


class ClaimTooLarge(ClaimError):
    """A claim asks for more rows than the quota can ever let be ready at once."""

    def __init__(self, partition: str, reason: str) -> None:
        super().__init__(partition, reason)

    def __str__(self) -> str:
        partition, reason = self.args
        return f"partition {partition!r}: {reason}; claim fewer rows, or raise the quota."


class SamplerFailed(ClaimError):
    """A sampler raised, or returned what is not a choice among its candidates."""

    def __init__(self, sampler: str, reason: str) -> None:
        super().__init__(sampler, reason)

    def __str__(self) -> str:
        sampler, reason = self.args
        return f"sampler {sampler}: {reason}."


class DeadlineExceeded(TransferQueueError, TimeoutError):
    """A wait ended without what it waited for. ``args``: the message."""

    def __init__(self, *args: object) -> None:
        # TimeoutError is an OSError, which takes the first arguments for errno, text and file
        # name and drops the rest.
        super().__init__()
        self.args = args


class NotReady(DeadlineExceeded):
    """Samples or cells did not become ready in time."""

    def __init__(
        self, wanted: int, ready: int, missing: dict[str, int], waited_s: float, hint: str = ""
    ) -> None:
        super().__init__(wanted, ready, dict(missing), waited_s, hint)

    def __str__(self) -> str:
        wanted, ready, missing, waited_s, hint = self.args
        lacking = ", ".join(f"{f} ({n} samples)" for f, n in missing.items())
        tail = f"; still missing: {lacking}" if lacking else ""
        tail += f"; {hint}" if hint else ""
        return f"{ready} of {wanted} samples ready after {waited_s:.1f} s{tail}."

    def for_some_partitions(self) -> NotReady:
        wanted, ready, missing, waited_s, hint = self.args
        return NotReady(wanted, ready, missing, waited_s, hint.partition(", did you mean")[0])


class StorageFull(DeadlineExceeded):
    """No space came free in time."""

    def __init__(
        self,
        needed_bytes: int,
        free_bytes: int,
        budget_bytes: int,
        waited_s: float,
        shard: int,
        backend: str = "",
    ) -> None:
        """``backend``: which of several is full."""
        super().__init__(needed_bytes, free_bytes, budget_bytes, waited_s, shard, backend)

    def __str__(self) -> str:
        needed, free, budget, waited_s, shard, backend = self.args
        return (
            f"shard {shard}: {needed:,} bytes needed, {free:,} of {budget:,} free"
            f"{f' in its backend {backend!r}' if backend else ''} after "
            f"{waited_s:.1f} s; clear consumed samples, raise budget_bytes, or add shards."
        )


class QuotaExceeded(DeadlineExceeded):
    """A partition's own quota did not come free in time."""

    def __init__(
        self, partition: str, what: str, limit: int, used: int, asked: int, holders: str = ""
    ) -> None:
        super().__init__(partition, what, limit, used, asked, holders)

    def __str__(self) -> str:
        partition, what, limit, used, asked, holders = self.args
        tail = f"; held by {holders}" if holders else ""
        return (
            f"partition {partition!r}: {used:,} + {asked:,} {what} over the limit {limit:,}{tail}."
        )


class ServiceUnreachable(DeadlineExceeded):
    """No answer from a peer within the deadline."""

    def __init__(self, address: str, operation: str, waited_s: float) -> None:
        super().__init__(address, operation, waited_s)

    def __str__(self) -> str:
        address, operation, waited_s = self.args
        return (
            f"no answer to {operation} from {address} in {waited_s:.1f} s; is the service running "
            f"there, and is this its key (transferqueue doctor tells)?"
        )


class KeyRefused(ServiceUnreachable):
    """Somebody listens at the address and does not take our client key."""

    def __str__(self) -> str:
        address, operation, waited_s = self.args
        return (
            f"{address} refuses this client key (no answer to {operation} in {waited_s:.1f} s); "
            f"take the client.key that the service wrote when it started: every start makes a "
            f"new one."
        )


class TransferUnfinished(DeadlineExceeded):
    """A large put or get was under way when its time was up. Of a put nothing is stored."""

    def __init__(
        self, address: str, operation: str, num_done: int, num_chunks: int, waited_s: float
    ) -> None:
        super().__init__(address, operation, num_done, num_chunks, waited_s)

    def __str__(self) -> str:
        address, operation, num_done, num_chunks, waited_s = self.args
        return (
            f"{operation} at {address}: {num_done} of {num_chunks} chunks (1 MiB each) were "
            f"through after {waited_s:.1f} s; give it a longer timeout_s, or see what the network "
            f"carries (transferqueue bench)."
        )


class DeviceStuck(DeadlineExceeded):
    """A device did not finish what it was given."""

    def __init__(self, device: str, waited_s: float) -> None:
        super().__init__(device, waited_s)

    def __str__(self) -> str:
        device, waited_s = self.args
        return f"{device} did not finish its copies in {waited_s:.1f} s (nvidia-smi, dmesg: Xid)."


class UidsUsedUp(TransferQueueError):
    """A shard has given every uid that it may give."""

    def __init__(self, shard: int) -> None:
        super().__init__(shard)

    def __str__(self) -> str:
        return (
            f"shard {self.args[0]} has no uids left for new samples; checkpoint the service and "
            f"restore it: a restored one has others."
        )


class NoService(TransferQueueError):
    """No address was given and no running service was found.

    ``running``: addresses of services of this user on this host, of which none was meant by the
    call. Which of them is whose job is for people to say.
    """

    def __init__(self, looked_in: Sequence[str] = (), running: Sequence[str] = ()) -> None:
        super().__init__(list(looked_in), list(running))

    def __str__(self) -> str:
        looked_in, running = self.args
        where = "to tq.connect(), or set $TRANSFERQUEUE_ADDRESS to it"
        way_out = (
            f"of yours there runs on this host {', '.join(running)}: pass an address {where}."
            if running
            else f"start one with tq.serve(), or by `transferqueue serve`, whose address you pass "
            f"{where}."
        )
        return f"no service found (looked in {', '.join(looked_in)}); {way_out}"


class NotAllowed(TransferQueueError):
    """The key that this client holds does not allow the request."""

    def __init__(self, key: str, op: str, why: str) -> None:
        super().__init__(key, op, why)

    def __str__(self) -> str:
        key, op, why = self.args
        return f"the key {key!r} does not allow {op!r}: {why}; connect with the client key."


class TooManyRequests(TransferQueueError):
    """A key that only reads asked more often than it may. Nothing was looked up."""

    def __init__(self, key: str, per_s: float) -> None:
        super().__init__(key, per_s)

    def __str__(self) -> str:
        key, per_s = self.args
        return (
            f"the read key {key!r} may begin {per_s:g} requests a second at each process of the "
            f"service, and has begun more; ask again in a moment."
        )


class ServiceFailed(TransferQueueError):
    """A service process did not start, or has died."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(process, reason)

    def __str__(self) -> str:
        process, reason = self.args
        return f"{process}: {reason}"


class JournalDamaged(TransferQueueError):
    """A journal holds what its writer never wrote, so nothing of it can be used."""

    def __init__(self, path: str, at_byte: int, why: str) -> None:
        super().__init__(path, at_byte, why)

    def __str__(self) -> str:
        path, at_byte, why = self.args
        return f"{path or 'the journal'} is damaged at byte {at_byte:,}: {why}."


class CheckpointError(TransferQueueError):
    """Saving or restoring a service."""


class CheckpointFailed(CheckpointError):
    """A checkpoint was given up. The one before it, if any, is as it was."""

    def __init__(self, path: str, who: str, why: str) -> None:
        super().__init__(path, who, why)

    def __str__(self) -> str:
        path, who, why = self.args
        return f"checkpoint {path}: {who}: {why}; the last one that was finished there is intact."


class CheckpointUnreachable(CheckpointError):
    """A process of the service does not see the folder that the coordinator made."""

    def __init__(self, path: str, host: str, why: str) -> None:
        super().__init__(path, host, why)

    def __str__(self) -> str:
        path, host, why = self.args
        return (
            f"checkpoint {path}: host {host} does not see this folder ({why}); every host of the "
            f"service writes its part there, so it must be on a mount that all of them share."
        )


class CheckpointBusy(CheckpointError):
    """Another checkpoint is being written."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)

    def __str__(self) -> str:
        path, what = self.args
        return f"checkpoint {path}: {what}; wait for it to end."


class CheckpointMissing(CheckpointError):
    """There is no finished checkpoint in this folder."""

    def __init__(self, path: str) -> None:
        super().__init__(path)

    def __str__(self) -> str:
        return f"{self.args[0]} holds no finished checkpoint (there is no manifest in it)."


class CheckpointFormat(CheckpointError):
    """A checkpoint of another version of this package."""

    def __init__(self, path: str, found: int, ours: int) -> None:
        super().__init__(path, found, ours)

    def __str__(self) -> str:
        path, found, ours = self.args
        return f"checkpoint {path} is of format {found}, this version reads format {ours}."


class CheckpointDamaged(CheckpointError):
    """A file of a checkpoint is missing, cut short or altered, so none of it is used."""

    def __init__(self, path: str, file: str, why: str) -> None:
        super().__init__(path, file, why)

    def __str__(self) -> str:
        path, file, why = self.args
        return f"checkpoint {path} is damaged: {file}: {why}; restore an older one."


class DeviceError(TransferQueueError):
    """A device, or its driver, did not do what was asked. ``args``: the message."""


class ExportRefused(DeviceError):
    """Memory of a device that cannot be shown to other processes."""

    def __init__(self, device: str, why: str) -> None:
        super().__init__(device, why)

    def __str__(self) -> str:
        device, why = self.args
        return (
            f"memory of {device} cannot be shown to other processes: {why}. In containers: "
            f"--ipc=host, and no expandable_segments in $PYTORCH_CUDA_ALLOC_CONF."
        )


class HandleRefused(DeviceError):
    """Device memory of another process that cannot be opened here."""

    def __init__(self, device: str, why: str) -> None:
        super().__init__(device, why)

    def __str__(self) -> str:
        device, why = self.args
        return f"memory of {device} cannot be opened here: {why}."


class PinningRefused(DeviceError):
    """Host memory that cannot be page-locked."""

    def __init__(self, num_bytes: int, why: str) -> None:
        super().__init__(num_bytes, why)

    def __str__(self) -> str:
        num_bytes, why = self.args
        return (
            f"{num_bytes:,} bytes of host memory cannot be page-locked: {why}. Raise the limit "
            f"(ulimit -l unlimited; docker run --ulimit memlock=-1)."
        )


class PeerRefused(DeviceError):
    """One device cannot reach the memory of another."""

    def __init__(self, device: str, peer: str, why: str) -> None:
        super().__init__(device, peer, why)

    def __str__(self) -> str:
        device, peer, why = self.args
        return f"{device} cannot reach the memory of {peer}: {why} (nvidia-smi topo -p2p r)."


class StaleGeneration(DeviceError):
    """Device memory that was given on since it was lent."""

    def __init__(self, pool: str, offset: int, lent: int, found: int) -> None:
        super().__init__(pool, offset, lent, found)

    def __str__(self) -> str:
        pool, offset, lent, found = self.args
        now = f"generation {found} is" if found else "nothing is"
        return (
            f"pool {pool}, byte {offset:,}: generation {lent} was lent, and {now} there now. What "
            f"was read is not to be used; get it again."
        )


class OwnerLost(DeviceError):
    """The process whose device memory this was has ended, and its memory with it."""

    def __init__(self, device: str, owner: str) -> None:
        super().__init__(device, owner)

    def __str__(self) -> str:
        device, owner = self.args
        return (
            f"{owner}, whose memory on {device} this was, has ended. What was read from it is not "
            f"to be used; what has no copy elsewhere is lost."
        )


class BytesDamaged(TransferQueueError):
    """What came back from a disk, or over one, is not what was written there."""

    def __init__(self, where: str, at_byte: int, why: str) -> None:
        super().__init__(where, at_byte, why)

    def __str__(self) -> str:
        where, at_byte, why = self.args
        return (
            f"{where}, from byte {at_byte:,} on: {why}; the samples that lie there are lost, "
            f"clear them and put them again. Look at what they lie on (a disk: dmesg, smartctl; a "
            f"store: whether it was started again)."
        )


class Closed(TransferQueueError):
    """The client or service was closed. ``args``: what was closed."""

    def __str__(self) -> str:
        return f"{self.args[0] if self.args else 'client'} is closed."


class ForkedClient(TransferQueueError):
    """A client was used in a forked process: its sockets and mappings are those of the parent."""

    def __init__(self, parent_pid: int) -> None:
        super().__init__(parent_pid)

    def __str__(self) -> str:
        return (
            f"this client belongs to process {self.args[0]}, from which this one was forked; call "
            f"connect() here."
        )


class WireError(TransferQueueError):
    """Bytes that are not ours. ``args``: the message."""


class Malformed(WireError):
    """A frame that does not parse, or whose sizes do not add up."""


class VersionMismatch(WireError):
    """The peer speaks another version of the wire format."""

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(ours, theirs)

    def __str__(self) -> str:
        ours, theirs = self.args
        return (
            f"the peer speaks wire format v{theirs}, this side v{ours}; install the same version."
        )


class TooLarge(WireError):
    """A header or message over its cap."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(what, size_bytes, limit_bytes)

    def __str__(self) -> str:
        what, size, limit = self.args
        return f"{what} has {size:,} bytes, the limit is {limit:,}."


class RemoteError(TransferQueueError):
    """The peer failed in a way that this version has no class for."""

    def __init__(self, class_name: str, message: str) -> None:
        super().__init__(class_name, message)

    def __str__(self) -> str:
        class_name, message = self.args
        return f"{class_name}: {message}"
