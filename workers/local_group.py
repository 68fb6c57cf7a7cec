"""`LocalWorkerGroup`: ranks as threads or child processes of this one, without Ray."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import TYPE_CHECKING, Any

from transferqueue.errors import ConfigError
from workers.errors import CallTimedOut
from workers.futures import FAILURE_GRACE_S, Answers, raise_first
from workers.group import (
    DEFAULT_CALL_TIMEOUT_S,
    AnyService,
    GroupConfig,
    Roles,
    WorkerGroup,
)
from workers.host import HostCall, HostSetup
from workers.local_process import ProcessRank
from workers.local_thread import ThreadRank
from workers.mesh import Mesh, Placement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LocalAnswers(Answers):
    """Answers of threads or child processes."""

    def __init__(self, method: str, futures: Sequence[Future[Any]]) -> None:
        self._method = method
        self._futures = list(futures)

    def values(self, timeout_s: float) -> list[Any]:
        started_s = time.monotonic()
        finished, late = wait(self._futures, timeout_s, FIRST_EXCEPTION)
        if late and any(future.exception() for future in finished):
            finished, late = wait(self._futures, FAILURE_GRACE_S)
        failures = [
            (rank, future.exception())
            for rank, future in enumerate(self._futures)
            if future in finished
        ]
        raise_first(failures, still_at_it=[self._futures.index(future) for future in late])
        if late:
            ranks = sorted(self._futures.index(future) for future in late)
            raise CallTimedOut(self._method, ranks, time.monotonic() - started_s)
        return [future.result() for future in self._futures]

    def is_done(self) -> bool:
        return all(future.done() for future in self._futures)

    @property
    def refs(self) -> None:
        return None


class LocalWorkerGroup(WorkerGroup):
    """Ranks in this process, each a thread, or as child processes.

    For tests, for one machine, and where Ray is not wanted. Threads share memory, so batches that
    are shipped (not by handle) are copied, as they would be between processes. Child processes
    import the program: its workers are in a module, and it makes groups under
    ``if __name__ == "__main__":``.
    """

    def __init__(
        self,
        worker: Roles,
        world_size: int | None = None,
        *,
        mesh: Mesh | Placement | None = None,
        meshes: Mapping[str, Mesh | Placement] | None = None,
        service: AnyService | None = None,
        processes: bool = False,
        fat: bool = False,
        call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S,
        start_timeout_s: float = 120.0,
    ) -> None:
        """``worker``: a class, a `WorkerSpec`, or several by the name of their role.

        ``mesh``: how ranks share a batch; by default each of ``world_size`` has a part of its own.
        ``service``: what `Worker.client` connects to, when it is not to be found by
        ``tq.connect()``. ``fat``: HANDLE methods get shipped batches, to
        compare; of a view the caller fetches all columns first.

        Returns when every ``__init__`` is done; raises what one raised, with nothing left running.
        """
        self._ranks: list[ThreadRank | ProcessRank] = []
        super().__init__(
            GroupConfig.of(
                worker,
                mesh=_mesh_of(world_size, mesh),
                meshes=meshes,
                service=service,
                fat=fat,
                call_timeout_s=call_timeout_s,
            )
        )
        try:
            self._start(processes=processes, start_timeout_s=start_timeout_s)
        except BaseException:
            self.close()
            raise

    def _start(self, *, processes: bool, start_timeout_s: float) -> None:
        config = self._config
        port = _free_port()
        setups = [
            HostSetup(
                rank=rank,
                world_size=config.mesh.world_size,
                mesh=config.mesh,
                roles=config.roles,
                service=config.service,
                fat=config.fat,
                local_rank=rank,
                master_port=port,
            )
            for rank in range(config.mesh.world_size)
        ]
        kind: type[ThreadRank | ProcessRank] = ProcessRank if processes else ThreadRank
        for setup in setups:  # one by one, so that close() ends those that were started
            self._ranks.append(kind(setup))
        LocalAnswers("__init__", [rank.ready for rank in self._ranks]).values(start_timeout_s)

    def _submit(self, calls: Sequence[HostCall]) -> Answers:
        self._count_payload(value for call in calls for value in call.payload)
        futures = [rank.submit(call) for rank, call in zip(self._ranks, calls, strict=False)]
        return LocalAnswers(calls[0].label, futures)

    def _submit_query(self, method: str, args: Sequence[Any] = ()) -> Answers:
        return LocalAnswers(method, [rank.query(method, *args) for rank in self._ranks])

    def _end(self) -> None:
        for rank in self._ranks:
            rank.let_go()
        with contextlib.ExitStack() as stack:
            for rank in self._ranks:
                stack.callback(rank.join)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; of threads all the same."""
        return [rank.pid for rank in self._ranks]


def _mesh_of(world_size: int | None, mesh: Mesh | Placement | None) -> Mesh | Placement:
    if mesh is None:
        return Mesh.of(dp=1 if world_size is None else world_size)
    if world_size not in (None, mesh.world_size):
        raise ConfigError(f"world_size={world_size}, but the mesh has {mesh.world_size} ranks")
    return mesh


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
