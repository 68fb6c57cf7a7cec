"""Scattered ranges brought together, against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.memory.gather import LONG_RUN_BYTES, gather, gather_into, merge_runs

RANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=20)


def arrays(ranges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in ranges], np.int64)
    return starts, np.array([size for _, size in ranges], np.int64)


def expected(memory: np.ndarray, ranges: list[tuple[int, int]]) -> bytes:
    return b"".join(memory[start : start + size].tobytes() for start, size in ranges)


@given(RANGES)
def test_ranges_of_any_size_and_place_come_together_in_order(
    ranges: list[tuple[int, int]],
) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 256, dtype=np.uint8)
    assert gather(memory, *arrays(ranges)).tobytes() == expected(memory, ranges)


@given(
    st.integers(0, 30),
    st.integers(1, 24),
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
)
def test_rows_of_one_grid_come_in_any_order_and_as_often(
    origin: int, size: int, rows: list[int]
) -> None:
    memory = np.random.default_rng(1).integers(0, 256, origin + 10 * size, dtype=np.uint8)
    ranges = [(origin + row * size, size) for row in rows]
    assert gather(memory, *arrays(ranges)).tobytes() == expected(memory, ranges)


@given(RANGES)
def test_neighbours_are_joined_and_empty_ranges_left_out(ranges: list[tuple[int, int]]) -> None:
    memory = np.arange(256, dtype=np.uint8)
    starts, sizes = merge_runs(*arrays(ranges))
    assert expected(memory, list(zip(starts.tolist(), sizes.tolist(), strict=True))) == expected(
        memory, ranges
    )
    assert (sizes > 0).all()
    assert (starts[1:] != starts[:-1] + sizes[:-1]).all()


def test_what_lies_in_one_piece_is_a_view() -> None:
    memory = np.arange(100, dtype=np.uint8)
    got = gather(memory, *arrays([(10, 5), (15, 0), (15, 20)]))
    assert np.shares_memory(got, memory)
    assert len(gather(memory, *arrays([]))) == 0


def test_few_long_runs_are_copied_run_by_run() -> None:
    memory = np.random.default_rng(2).integers(0, 256, 4 * LONG_RUN_BYTES, dtype=np.uint8)
    ranges = [(2 * LONG_RUN_BYTES, LONG_RUN_BYTES + 3), (5, LONG_RUN_BYTES)]
    assert gather(memory, *arrays(ranges)).tobytes() == expected(memory, ranges)


@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_units_of_any_width_are_found(unit: int) -> None:
    memory = np.random.default_rng(3).integers(0, 256, 4096, dtype=np.uint8)
    ranges = [(unit * 7, unit * 3), (unit * 50, unit * 5), (unit * 20, unit)]
    out = np.empty(9 * unit, np.uint8)
    gather_into(out, memory, *arrays(ranges))
    assert out.tobytes() == expected(memory, ranges)
