"""Ray's object store: one object a batch, a dict of tensors or of numpy arrays."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import ray
import torch

from tests.benchmarks.adapter import Adapter, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.columns import Columns

OBJECT_STORE_BYTES = 2 << 30


def start_ray() -> str:
    """A Ray of this host alone, on loopback; returns its address. What runs on it asks for no
    CPUs worth counting, so it is told of enough."""
    ray.init(
        address="local",
        num_cpus=16,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    return str(ray.get_runtime_context().gcs_address)


class RayTensors(Adapter):
    """A dict of torch tensors and lists, as it is."""

    def start(self) -> str:
        return start_ray()

    def join(self, address: str) -> None:
        ray.init(address=address, log_to_driver=False)

    def put(self, prepared: Columns) -> ray.ObjectRef:
        return ray.put(prepared)

    def token(self, reference: ray.ObjectRef) -> str:
        return base64.b64encode(ray.cloudpickle.dumps(reference)).decode()

    def reference(self, token: str) -> ray.ObjectRef:
        return ray.cloudpickle.loads(base64.b64decode(token))

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
        ray.internal.free([reference])

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
