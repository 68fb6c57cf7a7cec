"""Columns end to end, cut into chunks and put together again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.errors import Malformed
from transferqueue.wire import chunks
from transferqueue.wire.chunks import ChunkGrid, Piece, Runs, deal

SIZES = st.lists(st.integers(0, 40), max_size=8)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 16)


def memory_of(sizes: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(sizes))
    return [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]


@given(SIZES)
def test_the_chunks_are_all_of_the_columns_in_order(sizes: list[int]) -> None:
    columns = memory_of(sizes)
    grid = ChunkGrid(sizes)
    parts = [
        columns[piece.column][piece.offset : piece.offset + piece.nbytes]
        for chunk in range(grid.num_chunks)
        for piece in grid.pieces(chunk)
    ]
    assert b"".join(map(bytes, parts)) == b"".join(map(bytes, columns))
    assert grid.total_bytes == sum(sizes)


@given(SIZES)
def test_every_chunk_but_the_last_is_full_and_has_no_empty_piece(sizes: list[int]) -> None:
    grid = ChunkGrid(sizes)
    filled = [sum(p.nbytes for p in grid.pieces(chunk)) for chunk in range(grid.num_chunks)]
    assert all(nbytes == 16 for nbytes in filled[:-1])
    assert all(p.nbytes for chunk in range(grid.num_chunks) for p in grid.pieces(chunk))


@pytest.mark.parametrize("chunk", [-1, 3, 1 << 70, None, "0", 1.0, True, [0]])
def test_a_chunk_that_is_not_there_is_malformed(chunk: object) -> None:
    with pytest.raises(Malformed, match="no chunk"):
        ChunkGrid([16, 16, 1]).pieces(chunk)


def test_columns_without_bytes_have_no_chunks() -> None:
    assert ChunkGrid([]).num_chunks == 0
    assert ChunkGrid([0, 0]).num_chunks == 0
    assert ChunkGrid([0, 5, 0, 3]).pieces(0) == [
        Piece(column=1, offset=0, nbytes=5),
        Piece(column=3, offset=0, nbytes=3),
    ]


@given(SIZES, st.lists(st.integers(0, 9)), st.data())
def test_a_chunk_comes_in_any_frames(
    sizes: list[int], cuts: list[int], data: st.DataObject
) -> None:
    columns = memory_of(sizes)
    grid = ChunkGrid(sizes)
    if not grid.num_chunks:
        return
    pieces = grid.pieces(data.draw(st.integers(0, grid.num_chunks - 1)))
    content = b"".join(bytes(columns[p.column][p.offset : p.offset + p.nbytes]) for p in pieces)
    frames, left = [], content
    for cut in cuts:
        frames.append(left[:cut])
        left = left[cut:]
    got = {p.column: bytearray() for p in pieces}
    for piece, block in deal([*frames, left], pieces):
        assert piece.nbytes == block.nbytes > 0
        expected = columns[piece.column][piece.offset : piece.offset + piece.nbytes]
        assert bytes(block) == bytes(expected)
        got[piece.column] += block
    assert sum(map(len, got.values())) == len(content)


@pytest.mark.parametrize("frames", [[], [b"1234"], [b"12345", b"6"]])
def test_too_few_or_too_many_bytes_are_refused_before_any_is_given_out(
    frames: list[bytes],
) -> None:
    with pytest.raises(Malformed, match="came for 5"):
        deal(frames, [Piece(column=0, offset=0, nbytes=5)])


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), max_size=12),
    st.integers(0, 300),
    st.integers(0, 300),
)
def test_any_part_of_scattered_ranges_is_found(
    ranges: list[tuple[int, int]], offset: int, nbytes: int
) -> None:
    memory = np.arange(256, dtype=np.uint8)
    starts = np.array([start for start, _ in ranges], dtype=np.int64)
    sizes = np.array([size for _, size in ranges], dtype=np.int64)
    whole = b"".join(memory[s : s + n].tobytes() for s, n in ranges)
    runs = Runs.of(starts, sizes)
    assert runs.total_bytes == len(whole)
    offset = min(offset, len(whole))
    nbytes = min(nbytes, len(whole) - offset)
    cut_starts, cut_sizes = runs.cut(offset, nbytes)
    found = b"".join(
        memory[s : s + n].tobytes()
        for s, n in zip(cut_starts.tolist(), cut_sizes.tolist(), strict=True)
    )
    assert found == whole[offset : offset + nbytes]
    assert (cut_sizes > 0).all()


def test_more_than_four_gib_have_their_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1 << 20)
    grid = ChunkGrid([5 << 30, 7])
    assert grid.num_chunks == (5 << 10) + 1
    assert grid.pieces(grid.num_chunks - 1) == [Piece(column=1, offset=0, nbytes=7)]
    assert grid.pieces(4500) == [Piece(column=0, offset=4500 << 20, nbytes=1 << 20)]
