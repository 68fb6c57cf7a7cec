"""What the coordinator granted to a claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from transferqueue.handle import BatchHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Samples, and for how long."""

    claim_id: int
    handle: BatchHandle
    """The samples, with the fields that were asked for."""
    tags: Mapping[str, Any]
    """Tag values of the samples, in the handle's order."""
    deliveries: np.ndarray  # uint8[rows]
    """How often each sample has been given to this task, this time included."""
    lease_s: float
    """How long the samples are held for this worker, from when they were granted."""
