"""What the control plane asks its server to do. Plain values, no behaviour.

Every method of ``ControlPlane`` that can change something returns a list of these, in the order
in which they are to be carried out.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transferqueue.coordinator.specs import Spec
    from transferqueue.coordinator.tag_values import TagColumnValues
    from transferqueue.errors import TransferQueueError

WaiterId: TypeAlias = Hashable
"""Names one request that may be answered later; the server picks it and never uses it twice."""

ClientId: TypeAlias = Hashable
"""Names one connected client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The answer to a claim."""

    claim_id: int
    partition: str
    task: str
    uids: NDArray[np.int64]  # [rows], in the sampler's order
    fields: dict[str, Spec]
    """Per requested field one spec for all the rows; a dense dimension that differs is -1."""
    tags: dict[str, TagColumnValues]
    deliveries: NDArray[np.uint8]  # [rows]
    """How often each row has been given to this task, this time included; saturates at 63."""
    lease_s: float
    """How long the claim is held from now on."""
    lease_deadline_s: float
    """When it ends, on the clock that ``now_s`` is read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsReady:
    """The answer to a wait: every cell asked for is there."""

    fields: dict[str, Spec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The answer to a select: rows looked up, not taken."""

    uids: NDArray[np.int64]  # [rows], in the order asked for
    fields: dict[str, Spec]
    """Every field that all of the rows have."""
    tags: dict[str, TagColumnValues]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The rows of a task that are its dead letters."""

    uids: NDArray[np.int64]  # [rows]
    fields: dict[str, Spec]
    """Every field that all of the rows have."""
    tags: dict[str, TagColumnValues]
    deliveries: NDArray[np.uint8]  # [rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The answer to an admit: the put may go ahead."""

    num_rows: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer this request."""

    waiter_id: WaiterId
    payload: Grant | CellsReady | Selection | Admitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Answer this request with an error."""

    waiter_id: WaiterId
    error: TransferQueueError


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeRows:
    """Tell a shard to free rows, and to report ``cleared`` when it has.

    Until then the rows are nobody's: no claim, select or wait sees them, but quotas still count
    them. Freeing twice must be harmless: it is asked again when a shard comes back.
    """

    slot: int
    partition: str
    uids: NDArray[np.int64]  # [rows]
    fields: tuple[str, ...] | None = None
    """Free these cells only; ``None`` frees the whole rows."""


Effect: TypeAlias = Reply | Refuse | FreeRows
