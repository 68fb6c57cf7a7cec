"""Co-located roles as a worker: called by name, or streaming in threads of their own.

The body of one process of a training run, whichever kind of group has it: `workers.role_groups`
calls it. Calls and loops of one process take turns, because its roles may share a model.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from transferqueue.dispatch.telling import tell
from transferqueue.errors import NotReady
from workers.modes import Dispatch
from workers.registration import register
from workers.roles.fields import MethodFields, declared_methods
from workers.roles.rollout import Rollout
from workers.rollout_stream import METHOD as GENERATE
from workers.rollout_stream import RolloutStream
from workers.stage_runner import Batch, StageLog, StageLoop, StageRunner
from workers.worker import Worker, WorkerSpec

if TYPE_CHECKING:
    from pathlib import Path

    from workers.spans import Span

RoleFactory = Callable[[], Mapping[str, Any]]
"""Makes the roles of one process, by name, in that process. A role is any object with methods
declared by `workers.roles.stage` or `workers.register`, or a `Worker` class or `WorkerSpec`, which
is made there as a worker of one rank."""

_called = register(Dispatch.RANK_ZERO, blocking=False)


class RoleWorker(Worker):
    """The roles of one process, beside one client."""

    def __init__(self, factory: RoleFactory, num_threads: int | None = 1) -> None:
        """``num_threads``: of torch; ``None`` leaves them as they are."""
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._log = StageLog()
        lock = threading.RLock()
        self._runners = {
            name: StageRunner(
                self._made(name, role), self.client, name=name, log=self._log, lock=lock
            )
            for name, role in factory().items()
        }
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._streams: list[RolloutStream] = []
        self._failure: Exception | None = None

    def _made(self, name: str, role: Any) -> Any:
        """A role; a worker has its place, with the client of this process."""
        context = replace(self._place(), role=name)
        if isinstance(role, WorkerSpec) or (isinstance(role, type) and issubclass(role, Worker)):
            return WorkerSpec.of(role).make(context)
        if isinstance(role, Worker):
            role._enter(context)
        return role

    @_called
    def declarations(self) -> dict[str, dict[str, MethodFields]]:
        """Role -> method -> columns, under the settings of each role."""
        return {name: declared_methods(runner.role) for name, runner in self._runners.items()}

    @_called
    def run(self, role: str, method_name: str, batch: Batch) -> Any:
        """`StageRunner.run` of one of the roles."""
        return self._runners[role].run(method_name, batch)

    @_called
    def call(self, role: str, method_name: str, args: tuple[Any, ...] = ()) -> Any:
        """A method that moves no columns, such as an evaluation."""
        runner = self._runners[role]
        with runner.lock:
            return getattr(runner.role, method_name)(*args)

    @_called
    def publish(self, role: str, name: str, version: int) -> float:
        """Publish a role's ``state_dict()``; returns the wall-clock time when it was there."""
        runner = self._runners[role]
        with runner.lock, self._log.spans.span(f"{role}.publish"):
            self.client.publish(name, runner.role.state_dict(), version=version)
        return time.time()

    @_called
    def load(self, role: str, name: str, version: int) -> None:
        """Load exactly this published version, if the role has another."""
        runner = self._runners[role]
        if runner.role.version == version:
            return
        with runner.lock, self._log.spans.span(f"{role}.load"):
            weights = self.client.fetch(name, version=version)
            runner.role.load_weights(weights.state_dict, weights.version)

    @_called
    def serve(self, role: str, method_name: str, loop: StageLoop) -> None:
        """Start to claim and run, in the background."""
        runner = self._runners[role]
        self._start(f"{role}.{method_name}", lambda: runner.serve(method_name, loop, self._stop))

    @_called
    def stream(
        self, role: str, loop: StageLoop, weights: str, max_staleness: int | None = None
    ) -> None:
        """Start to generate, in the background, under the newest published weights."""
        runner = self._runners[role]
        if not isinstance(runner.role, Rollout):
            raise TypeError(f"role {role!r} is no Rollout, so it cannot stream: {runner.role!r}")
        runner.role.version = -1  # so that the newest are loaded, whatever their number
        stream = RolloutStream(runner, loop, weights=weights, max_staleness=max_staleness)
        self._streams.append(stream)
        self._start(f"{role}.{GENERATE}", lambda: stream.run(self._stop))

    def _start(self, name: str, loop: Callable[[], None]) -> None:
        def run() -> None:
            try:
                loop()
            except Exception as error:  # noqa: BLE001 - check() raises it where it is looked for
                traceback.clear_frames(error.__traceback__)  # what the stage had in its hands
                self._failure = error

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    @_called
    def check(self) -> None:
        """Raises what ended a streaming stage, if anything has."""
        if self._failure is not None:
            raise self._failure

    @_called
    def stop(self) -> None:
        """End the loops; what they hold is given back."""
        self._end_loops()

    def _end_loops(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._stop.clear()

    @_called
    def report(self) -> dict[str, Any]:
        """Bytes by field of this process's client, totals by stage, and of rollouts that stream
        what became of generations and when versions gave their first tokens."""
        tell(self.client, self._log.traffic, at_once=True)
        return {
            "fields": self.client.stats(),
            "stages": {label: asdict(totals) for label, totals in self._log.totals.items()},
            "generations": [stream.counts() for stream in self._streams],
            "first_token_at_s": [dict(stream.first_token_at_s) for stream in self._streams],
        }

    @_called
    def spans(self) -> list[Span]:
        """When this process was at work since it was last asked."""
        return self._log.spans.take()

    @_called
    def save(self, folder: Path, suffix: str = "") -> list[str]:
        """Write the state of every role that has one to ``folder``; the names of these roles."""
        saved = []
        for name, runner in self._runners.items():
            if hasattr(runner.role, "save_state"):
                with runner.lock:
                    torch.save(runner.role.save_state(), folder / f"{name}{suffix}.pt")
                saved.append(name)
        return saved

    @_called
    def restore(self, folder: Path, suffix: str = "") -> list[str]:
        """Load what `save` wrote; the names of the roles that had something to load."""
        restored = []
        for name, runner in self._runners.items():
            path = folder / f"{name}{suffix}.pt"
            if path.exists() and hasattr(runner.role, "load_state"):
                with runner.lock:
                    runner.role.load_state(torch.load(path, weights_only=True))
                restored.append(name)
        return restored

    def close(self) -> None:
        """End the loops."""
        self._end_loops()


def newest_version(client: Any, name: str) -> int | None:
    """The newest published version of some weights; ``None`` when there is none."""
    try:
        return int(client.fetch(name, timeout_s=0.0).version)
    except NotReady:
        return None
