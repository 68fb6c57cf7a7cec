"""Room that was freed is kept for the next ranges, for a while, and not without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from transferqueue.backends.kept_room import KeptRoom

if TYPE_CHECKING:
    from collections.abc import Iterable


def test_what_is_given_out_again_needs_room_only_where_none_was_kept() -> None:
    kept = KeptRoom(keep_s=2.0)
    kept.keep([(0, 10), (20, 30)], now_s=0.0)
    assert kept.take(5, 25) == [(10, 20)]
    assert kept.nbytes == 10
    assert kept.take(0, 40) == [(5, 25), (30, 40)]
    assert kept.nbytes == 0
    assert kept.next_s() is None


def test_what_nobody_took_for_long_enough_goes_back() -> None:
    kept = KeptRoom(keep_s=2.0)
    kept.keep([(0, 10)], now_s=5.0)
    kept.keep([(20, 30)], now_s=6.0)
    assert kept.next_s() == 7.0
    assert kept.take_old(6.9, 100) == []
    assert kept.take_old(7.0, 100) == [(0, 10)]
    assert kept.next_s() == 8.0
    assert kept.take_old(9.0, 100) == [(20, 30)]
    assert (kept.nbytes, kept.next_s()) == (0, None)


def test_much_goes_back_in_steps() -> None:
    kept = KeptRoom(keep_s=2.0)
    kept.keep([(0, 100), (200, 300)], now_s=0.0)
    steps = []
    while (at_s := kept.next_s()) is not None:
        steps.append(kept.take_old(at_s, 70))
    assert steps == [[(0, 70)], [(70, 100), (200, 240)], [(240, 300)]]


def test_of_more_than_may_be_kept_the_oldest_goes_back() -> None:
    kept = KeptRoom(keep_s=4.0)
    kept.keep([(0, 10)], now_s=0.0)
    kept.keep([(50, 60)], now_s=3.0)
    assert kept.take_surplus(13) == [(0, 7)]
    assert kept.take_surplus(13) == []
    assert kept.take_surplus(0) == [(7, 10), (50, 60)]
    assert kept.nbytes == 0


def pages(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {page for start, end in ranges for page in range(start, end)}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "take", "old", "surplus"]), st.integers(0, 40), st.integers(1, 20)
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_comes_and_goes_each_page_is_kept_once(
    steps: list[tuple[str, int, int]],
) -> None:
    kept, model, now_s = KeptRoom(keep_s=2.0), set[int](), 0.0
    for step, at, size in steps:
        now_s += 0.3
        if step == "keep":
            new = pages([(at, at + size)]) - model
            kept.keep([(page, page + 1) for page in sorted(new)], now_s)
            model |= new
        elif step == "take":
            wanted = pages([(at, at + size)])
            assert pages(kept.take(at, at + size)) == wanted - model
            model -= wanted
        else:
            gone = kept.take_old(now_s, size) if step == "old" else kept.take_surplus(size)
            assert pages(gone) <= model
            assert sum(end - start for start, end in gone) == len(pages(gone))
            model -= pages(gone)
            assert step == "old" or kept.nbytes <= size
        assert kept.nbytes == len(model)
        assert (kept.next_s() is None) == (not model)
    assert pages(kept.take_surplus(0)) == model
