"""A batch as its holder works with it: cut, joined, reordered. No service runs.

``settings``: ``kind``, which is ``view`` (ours, its columns in a service that is never asked),
``eager`` (ours) or ``verl`` (its ``DataProto``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from tensordict import TensorDict

from tests.benchmarks.adapter import Adapter, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

OBJECTS = 3
"""Object columns; all other fields are float32."""


class Batches(Adapter):
    """One kind of batch, in one process."""

    def start(self) -> str:
        return ""

    def join(self, address: str) -> None:
        raise Unsupported("one process alone")

    def put(self, prepared: Any) -> Any:
        raise Unsupported("nothing is stored")

    def token(self, reference: Any) -> str:
        raise Unsupported("nothing is stored")

    def reference(self, token: str) -> Any:
        raise Unsupported("nothing is stored")

    def get(
        self, reference: Any, *, fields: Sequence[str] | None, rows: Sequence[int] | None
    ) -> Mapping[str, Any]:
        raise Unsupported("nothing is stored")

    def clear(self, reference: Any) -> None:
        raise Unsupported("nothing is stored")

    def close(self) -> None:
        pass

    def drive_batch_operations(
        self, *, rows: int, fields: int, width: int, parts: int, times: int
    ) -> dict[str, Any]:
        """Seconds of each operation, by name."""
        make = getattr(self, f"_{self.settings['kind']}")
        batch = make("a", rows, fields, width)
        # What a stage adds: a few columns of the same rows.
        more = make("b", rows, fields // 5, width)
        order = torch.from_numpy(np.random.default_rng(0).permutation(rows))
        chunks = batch.chunk(parts)
        steps: dict[str, Callable[[], Any]] = {
            "construction": lambda: make("a", rows, fields, width),
            f"chunk({parts})": lambda: batch.chunk(parts),
            f"concat of {parts}": lambda: type(batch).concat(chunks),
            "union": lambda: batch[:].union(more),
            "select": lambda: batch.select(["a0", "a1"], []),
            "reorder": lambda: batch.reorder(order),
            "repeat(4)": lambda: batch.repeat(4),
        }
        if self.settings["kind"] != "view":
            del steps["construction"]
        return {name: _seconds(step, times) for name, step in steps.items()}

    drives: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "batch_operations": drive_batch_operations,
    }

    # -- kinds ----------------------------------------------------------------------------------

    def _view(self, prefix: str, rows: int, fields: int, width: int) -> Any:
        from transferqueue.view.lazy_dataproto import LazyDataProto

        handle, connection = self._handle(prefix, rows, fields, width)
        return LazyDataProto.over(handle, connection)

    def _eager(self, prefix: str, rows: int, fields: int, width: int) -> Any:
        from transferqueue import DataProto

        return DataProto(*_columns(prefix, rows, fields, width))

    def _verl(self, prefix: str, rows: int, fields: int, width: int) -> Any:
        from verl import DataProto

        return DataProto(*_columns(prefix, rows, fields, width))

    def _handle(self, prefix: str, rows: int, fields: int, width: int) -> Any:
        """Uids in no order, as after a shuffle. Made once: construction is of the view."""
        made: dict[Any, Any] = self.__dict__.setdefault("_handles", {})
        if prefix not in made:
            made[prefix] = _new_handle(prefix, rows, fields, width), self._connection()
        return made[prefix]

    def _connection(self) -> Any:
        from transferqueue.view.lazy_connection import Connection

        return self.__dict__.setdefault("_one_connection", Connection("no-service", {}))


def _new_handle(prefix: str, rows: int, fields: int, width: int) -> Any:
    from transferqueue import BatchHandle, FieldKind, FieldSpec
    from transferqueue.uids import make_uids

    tensor = FieldSpec(dtype="float32", shape=(width,))
    specs = {f"{prefix}{k}": tensor for k in range(fields - OBJECTS)}
    objects = FieldSpec(dtype="object", kind=FieldKind.OBJECT)
    specs |= {f"{prefix}o{k}": objects for k in range(OBJECTS)}
    uids = np.random.default_rng(1).permutation(make_uids(0, 0, rows))
    return BatchHandle(service_id="no-service", partition="train", uids=uids, fields=specs)


def _columns(
    prefix: str, rows: int, fields: int, width: int
) -> tuple[TensorDict, dict[str, np.ndarray]]:
    tensors = {f"{prefix}{k}": torch.ones(rows, width) for k in range(fields - OBJECTS)}
    objects = {f"{prefix}o{k}": np.arange(rows).astype(object) for k in range(OBJECTS)}
    return TensorDict(tensors, batch_size=[rows]), objects


def _seconds(step: Callable[[], Any], times: int) -> list[float]:
    step()
    seconds = []
    for _ in range(times):
        started_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started_s)
    return seconds
