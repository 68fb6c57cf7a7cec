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
    from transferqueue.reads import on
    from transferqueue.service.embedded import Service, serve
    from transferqueue.service.ray_service import RayService, serve_ray
    from transferqueue.view import (
        BatchData,
        DataProto,
        DataProtoConfig,
        DataProtoFuture,
        DataProtoItem,
        all_gather_data_proto,
        collate_fn,
        derived,
        deserialize_single_tensor,
        deserialize_tensordict,
        fold_batch_dim,
        pad_dataproto_to_divisor,
        schema,
        serialize_single_tensor,
        serialize_tensordict,
        unfold_batch_dim,
        union_numpy_dict,
        union_tensor_dict,
        unpad_dataproto,
    )
    from transferqueue.view.lazy_dataproto import LazyDataProto

_HOME = {
    "AsyncClaim": "transferqueue.client.claims",
    "AsyncClient": "transferqueue.client.async_client",
    "BatchData": "transferqueue.view",
    "BatchHandle": "transferqueue.handle",
    "Claim": "transferqueue.client.claims",
    "Client": "transferqueue.client.sync_client",
    "DataProto": "transferqueue.view",
    "DataProtoConfig": "transferqueue.view",
    "DataProtoFuture": "transferqueue.view",
    "DataProtoItem": "transferqueue.view",
    "FieldKind": "transferqueue.handle",
    "FieldSpec": "transferqueue.handle",
    "LazyDataProto": "transferqueue.view.lazy_dataproto",
    "RayService": "transferqueue.service.ray_service",
    "Service": "transferqueue.service.embedded",
    "Weights": "transferqueue.client.weights",
    "all_gather_data_proto": "transferqueue.view",
    "collate_fn": "transferqueue.view",
    "connect": "transferqueue.client.connecting",
    "connect_async": "transferqueue.client.connecting",
    "deserialize_single_tensor": "transferqueue.view",
    "deserialize_tensordict": "transferqueue.view",
    "fold_batch_dim": "transferqueue.view",
    "on": "transferqueue.reads",
    "pad_dataproto_to_divisor": "transferqueue.view",
    "serialize_single_tensor": "transferqueue.view",
    "serialize_tensordict": "transferqueue.view",
    "serve": "transferqueue.service.embedded",
    "serve_ray": "transferqueue.service.ray_service",
    "tag": "transferqueue.coordinator.predicate",
    "unfold_batch_dim": "transferqueue.view",
    "union_numpy_dict": "transferqueue.view",
    "union_tensor_dict": "transferqueue.view",
    "unpad_dataproto": "transferqueue.view",
}
"""Where each public name is defined."""

_MODULES = {
    "derived": "transferqueue.view.derived",
    "errors": "transferqueue.errors",
    "samplers": "transferqueue.coordinator.samplers",
    "schema": "transferqueue.view.schema",
}

__all__ = [
    "AsyncClaim",
    "AsyncClient",
    "BatchData",
    "BatchHandle",
    "Claim",
    "Client",
    "DataProto",
    "DataProtoConfig",
    "DataProtoFuture",
    "DataProtoItem",
    "FieldKind",
    "FieldSpec",
    "LazyDataProto",
    "RayService",
    "Service",
    "Weights",
    "all_gather_data_proto",
    "collate_fn",
    "connect",
    "connect_async",
    "derived",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "errors",
    "fold_batch_dim",
    "on",
    "pad_dataproto_to_divisor",
    "samplers",
    "schema",
    "serialize_single_tensor",
    "serialize_tensordict",
    "serve",
    "serve_ray",
    "tag",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
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
