"""Which systems are measured, and a running one: its processes, and how it ends."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tests.benchmarks.actor_process import ActorProcess, NotRun

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from tests.benchmarks.environment import Environments

OPEN_TIMEOUT_S = 120.0


class Home(StrEnum):
    """Whose Python a system runs in."""

    OURS = "ours"
    """The one that runs the harness."""
    PEERS = "peers"
    """A virtual environment with the peers, made on demand."""
    VERL = "verl"
    """The one of the differential tests, with verl and the tensordict that it asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One measured system. ``label`` heads its column."""

    label: str
    adapter: str
    home: Home = Home.PEERS
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    one_process: bool = False
    """Writer and reader are one process, since there is nothing between them."""

    def with_settings(self, label: str | None = None, **settings: Any) -> System:
        return System(
            label=label or self.label,
            adapter=self.adapter,
            home=self.home,
            settings={**self.settings, **settings},
            environment=self.environment,
            one_process=self.one_process,
        )


_PEERS = "tests.benchmarks.peers"
# Every process of one Ray finds its key in the same way only when each is told to look for it.
_RAY = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}

OURS = System(label="ours", adapter="tests.benchmarks.ours_drives:MeasuredOurs", home=Home.OURS)
OURS_SMALL_PAGES = OURS.with_settings("ours, 4 KiB pages", backend_options={"huge_pages": False})
"""As where the kernel has no huge ones to give."""
OURS_TCP = OURS.with_settings("ours, tcp", transport="sockets")
OURS_IPC = OURS.with_settings("ours, ipc", transport="ipc")
ASCEND = System(
    label="Ascend TQ",
    adapter=f"{_PEERS}.ascend_transfer_queue:AscendTransferQueue",
    environment=_RAY,
)
RAY_TENSORS = System(
    label="Ray, tensors", adapter=f"{_PEERS}.ray_object_store:RayTensors", environment=_RAY
)
RAY_ARRAYS = System(
    label="Ray, numpy", adapter=f"{_PEERS}.ray_object_store:RayArrays", environment=_RAY
)
REDIS = System(label="Redis", adapter=f"{_PEERS}.redis_tensordict:RedisTensorDict")
REDIS_TCP = REDIS.with_settings(transport="tcp")
RAW_ZMQ = System(label="raw ZMQ", adapter=f"{_PEERS}.raw_zmq:RawZmq")
RAW_ZMQ_TCP = RAW_ZMQ.with_settings(transport="tcp")
RAW_ZMQ_CURVE = RAW_ZMQ.with_settings(
    "ZMQ + CURVE", transport="tcp", curve=True, frame_bytes=1 << 20
)
RAW_SOCKET = System(label="raw socket", adapter=f"{_PEERS}.raw_socket:RawSocket")
RAW_SOCKET_TCP = RAW_SOCKET.with_settings(transport="tcp")
RAW_SOCKET_TCP_WARM = RAW_SOCKET.with_settings("raw socket, warm", transport="tcp", warm=True)
_BATCHES = f"{_PEERS}.batches:Batches"
VIEW = System(label="ours", adapter=_BATCHES, home=Home.OURS, settings={"kind": "view"})
EAGER = System(label="ours, eager", adapter=_BATCHES, home=Home.VERL, settings={"kind": "eager"})
VERL = System(label="verl", adapter=_BATCHES, home=Home.VERL, settings={"kind": "verl"})
_STAGE_MODES = f"{_PEERS}.stage_modes:StageModes"
STAGE_MODES = System(
    label="ours", adapter=_STAGE_MODES, home=Home.VERL, settings={"ranks": 4}, environment=_RAY
)
STAGE_MODES_WITHOUT_VERL = System(
    label="ours", adapter=_STAGE_MODES, home=Home.OURS, settings={"ranks": 4}, environment=_RAY
)
"""One process that runs all modes, on one Ray."""
MEMCPY = System(label="memory", adapter=f"{_PEERS}.memcpy:Memcpy", one_process=True)


class RunningSystem:
    """A started system: the process that writes, those that read, and what could not be done.

    A failure ends the system and is remembered as its ``failure``; whoever measures goes on with
    the others.
    """

    def __init__(
        self, system: System, environments: Environments, log_dir: Path, *, readers: int = 1
    ) -> None:
        self.system = system
        self.failure: str | None = None
        self._environments = environments
        self._log_dir = log_dir
        self._processes: list[ActorProcess] = []
        try:
            self._open(readers)
        except NotRun as error:
            self.fail(str(error))

    def _open(self, readers: int) -> None:
        self._spawn("writer")
        address = self._call_open(self.writer, None)
        if self.system.one_process:
            return
        for k in range(readers):
            self._spawn(f"reader-{k}")
        for reader in self._processes[1:]:
            self._send_open(reader, address)
        for reader in self._processes[1:]:
            reader.receive(timeout_s=OPEN_TIMEOUT_S)

    def _spawn(self, role: str) -> None:
        python = self._environments.python(self.system.home)
        slug = "".join(c if c.isalnum() else "-" for c in self.system.label)
        self._processes.append(
            ActorProcess(
                f"{self.system.label} {role}",
                python,
                self._log_dir / f"{slug}-{role}.log",
                environment=self.system.environment,
            )
        )

    def _send_open(self, process: ActorProcess, address: str | None) -> None:
        process.send(
            "open",
            adapter=self.system.adapter,
            settings=dict(self.system.settings),
            address=address,
        )

    def _call_open(self, process: ActorProcess, address: str | None) -> str:
        self._send_open(process, address)
        return str(process.receive(timeout_s=OPEN_TIMEOUT_S)["address"])

    @property
    def label(self) -> str:
        return self.system.label

    @property
    def writer(self) -> ActorProcess:
        return self._processes[0]

    @property
    def readers(self) -> list[ActorProcess]:
        """The other processes; the writer itself where there is none."""
        return self._processes[1:] or self._processes

    @property
    def reader(self) -> ActorProcess:
        return self.readers[0]

    def fail(self, reason: str) -> None:
        """Give the system up; the first reason counts."""
        if self.failure is None:
            self.failure = reason
        self.close()

    @contextlib.contextmanager
    def attempt(self) -> Any:
        """What is measured inside fails this system alone."""
        try:
            yield
        except NotRun as error:
            self.fail(str(error))

    def close(self) -> None:
        """End its processes, readers first. Idempotent."""
        processes, self._processes = self._processes, []
        for process in reversed(processes):
            process.close()

    def __enter__(self) -> RunningSystem:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
