"""Which tensors of a put are in memory of a device, and where they are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.client.column_bytes import ColumnBytes
from transferqueue.client.device_bytes import DeviceBytes
from transferqueue.client.device_puts import DeviceColumn, InObject
from transferqueue.fields import FieldKind
from transferqueue.wire.tensors import refuse_unless_plain, tensor_block
from transferqueue.wire.values import CannotCarry

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from transferqueue.client.column_bytes import Column
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.device_sides import DeviceSides
    from transferqueue.devices.base import Event
    from transferqueue.wire.columns import EncodedColumn


class TensorsFound:
    """Of one put, on the caller's thread."""

    def __init__(self, devices: DeviceSides) -> None:
        self._devices = devices
        self._ready: dict[DeviceSide, Event] = {}
        self.in_objects: list[InObject] = []
        """Tensors inside object columns, whose bytes are to come to the host."""

    def stays(self, device: torch.device) -> bool:
        """Whether tensors of a device are put from there. `DeviceMissing` where they must be."""
        return self._devices.of_tensors(device) is not None

    def has_any(self, tensors: Iterable[torch.Tensor]) -> bool:
        """See `Elsewhere`."""
        return any(self._is_elsewhere(tensor) for tensor in tensors)

    def block(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """See `Elsewhere`."""
        if not self._is_elsewhere(tensor):
            return None
        import torch

        found = tensor_block(tensor, self.stays)
        if isinstance(found, np.ndarray):  # to torch it is memory of the CPU
            return torch.from_numpy(found) if self._on_device(found) is not None else None
        return found

    def _is_elsewhere(self, tensor: torch.Tensor) -> bool:
        if tensor.device.type != "cpu":
            return True
        if not self._devices.are_open:
            return False
        try:
            refuse_unless_plain(tensor)
        except CannotCarry:
            return False  # which is said where it is written
        return self._devices.holding(tensor) is not None

    def column(self, name: str, encoded: EncodedColumn) -> Column:
        """The bytes of a column where they are. Those of torch's own devices `stays` has left
        there; what is memory of the host to torch may be a device's all the same."""
        spec, lengths, payload = encoded.spec, encoded.lengths, encoded.payload
        for hole in encoded.holes:
            assert isinstance(payload, np.ndarray)
            part = payload[hole.offset : hole.offset + hole.block.nbytes]
            inner = self._found(hole.block)
            assert inner is not None, "a tensor was left on a device that nobody has"
            self.in_objects.append(InObject(field=name, place=part, side=inner[0], source=inner[1]))
        if isinstance(payload, np.ndarray):
            found = self._on_device(payload) if spec.kind is FieldKind.TENSOR else None
            if found is None:
                return ColumnBytes(spec=spec, lengths=lengths, payload=payload)
        else:
            found = self._found(payload)
            assert found is not None, "a tensor was left on a device that nobody has"
        side, source = found
        return DeviceColumn(spec=spec, lengths=lengths, side=side, source=source)

    def _on_device(self, payload: np.ndarray) -> tuple[DeviceSide, DeviceBytes] | None:
        if not (self._devices.are_open and len(payload) and payload.flags.writeable):
            return None
        import torch

        return self._found(torch.from_numpy(payload))

    def _found(self, tensor: torch.Tensor) -> tuple[DeviceSide, DeviceBytes] | None:
        found = self._devices.holding(tensor)
        if found is None:
            return None
        side, block = found
        if side not in self._ready:
            self._ready[side] = side.device.after_torch()
        return side, DeviceBytes(tensor=tensor, block=block, ready=self._ready[side])
