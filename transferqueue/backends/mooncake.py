"""Slabs as objects of a Mooncake Store: over RDMA where there is any, over TCP where not.

Each shard is a client of the store and lends it ``segment_bytes`` of memory; where the store puts
an object it decides itself. Objects are pinned hard, so its eviction passes them over: what is here
goes when it is cleared and at no other time. They end with their shard, so its rows do too.

What it needs: the package ``mooncake-transfer-engine`` (``-non-cuda`` where there is no GPU), the
libraries that it is linked with (Debian's libibverbs1 librdmacm1 libnuma1 liburing2), a master::

    mooncake_master --rpc_port=50051 \\
        --enable_http_metadata_server=true --http_metadata_server_port=8080
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from transferqueue.backends.deadline_calls import DeadlineCalls
from transferqueue.backends.object_backend import ObjectBackend
from transferqueue.errors import BytesDamaged, ConfigError, ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from transferqueue.backends.base import BackendConfig
    from transferqueue.backends.object_backend import Piece

    Bytes = NDArray[np.uint8]

T = TypeVar("T")

PACKAGE = "mooncake-transfer-engine-non-cuda"
LIBRARIES = "libibverbs1 librdmacm1 libnuma1 liburing2"

CALL_S = 5.0
"""How long the store has to answer a call. Other requests of the shard wait for as long, once:
until the call comes back all others fail at once."""

SETUP_S = 20.0
FAREWELL_S = 1.0

MIB = 1 << 20

SPARE_BYTES = 16 * MIB
"""Of its segment beside an eighth of the budget: the store's own allocator crumbles too."""

NO_OBJECT, NO_ROOM, NOT_REACHED = -704, -200, -800

TRIES = 3
"""Places that the store may choose for an object: it knows of a client that was killed only after
some seconds, and until then may choose its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeOptions:
    """``backend_options`` of this backend."""

    master: str
    """``host:port`` of ``mooncake_master``."""
    metadata: str = ""
    """``http://host:port/metadata`` of its metadata server; by default port 8080 of its host."""
    protocol: str = "tcp"
    """Or ``rdma``."""
    device: str = ""
    """Of RDMA, e.g. ``mlx5_0``; by default what Mooncake finds."""
    host: str = ""
    """By which other clients of the store reach this one; by default the address that this host
    has towards the master."""
    segment_bytes: int | None = None
    """Memory that this shard lends to the store; by default its budget and some room beside it. 0:
    none, where others lend enough."""
    buffer_bytes: int = 16 * MIB
    timeout_s: float = CALL_S

    def __post_init__(self) -> None:
        host, _, port = self.master.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"mooncake: master must be 'host:port', got {self.master!r}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """`ConfigError` for options that there are not."""
        try:
            return cls(**options)
        except TypeError as error:
            raise ConfigError(
                f"backend 'mooncake': {error}; it needs options={{'master': 'host:port'}}"
            ) from error

    @property
    def master_address(self) -> tuple[str, int]:
        host, _, port = self.master.rpartition(":")
        return host, int(port)

    @property
    def metadata_url(self) -> str:
        return self.metadata or f"http://{self.master_address[0]}:8080/metadata"


class MooncakeBackend(ObjectBackend):
    """Options: `MooncakeOptions`."""

    def __init__(self, store: Any, pinned: Any, config: BackendConfig, options: MooncakeOptions):
        """``open`` is the way to get one."""
        super().__init__(config.budget_bytes, f"mooncake at {options.master}")
        self._options = options
        self._mooncake = store
        self._pinned = pinned
        self._prefix = f"tq/{config.service_id}/{config.slot}/{secrets.token_hex(4)}"
        self._numbers = itertools.count()
        self._undropped: list[str] = []
        self._calls = DeadlineCalls(self._name, options.timeout_s)

    @classmethod
    def how_to_start(cls, config: BackendConfig) -> str:
        return _how_to_start(MooncakeOptions.of(config.options))

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        """`ConfigError` that names the package, the command and the port when one of them is not
        there."""
        options = MooncakeOptions.of(config.options)
        library = _library()
        _find_store(options)
        pinned = library.ReplicateConfig()
        pinned.with_hard_pin = True
        backend = cls(library.MooncakeDistributedStore(), pinned, config, options)
        try:
            backend._set_up(config)
        except BaseException:
            backend.close()
            raise
        return backend

    def _set_up(self, config: BackendConfig) -> None:
        options = self._options
        segment_bytes = options.segment_bytes
        if segment_bytes is None:
            segment_bytes = -(-config.budget_bytes * 9 // 8 // MIB) * MIB + SPARE_BYTES
        arguments = (
            options.host or _host_towards(options.master_address),
            options.metadata_url,
            segment_bytes,
            options.buffer_bytes,
            options.protocol,
            options.device,
            options.master,
        )
        try:
            code = self._calls.make(lambda: self._mooncake.setup(*arguments), SETUP_S)
        except ServiceFailed as error:
            raise ConfigError(f"{error}; {_how_to_start(options)}") from error
        if segment_bytes:
            self._pinned.preferred_segment = self._mooncake.get_hostname()
        if code:
            raise ConfigError(
                f"{self._name}: cannot be set up, code {code}, with metadata at "
                f"{options.metadata_url} and {segment_bytes:,} bytes of memory over "
                f"{options.protocol}; {_how_to_start(options)}"
            )

    # -- objects --------------------------------------------------------------------------------

    def _store(self, data: Bytes) -> str:
        for _ in range(TRIES):
            key = f"{self._prefix}/{next(self._numbers)}"
            code = self._make(lambda key=key: self._put(key, data))  # type: ignore[misc]
            if code == 0:
                return key
            if code != NOT_REACHED:
                break
        why = f"does not take {len(data):,} bytes, code {code}"
        if code == NO_ROOM:
            why = f"has no room for {len(data):,} bytes in one piece; give it more segment_bytes"
        raise ServiceFailed(self._name, why)

    def _put(self, key: str, data: Bytes) -> int:
        return int(self._mooncake.put_from(key, data.ctypes.data, len(data), self._pinned))

    def _load(self, pieces: Sequence[Piece], out: Bytes) -> Sequence[int]:
        first = pieces[0]
        if len(pieces) == 1 and first.nbytes == first.object_bytes:
            codes = [self._make(lambda: self._whole(first, out))]
        else:
            codes = self._make(lambda: self._ranges(pieces, out))
        for piece, code in zip(pieces, codes, strict=True):
            self._refuse_failed(piece, code)
        return codes

    def _whole(self, piece: Piece, out: Bytes) -> int:
        return int(self._mooncake.get_into(piece.stored, out.ctypes.data, len(out)))

    def _ranges(self, pieces: Sequence[Piece], out: Bytes) -> list[int]:
        """Bytes that came of each, or a code."""
        at = out.ctypes.data
        self._mooncake.register_buffer(at, len(out))
        try:
            (found,) = self._mooncake.get_into_ranges(
                [at],
                [[piece.stored for piece in pieces]],
                [[[piece.at] for piece in pieces]],
                [[[piece.offset] for piece in pieces]],
                [[[piece.nbytes] for piece in pieces]],
            )
        finally:
            self._mooncake.unregister_buffer(at)
        return [int(nbytes) for (nbytes,) in found]

    def _refuse_failed(self, piece: Piece, code: int) -> None:
        """``code``: bytes that came, or what went wrong."""
        if code == NO_OBJECT:
            raise BytesDamaged(self._name, piece.offset, "the store does not have them any more")
        if code < 0:
            raise ServiceFailed(self._name, f"does not give {piece.nbytes:,} bytes, code {code}")

    def _drop(self, stored: Sequence[Any]) -> None:
        """What a store that is away does not hear now it hears with the next objects."""
        keys = [*self._undropped, *stored]
        try:
            codes = self._make(lambda: self._mooncake.batch_remove(keys, True))
        except ServiceFailed:
            codes = [-1] * len(keys)
        self._undropped = [
            key for key, code in zip(keys, codes, strict=True) if code not in (0, NO_OBJECT)
        ]

    def _make(self, call: Callable[[], T]) -> T:
        return self._calls.make(call)

    # -- the rest -------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """``master``, ``protocol``, ``objects``, and how many are ``undropped`` because the store
        was away."""
        return {
            "master": self._options.master,
            "protocol": self._options.protocol,
            "objects": len(self._slabs),
            "undropped": len(self._undropped),
        }

    def close(self, *, keep: bool = False) -> None:
        if self._closed:
            return
        super().close(keep=keep)
        is_there = True
        keys = [*self._undropped, *self._all_stored()]
        try:
            self._calls.make(lambda: self._mooncake.batch_remove(keys, True), FAREWELL_S)
        except ServiceFailed:
            is_there = False
        _end_client(self._mooncake, is_there=is_there)
        self._calls.close(FAREWELL_S)


def _end_client(client: Any, *, is_there: bool) -> None:
    """Its end takes until the next beat of its heart, up to 2 s, in which no other thread of Python
    runs. Without a store that answers it takes half a minute, in its destructor too: so then it is
    never ended. The store forgets clients that it does not hear of."""
    if is_there:
        client.close()
    else:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def _library() -> Any:
    try:
        from mooncake import store
    except ImportError as error:
        raise ConfigError(
            f"backend 'mooncake' needs the package {PACKAGE} "
            f"(pip install 'transferqueue-dataplane[mooncake]') and its libraries "
            f"(apt-get install {LIBRARIES}): {error}"
        ) from error
    return store


def _find_store(options: MooncakeOptions) -> None:
    """`ConfigError` unless both servers answer. A set-up lets no other thread of Python run: 50 ms
    where they do, 2 s without a metadata server, and for ever with a master that stands still, when
    no deadline passes either. So it is begun only when it will be short."""
    look_for = [(options.master, options.master_address, _NONSENSE)]
    url = urlsplit(options.metadata_url)
    if url.scheme == "http" and url.hostname:
        asked = f"GET {url.path}?key=tq HTTP/1.0\r\nHost: {url.netloc}\r\n\r\n"
        look_for.append((options.metadata_url, (url.hostname, url.port or 80), asked.encode()))
    for name, address, request in look_for:
        try:
            _ask(address, request)
        except OSError as error:
            what = "no answer from" if isinstance(error, TimeoutError) else "nobody listens at"
            raise ConfigError(
                f"backend 'mooncake': {what} {name} ({error}); {_how_to_start(options)}"
            ) from error


_NONSENSE = bytes(64)
"""A master ends the connection that this comes over, at once."""


def _ask(address: tuple[str, int], request: bytes) -> None:
    """``OSError`` unless somebody answers, or hangs up."""
    with socket.create_connection(address, timeout=CALL_S) as asking:
        asking.sendall(request)
        with contextlib.suppress(ConnectionError):
            asking.recv(1)


def _how_to_start(options: MooncakeOptions) -> str:
    port = options.metadata_url.rpartition(":")[2].partition("/")[0]
    return (
        f"start it with: mooncake_master --rpc_port={options.master_address[1]} "
        f"--enable_http_metadata_server=true --http_metadata_server_port={port}"
    )


def _host_towards(address: tuple[str, int]) -> str:
    """The address of this host on the way there."""
    family = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
