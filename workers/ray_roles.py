"""Roles as Ray actors: each a process of its own with a client of the data plane.

Ray carries handles and metrics, never a column of a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import ray

import transferqueue as tq
from transferqueue.errors import NotReady
from workers.stage_runner import StageLoop, StageRunner

RoleFactory = Callable[[], Mapping[str, Any]]
"""Makes the roles of one process, by name, in that process."""


class RoleActor:
    """The body of the Ray actor: co-located roles that share a client.

    Calls of one actor run one at a time, but for the loop of a streaming stage, which has a thread
    of its own and ends with `stop_serving`.
    """

    def __init__(self, address: str, factory: RoleFactory, num_threads: int = 1) -> None:
        import torch

        torch.set_num_threads(num_threads)
        self._client = tq.connect(address)
        self._runners = {name: StageRunner(role, self._client) for name, role in factory().items()}
        self._stop = threading.Event()
        self._loop: threading.Thread | None = None
        self._failure: BaseException | None = None

    def ready(self) -> bool:
        """Answers once the roles are made."""
        return True

    def run(self, role: str, method_name: str, handle: tq.BatchHandle) -> Any:
        """`StageRunner.run` of one of the roles."""
        return self._runners[role].run(method_name, handle)

    def call(self, role: str, method_name: str, *args: Any) -> Any:
        """A method that moves no columns, such as an evaluation."""
        return getattr(self._runners[role].role, method_name)(*args)

    def publish(self, role: str, name: str) -> int:
        """Publish a role's ``state_dict()`` under its ``version``, which is returned."""
        trained = self._runners[role].role
        self._client.publish(name, trained.state_dict(), version=trained.version)
        version: int = trained.version
        return version

    def serve(
        self, role: str, method_name: str, loop: StageLoop, weights: str | None = None
    ) -> None:
        """Start to claim and run, in the background. With ``weights`` the role loads the newest
        published version before each claim, and tags what it makes with it."""
        runner = self._runners[role]
        refresh = (lambda: self._refresh(role, weights)) if weights else (lambda: None)

        def tags() -> Mapping[str, Any]:
            return {"policy_version": runner.role.version} if weights else {}

        def run() -> None:
            try:
                runner.serve(method_name, loop, self._stop, tags=tags, before=refresh)
            except BaseException as error:
                self._failure = error
                raise

        self._loop = threading.Thread(target=run, name=f"{role}.{method_name}", daemon=True)
        self._loop.start()

    def _refresh(self, role: str, weights: str) -> None:
        served = self._runners[role].role
        try:
            newer = self._client.fetch(weights, newer_than=served.version, timeout_s=0.0)
        except NotReady:
            return
        served.load_weights(newer.state_dict, newer.version)

    def check(self) -> None:
        """Raises what ended a streaming stage, if anything has."""
        if self._failure is not None:
            raise self._failure

    def stop_serving(self) -> None:
        self._stop.set()
        if self._loop is not None:
            self._loop.join()

    def report(self) -> dict[str, Any]:
        """Bytes by field of this process's client, and the totals of each stage."""
        return {
            "fields": self._client.stats(),
            "stages": {
                f"{role}.{method}": asdict(totals)
                for role, runner in self._runners.items()
                for method, totals in runner.totals.items()
            },
        }

    def close(self) -> None:
        """End the loop and the client."""
        self.stop_serving()
        self._client.close()


class RayFuture:
    """The result of a remote call. Waiting raises what the role raised."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def result(self) -> Any:
        return ray.get(self._reference)


class RayRoles:
    """Role actors by the roles they host: `controller.async_ppo.RoleGroup` over Ray."""

    def __init__(self, actors: Mapping[str, Any]) -> None:
        """``actors``: role name to actor."""
        self._actors = actors
        self._streaming: list[Any] = []

    def watch(self, streaming: Sequence[Any]) -> None:
        """Actors that serve a loop, for `check`."""
        self._streaming = list(streaming)

    def run(self, role: str, method_name: str, handle: tq.BatchHandle) -> RayFuture:
        return RayFuture(self._actors[role].run.remote(role, method_name, handle))

    def call(self, role: str, method_name: str) -> RayFuture:
        return RayFuture(self._actors[role].call.remote(role, method_name))

    def publish(self, role: str, name: str) -> RayFuture:
        return RayFuture(self._actors[role].publish.remote(role, name))

    def check(self) -> None:
        """Raises what ended a streaming stage, if anything has."""
        ray.get([actor.check.remote() for actor in self._streaming])


def start_role(
    name: str, address: str, factory: RoleFactory, *, num_cpus: float = 0.1, num_threads: int = 1
) -> Any:
    """A Ray actor of these roles. The handle answers the methods of `RoleActor` remotely."""
    actor = ray.remote(RoleActor).options(name=name, num_cpus=num_cpus, max_concurrency=2)
    return actor.remote(address, factory, num_threads)
