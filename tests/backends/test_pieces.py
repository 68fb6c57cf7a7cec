"""Which pages have a sum together, and what becomes of that when some of them are given out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.backends.holes import emptied_pieces
from transferqueue.backends.parting import Parting, without
from transferqueue.backends.pieces import (
    PIECE_PAGES,
    Pieces,
    begins,
    bounds,
    ends,
    layout_of,
    plausible,
    with_sums,
)
from transferqueue.memory.allocator import PAGE_BYTES


def file_of(slabs: list[int]) -> np.ndarray:
    """Entries of slabs of so many pages, one after the other; sums are numbers of pieces."""
    entries = np.concatenate([layout_of(num_pages) for num_pages in slabs])
    pieces = Pieces.around(0, entries)
    assert pieces is not None
    return with_sums(entries, pieces.with_sums([*range(1, len(pieces) + 1)]))


def test_pieces_begin_with_their_slab_and_the_last_one_is_what_is_left() -> None:
    entries = file_of([2 * PIECE_PAGES + 3, 1, PIECE_PAGES])
    found = Pieces.around(0, entries)
    assert found is not None
    sizes = [end - start for start, end in zip(found.starts, found.ends, strict=True)]
    assert sizes == [PIECE_PAGES, PIECE_PAGES, 3, 1, PIECE_PAGES]
    assert found.sums == [1, 2, 3, 4, 5]


@given(st.lists(st.integers(1, 3 * PIECE_PAGES), min_size=1, max_size=6), st.data())
def test_entries_of_any_pages_tell_of_all_pieces_that_they_are_in(
    slabs: list[int], data: st.DataObject
) -> None:
    entries = file_of(slabs)
    first = data.draw(st.integers(0, len(entries) - 1))
    last = data.draw(st.integers(first + 1, len(entries)))
    every, some = Pieces.around(0, entries), Pieces.around(first, entries[first:last])
    assert every is not None
    assert some is not None
    in_it = [
        (start, end, total)
        for start, end, total in zip(every.starts, every.ends, every.sums, strict=True)
        if start < last and first < end
    ]
    assert list(zip(some.starts, some.ends, some.sums, strict=True)) == in_it
    pages = np.arange(first, last)
    assert begins(entries, pages)[0] == some.starts[0]
    assert ends(entries, pages)[-1] == some.ends[-1]
    assert bounds(entries, first) == (some.starts[0], some.ends[0])


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3 * PIECE_PAGES))
def test_whatever_was_found_in_the_file_names_no_pages_that_are_not_there(words: list[int]) -> None:
    entries = plausible(np.array(words, np.uint64))
    pages = np.arange(len(entries))
    assert (begins(entries, pages) >= 0).all()
    assert (begins(entries, pages) <= pages).all()
    assert (ends(entries, pages) > pages).all()
    found = Pieces.around(0, entries)
    assert found is None or found.starts[0] == 0


def test_entries_that_do_not_go_together_are_known_for_it() -> None:
    entries = file_of([PIECE_PAGES, PIECE_PAGES])
    torn = entries.copy()
    torn[PIECE_PAGES:] = np.roll(torn[PIECE_PAGES:], 1)
    assert Pieces.around(0, torn) is None
    assert Pieces.around(5, np.full(200, entries[3])) is None
    assert Pieces.around(0, entries[3:5]) is None, "a piece that begins before the file"


def test_a_piece_of_which_pages_are_given_out_is_parted() -> None:
    free = {4, 5, 6, 7, 12, 13, 14, 15}

    def is_free(first: int, last: int) -> bool:
        return set(range(first, last)) <= free

    parting = Parting.of((0, 16), [(5, 7), (9, 11)], is_free)
    assert parting.living == [(0, 5), (7, 9), (11, 16)]
    parting = Parting.of((0, 16), [(4, 12)], is_free)
    assert (parting.living, parting.dead) == ([(0, 4)], [(12, 16)])


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ([], [(10, 20)]),
        ([(0, 10)], [(10, 20)]),
        ([(0, 12), (14, 15), (15, 16)], [(12, 14), (16, 20)]),
        ([(19, 40)], [(10, 19)]),
        ([(0, 40)], []),
        ([(0, 5), (25, 40)], [(10, 20)]),
    ],
)
def test_what_is_left_of_a_range(parts: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    assert without((10, 20), parts) == left


@given(
    st.lists(st.integers(1, 2 * PIECE_PAGES), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from("UFN"), st.integers(1, 100)), min_size=1, max_size=12),
)
def test_a_piece_is_empty_when_its_last_byte_is_freed(
    slabs: list[int], runs: list[tuple[str, int]]
) -> None:
    """Quarters of pages: used, free before, or freed now."""
    entries, quarter = file_of(slabs), PAGE_BYTES // 4
    some = "".join(letter * count for letter, count in runs)
    quarters = (some * len(entries) * 4)[: len(entries) * 4]

    def ranges(of: str) -> tuple[np.ndarray, np.ndarray]:
        at = np.flatnonzero([q in of for q in quarters]) * quarter
        return at, at + quarter

    def merged(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gaps = starts[1:] != ends[:-1]
        return starts[np.r_[True, gaps]], ends[np.r_[gaps, True]]

    free = ranges("FN")
    emptied = emptied_pieces(ranges("N"), merged(*free) if len(free[0]) else free, entries)
    found, expected = Pieces.around(0, entries), []
    assert found is not None
    for start, end in zip(found.starts, found.ends, strict=True):
        piece = quarters[start * 4 : end * 4]
        expected += range(start, end) if "U" not in piece and "N" in piece else ()
    assert [n for a, b in emptied for n in range(a // PAGE_BYTES, b // PAGE_BYTES)] == expected
