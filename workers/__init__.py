"""Role workers, worker groups and the ways a batch reaches them.

A group runs ranks of a `Worker` as threads or processes (`LocalWorkerGroup`) or as Ray actors
(`RayWorkerGroup`, imported with Ray at the first use). How arguments reach the ranks is said where
the method is, by `register`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transferqueue.dispatch import Padding, by_tokens
    from workers.errors import CallTimedOut, NoRoom, WorkerDied, WorkerError, WorkerFailed
    from workers.futures import CallFuture, HandleFuture
    from workers.group import WorkerGroup
    from workers.local_group import LocalWorkerGroup
    from workers.mesh import Mesh, Placement
    from workers.modes import Dispatch, Execute, register_dispatch_mode
    from workers.ray_group import RayWorkerGroup
    from workers.ray_pool import ResourcePool
    from workers.registration import register
    from workers.worker import ServiceAddress, Worker, WorkerSpec

_HOME = {
    "CallFuture": "workers.futures",
    "CallTimedOut": "workers.errors",
    "Dispatch": "workers.modes",
    "Execute": "workers.modes",
    "HandleFuture": "workers.futures",
    "LocalWorkerGroup": "workers.local_group",
    "Mesh": "workers.mesh",
    "NoRoom": "workers.errors",
    "Padding": "transferqueue.dispatch",
    "Placement": "workers.mesh",
    "RayWorkerGroup": "workers.ray_group",
    "ResourcePool": "workers.ray_pool",
    "ServiceAddress": "workers.worker",
    "Worker": "workers.worker",
    "WorkerDied": "workers.errors",
    "WorkerError": "workers.errors",
    "WorkerFailed": "workers.errors",
    "WorkerGroup": "workers.group",
    "WorkerSpec": "workers.worker",
    "by_tokens": "transferqueue.dispatch",
    "register": "workers.registration",
    "register_dispatch_mode": "workers.modes",
}
"""Where each public name is defined."""

__all__ = [
    "CallFuture",
    "CallTimedOut",
    "Dispatch",
    "Execute",
    "HandleFuture",
    "LocalWorkerGroup",
    "Mesh",
    "NoRoom",
    "Padding",
    "Placement",
    "RayWorkerGroup",
    "ResourcePool",
    "ServiceAddress",
    "Worker",
    "WorkerDied",
    "WorkerError",
    "WorkerFailed",
    "WorkerGroup",
    "WorkerSpec",
    "by_tokens",
    "register",
    "register_dispatch_mode",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
