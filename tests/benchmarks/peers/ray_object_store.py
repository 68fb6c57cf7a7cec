"""Ray's object store: one object a batch, a dict of tensors or of numpy arrays.

Writer and reader are two drivers of one Ray. A reference goes from one to the other inside an
actor's arguments, as in a Ray program: one that is pickled by hand pins its object for good.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import ray
import torch

from tests.benchmarks.adapter import Adapter, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.columns import Columns

OBJECT_STORE_BYTES = 2 << 30
NAMESPACE = "bench"
MAILBOX = "mailbox"


def start_ray() -> str:
    """A Ray of this host alone; returns its address. What runs on it asks for no CPUs worth
    counting, so it is told of enough."""
    ray.init(
        address="local",
        num_cpus=16,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        namespace=NAMESPACE,
    )
    return str(ray.get_runtime_context().gcs_address)


def join_ray(address: str) -> None:
    """Connect to what another process has started with `start_ray`."""
    ray.init(address=address, log_to_driver=False, namespace=NAMESPACE)


class Mailbox:
    """Holds references by name, for other drivers to take."""

    def __init__(self) -> None:
        self._held: dict[str, list[ray.ObjectRef]] = {}

    def keep(self, token: str, references: list[ray.ObjectRef]) -> None:
        self._held[token] = references

    def give(self, token: str) -> list[ray.ObjectRef]:
        return self._held[token]

    def drop(self, token: str) -> None:
        self._held.pop(token, None)


class RayTensors(Adapter):
    """A dict of torch tensors and lists, as it is."""

    def start(self) -> str:
        address = start_ray()
        self._mailbox: Any = ray.remote(Mailbox).options(name=MAILBOX, num_cpus=0.001).remote()
        self._tokens: dict[ray.ObjectRef, str] = {}
        return address

    def join(self, address: str) -> None:
        join_ray(address)
        self._mailbox = ray.get_actor(MAILBOX)
        self._tokens = {}

    def put(self, prepared: Columns) -> ray.ObjectRef:
        return ray.put(prepared)

    def token(self, reference: ray.ObjectRef) -> str:
        token = self._tokens[reference] = secrets.token_hex(8)
        ray.get(self._mailbox.keep.remote(token, [reference]))
        return token

    def reference(self, token: str) -> ray.ObjectRef:
        (reference,) = ray.get(self._mailbox.give.remote(token))
        return reference

    def get(
        self,
        reference: ray.ObjectRef,
        *,
        fields: Sequence[str] | None,
        rows: Sequence[int] | None,
    ) -> Mapping[str, Any]:
        """An object comes whole; fields and rows are taken from it afterwards."""
        columns: dict[str, Any] = ray.get(reference, timeout=60)
        if fields is not None:
            columns = {name: columns[name] for name in fields}
        if rows is not None:
            index = torch.tensor(rows)
            columns = {name: value[index] for name, value in columns.items()}
        return columns

    def clear(self, reference: ray.ObjectRef) -> None:
        """Ray frees an object with its last reference; the caller drops the others."""
        ray.get(self._mailbox.drop.remote(self._tokens.pop(reference)))

    def close(self) -> None:
        ray.shutdown()


class RayArrays(RayTensors):
    """A dict of numpy arrays, which Ray maps without a copy (read-only)."""

    def prepare(self, columns: Columns) -> dict[str, Any]:
        if not all(isinstance(value, torch.Tensor) for value in columns.values()):
            raise Unsupported("strings and jagged tensors are no numpy arrays")
        if any(value.is_nested for value in columns.values()):
            raise Unsupported("jagged tensors are no numpy arrays")
        return {name: value.numpy() for name, value in columns.items()}
