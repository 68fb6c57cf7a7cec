"""Keys of a service, and the check that a TCP peer holds the client's.

A service has a pair of its own, known to its own processes, and one for each kind of peer (see
`access`): its shards, its clients, and readers, if it was told of any. Those are handed to whoever
may use the service (inherited, a 0600 file, an actor call; never argv). Every TCP endpoint refuses
a peer that does not hold one of them, and is encrypted (CURVE) unless the service was told not to.
Then the pair itself goes over the wire as a name and a password (PLAIN): whoever can read the
traffic can read and write the data, and nobody else can.
``ipc://`` endpoints lie in a 0700 directory instead.

Why one may want that: CURVE moves about 1 GB/s a core on each side, where a copy moves 5 to 10.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import zmq
from zmq.utils import z85

from transferqueue.errors import ConfigError
from transferqueue.net.access import Grant, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKeys:
    """What a client needs to talk to a service over TCP. Z85 text, 40 characters each."""

    server_public: str
    client_public: str
    client_secret: str
    encrypted: bool = True

    def __repr__(self) -> str:
        return "ClientKeys(…)"

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Make ``socket`` a client of the service; before it connects."""
        if not self.encrypted:
            socket.plain_username = self.client_public.encode()
            socket.plain_password = self.client_secret.encode()
            return
        socket.curve_serverkey = self.server_public.encode()
        socket.curve_publickey = self.client_public.encode()
        socket.curve_secretkey = self.client_secret.encode()

    def save(self, path: Path) -> None:
        """Write to a new file that only this user can read."""
        _save(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> ClientKeys:
        """Read what `save` wrote. ConfigError when it is not a key file."""
        try:
            return cls(**json.loads(path.read_text(encoding="ascii")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"no usable client key in {path}: {error}") from error


def _save(path: Path, plain: Mapping[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        json.dump(plain, file)


CLIENT: Final = "client"
PROCESS: Final = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKeys:
    """The key pairs of one service, made anew for each."""

    server_public: str
    server_secret: str
    grants: Mapping[str, Grant]
    """The key of each kind of peer, by name."""
    encrypted: bool = True

    def __repr__(self) -> str:
        return "ServiceKeys(…)"

    @classmethod
    def generate(
        cls,
        *,
        encrypted: bool = True,
        readers: Mapping[str, Sequence[str] | None] | None = None,
    ) -> ServiceKeys:
        """``readers``: name of a read-only key to the partitions that it may read, or ``None`` for
        all of them."""
        server_public, server_secret = zmq.curve_keypair()
        grants = [_grant(CLIENT, Role.CLIENT), _grant(PROCESS, Role.PROCESS)]
        for name, partitions in (readers or {}).items():
            if name in (CLIENT, PROCESS):
                raise ConfigError(f"a read-only key cannot be named {name!r}")
            grants.append(_grant(name, Role.READER, partitions))
        return cls(
            server_public=server_public.decode(),
            server_secret=server_secret.decode(),
            grants={grant.name: grant for grant in grants},
            encrypted=encrypted,
        )

    def to_plain(self) -> dict[str, Any]:
        """For the service's own processes alone."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Write to a new file that only this user can read."""
        _save(path, self.to_plain())

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ServiceKeys:
        """Inverse of `to_plain`, also after JSON."""
        grants = {}
        for name, grant in plain["grants"].items():
            partitions = grant["partitions"]
            grants[name] = Grant(
                **{
                    **grant,
                    "role": Role(grant["role"]),
                    "partitions": None if partitions is None else tuple(partitions),
                }
            )
        return cls(**{**plain, "grants": grants})

    def for_clients(self) -> ClientKeys:
        """The part that clients get."""
        return self.of(CLIENT)

    def for_processes(self) -> ClientKeys:
        """With which a shard reaches the coordinator."""
        return self.of(PROCESS)

    def of(self, name: str) -> ClientKeys:
        """The part that the holder of one key gets. ConfigError when there is none of the name."""
        grant = self.grants.get(name)
        if grant is None:
            raise ConfigError(f"no key {name!r}; there are {', '.join(sorted(self.grants))}")
        return ClientKeys(
            server_public=self.server_public,
            client_public=grant.public,
            client_secret=grant.secret,
            encrypted=self.encrypted,
        )

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Make ``socket`` a server that only peers with the client keys reach; before it binds."""
        if not self.encrypted:
            socket.plain_server = True
            return
        socket.curve_publickey = self.server_public.encode()
        socket.curve_secretkey = self.server_secret.encode()
        socket.curve_server = True


class KeyCheck:
    """Answers libzmq's question (ZAP, RFC 27) whether a peer may connect.

    Driven by the server's own poll loop: poll ``socket``, then call `answer`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ServiceKeys) -> None:
        self._mechanism = b"CURVE" if keys.encrypted else b"PLAIN"
        self._names = {_credentials(grant, keys): name for name, grant in keys.grants.items()}
        self.num_refused = 0
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP_ENDPOINT)

    def answer(self) -> None:
        """Answer every question that waits."""
        with contextlib.suppress(zmq.Again):
            while True:
                frames = self.socket.recv_multipart(zmq.DONTWAIT)
                self.socket.send_multipart(self._verdict(frames))

    def _verdict(self, frames: list[bytes]) -> list[bytes]:
        # version, request id, domain, address, identity, mechanism, credentials…
        version, request_id, mechanism = frames[0], frames[1], frames[5]
        name = self._name_of(b"\0".join(frames[6:]))
        if mechanism != self._mechanism or name is None:
            self.num_refused += 1
            return [version, request_id, b"400", b"unknown key", b"", b""]
        return [version, request_id, b"200", b"OK", name.encode(), b""]

    def _name_of(self, credentials: bytes) -> str | None:
        """Every key is compared, in equal time: how near a guess was shows nowhere."""
        found = None
        for known, name in self._names.items():
            if hmac.compare_digest(known, credentials):
                found = name
        return found

    def close(self) -> None:
        self.socket.close(linger=0)


def _grant(name: str, role: Role, partitions: Sequence[str] | None = None) -> Grant:
    public, secret = zmq.curve_keypair()
    return Grant(
        name=name,
        role=role,
        public=public.decode(),
        secret=secret.decode(),
        partitions=None if partitions is None else tuple(partitions),
    )


def _credentials(grant: Grant, keys: ServiceKeys) -> bytes:
    """What a peer with this key shows: its public key (CURVE has seen to it that it holds the
    secret one), or both, as name and password."""
    if keys.encrypted:
        return z85.decode(grant.public.encode())
    return b"\0".join([grant.public.encode(), grant.secret.encode()])
