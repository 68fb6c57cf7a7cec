"""Answers of the control plane as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.coordinator.effects import (
    Admitted,
    CellsReady,
    DeadLetters,
    Grant,
    Selection,
)
from transferqueue.fields import FieldSpec
from transferqueue.net.server import Reply
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.tags import write_tags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.coordinator.specs import Spec


def spec_from_wire(plain: object) -> Spec:
    """A field spec of the wire, as the table keeps it."""
    spec = FieldSpec.from_wire(plain)
    return spec.dtype, spec.shape, spec.ragged_dim, spec.kind.value


def specs_to_wire(specs: Mapping[str, Spec]) -> dict[str, Any]:
    """Inverse of `spec_from_wire`, for the fields of an answer."""
    return {name: list(spec) for name, spec in specs.items()}


def answer_message(payload: Grant | CellsReady | Selection | DeadLetters | Admitted) -> Reply:
    """The message of what the control plane answered."""
    arrays = ArrayWriter()
    if isinstance(payload, Grant):
        body: dict[str, Any] = {
            "claim_id": payload.claim_id,
            "partition": payload.partition,
            "uids": arrays.add(payload.uids),
            "fields": specs_to_wire(payload.fields),
            "tags": write_tags(payload.tags, arrays),
            "deliveries": arrays.add(payload.deliveries),
            "lease_s": payload.lease_s,
        }
    elif isinstance(payload, DeadLetters):
        body = {
            "uids": arrays.add(payload.uids),
            "fields": specs_to_wire(payload.fields),
            "tags": write_tags(payload.tags, arrays),
            "deliveries": arrays.add(payload.deliveries),
        }
    elif isinstance(payload, Selection):
        body = {
            "uids": arrays.add(payload.uids),
            "fields": specs_to_wire(payload.fields),
            "tags": write_tags(payload.tags, arrays),
        }
    elif isinstance(payload, CellsReady):
        body = {"fields": specs_to_wire(payload.fields)}
    elif isinstance(payload, Admitted):
        body = {"num_rows": payload.num_rows, "num_bytes": payload.num_bytes}
    return Reply(body=body, frames=arrays.frames)
