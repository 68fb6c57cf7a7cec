"""A store does what a dict of dicts would, whatever comes in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from transferqueue.backends.heap import HeapBackend
from transferqueue.errors import (
    DuplicateRows,
    FieldExists,
    FieldsMissing,
    RowsGone,
    TransferExpired,
)
from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.shard.store import Reservation, Store
from transferqueue.wire.put import ColumnPlan, PutPlan

BUDGET = 1 << 16
DENSE = FieldSpec(dtype="uint8", shape=(5,))
EMPTY = FieldSpec(dtype="uint8", shape=(0,))
RAGGED = FieldSpec(dtype="int16", shape=(-1,), ragged_dim=0)
OBJECT = FieldSpec(dtype="object", kind=FieldKind.OBJECT)
TEXT = FieldSpec(dtype="<U3", kind=FieldKind.ARRAY)
SPECS = [DENSE, EMPTY, RAGGED, OBJECT, TEXT]
FIELDS = ["a", "b", "c"]
PARTITIONS = ["p", "q"]


@dataclass
class Value:
    """One cell of the model."""

    spec: FieldSpec
    content: bytes


def plan_of(
    partition: str,
    num_rows: int,
    columns: dict[str, tuple[FieldSpec, list[int]]],
    *,
    uids: np.ndarray | None = None,
    overwrite: bool = False,
) -> PutPlan:
    plans = []
    for name, (spec, lengths) in columns.items():
        units = lengths[:num_rows] if spec.has_lengths else [1] * num_rows
        plans.append(
            ColumnPlan(
                name=name,
                spec=spec,
                lengths=np.array(units, np.int64) if spec.has_lengths else None,
                nbytes=sum(units) * spec.unit_bytes,
            )
        )
    return PutPlan(
        partition=partition, num_rows=num_rows, uids=uids, columns=plans, overwrite=overwrite
    )


class Filler:
    """Bytes that say which put they are of."""

    def __init__(self, store: Store, backend: HeapBackend) -> None:
        self._store = store
        self._backend = backend
        self._generation = 0

    def fill(self, reservation: Reservation) -> dict[str, list[Value]]:
        self._generation += 1
        values: dict[str, list[Value]] = {}
        for address, column in zip(
            reservation.addresses.tolist(), reservation.plan.columns, strict=True
        ):
            rng = np.random.default_rng(self._generation)
            content = rng.integers(0, 256, column.nbytes, dtype=np.uint8)
            if len(content):
                self._backend.write(address, content.data)
            lengths = column.lengths
            if lengths is None:
                lengths = np.ones(reservation.plan.num_rows, np.int64)
            ends = np.cumsum(lengths * column.spec.unit_bytes)
            values[column.name] = [
                Value(column.spec, cell.tobytes()) for cell in np.split(content, ends)[:-1]
            ]
        return values


@dataclass
class UnderWay:
    """A put that the model has not seen committed."""

    reservation: Reservation
    values: dict[str, list[Value]]


@dataclass
class Lease:
    """What a reader looks at."""

    reader: str
    lease_id: int
    seen: list[tuple[np.ndarray, np.ndarray, bytes]] = field(default_factory=list)


class StoreMachine(RuleBasedStateMachine):
    """The model: partition -> uid -> field -> value."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = HeapBackend(BUDGET)
        self.store = Store(slot=3, space=self.backend)
        self.filler = Filler(self.store, self.backend)
        self.model: dict[str, dict[int, dict[str, Value]]] = {name: {} for name in PARTITIONS}
        self.under_way: list[UnderWay] = []
        self.leases: list[Lease] = []
        self.now_s = 0.0

    # -- puts -----------------------------------------------------------------------------------

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS))
    def reserve_new_rows(self, data: st.DataObject, partition: str) -> None:
        num_rows = data.draw(st.integers(0, 6))
        self._reserve(plan_of(partition, num_rows, data.draw(_columns(num_rows))), "writer")

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), overwrite=st.booleans())
    def reserve_more_fields(self, *, data: st.DataObject, partition: str, overwrite: bool) -> None:
        uids = data.draw(_some_of(list(self.model[partition])))
        if data.draw(st.integers(0, 9)) == 0:
            uids = [*uids, 12345]
        plan = plan_of(
            partition,
            len(uids),
            data.draw(_columns(len(uids))),
            uids=np.array(uids, np.int64),
            overwrite=overwrite,
        )
        expected = self._refusal(plan)
        if expected is None:
            self._reserve(plan, data.draw(st.sampled_from(["writer", "other"])))
            return
        with pytest.raises(expected):
            self.store.reserve(plan, "writer")

    def _refusal(self, plan: PutPlan) -> type[Exception] | None:
        assert plan.uids is not None
        rows = self.model[plan.partition]
        uids = plan.uids.tolist()
        if any(uid not in rows for uid in uids):
            return RowsGone
        names = [column.name for column in plan.columns]
        reserved = {
            (uid, column.name)
            for put in self.under_way
            if put.reservation.plan.partition == plan.partition
            and put.reservation.plan.uids is not None
            for uid in put.reservation.plan.uids.tolist()
            for column in put.reservation.plan.columns
            if uid in rows and column.name not in rows[uid]
        }
        for uid in uids:
            for name in names:
                if (uid, name) in reserved or (name in rows[uid] and not plan.overwrite):
                    return FieldExists
        return None

    def _reserve(self, plan: PutPlan, writer: str) -> None:
        used = self.backend.used_bytes
        reservation = self.store.reserve(plan, writer)
        if reservation is None:
            assert self.backend.used_bytes == used
            return
        self.under_way.append(UnderWay(reservation, self.filler.fill(reservation)))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        put = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        plan = put.reservation.plan
        rows = self.model[plan.partition]
        if plan.uids is not None and any(uid not in rows for uid in plan.uids.tolist()):
            with pytest.raises(RowsGone):
                self.store.commit(put.reservation.put_id)
            return
        committed = self.store.commit(put.reservation.put_id)
        for row, uid in enumerate(committed.uids.tolist()):
            cells = rows.setdefault(uid, {})
            cells |= {name: values[row] for name, values in put.values.items()}
        with pytest.raises(TransferExpired):
            self.store.commit(put.reservation.put_id)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        put = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.store.abort(put.reservation.put_id)
        self.store.abort(put.reservation.put_id)

    # -- gets -----------------------------------------------------------------------------------

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), pin=st.booleans())
    def get(self, *, data: st.DataObject, partition: str, pin: bool) -> None:
        rows = self.model[partition]
        uids = data.draw(_some_of(list(rows)))
        if uids and data.draw(st.booleans()):
            uids = [uids[-1], *uids]
        fields = data.draw(_some_of(FIELDS))
        optional = [name for name in FIELDS if name not in fields]
        if any(name not in rows[uid] for uid in uids for name in fields):
            with pytest.raises(FieldsMissing):
                self._find(partition, uids, fields, optional)
            return
        found = self._find(partition, uids, fields, optional)
        for name, column in found.items():
            having = [uid for uid in uids if name in rows[uid]]
            content = self._read(column.runs.starts, column.runs.sizes)
            assert content == b"".join(rows[uid][name].content for uid in having)
            assert _specs(column) == [rows[uid][name].spec for uid in having]
        if pin and uids:
            reader = data.draw(st.sampled_from(["reader", "writer"]))
            self.now_s += 1
            lease = Lease(reader, self.store.pin(reader, list(found.values()), self.now_s))
            for column in found.values():
                content = self._read(column.runs.starts, column.runs.sizes)
                lease.seen.append((column.runs.starts, column.runs.sizes, content))
            self.leases.append(lease)

    @rule(uid=st.integers(-(2**63), 2**63 - 1), partition=st.sampled_from([*PARTITIONS, "new"]))
    def get_what_never_was(self, uid: int, partition: str) -> None:
        if uid not in self.model.get(partition, {}):
            with pytest.raises(RowsGone):
                self._find(partition, [uid], [], FIELDS)
        assert "new" not in self.store.partitions

    def _find(
        self, partition: str, uids: list[int], fields: list[str], optional: list[str]
    ) -> dict[str, Any]:
        return self.store.find(partition, np.array(uids, np.int64), fields, optional)

    def _read(self, starts: np.ndarray, sizes: np.ndarray) -> bytes:
        return self.backend.read_ranges(starts, sizes).tobytes()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.store.release("somebody else", [lease.lease_id])
        self.store.release(lease.reader, [lease.lease_id])
        self.store.release(lease.reader, [lease.lease_id])

    @rule(peer=st.sampled_from(["reader", "writer", "other"]))
    def peer_gone(self, peer: str) -> None:
        self.store.peer_gone(peer)
        self.leases = [lease for lease in self.leases if lease.reader != peer]
        self.under_way = [put for put in self.under_way if put.reservation.writer != peer]

    # -- clears ---------------------------------------------------------------------------------

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS))
    def clear_some(self, data: st.DataObject, partition: str) -> None:
        uids = data.draw(_some_of(list(self.model[partition])))
        gone = self.store.clear(partition, np.array([*uids, *uids[:1], 77], np.int64))
        assert gone.tolist() == sorted(uids)
        for uid in uids:
            del self.model[partition][uid]

    @rule(partition=st.sampled_from([*PARTITIONS, "new"]))
    def clear_all(self, partition: str) -> None:
        gone = self.store.clear(partition, None)
        assert gone.tolist() == sorted(self.model.get(partition, {}))
        self.model[partition] = {}

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def no_reader_sees_other_bytes(self) -> None:
        for lease in self.leases:
            for starts, sizes, content in lease.seen:
                assert self._read(starts, sizes) == content

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        assert self.store.num_rows == sum(map(len, self.model.values()))
        assert self.store.num_puts_under_way == len(self.under_way)
        for name in list(self.store.partitions):
            is_used = self.model[name] or any(
                put.reservation.plan.partition == name for put in self.under_way
            )
            assert is_used, f"an empty partition {name!r} was left"

    @invariant()
    def space_is_held_by_cells_puts_and_leases_alone(self) -> None:
        if not (self.leases or self.under_way or any(self.model.values())):
            assert self.backend.used_bytes == 0
            assert len(self.store.slabs) == 0
            assert self.store.leases.held_bytes == 0

    def teardown(self) -> None:
        for lease in self.leases:
            self.store.release(lease.reader, [lease.lease_id])
        for put in self.under_way:
            self.store.abort(put.reservation.put_id)
        for partition in PARTITIONS:
            self.store.clear(partition, None)
        assert self.backend.used_bytes == 0
        assert not self.store.partitions


def _columns(num_rows: int) -> st.SearchStrategy[dict[str, tuple[FieldSpec, list[int]]]]:
    lengths = st.lists(st.integers(0, 4), min_size=num_rows, max_size=num_rows)
    return st.dictionaries(
        st.sampled_from(FIELDS), st.tuples(st.sampled_from(SPECS), lengths), min_size=1
    )


def _some_of(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    if not values:
        return st.just([])
    return st.lists(st.sampled_from(values), unique=True, max_size=8)


def _specs(column: Any) -> list[FieldSpec]:
    which = column.spec_of_row
    if not len(column.lengths):
        return []
    if which is None:
        return [column.specs[0]] * len(column.lengths)
    return [column.specs[i] for i in which.tolist()]


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


# -- single cases ---------------------------------------------------------------------------------


@pytest.fixture
def backend() -> HeapBackend:
    return HeapBackend(BUDGET)


@pytest.fixture
def store(backend: HeapBackend) -> Store:
    return Store(slot=3, space=backend)


def put(store: Store, plan: PutPlan) -> np.ndarray:
    reservation = store.reserve(plan, "writer")
    assert reservation is not None
    return store.commit(reservation.put_id).uids


def test_uids_are_of_the_slot_and_rise_in_the_order_of_commits(store: Store) -> None:
    columns = {"x": (DENSE, [])}
    first = store.reserve(plan_of("p", 2, columns), "w")
    second = store.reserve(plan_of("p", 2, columns), "w")
    assert first is not None
    assert second is not None
    late = store.commit(second.put_id).uids
    assert (late >> 48).tolist() == [3, 3]
    assert store.commit(first.put_id).uids.min() > late.max()


def test_a_put_that_names_a_row_twice_changes_nothing(store: Store, backend: HeapBackend) -> None:
    uids = put(store, plan_of("p", 2, {"x": (DENSE, [])}))
    used = backend.used_bytes
    twice = plan_of("p", 3, {"y": (DENSE, [])}, uids=uids[[0, 1, 0]])
    with pytest.raises(DuplicateRows, match="3 rows but only 2 distinct"):
        store.reserve(twice, "w")
    assert backend.used_bytes == used


def test_a_put_to_fill_an_empty_cell_and_one_to_overwrite_it_exclude_one_another(
    store: Store,
) -> None:
    uids = put(store, plan_of("p", 1, {"x": (DENSE, [])}))
    over = store.reserve(plan_of("p", 1, {"y": (DENSE, [])}, uids=uids, overwrite=True), "w")
    assert over is not None
    with pytest.raises(FieldExists):
        store.reserve(plan_of("p", 1, {"y": (DENSE, [])}, uids=uids), "w")
    store.abort(over.put_id)
    put(store, plan_of("p", 1, {"y": (DENSE, [])}, uids=uids))


def test_clearing_63_of_64_rows_returns_63_parts_of_64(backend: HeapBackend) -> None:
    store = Store(slot=0, space=backend)
    spec = FieldSpec(dtype="uint8", shape=(128,))
    uids = put(store, plan_of("p", 64, {"x": (spec, [])}))
    assert backend.used_bytes == 64 * 128
    store.clear("p", uids[1:])
    assert backend.used_bytes == 128


def test_asking_in_vain_leaves_nothing_behind(store: Store) -> None:
    for number in range(100):
        with pytest.raises(RowsGone):
            store.find(f"p{number}", np.array([1]), [], ["x"])
        with pytest.raises(RowsGone):
            plan = plan_of(f"p{number}", 1, {"x": (DENSE, [])}, uids=np.array([1]))
            store.reserve(plan, "w")
        store.clear(f"p{number}", np.array([1]))
    put(store, plan_of("empty", 0, {"x": (DENSE, [])}))
    assert not store.partitions
