"""What a dispatched call gives back, from what its ranks answered. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from transferqueue.errors import InvalidInput
from transferqueue.fields import FieldSpec, fields_from_wire, fields_to_wire
from transferqueue.handle import BatchHandle
from transferqueue.meta import NO_META, decode_meta, encode_meta
from transferqueue.view.meta_info import METRICS_KEY, concatenated
from transferqueue.wire.format import Buffer, pack_plain, unpack_own

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_PLAIN_VALUES = 100
"""Of a reply that goes as bytes."""

_NAMES = frozenset({str})
_PLAIN = frozenset({type(None), bool, int, float, str})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReply:
    """What one rank answers: no column, only what the controller must know of them."""

    num_rows: int
    """Rows of its part, without padding."""
    fields: Mapping[str, FieldSpec] = field(default_factory=dict)
    """Columns that it stored."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None
    is_batch: bool = False
    """Whether the method returned a batch, and ``fields`` and ``meta`` are the answer; else it is
    ``value``."""
    made: BatchHandle | None = None
    """The new samples that it stored its columns as, where the rows of the batch repeat."""

    def packed(self) -> StageReply | bytes:
        """Bytes, a fraction of a pickle; itself where ``value`` is more than a few plain ones."""
        if not _is_plain(self.value):
            return self
        fields = fields_to_wire(self.fields) if self.fields else []
        meta = encode_meta(self.meta) if self.meta else NO_META
        made = None if self.made is None else self.made.to_bytes()
        try:
            return pack_plain([self.num_rows, fields, meta, self.is_batch, made, self.value])
        except InvalidInput:  # an int of more than 64 bits
            return self

    @classmethod
    def of(cls, packed: StageReply | Buffer) -> StageReply:
        """Inverse of `packed`. Raises `Malformed`."""
        if isinstance(packed, StageReply):
            return packed
        reply, meta = _unpacked(bytes(packed))
        # What comes with it is the caller's own, to change, and another rank may have answered the
        # same.
        if meta != NO_META:
            reply = replace(reply, meta=decode_meta(meta))
        return replace(reply, value=dict(reply.value)) if type(reply.value) is dict else reply


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> tuple[StageReply, bytes]:
    """A reply without its meta, and that. Ranks that have as many rows mostly answer with the same
    bytes."""
    num_rows, fields, meta, is_batch, made, value = unpack_own(packed)
    reply = StageReply(
        num_rows=num_rows,
        fields=fields_from_wire(fields),
        is_batch=is_batch,
        made=None if made is None else BatchHandle.from_bytes(made),
        value=value,
    )
    return reply, meta


def _is_plain(value: object) -> bool:
    """Whether msgpack gives this back as it is: nothing, a number or a text, or a few by name, such
    as metrics."""
    if type(value) is not dict:
        return type(value) in _PLAIN
    if len(value) > MAX_PLAIN_VALUES:
        return False
    return _NAMES.issuperset(map(type, value)) and _PLAIN.issuperset(map(type, value.values()))


def join(
    handle: BatchHandle, replies: Sequence[StageReply], *, storing: Sequence[int]
) -> BatchHandle | list[Any]:
    """The answer of a call on ``handle``.

    ``replies``: by rank. ``storing``: the ranks that store, one for each part, in part order.

    Batches: ``handle`` with the new fields, its ``meta_info`` updated by that of the ranks, with
    ``metrics`` collected into a list a name, one value a rank. Handles that the ranks made
    themselves: all rows of the storing ranks. Other values: a list, one a rank.
    """
    answers = [replies[rank] for rank in storing]
    if any(answer.is_batch for answer in answers):
        return with_replies(handle, replies)
    values = [answer.value for answer in answers]
    if values and all(isinstance(value, BatchHandle) for value in values):
        return BatchHandle.concat(values)
    return [reply.value for reply in replies]


def made_by(replies: Sequence[StageReply], *, storing: Sequence[int]) -> BatchHandle | None:
    """The new samples that the ranks which store have made, in part order; ``None`` where they
    made none."""
    parts = [replies[rank] for rank in storing]
    made = [part.made for part in parts if part.num_rows and part.made is not None]
    return BatchHandle.concat(made) if made else None


def with_replies(handle: BatchHandle, replies: Sequence[StageReply]) -> BatchHandle:
    """``handle`` as it is after a call: new fields, new ``meta_info``.

    ``MetaConflict`` when ranks disagree on a value that is no metric, ``FieldSpecMismatch`` when
    they stored a field in two ways.
    """
    # Metrics of an earlier stage are that stage's; they would come back as if they were new.
    kept = handle.without_meta(METRICS_KEY) if METRICS_KEY in handle.meta_info else handle
    meta = concatenated(dict(reply.meta) for reply in replies)
    # A rank without rows stored nothing, and what it made of no rows says little of the field.
    stored = [reply for reply in replies if reply.num_rows] or list(replies)
    for fields in {id(reply.fields): reply.fields for reply in stored}.values():
        if fields:
            kept = kept.with_fields(fields)
    return kept.with_meta(**meta) if meta else kept
