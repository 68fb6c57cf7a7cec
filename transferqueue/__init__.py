"""TransferQueue: a data plane for RL post-training that moves handles, not batches.

Importing this package imports neither torch nor ray; each public name is loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transferqueue import errors
    from transferqueue.client.async_client import AsyncClient
    from transferqueue.client.claims import AsyncClaim, Claim
    from transferqueue.client.connecting import connect, connect_async
    from transferqueue.client.sync_client import Client
    from transferqueue.client.weights import Weights
    from transferqueue.coordinator import samplers
    from transferqueue.coordinator.predicate import tag
    from transferqueue.handle import BatchHandle, FieldKind, FieldSpec
    from transferqueue.service.embedded import Service, serve

_HOME = {
    "AsyncClaim": "transferqueue.client.claims",
    "AsyncClient": "transferqueue.client.async_client",
    "BatchHandle": "transferqueue.handle",
    "Claim": "transferqueue.client.claims",
    "Client": "transferqueue.client.sync_client",
    "FieldKind": "transferqueue.handle",
    "FieldSpec": "transferqueue.handle",
    "Service": "transferqueue.service.embedded",
    "Weights": "transferqueue.client.weights",
    "connect": "transferqueue.client.connecting",
    "connect_async": "transferqueue.client.connecting",
    "serve": "transferqueue.service.embedded",
    "tag": "transferqueue.coordinator.predicate",
}
"""Where each public name is defined."""

_MODULES = {"errors": "transferqueue.errors", "samplers": "transferqueue.coordinator.samplers"}

__all__ = [
    "AsyncClaim",
    "AsyncClient",
    "BatchHandle",
    "Claim",
    "Client",
    "FieldKind",
    "FieldSpec",
    "Service",
    "Weights",
    "connect",
    "connect_async",
    "errors",
    "samplers",
    "serve",
    "tag",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
