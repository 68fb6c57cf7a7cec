"""Publishing and fetching model weights, over puts, gets and look-ups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.client.inputs import state_columns
from transferqueue.client.weights import (
    VERSION_FIELD,
    Weights,
    partition_of,
    rows_beyond,
    state_of,
)
from transferqueue.coordinator.predicate import tag
from transferqueue.errors import InvalidInput, RowsGone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.client.control_operations import ControlOperations
    from transferqueue.client.data_operations import DataOperations
    from transferqueue.coordinator.predicate import Predicate


class WeightOperations:
    """Versions of weights, each one sample of a partition of its own."""

    def __init__(self, data: DataOperations, control: ControlOperations) -> None:
        self._data = data
        self._control = control

    async def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        version: int,
        keep: int = 2,
        timeout_s: float | None = None,
    ) -> None:
        partition = partition_of(name)
        handle = await self._data.put(
            state_columns(state_dict, version),
            partition=partition,
            tags={"version": version},
            timeout_s=timeout_s,
        )
        await self._control.wait(handle, fields=[VERSION_FIELD], timeout_s=timeout_s)
        newest_first = await self._control.select(
            partition, order_by="version", timeout_s=timeout_s
        )
        outdated = rows_beyond(newest_first, keep)
        if len(outdated):
            await self._data.clear(outdated, timeout_s=timeout_s)

    async def fetch(
        self,
        name: str,
        *,
        version: int | str = "latest",
        newer_than: int | None = None,
        device: object = None,
        timeout_s: float | None = None,
    ) -> Weights:
        if version != "latest" and newer_than is not None:
            raise InvalidInput("fetch takes a version or newer_than, not both")
        where: Predicate | None = None
        if version != "latest":
            where = tag("version") == int(version)
        elif newer_than is not None:
            where = tag("version") > newer_than
        while True:
            handle = await self._control.select(
                partition_of(name),
                where=where,
                order_by="version",
                n=1,
                min_rows=1,
                timeout_s=timeout_s,
            )
            try:
                # timeout_s is how long to wait for a version; moving it has the usual deadline.
                return state_of(await self._data.get_columns(handle, device=device))
            except RowsGone:
                continue  # replaced by a newer one between the two steps
