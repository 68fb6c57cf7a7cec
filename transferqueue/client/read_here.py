"""Tensors of a put that are read where it is called, though they are on a device.

How long the rows of a ragged column are, and tags, must be known before anything is asked of a
shard. They are few bytes, but reading them waits for all that torch is at work on there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def read_here(columns: Mapping[str, Any], tags: Mapping[str, Any]) -> list[torch.Tensor]:
    """Of columns and tags as the caller gave them."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    found = [tag for tag in tags.values() if isinstance(tag, torch.Tensor)]
    for value in columns.values():
        if isinstance(value, torch.Tensor) and value.layout is torch.jagged:
            nested: Any = value
            found += [one for one in (nested.offsets(), nested.lengths()) if one is not None]
    return found
