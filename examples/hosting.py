"""Where the processes of an example run: under Ray, or as children of this one."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers import LocalWorkerGroup
from workers.role_groups import RoleGroups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workers.group import AnyService
    from workers.role_groups import StartGroup
    from workers.role_worker import RoleFactory

KINDS = ("ray", "processes")
CPUS_A_ROLE = 0.1
"""Of the two that Ray is told of: six roles share them, and most wait most of the time."""


@contextmanager
def hosted(
    kind: str, factories: Mapping[str, RoleFactory], service: AnyService
) -> Iterator[RoleGroups]:
    """The roles, each process made and ready; all gone when the block ends."""
    if kind == "processes":
        with RoleGroups(factories, _children(service)) as groups:
            yield groups
        return
    with (
        ray_runtime(num_cpus=2, object_store_bytes=80 << 20),
        RoleGroups(factories, _ray_actors(service)) as groups,
    ):
        yield groups


def _children(service: AnyService) -> StartGroup:
    return lambda _, worker: LocalWorkerGroup(worker, 1, service=service, processes=True)


def _ray_actors(service: AnyService) -> StartGroup:
    from workers.ray_group import RayWorkerGroup
    from workers.ray_pool import ResourcePool

    def start(name: str, worker: Any) -> Any:
        pool = ResourcePool([1], cpus_per_rank=CPUS_A_ROLE)
        return RayWorkerGroup(pool, worker, service=service, name=name)

    return start


@contextmanager
def ray_runtime(*, num_cpus: int, object_store_bytes: int) -> Iterator[None]:
    """A Ray of our own on this machine, gone when the block ends."""
    import ray

    root = str(Path(__file__).resolve().parents[1])
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=object_store_bytes,
        runtime_env={
            "env_vars": {
                "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
                "OMP_NUM_THREADS": "1",
            }
        },
    )
    try:
        yield
    finally:
        ray.shutdown()
