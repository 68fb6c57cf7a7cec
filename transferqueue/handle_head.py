"""What a handle says of its samples, apart from which they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.fields import FieldSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Shared by all handles that were cut from one another, which therefore cost a pointer each
    for it."""

    service_id: str
    partition: str
    fields: Mapping[str, FieldSpec]
    """The visible ones by name, read-only."""
    sources: Mapping[str, str]
    """Stored name by visible name, of renamed fields, read-only."""
    meta: bytes
    """``meta_info`` as `encode_meta` has it."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for heads of which one was made from the other and says the same; holds for as
        long as one of them lives. Comparing fields would cost more than it is worth."""
        return (self.service_id, self.partition, id(self.fields), id(self.sources), self.meta)
