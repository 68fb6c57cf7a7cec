"""Devices that columns of a view land on."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from tensordict import TensorDict

Place: TypeAlias = torch.device | str
"""A device of torch's, or the name of one that torch does not know, as `find_device` takes it. Only
what is fetched lands on one of those; torch cannot move anything there."""


def place_of(device: Any) -> Place:
    """What a caller named. ``RuntimeError``, of torch, for what nobody knows."""
    from transferqueue.devices.registry import is_kind

    if isinstance(device, str) and not _is_known_to_torch(device) and is_kind(device):
        return device
    found: torch.device | None = TensorDict({}, batch_size=[], device=device).device
    assert found is not None
    return found


def _is_known_to_torch(device: str) -> bool:
    try:
        torch.device(device)
    except RuntimeError:
        return False
    return True
