"""Model weights as one sample a version: each tensor a field, the version a tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from transferqueue.handle import BatchHandle

VERSION_FIELD = "version"
"""The version is stored beside the tensors too, so that one read tells both."""

_PREFIX = "weights/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One version of a model's weights."""

    version: int
    state_dict: Mapping[str, torch.Tensor]


def partition_of(name: str) -> str:
    """The partition that holds the versions of ``name``."""
    return _PREFIX + name


def rows_beyond(newest_first: BatchHandle, keep: int) -> BatchHandle:
    """The versions that ``keep`` newer ones have replaced."""
    return newest_first[keep:]


def state_of(columns: Mapping[str, Any]) -> Weights:
    """Weights from the columns of one sample, sharing their memory."""
    tensors = {name: value[0] for name, value in columns.items()}
    version = int(tensors.pop(VERSION_FIELD))
    return Weights(version=version, state_dict=tensors)
