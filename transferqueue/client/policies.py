"""The settings of a partition as callers give them, made plain and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.coordinator.policy import PartitionPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.view.schema import Schema


def policy_of(settings: Mapping[str, Any]) -> PartitionPolicy:
    """``InvalidInput`` for a setting that there is not, or that cannot be."""
    from transferqueue.view import schema, schema_plain

    given = settings.get("schema")
    if isinstance(given, schema.Schema):
        settings = {**settings, "schema": schema_plain.to_plain(given)}
    return PartitionPolicy.from_plain(settings)


def schema_of(policy: PartitionPolicy) -> Schema | None:
    from transferqueue.view import schema_plain

    return None if policy.schema is None else schema_plain.from_plain(policy.schema)
