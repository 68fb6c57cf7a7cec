"""The bytes of a tensor in memory of a device of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from transferqueue.devices.base import DeviceBlock, Event

Ranges = list[tuple[int, int]]
"""Of its bytes: offsets and sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBytes:
    """The bytes of a tensor where they are."""

    tensor: torch.Tensor  # uint8[bytes]; keeps the memory
    block: DeviceBlock
    ready: Event
    """Whatever made the tensor is done. One for all tensors of a put and device."""
