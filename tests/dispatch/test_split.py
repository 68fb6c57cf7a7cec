"""A handle is split so that every row goes to one part, and padding is never anybody's own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.dispatch import HandlePart, Padding, by_tokens, split_handle
from transferqueue.errors import InvalidInput, RowCountMismatch
from transferqueue.handle import BatchHandle, FieldSpec


def handle_of(num_rows: int) -> BatchHandle:
    return BatchHandle(
        service_id="s",
        partition="train",
        uids=np.arange(100, 100 + num_rows),
        fields={"ids": FieldSpec(dtype="int64", shape=(4,))},
        meta_info={"temperature": 0.5},
    )


def rows(parts: list[HandlePart]) -> list[int]:
    return [int(uid) for part in parts for uid in part.own.uids]


def sizes(parts: list[HandlePart]) -> list[int]:
    return [len(part.handle) for part in parts]


@pytest.mark.parametrize(
    ("num_rows", "num_parts", "expected"),
    [
        (10, 4, [3, 3, 2, 2]),
        (124, 15, [9] * 4 + [8] * 11),
        (2, 4, [1, 1, 0, 0]),
        (1, 4, [1, 0, 0, 0]),
        (0, 3, [0, 0, 0]),
        (8, 4, [2, 2, 2, 2]),
    ],
)
def test_rows_that_do_not_divide_are_split_unevenly(
    num_rows: int, num_parts: int, expected: list[int]
) -> None:
    parts = split_handle(handle_of(num_rows), num_parts, padding=Padding.NONE)
    assert sizes(parts) == expected
    assert rows(parts) == list(range(100, 100 + num_rows))


def test_no_part_is_without_a_row_unless_asked_for() -> None:
    parts = split_handle(handle_of(2), 4)
    assert sizes(parts) == [1, 1, 1, 1]
    assert [part.num_padding for part in parts] == [0, 0, 1, 1]
    assert rows(parts) == [100, 101]
    assert sizes(split_handle(handle_of(10), 4)) == [3, 3, 2, 2]


def test_padding_makes_parts_equal_and_stays_outside_of_what_is_ones_own() -> None:
    parts = split_handle(handle_of(5), 4, padding=Padding.EQUAL)
    assert sizes(parts) == [2, 2, 2, 2]
    assert [part.num_padding for part in parts] == [0, 1, 1, 1]
    assert rows(parts) == [100, 101, 102, 103, 104]


def test_a_part_pads_with_its_own_row_so_that_nothing_more_is_fetched() -> None:
    parts = split_handle(handle_of(5), 2, padding=Padding.EQUAL)
    assert parts[1].handle.uids.tolist() == [103, 104, 103]


def test_a_part_without_rows_pads_with_the_first_row_of_all() -> None:
    parts = split_handle(handle_of(1), 3, padding=Padding.EQUAL)
    assert [part.handle.uids.tolist() for part in parts] == [[100], [100], [100]]
    assert rows(parts) == [100]


def test_no_rows_cannot_be_padded() -> None:
    assert sizes(split_handle(handle_of(0), 2, padding=Padding.EQUAL)) == [0, 0]


def test_by_tokens_gives_every_part_about_the_same_load() -> None:
    lengths = np.random.default_rng(0).integers(1, 8192, size=101)
    parts = split_handle(by_tokens(handle_of(101), lengths), 8)
    loads = [lengths[part.own.uids - 100].sum() for part in parts]
    assert max(loads) <= 1.05 * np.mean(loads)
    assert sorted(rows(parts)) == list(range(100, 201))


def test_by_tokens_keeps_the_order_of_rows_within_a_part() -> None:
    parts = split_handle(by_tokens(handle_of(20), list(range(20))), 3)
    assert all((np.diff(part.handle.uids) > 0).all() for part in parts)


def test_lengths_must_be_as_many_as_rows() -> None:
    with pytest.raises(RowCountMismatch, match="expected 4 rows, got 3"):
        by_tokens(handle_of(4), [1, 2, 3])


@pytest.mark.parametrize("lengths", [["a"] * 4, [1, 2, float("nan"), 3], [1, 2, -1, 3]])
def test_lengths_are_numbers_from_0_on(lengths: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="lengths of by_tokens are numbers from 0 on"):
        by_tokens(handle_of(4), lengths)


def test_what_has_no_rows_yet_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="a handle or a lazy view, got a list; of a future"):
        by_tokens([handle_of(2)], [1, 2])  # type: ignore[arg-type]


@given(
    num_rows=st.integers(0, 60),
    num_parts=st.integers(1, 12),
    padding=st.sampled_from(Padding),
    weighed=st.booleans(),
    data=st.data(),
)
def test_every_row_is_in_one_part_whatever_the_numbers(
    num_rows: int,
    num_parts: int,
    padding: Padding,
    weighed: bool,  # noqa: FBT001
    data: Any,
) -> None:
    batch: Any = handle_of(num_rows)
    if weighed:
        lengths = data.draw(st.lists(st.integers(0, 100), min_size=num_rows, max_size=num_rows))
        batch = by_tokens(batch, lengths)
    parts = split_handle(batch, num_parts, padding=padding)
    assert len(parts) == num_parts
    assert sorted(rows(parts)) == list(range(100, 100 + num_rows))
    if padding is Padding.EQUAL:
        assert len(set(sizes(parts))) == 1
    if padding is Padding.ONE_ROW and num_rows:
        assert min(sizes(parts)) > 0
    if not weighed:
        assert rows(parts) == list(range(100, 100 + num_rows))
        assert max(map(len, (part.own for part in parts))) - min(
            map(len, (part.own for part in parts))
        ) in (0, 1)


def test_a_part_is_the_same_after_a_wire() -> None:
    part = split_handle(handle_of(3), 2, padding=Padding.EQUAL)[1]
    assert HandlePart.from_bytes(part.to_bytes()) == part
    assert pickle.loads(pickle.dumps(part)) == part


def test_a_part_of_a_view_of_two_sets_of_samples_is_the_same_after_a_wire() -> None:
    others = [handle_of(6)[3:].with_meta(), handle_of(9)[6:].drop(["ids"])]
    (part, _) = split_handle(handle_of(3), 2, beside=others)
    assert [one.uids.tolist() for one in part.beside] == [[103, 104], [106, 107]]
    assert HandlePart.from_bytes(part.to_bytes()) == part


def test_the_next_stage_finds_the_rows_split() -> None:
    handle = handle_of(10)
    first = split_handle(handle, 4)
    later = split_handle(handle.with_fields({"values": FieldSpec(dtype="float32")}), 4)
    assert all(a.handle.rows is b.handle.rows for a, b in zip(first, later, strict=True))
    assert all("values" in part.handle for part in later)
    padded = split_handle(handle, 4, padding=Padding.EQUAL)
    assert (sizes(first), sizes(padded)) == ([3, 3, 2, 2], [3, 3, 3, 3])
    assert sizes(split_handle(handle, 3)) == [4, 3, 3]


def test_parts_of_many_handles_keep_their_own_fields_and_meta() -> None:
    spec = FieldSpec(dtype="float32", shape=(2,))
    made = [
        handle_of(4).with_fields({f"f{n % 5}": spec}).with_meta(step=n).rename({f"f{n % 5}": "x"})
        for n in range(40)
    ]
    for handle in [*made, *reversed(made)]:
        for part in split_handle(handle, 2):
            assert HandlePart.from_bytes(part.to_bytes()).handle == part.handle
