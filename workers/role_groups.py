"""Roles by name, wherever their processes are: what a training driver calls.

A process is a group of one rank (`LocalWorkerGroup`, `RayWorkerGroup`, …) around a `RoleWorker`.
A role may be in several processes, as rollouts are: a batch is cut over them in order and joined
again, so that which process gets which rows depends on nothing but the batch.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transferqueue.closing import Closing
from transferqueue.errors import ConfigError, near_names
from transferqueue.handle import BatchHandle
from transferqueue.view import DataProto
from workers.errors import WorkerDied, WorkerError
from workers.role_worker import RoleFactory, RoleWorker
from workers.worker import WorkerSpec

if TYPE_CHECKING:
    from pathlib import Path

    from workers.group import RoleView, WorkerGroup
    from workers.roles.fields import MethodFields
    from workers.spans import Span
    from workers.stage_runner import Batch, StageLoop

StartGroup = Callable[[str, Mapping[str, WorkerSpec]], "WorkerGroup"]
"""Starts a process: its name, and its worker by role -> a group of one rank."""

_HOSTED = "roles"
"""The role under which a group has its `RoleWorker`."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The answers of several processes, to come."""

    futures: Sequence[Any]
    join: Callable[[list[Any]], Any]

    def get(self) -> Any:
        """Waits. Raises what the first of them raised."""
        return self.join([future.get() for future in self.futures])


class RoleGroups(Closing):
    """Processes by name, and the roles in them. A context manager; `close` ends them all."""

    def __init__(self, factories: Mapping[str, RoleFactory], start: StartGroup) -> None:
        """``factories``: process name -> what makes its roles. Returns when all are made."""
        self._factories = dict(factories)
        self._start = start
        self._groups: dict[str, WorkerGroup] = {}
        self._processes_of: dict[str, list[str]] = {}
        self._loops: dict[str, list[tuple[str, tuple[Any, ...]]]] = {}
        try:
            with ThreadPoolExecutor(max_workers=len(self._factories)) as starting:
                list(starting.map(self._start_process, self._factories))
            for name, declared in self._ask_all("declarations").items():
                for role in declared:
                    self._processes_of.setdefault(role, []).append(name)
        except BaseException:
            self.close()
            raise

    def _start_process(self, name: str) -> None:
        worker = WorkerSpec(RoleWorker, self._factories[name])
        self._groups[name] = self._start(name, {_HOSTED: worker})

    def _in(self, process: str) -> RoleView:
        """The methods of `RoleWorker` in a process."""
        return self._groups[process][_HOSTED]

    @property
    def processes(self) -> list[str]:
        """Names of the processes, in the order they were given."""
        return list(self._factories)

    def processes_of(self, role: str) -> list[str]:
        """Where a role is. ``ConfigError`` names an unknown role and near ones."""
        if role not in self._processes_of:
            near = near_names(role, self._processes_of)
            meant = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise ConfigError(f"no role {role!r}; {meant} there are {sorted(self._processes_of)}")
        return self._processes_of[role]

    def declarations(self) -> dict[str, dict[str, MethodFields]]:
        """Role -> method -> columns."""
        found: dict[str, dict[str, MethodFields]] = {}
        for declared in self._ask_all("declarations").values():
            found |= declared
        return found

    # -- calls ------------------------------------------------------------------------------------

    def run(self, role: str, method_name: str, batch: Batch) -> Joined:
        """Run a stage. The answer: the written fields as a batch of the same kind, or metrics."""
        names = self.processes_of(role)
        parts = _cut(batch, len(names))
        futures = [
            self._in(name).run(role, method_name, part)
            for name, part in zip(names, parts, strict=False)
        ]
        return Joined(futures, _joined)

    def call(self, role: str, method_name: str, *args: Any) -> Joined:
        """A method that moves no columns, in the first process of the role."""
        group = self._in(self.processes_of(role)[0])
        return Joined([group.call(role, method_name, args)], _only)

    def publish(self, role: str, name: str, version: int) -> Joined:
        """Publish a role's weights as this version; answers with the wall-clock time then."""
        group = self._in(self.processes_of(role)[0])
        return Joined([group.publish(role, name, version)], _only)

    def load(self, role: str, name: str, version: int) -> Joined:
        """Let every process of the role load this version of the weights."""
        futures = [
            self._in(process).load(role, name, version) for process in self.processes_of(role)
        ]
        return Joined(futures, list)

    # -- streaming --------------------------------------------------------------------------------

    def serve(self, role: str, method_name: str, loop: StageLoop) -> None:
        """Let every process of the role claim and run by itself."""
        self._begin(role, "serve", (role, method_name, loop))

    def stream(self, role: str, loop: StageLoop, weights: str, max_staleness: int | None) -> None:
        """Let every process of a rollout role generate by itself."""
        self._begin(role, "stream", (role, loop, weights, max_staleness))

    def _begin(self, role: str, method: str, args: tuple[Any, ...]) -> None:
        for process in self.processes_of(role):
            self._loops.setdefault(process, []).append((method, args))
            getattr(self._in(process), method)(*args).get()

    def check(self) -> None:
        """Raises what ended a streaming stage, or ``WorkerDied`` for a process that is gone."""
        for answer in [self._in(process).check() for process in self._loops]:
            answer.get()

    def stop(self) -> None:
        """End the streaming stages; their processes stay."""
        for process in self._loops:
            self._in(process).stop().get()
        self._loops = {}

    # -- death and restart ------------------------------------------------------------------------

    def dead(self) -> list[str]:
        """Processes that are gone."""
        gone = []
        for name in self._groups:
            try:
                self._in(name).check().get()
            except WorkerDied:
                gone.append(name)
            except WorkerError:
                pass  # it answers
        return gone

    def restart(self, process: str) -> None:
        """Make a process again, with its roles as their factory makes them, and its loops."""
        self._end(process)
        self._start_process(process)
        for method, args in self._loops.get(process, ()):
            getattr(self._in(process), method)(*args).get()

    def save(self, folder: Path) -> dict[str, list[str]]:
        """Write the state of all roles to ``folder``; process -> roles that had some."""
        return self._ask_each("save", folder)

    def restore(self, folder: Path) -> dict[str, list[str]]:
        """Load what `save` wrote."""
        return self._ask_each("restore", folder)

    def _ask_each(self, method: str, folder: Path) -> dict[str, list[str]]:
        futures = {
            name: getattr(self._in(name), method)(folder, f"@{name}") for name in self._groups
        }
        return {name: future.get() for name, future in futures.items()}

    # -- what they did ----------------------------------------------------------------------------

    def reports(self, processes: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """`RoleWorker.report` by process, of these or of all. One that is dead has nothing to tell
        and is left out: whoever calls it next finds out."""
        return self._ask_living("report", processes)

    def spans(self) -> dict[str, list[Span]]:
        """`RoleWorker.spans` by process, of those that live."""
        return self._ask_living("spans", None)

    def _ask_living(self, method: str, processes: Sequence[str] | None) -> dict[str, Any]:
        names = self.processes if processes is None else processes
        futures = {name: getattr(self._in(name), method)() for name in names}
        answers = {}
        for name, future in futures.items():
            with contextlib.suppress(WorkerDied):
                answers[name] = future.get()
        return answers

    def _ask_all(self, method: str) -> dict[str, Any]:
        # In the order given, not in that of the starts, which is a matter of chance.
        futures = {name: getattr(self._in(name), method)() for name in self.processes}
        return {name: future.get() for name, future in futures.items()}

    @property
    def groups(self) -> Mapping[str, WorkerGroup]:
        """The processes themselves."""
        return dict(self._groups)

    def close(self) -> None:
        """End every process. Idempotent."""
        for name in list(self._groups):
            self._end(name)

    def _end(self, name: str) -> None:
        group = self._groups.pop(name)
        with contextlib.suppress(WorkerError):  # of a process that is dead
            group.close()


def _only(answers: list[Any]) -> Any:
    return answers[0]


def _cut(batch: Batch, num_parts: int) -> list[Batch]:
    """In order, as even as can be; fewer parts when there are fewer rows."""
    num_parts = min(num_parts, len(batch))
    if num_parts <= 1:
        return [batch]
    bounds = [len(batch) * part // num_parts for part in range(num_parts + 1)]
    return [batch[start:end] for start, end in itertools.pairwise(bounds)]


def _joined(answers: list[Any]) -> Any:
    """Batches one after another; of metrics the means."""
    if len(answers) == 1:
        return answers[0]
    if isinstance(answers[0], BatchHandle):
        return BatchHandle.concat(answers)
    if isinstance(answers[0], DataProto):
        return DataProto.concat(answers)
    return {name: sum(a[name] for a in answers) / len(answers) for name in answers[0]}
