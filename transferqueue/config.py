"""Settings, as frozen values that are checked once and passed down."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from transferqueue.environment import default_arena_dir
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_SHARDS = 1 << 15
"""A uid has 16 bits for the shard slot, of which the sign bit stays clear."""

MIB = 1 << 20

FETCH_BYTES_PER_S = 128 * MIB
"""At the least, of a shard that gets its rows from another one of its host."""

TAKEOVER_S = 60.0
"""Of a service with two copies: see `ServiceConfig`."""

_KEY_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BACKEND_NAME = re.compile(r"[A-Za-z0-9_-]{1,24}")

SPILL_NAME = "spill"
"""The backend that slabs move to when memory is full. Nothing is put there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillConfig:
    """Where slabs go that memory has no room for."""

    directory: str
    nbytes: int
    """Room there for each shard."""
    high: float
    low: float
    """Parts of the budget: see `ServiceConfig`."""

    def __post_init__(self) -> None:
        if type(self.nbytes) is not int or self.nbytes < MIB:
            raise ConfigError(f"spill_bytes must be an int from 1 MiB on, got {self.nbytes!r}")
        if not 0 <= self.low <= self.high <= 1:
            raise ConfigError(
                f"0 <= spill_low <= spill_high <= 1 must hold, got {self.low} and {self.high}"
            )

    @staticmethod
    def files_id(service_id: str) -> str:
        """In the names of spilled files: so the arena may lie in the same folder."""
        return f"{service_id}.{SPILL_NAME}"

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> SpillConfig:
        return cls(**plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBackend:
    """A backend of every shard beside its default one, for what a partition says belongs there."""

    name: str
    """By which ``create_partition(backend=...)`` names it."""
    backend: str
    """Of the ``transferqueue.backends`` entry points."""
    budget_bytes: int
    """Of each shard. Where it is full puts wait, whatever room the others have."""
    arena_dir: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _BACKEND_NAME.fullmatch(self.name) or self.name == SPILL_NAME:
            raise ConfigError(
                f"backends: a name has up to 24 letters, digits, '-' and '_', and is not "
                f"{SPILL_NAME!r}, got {self.name!r}"
            )
        if type(self.budget_bytes) is not int or self.budget_bytes < MIB:
            raise ConfigError(
                f"backends[{self.name!r}]: budget_bytes must be an int from 1 MiB on, got "
                f"{self.budget_bytes!r}"
            )
        check_json(f"backends[{self.name!r}]: options", self.options)

    @property
    def arena_folder(self) -> str:
        """Where its files are, if it keeps any."""
        return self.arena_dir or default_arena_dir()

    def files_id(self, service_id: str) -> str:
        """In the names of its files: so it may share a folder with others of the shard."""
        return f"{service_id}.{self.name}"

    def to_plain(self) -> dict[str, Any]:
        return {**asdict(self), "options": dict(self.options)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> OtherBackend:
        return cls(**plain)

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any]) -> OtherBackend:
        """As callers give it: ``backend`` is the name where it is left out."""
        try:
            return cls(**{"name": name, "backend": name, **settings})
        except TypeError as error:
            raise ConfigError(
                f"backends[{name!r}] needs budget_bytes and may have backend, arena_dir and "
                f"options, got {settings!r}"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What a whole service needs to know to start."""

    shards: int = 1
    budget_bytes: int = 4 << 30
    """Bytes that each shard may hold; over it puts wait, then raise ``StorageFull``."""
    backend: str = "shm"
    """Name of a backend of the ``transferqueue.backends`` entry points."""
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of that backend alone, by name; values that JSON has."""
    arena_dir: str | None = None
    """Folder of the backend's files. ``None``: of ``shm`` ``$TRANSFERQUEUE_ARENA_DIR`` or
    ``/dev/shm``; ``disk`` must be given one."""
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Others that every shard has beside it, by the names that ``create_partition(backend=...)``
    has for them: ``{"disk": {"budget_bytes": 64 << 30, "arena_dir": "/data"}}``, and ``backend``
    where the name is not that of an entry point, and ``options``."""
    transports: Mapping[str, Mapping[str, Any]] | None = None
    """Of the ``transferqueue.transports`` entry points, by name with their options: ways beside the
    socket for the large bytes of clients that cannot map memory. Every shard opens its end of each;
    a client takes the best that it has too. ``None``: ``sockets``, but ``in_process``."""
    spill_dir: str | None = None
    """Folder on a disk to which the coldest slabs go when memory fills up. Gets find them there."""
    spill_bytes: int | None = None
    """Room there for each shard. Where that is full too, puts wait as ever."""
    spill_high: float = 0.9
    """Of the budget in use, above which slabs go,"""
    spill_low: float = 0.75
    """until no more than this is in use."""
    host: str | None = None
    """Interface to listen on for other hosts, e.g. ``"10.0.0.5"``; ``None``: this host only."""
    encrypt: bool = True
    """Whether TCP is encrypted. Without it a peer still needs the key, which it sends as it is: for
    a network where nobody else can listen."""
    read_keys: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    """Keys beside the clients' that only read: name to the partitions that the holder may read, or
    ``None`` for all. They count over TCP; who is on this host as this user may do everything."""
    prefault: bool = False
    """Take all memory of the budget from the start, in the background: a page costs ten times more
    at its first use than later."""
    replicas: int = 1
    """Copies of every row, 1 or 2. With two, a put or a clear is acknowledged when both have it; a
    shard that loses its rows gets them from the other copy. Each shard keeps the second copy of
    another one's rows, on the same of ``backends``, so rows take twice their bytes of all budgets
    together."""
    copy_bytes_per_s: float = 512 * MIB
    """At which a copy that was lost is made again, by each shard in the background."""
    takeover_s: float | None = None
    """How long a shard may be away until its guard takes its place, for good, with as much memory
    again as its budget; without a second copy its rows are given up (``RowsLost``). ``None``: with
    ``replicas=2`` a minute, else for ever."""
    guard_silence_s: float = 5.0
    """How long puts wait for a second copy whose process lives and says nothing; then they go on
    with one, which ``status`` shows, and the other is made again when it is back."""
    restart: bool = True
    """Whether a process that dies is started again, with what it held."""
    in_process: bool = False
    """On threads of this process, for itself alone, rather than as child processes."""
    samplers: tuple[str, ...] = ()
    """``module:Class`` of own samplers that claims may ask for. The coordinator imports them when
    it starts; those under the entry point ``transferqueue.samplers`` need not be named. One that
    takes longer than a second to choose fails its claim, except with ``in_process``."""
    tracing: str | None = None
    """OpenTelemetry spans of requests that carry a trace (extra ``otel``): ``"module:function"``,
    which each process calls with its name and which returns a ``TracerProvider``, or
    ``"chrome:FILE"``, a file for ui.perfetto.dev that all processes of a host write to."""
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("shards", "budget_bytes"):
            value = getattr(self, name)
            if type(value) is not int:
                raise ConfigError(f"{name} must be an int, got {value!r}")
        if not 1 <= self.shards <= MAX_SHARDS:
            raise ConfigError(f"shards must be in 1..{MAX_SHARDS}, got {self.shards}")
        if self.budget_bytes < MIB:
            raise ConfigError(f"budget_bytes must be at least 1 MiB, got {self.budget_bytes}")
        if self.start_timeout_s <= 0:
            raise ConfigError(f"start_timeout_s must be positive, got {self.start_timeout_s}")
        self._check_replicas()
        self._check_read_keys()
        check_json("backend_options", self.backend_options)
        self._check_others()
        self._check_transports()
        self.spill()
        self._check_tracing()
        if self.in_process and self.host is not None:
            raise ConfigError(
                f"in_process=True serves this process alone, and host={self.host!r} others; leave "
                f"one of them out"
            )
        for path in self.samplers:
            if not (isinstance(path, str) and path.partition(":")[2]):
                raise ConfigError(f"samplers: 'module:Class' expected, got {path!r}")
        if self.host in ("0.0.0.0", "::", "*"):
            raise ConfigError(
                f"host={self.host!r} would listen on every interface; name the one the workers use"
            )

    def spill(self) -> SpillConfig | None:
        """``None``: everything stays in memory."""
        if self.spill_dir is None and self.spill_bytes is None:
            return None
        if self.spill_dir is None or self.spill_bytes is None:
            raise ConfigError("spill_dir and spill_bytes go together; one of them is missing")
        return SpillConfig(
            directory=self.spill_dir,
            nbytes=self.spill_bytes,
            high=self.spill_high,
            low=self.spill_low,
        )

    @property
    def storage_bytes(self) -> int:
        """What each shard can hold, in all of its backends and where it spills to."""
        others = sum(other.budget_bytes for other in self.others())
        return self.budget_bytes + others + (self.spill_bytes or 0)

    def others(self) -> tuple[OtherBackend, ...]:
        """Those of ``backends``."""
        return tuple(OtherBackend.of(name, given) for name, given in self.backends.items())

    def _check_others(self) -> None:
        if any(other.name == self.backend for other in self.others()):
            raise ConfigError(
                f"backends: {self.backend!r} is the default one's name; give the other another "
                f"name and backend={self.backend!r}"
            )

    def _check_tracing(self) -> None:
        if self.tracing is not None and not self.tracing.partition(":")[2]:
            raise ConfigError(
                f"tracing takes 'module:function' or 'chrome:FILE', got {self.tracing!r}"
            )

    def _check_transports(self) -> None:
        for name, options in (self.transports or {}).items():
            check_json(f"transports[{name!r}]", options)
        if self.in_process and self.transports:
            raise ConfigError(
                f"in_process=True serves this process alone, which needs no "
                f"transports={sorted(self.transports)}; leave one of them out"
            )

    @property
    def restart_timeout_s(self) -> float:
        """How long a process has that is started again: it may get all of its rows from another."""
        extra_s = 0.0 if self.replicas == 1 else self.storage_bytes / FETCH_BYTES_PER_S
        return self.start_timeout_s + extra_s

    @property
    def arena_folder(self) -> str:
        """Where files of the backend are, if it keeps any."""
        return self.arena_dir or default_arena_dir()

    def storage_settings(self) -> dict[str, Any]:
        """What the process of a shard is told of where its bytes go; plain values."""
        options, spill = dict(self.backend_options), self.spill()
        if self.prefault:
            options["prefault"] = True
        return {
            "backend": self.backend,
            "backend_options": options,
            "budget_bytes": self.budget_bytes,
            "arena_dir": self.arena_dir,
            "others": [other.to_plain() for other in self.others()],
            "spill": None if spill is None else spill.to_plain(),
            "transports": self._ways(),
        }

    def _ways(self) -> dict[str, dict[str, Any]]:
        if self.transports is None:
            return {} if self.in_process else {"sockets": {}}
        return {name: dict(options) for name, options in self.transports.items()}

    def _check_replicas(self) -> None:
        if self.replicas not in (1, 2) or type(self.replicas) is not int:
            raise ConfigError(f"replicas must be 1 or 2, got {self.replicas!r}")
        if self.copy_bytes_per_s <= 0:
            raise ConfigError(f"copy_bytes_per_s must be positive, got {self.copy_bytes_per_s}")
        for name in ("takeover_s", "guard_silence_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        if self.replicas == 1:
            return
        if self.shards < 2:
            raise ConfigError(
                f"replicas=2 needs 2 shards, since no shard keeps both copies of a row; got "
                f"shards={self.shards}"
            )
        if self.spill_dir is not None:
            raise ConfigError(
                "replicas=2 keeps second copies where the first ones are, and those never move, so "
                "spill_dir would make room for rows that have none; leave it out, and let "
                "arena_dir= on a disk, with a larger budget_bytes, hold what memory has no room for"
            )
        if self.in_process or not self.restart:
            raise ConfigError(
                "replicas=2 is of use where a shard that dies is started again; leave out "
                "in_process=True and restart=False"
            )

    def copy_settings(self) -> dict[str, Any] | None:
        """What every shard is told of second copies, plain values: those of `CopySettings`."""
        return None if self.replicas == 1 else self.copy_settings_of_any()

    def copy_settings_of_any(self) -> dict[str, Any]:
        """Of a service that has them, whatever ``replicas`` says here: of shards that join one."""
        return {"bytes_per_s": self.copy_bytes_per_s, "silence_s": self.guard_silence_s}

    def takeover_settings(self) -> dict[str, Any]:
        """What the coordinator is told of them."""
        default_s = None if self.replicas == 1 else TAKEOVER_S
        takeover_s = default_s if self.takeover_s is None else self.takeover_s
        return {"replicas": self.replicas, "takeover_s": takeover_s}

    def _check_read_keys(self) -> None:
        for name, partitions in self.read_keys.items():
            if not _KEY_NAME.fullmatch(name):
                raise ConfigError(f"a key's name has letters, digits, '-' and '_', got {name!r}")
            if isinstance(partitions, str):
                raise ConfigError(f"read_keys[{name!r}]: a list of partitions, got {partitions!r}")


def check_json(what: str, values: Mapping[str, Any]) -> None:
    """`ConfigError` for what does not go to another process as it is."""
    try:
        json.dumps(dict(values))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} are values that JSON has: {error}") from error


class Transport(StrEnum):
    """How a client reaches the shards."""

    AUTO = "auto"
    """The best way to each: shared memory, else a Unix socket, else TCP."""
    SHM = "shm"
    """Shared memory to every shard, or ``connect`` fails."""
    IPC = "ipc"
    """Unix sockets, nothing mapped."""
    TCP = "tcp"
    """TCP, also on one host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client waits and moves bytes."""

    timeout_s: float = 30.0
    """Deadline of every call that does not name its own."""
    transport: Transport = Transport.AUTO
    split_bytes: int = 1 * MIB
    """New rows go to one shard while a put is smaller than this per shard, else to all. Shards of
    this host share one memory bus: there a put is spread only when it is much of a budget."""
    device: str | None = None
    """Where gets land that do not say; ``None``: in memory of the host."""
    required: str | None = None
    """The worst way, a `Rung`, by which bytes may come to ``device``; ``None``: any."""
    map_from_bytes: int = 64 << 10
    """A shard's part of a put from this size on is written into its arena in place; a smaller one
    is sent in one trip instead of two."""

    window: str | None = None
    """A transport of the ``transferqueue.transports`` entry points by which large bytes must come
    and go; ``None``: the best that there is, with ``transport`` ``AUTO``."""
    tracing: bool = False
    """Whether calls make spans, and send them along, by the provider that the process has set."""
    progress: bool = False
    """Whether long puts, gets and checkpoints show a bar."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s must be positive, got {self.timeout_s}")
