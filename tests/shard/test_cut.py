"""What a shard shows at one moment, and the account of its parts of puts over several shards."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.checkpoint.saved_rows import from_records, to_records
from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.journal.records import encode_record, read_records
from transferqueue.memory.allocator import RangeAllocator, extents
from transferqueue.shard.cut import Cut, cut
from transferqueue.shard.split_puts import MAX_ENDED, SplitPuts
from transferqueue.shard.store import Store
from transferqueue.wire.put import ColumnPlan, PutPlan

DENSE = FieldSpec(dtype="float32", shape=(4,))
OTHER = FieldSpec(dtype="float32", shape=(8,))
RAGGED = FieldSpec(dtype="int64", shape=(-1,), ragged_dim=0)
TEXT = FieldSpec(dtype="object", shape=(), kind=FieldKind.OBJECT)


class Arena:
    """Space without bytes."""

    def __init__(self) -> None:
        self._allocator = RangeAllocator(1 << 20)
        self.reserve = self._allocator.alloc_many
        self.free = self._allocator.free_many
        self.extents_at = lambda addresses, nbytes: extents(nbytes)


@pytest.fixture
def store() -> Store:
    return Store(slot=3, space=Arena())


def column(name: str, spec: FieldSpec, num_rows: int, lengths: list[int] | None) -> ColumnPlan:
    units = num_rows if lengths is None else sum(lengths)
    return ColumnPlan(
        name=name,
        spec=spec,
        lengths=None if lengths is None else np.array(lengths, dtype=np.int64),
        nbytes=units * spec.unit_bytes,
    )


def put(
    store: Store,
    num_rows: int,
    specs: dict[str, FieldSpec],
    *,
    lengths: list[int] | None = None,
    uids: np.ndarray | None = None,
    part_of: str = "",
    partition: str = "train",
    overwrite: bool = False,
) -> np.ndarray:
    """A committed put; returns its uids."""
    plan = PutPlan(
        partition=partition,
        num_rows=num_rows,
        uids=uids,
        columns=[
            column(name, spec, num_rows, lengths if spec.has_lengths else None)
            for name, spec in specs.items()
        ],
        part_of=part_of,
        overwrite=overwrite,
    )
    reservation = store.reserve(plan, "writer")
    assert reservation is not None
    return store.commit(reservation.put_id).uids


def fields_of(made: Cut, partition: str = "train") -> dict[str, list[int]]:
    """Which rows have which field, by uid."""
    (found,) = [p for p in made.partitions if p.name == partition]
    return {c.field: found.uids[c.present].tolist() for c in found.columns}


def test_a_cut_has_every_cell_that_is_there_and_no_other(store: Store) -> None:
    first = put(store, 3, {"x": DENSE, "ids": RAGGED}, lengths=[2, 0, 5])
    second = put(store, 2, {"x": OTHER})
    put(store, 1, {"text": TEXT}, lengths=[7], uids=second[1:])
    store.clear("train", first[:1])
    store.reserve(PutPlan(partition="train", num_rows=9, uids=None, columns=[]), "w")
    made = cut(store, [])
    assert fields_of(made) == {
        "x": [*first[1:].tolist(), *second.tolist()],
        "ids": first[1:].tolist(),
        "text": second[1:].tolist(),
    }
    (partition,) = made.partitions
    sizes = {c.field: c.sizes.tolist() for c in partition.columns}
    assert sizes == {"x": [16, 16, 32, 32], "ids": [0, 40], "text": [7]}
    assert [c.offset for c in partition.columns] == [0, 96, 136]
    assert [c.runs.total_bytes for c in made.columns] == [96, 40, 7]
    assert made.num_rows == 4
    assert sum(stretch.nbytes for stretch in made.stretches) == 96 + 40 + 7


def test_what_a_cut_says_comes_back_from_its_records(store: Store) -> None:
    first = put(store, 3, {"x": DENSE, "ids": RAGGED}, lengths=[2, 0, 5])
    put(store, 2, {"x": OTHER}, partition="other")
    put(store, 1, {"text": TEXT}, lengths=[7], uids=first[1:2])
    made = cut(store, [])
    sums = np.array([1, 2**32 - 1], dtype=np.uint32)
    written = b"TQJ\x01" + b"".join(
        bytes(piece) for r in to_records(made.partitions, sums) for piece in encode_record(r)
    )
    partitions, found = from_records(read_records(written))
    assert found.tolist() == sums.tolist()
    assert [p.name for p in partitions] == ["train", "other"]
    for read, saved in zip(partitions, made.partitions, strict=True):
        assert read.uids.tolist() == saved.uids.tolist()
        for one, other in zip(read.columns, saved.columns, strict=True):
            assert (one.field, one.offset, list(one.specs)) == (
                other.field,
                other.offset,
                list(other.specs),
            )
            for name in ("present", "slabs", "lengths", "spec_of_slab", "sizes"):
                assert getattr(one, name).tolist() == getattr(other, name).tolist(), name


def test_rows_of_a_put_that_another_shard_has_not_are_left_out(store: Store) -> None:
    kept = put(store, 2, {"x": DENSE}, part_of="whole")
    put(store, 2, {"x": DENSE}, part_of="half")
    half = store.split_puts.written("half")
    assert half is not None
    made = cut(store, [half])
    assert fields_of(made) == {"x": kept.tolist()}
    assert made.num_rows == 2
    assert store.num_rows == 4  # the service goes on with what it has


def test_fields_of_a_put_that_another_shard_has_not_are_left_out(store: Store) -> None:
    rows = put(store, 3, {"x": DENSE})
    put(store, 2, {"y": DENSE}, uids=rows[:2], part_of="half")
    put(store, 1, {"y": DENSE}, uids=rows[2:])
    half = store.split_puts.written("half")
    assert half is not None
    assert fields_of(cut(store, [half])) == {"x": rows.tolist(), "y": rows[2:].tolist()}


def test_a_part_is_under_way_then_in_or_given_up(store: Store) -> None:
    plan = PutPlan(partition="p", num_rows=1, uids=None, columns=[], part_of="a")
    for part in ("a", "b", "c"):
        store.reserve(PutPlan(**{**_plain(plan), "part_of": part}), "w")
    ids = [r.put_id for r in store.reservations()]
    store.commit(ids[0])
    store.abort(ids[1])
    names = store.split_puts.names()
    assert (names.under_way, names.committed, names.given_up) == ({"c"}, {"a"}, {"b"})


def test_the_account_survives_a_rewritten_journal_and_is_bounded(store: Store) -> None:
    put(store, 2, {"x": DENSE}, part_of="a")
    store.split_puts.given_up("b")
    copy = SplitPuts()
    copy.restore(store.split_puts.ended_to_plain())
    assert copy.names() == store.split_puts.names()
    assert copy.written("a") == store.split_puts.written("a")
    for number in range(MAX_ENDED):
        copy.given_up(f"later {number}")
    assert copy.names().committed == frozenset()
    assert len(copy.names().given_up) == MAX_ENDED


def _plain(plan: PutPlan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in ("partition", "num_rows", "uids", "columns")}
