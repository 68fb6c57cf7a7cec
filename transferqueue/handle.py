"""The batch that the controller holds: which samples, which fields. No data."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from transferqueue.errors import (
    FieldSpecMismatch,
    InvalidInput,
    Malformed,
    RowCountMismatch,
    UnknownField,
    WrongService,
    near_names,
)
from transferqueue.fields import FieldKind, FieldSpec, check_name, fields_from_wire, fields_to_wire
from transferqueue.handle_head import Head
from transferqueue.handle_rows import Rows, why_not_same_rows
from transferqueue.html import table_html
from transferqueue.meta import FrozenMeta, decode_meta, encode_meta, merge_meta, same_value
from transferqueue.rows import checked_count, choose_rows, even_chunks, permutation
from transferqueue.uids import Uids, as_uids, decode_uids
from transferqueue.wire.format import Buffer, pack_plain, unpack_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["BatchHandle", "FieldKind", "FieldSpec"]

_MAGIC: Final = b"TQH\x01"


class BatchHandle:
    """Samples of one partition, in an order, and the fields to see of them.

    A value: it is never changed, every operation returns another handle, and equal content is
    equal. Handles made from one another share uids and fields, so the algebra costs O(rows) numpy
    work at most and nothing per field. A sample may be in it more than once.

    A renamed field keeps its name in storage: ``stored_name("new")`` is what the shards know.
    """

    __slots__ = ("_head", "_rows")

    _head: Head
    _rows: Rows

    def __init__(
        self,
        *,
        service_id: str,
        partition: str,
        uids: object,
        fields: Mapping[str, FieldSpec] | None = None,
        sources: Mapping[str, str] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> None:
        """``uids``: ints ``[rows]``, or the `Rows` of a handle. ``sources``: stored name by visible
        name, of renamed fields.

        Raises `InvalidInput` or `MetaTooLarge`.
        """
        fields = dict(fields or {})
        sources = {name: stored for name, stored in (sources or {}).items() if name != stored}
        for name in fields:
            check_name(name, what="a field name")
        if not sources.keys() <= fields.keys():
            raise InvalidInput(f"sources of no field: {sorted(sources.keys() - fields.keys())}")
        head = Head(
            service_id=check_name(service_id, what="service_id"),
            partition=check_name(partition, what="partition"),
            fields=MappingProxyType(fields),
            sources=MappingProxyType(sources),
            meta=encode_meta(meta_info or {}),
        )
        _set_head(self, head)
        _set_rows(self, uids if isinstance(uids, Rows) else Rows(as_uids(uids)))

    def _with(self, **changes: Any) -> BatchHandle:
        """This handle with parts of its head replaced; what is given has been checked."""
        made = object.__new__(BatchHandle)
        _set_head(made, replace(self._head, **changes))
        _set_rows(made, self._rows)
        return made

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a BatchHandle is never changed; make another one ({name})")

    __delattr__ = None  # type: ignore[assignment]

    @property
    def service_id(self) -> str:
        """The service that gave the uids."""
        return self._head.service_id

    @property
    def partition(self) -> str:
        """The table that the samples are in."""
        return self._head.partition

    @property
    def uids(self) -> Uids:
        """The samples in order: int64 ``[rows]``, read-only."""
        return self._rows.uids

    @property
    def rows(self) -> Rows:
        """The samples, with what has been worked out of them."""
        return self._rows

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """The visible fields by name, read-only."""
        return self._head.fields

    @property
    def meta_info(self) -> FrozenMeta:
        """To be read: what would change it raises, `with_meta` makes another handle."""
        return FrozenMeta.of(decode_meta(self._head.meta))

    def stored_name(self, field: str) -> str:
        """What the shards call this field. Raises `UnknownField`."""
        self._require([field])
        return self._head.sources.get(field, field)

    @property
    def stored_names(self) -> Mapping[str, str]:
        """What the shards call each field."""
        return {**{name: name for name in self.fields}, **self._head.sources}

    @property
    def has_duplicates(self) -> bool:
        """Whether a sample is in it more than once. Such a handle can be read, not put to."""
        return not self._rows.are_distinct

    def __len__(self) -> int:
        return len(self._rows.uids)

    def __contains__(self, field: object) -> bool:
        return field in self.fields

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchHandle):
            return NotImplemented
        return (
            self.service_id == other.service_id
            and self.partition == other.partition
            and np.array_equal(self.uids, other.uids)
            and dict(self.fields) == dict(other.fields)
            and dict(self._head.sources) == dict(other._head.sources)
            and (self._head.meta == other._head.meta or same_value(self.meta_info, other.meta_info))
        )

    def __hash__(self) -> int:
        return hash((self.service_id, self.partition, self.uids.tobytes()))

    def __repr__(self) -> str:
        names = list(self.fields)
        shown = ", ".join(names[:6] + ["…"] * (len(names) > 6))
        return f"BatchHandle({self.partition!r}, {len(self)} rows, {len(names)} fields: {shown})"

    def _repr_html_(self) -> str:
        title = f"{len(self):,} samples of {self.partition!r}"
        return table_html(title, ["field", "type"], list(self.fields.items()))

    def _require(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.fields:
                raise UnknownField(name, near_names(name, self.fields), "the handle")

    def _only(self, names: Sequence[str]) -> BatchHandle:
        sources = self._head.sources
        return self._with(
            fields=MappingProxyType({name: self.fields[name] for name in names}),
            sources=MappingProxyType({n: sources[n] for n in names if n in sources}),
        )

    def select(self, fields: Sequence[str]) -> BatchHandle:
        """Only these fields, in this order. Raises `UnknownField`."""
        names = _names(fields)
        self._require(names)
        return self._only(names)

    def drop(self, fields: Sequence[str]) -> BatchHandle:
        """Without these fields. Raises `UnknownField`."""
        dropped = _names(fields)
        self._require(dropped)
        return self._only([name for name in self.fields if name not in dropped])

    def rename(self, names: Mapping[str, str]) -> BatchHandle:
        """Fields under new names, ``{old: new}``; nothing moves in storage.

        Raises `UnknownField`, or `InvalidInput` when two fields would have one name.
        """
        self._require(list(names))
        new_names = [names.get(name, name) for name in self.fields]
        for name in names.values():
            check_name(name, what="a field name")
            if new_names.count(name) > 1:
                raise InvalidInput(f"rename gives two fields the name {name!r}")
        stored = [self._head.sources.get(name, name) for name in self.fields]
        renamed = {n: s for n, s in zip(new_names, stored, strict=True) if n != s}
        return self._with(
            fields=MappingProxyType(dict(zip(new_names, self.fields.values(), strict=True))),
            sources=MappingProxyType(renamed),
        )

    def with_fields(self, fields: Mapping[str, FieldSpec]) -> BatchHandle:
        """With more fields, merged into those of the same name. Raises `FieldSpecMismatch`."""
        merged = dict(self.fields)
        for name, spec in fields.items():
            check_name(name, what="a field name")
            merged[name] = merged[name].merge(spec, field=name) if name in merged else spec
        return self._with(fields=MappingProxyType(merged))

    def with_meta(self, **meta_info: Any) -> BatchHandle:
        """With these ``meta_info`` values set. Raises `MetaTooLarge` or `InvalidInput`."""
        return self._with(meta=encode_meta(decode_meta(self._head.meta) | meta_info))

    def without_meta(self, *keys: str) -> BatchHandle:
        """Without these ``meta_info`` keys; without any when none is named."""
        had = decode_meta(self._head.meta) if keys else {}
        kept = {key: value for key, value in had.items() if key not in keys}
        return self._with(meta=encode_meta(kept))

    def with_rows(self, rows: Rows | Uids) -> BatchHandle:
        """With these samples instead, all of its own partition and with its fields: for whoever
        carries rows and the rest apart. Uids as `Rows` takes them."""
        made = object.__new__(BatchHandle)
        _set_head(made, self._head)
        _set_rows(made, rows if isinstance(rows, Rows) else Rows(rows))
        return made

    @property
    def head(self) -> Head:
        """All but the samples: one object for handles that were cut from one another."""
        return self._head

    def __getitem__(self, rows: object) -> BatchHandle:
        """Rows by slice, int (a handle of one row), ints ``[n]`` or a mask ``[rows]``.

        Ints may repeat or be negative. Raises ``IndexError`` out of range, ``TypeError`` for
        anything else.
        """
        return self.with_rows(self.uids[choose_rows(rows, len(self))])

    def __iter__(self) -> Iterator[BatchHandle]:
        """One handle a row."""
        return (self[row] for row in range(len(self)))

    def reorder(self, order: object) -> BatchHandle:
        """The same rows in another order: ``order`` is a permutation ``[rows]`` of row numbers."""
        return self.with_rows(self.uids[permutation(order, len(self))])

    def repeat(self, n: int, *, interleave: bool = True) -> BatchHandle:
        """Each row ``n`` times: ``a a b b`` interleaved, else ``a b a b``. 0 gives no rows."""
        count = checked_count(n, "n", low=0)
        return self.with_rows(
            np.repeat(self.uids, count) if interleave else np.tile(self.uids, count)
        )

    def chunk(self, n: int) -> list[BatchHandle]:
        """``n`` handles of sizes that differ by at most one, larger first: 10 rows by 4 are
        3, 3, 2, 2. With fewer rows than ``n`` the last ones are empty."""
        uids = self.uids
        chunks = even_chunks(len(uids), checked_count(n, "n", low=1))
        return [self.with_rows(uids[chunk]) for chunk in chunks]

    def split(self, size: int) -> list[BatchHandle]:
        """Handles of ``size`` rows, the last one shorter if need be. No rows: no handles."""
        starts = range(0, len(self), checked_count(size, "size", low=1))
        return [self.with_rows(self.uids[start : start + size]) for start in starts]

    def union(self, other: BatchHandle) -> BatchHandle:
        """The same rows with the fields and ``meta_info`` of both.

        Raises `RowCountMismatch`, `InvalidInput` (other rows, or another order),
        `FieldSpecMismatch`, `MetaConflict` or `WrongService`.
        """
        self._require_same_table(other)
        if len(self) != len(other):
            raise RowCountMismatch("union", len(self), len(other), _forgotten_repeat(self, other))
        if not np.array_equal(self.uids, other.uids):
            raise InvalidInput(why_not_same_rows(self.uids, other.uids))
        for name in self.fields.keys() & other.fields.keys():
            self._require_same_field(other, name)
        return self._with(
            fields=MappingProxyType({**self.fields, **other.fields}),
            sources=MappingProxyType({**self._head.sources, **other._head.sources}),
            meta=merge_meta([self._head.meta, other._head.meta]),
        )

    def _require_same_table(self, other: BatchHandle) -> None:
        if self.service_id != other.service_id:
            raise WrongService(other.service_id, self.service_id)
        if self.partition != other.partition:
            raise InvalidInput(
                f"handles of two partitions: {self.partition!r} and {other.partition!r}"
            )

    def _require_same_field(self, other: BatchHandle, name: str) -> None:
        left, right = self.fields[name], other.fields[name]
        if left != right:
            raise FieldSpecMismatch(name, str(left), str(right))
        stored = self.stored_name(name), other.stored_name(name)
        if stored[0] != stored[1]:
            raise FieldSpecMismatch(
                name, f"stored as {stored[0]!r}", f"one stored as {stored[1]!r}", "rename one"
            )

    @classmethod
    def concat(cls, handles: Sequence[BatchHandle]) -> BatchHandle:
        """The rows of all, one after another.

        They must be of one service and partition and have the same fields, whose specs are merged;
        ``meta_info`` is merged as by `union`. Raises ``ValueError`` for no handles.
        """
        if not handles:
            raise InvalidInput("concat needs at least one handle")
        first, rest = handles[0], handles[1:]
        fields = dict(first.fields)
        for other in rest:
            first._require_same_table(other)
            first._require_same_names(other)
            if other.fields is not first.fields:
                fields = {n: s.merge(other.fields[n], field=n) for n, s in fields.items()}
        rows = first.with_rows(np.concatenate([handle.uids for handle in handles]))
        meta = merge_meta([handle._head.meta for handle in handles])
        return rows._with(fields=MappingProxyType(fields), meta=meta)

    def _require_same_names(self, other: BatchHandle) -> None:
        if self.fields is other.fields and self._head.sources is other._head.sources:
            return
        differing = self.fields.keys() ^ other.fields.keys()
        if differing:
            raise InvalidInput(
                f"concat: fields {sorted(differing)} are not in every handle; select() the same"
            )
        for name in self.fields:
            if self.stored_name(name) != other.stored_name(name):
                self._require_same_field(other, name)

    def to_bytes(self) -> bytes:
        """The handle for a wire or file; a few KiB for a thousand rows (see `uids`)."""
        return _MAGIC + pack_plain(
            [
                self.service_id,
                self.partition,
                self._rows.coded,
                fields_to_wire(self.fields),
                dict(self._head.sources),
                self._head.meta,
            ]
        )

    @classmethod
    def from_bytes(cls, data: Buffer) -> BatchHandle:
        """Inverse of `to_bytes`. Trusts nothing; raises `Malformed`."""
        view = memoryview(data)
        if bytes(view[: len(_MAGIC)]) != _MAGIC:
            raise Malformed("not a BatchHandle")
        parts = unpack_plain(view[len(_MAGIC) :])
        if type(parts) is not list or [type(part) for part in parts] != _WIRE_TYPES:
            raise Malformed("a BatchHandle has six parts")
        service_id, partition, uids, fields, sources, meta = parts
        decode_meta(meta)  # must hold, but is kept as bytes
        try:
            handle = cls(
                service_id=service_id,
                partition=partition,
                uids=decode_uids(uids),
                fields=fields_from_wire(fields),
                sources=_sources_from_wire(sources),
            )
        except InvalidInput as error:
            raise Malformed(f"bad BatchHandle: {error}") from error
        return handle._with(meta=meta)

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchHandle.from_bytes, (self.to_bytes(),)


# Past __setattr__.
_set_head: Final = vars(BatchHandle)["_head"].__set__
_set_rows: Final = vars(BatchHandle)["_rows"].__set__

_WIRE_TYPES: Final[list[type]] = [str, str, bytes, list, dict, bytes]


def _sources_from_wire(sources: dict[Any, Any]) -> dict[str, str]:
    for name, stored in sources.items():
        if type(name) is not str or type(stored) is not str:
            raise Malformed("the sources of a handle are names")
        check_name(stored, what="a stored field name")
    return sources


def _names(fields: Sequence[str]) -> list[str]:
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names, got the str {fields!r}")
    return list(dict.fromkeys(fields))


def _forgotten_repeat(left: BatchHandle, right: BatchHandle) -> str:
    small, large = sorted((len(left), len(right)))
    if small and large % small == 0:
        return f"repeat the {small} rows first: h.repeat({large // small})"
    return "a union is of the same rows"
