"""Every operation on handles does to uids what numpy does to an array of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transferqueue.handle import BatchHandle, FieldKind, FieldSpec

SPECS = [
    FieldSpec(dtype="float32", shape=(4,)),
    FieldSpec(dtype="int64", shape=(-1, 2), ragged_dim=0),
    FieldSpec(dtype="<U5", kind=FieldKind.ARRAY),
    FieldSpec(dtype="object", kind=FieldKind.OBJECT),
]
NAMES = ["a", "b", "c", "d", "e", "f"]

uid_lists = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 20), max_size=30)


class HandleAgainstNumpy(RuleBasedStateMachine):
    """One handle, and beside it an array of uids and a dict of what each name stands for."""

    @initialize(uids=uid_lists, names=st.lists(st.sampled_from(NAMES), unique=True))
    def make(self, uids: list[int], names: list[str]) -> None:
        self.uids = np.array(uids, dtype=np.int64)
        self.meaning = {name: (f"{name}", SPECS[i % 4]) for i, name in enumerate(names)}
        self.handle = BatchHandle(
            service_id="svc",
            partition="train",
            uids=self.uids,
            fields={name: spec for name, (_, spec) in self.meaning.items()},
            meta_info={"k": (1, [2])},
        )

    @rule(rows=st.slices(12))
    def slice(self, rows: slice) -> None:
        self.handle, self.uids = self.handle[rows], self.uids[rows]

    @rule(data=st.data())
    def index(self, data: st.DataObject) -> None:
        num_rows = len(self.uids)
        rows = data.draw(
            st.lists(st.integers(-num_rows, num_rows - 1), max_size=8) if num_rows else st.just([])
        )
        self.handle = self.handle[rows]
        self.uids = self.uids[np.array(rows, dtype=np.intp)]

    @rule(data=st.data())
    def mask(self, data: st.DataObject) -> None:
        mask = data.draw(st.lists(st.booleans(), min_size=len(self.uids), max_size=len(self.uids)))
        keep = np.array(mask, dtype=bool)
        self.handle, self.uids = self.handle[keep], self.uids[keep]

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(range(len(self.uids))))
        self.handle = self.handle.reorder(order)
        self.uids = self.uids[np.array(order, dtype=np.intp)]

    @rule(n=st.integers(0, 3), interleave=st.booleans())
    def repeat(self, n: int, interleave: bool) -> None:  # noqa: FBT001 - by hypothesis
        if n * len(self.uids) > 200:
            return
        self.handle = self.handle.repeat(n, interleave=interleave)
        self.uids = np.repeat(self.uids, n) if interleave else np.tile(self.uids, n)

    @rule(n=st.integers(1, 7))
    def chunk_and_concat(self, n: int) -> None:
        chunks = self.handle.chunk(n)
        assert [len(chunk) for chunk in chunks] == [
            len(part) for part in np.array_split(self.uids, n)
        ]
        self.handle = BatchHandle.concat(chunks)

    @rule(size=st.integers(1, 9))
    def split_and_concat(self, size: int) -> None:
        parts = self.handle.split(size)
        assert sum(map(len, parts)) == len(self.uids)
        assert all(len(part) == size for part in parts[:-1])
        if parts:
            self.handle = BatchHandle.concat(parts)

    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        names = data.draw(st.permutations(list(self.meaning)))
        keep = names[: data.draw(st.integers(0, len(names)))]
        self.handle = self.handle.select(keep)
        self.meaning = {name: self.meaning[name] for name in keep}

    @rule(data=st.data())
    def part_and_union(self, data: st.DataObject) -> None:
        names = list(self.meaning)
        left = data.draw(st.sets(st.sampled_from(names))) if names else set()
        dropped = self.handle.drop(sorted(left))
        self.handle = self.handle.select([n for n in names if n in left]).union(dropped)
        self.meaning = {n: self.meaning[n] for n in sorted(names, key=lambda n: n not in left)}

    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        old = list(self.meaning)
        new = data.draw(st.permutations(NAMES))[: len(old)]
        self.handle = self.handle.rename(dict(zip(old, new, strict=True)))
        self.meaning = dict(zip(new, self.meaning.values(), strict=True))

    @rule()
    def through_bytes(self) -> None:
        self.handle = BatchHandle.from_bytes(self.handle.to_bytes())

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "handle"):
            return
        np.testing.assert_array_equal(self.handle.uids, self.uids)
        assert len(self.handle) == len(self.uids)
        assert not self.handle.uids.flags.writeable
        meaning = {n: (self.handle.stored_name(n), s) for n, s in self.handle.fields.items()}
        assert list(meaning.items()) == list(self.meaning.items())
        assert self.handle.meta_info == {"k": (1, [2])}
        assert self.handle.has_duplicates == (len(set(self.uids.tolist())) < len(self.uids))


TestHandleAgainstNumpy = HandleAgainstNumpy.TestCase
TestHandleAgainstNumpy.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)


@given(st.lists(uid_lists, min_size=1, max_size=5))
def test_concat_is_the_rows_of_all_in_order(parts: list[list[int]]) -> None:
    handles = [BatchHandle(service_id="s", partition="p", uids=uids) for uids in parts]
    assert BatchHandle.concat(handles).uids.tolist() == [uid for uids in parts for uid in uids]
