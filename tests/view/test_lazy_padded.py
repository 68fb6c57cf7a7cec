"""Ragged and padded are two layouts of the same cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.view.lazy_fakes import FakeClient, eager, frozen, jagged
from transferqueue.errors import InvalidInput, UnknownColumn, UnsupportedTensor
from transferqueue.view.jagged import build
from transferqueue.view.padded import pad, pad_where, padded_column, run_mask, unpad, unpad_all

DTYPES = [
    torch.int64,
    torch.float32,
    torch.bfloat16,
    torch.bool,
    torch.float8_e4m3fn,
    torch.uint16,
    torch.complex64,
]


def ragged_of(lengths: list[int], *, dtype: torch.dtype, inner: tuple[int, ...], dim: int) -> Any:
    total = sum(lengths)
    values = (torch.arange(total * max(1, torch.Size(inner).numel())) % 7 + 1).to(dtype)
    steps = values.reshape(total, *inner)
    offsets = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0)])
    return build(steps.movedim(0, dim), offsets, dim)


def padded_by_loop(ragged: Any, dim: int, value: float, side: str, length: int) -> torch.Tensor:
    rows = []
    for row in ragged.unbind():
        shape = list(row.shape)
        shape[dim] = length - shape[dim]
        filler = torch.full(shape, value, dtype=row.dtype)
        pair = [row, filler] if side == "right" else [filler, row]
        rows.append(torch.cat([one.movedim(dim, 0) for one in pair]).movedim(0, dim))
    return torch.stack(rows)


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from([((), 0), ((3,), 0), ((4,), 1), ((2, 3), 0), ((2, 3), 2)]),
    side=st.sampled_from(["left", "right"]),
    extra=st.integers(0, 3),
)
def test_padding_puts_every_cell_where_a_loop_over_rows_would(
    lengths: list[int], dtype: torch.dtype, layout: Any, side: str, extra: int
) -> None:
    inner, dim = layout
    ragged = ragged_of(lengths, dtype=dtype, inner=inner, dim=dim)
    length = max(lengths) + extra
    found = pad(ragged, value=1, side=side, length=length)
    assert frozen(found) == frozen(padded_by_loop(ragged, dim, 1, side, length))
    mask = run_mask(ragged, side=side, length=length)
    back = unpad(found, mask, dim=dim, value=1)
    assert back._ragged_idx == ragged._ragged_idx
    assert frozen(back) == frozen(ragged)


@given(
    mask=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5),
    kind=st.sampled_from([torch.int64, torch.bool]),
)
def test_a_mask_with_holes_goes_there_and_back(mask: list[list[bool]], kind: torch.dtype) -> None:
    wanted = torch.tensor(mask)
    padded = (torch.arange(wanted.numel()) + 10).reshape(wanted.shape).masked_fill(~wanted, -1)
    given_mask = wanted.to(kind)
    ragged = unpad(padded, given_mask, value=-1)
    assert ragged.values().tolist() == padded[wanted].tolist()
    assert frozen(pad_where(ragged, given_mask, value=-1)) == frozen(padded)


def test_columns_of_one_mask_meet_in_arithmetic() -> None:
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    columns = {"log_probs": torch.rand(3, 3) * mask, "advantages": torch.rand(3, 3)}
    ragged = unpad_all(columns, mask, values={"advantages": None})
    product = ragged["log_probs"] * ragged["advantages"]
    expected = columns["log_probs"] * columns["advantages"] * mask
    assert torch.equal(pad(product, length=3), expected)


def test_a_batch_of_no_rows_or_no_cells_pads() -> None:
    assert pad(jagged(dtype=torch.int64)).shape == (0, 0)
    assert pad(jagged(dtype=torch.int64), length=4).shape == (0, 4)
    assert pad(ragged_of([0, 0], dtype=torch.float32, inner=(), dim=0), length=2).tolist() == [
        [0, 0],
        [0, 0],
    ]
    assert unpad(torch.zeros(0, 5), torch.zeros(0, 5)).shape[0] == 0


def test_nothing_is_ever_cut_off() -> None:
    ragged = jagged(torch.arange(2), torch.arange(5), torch.arange(3))
    with pytest.raises(InvalidInput, match="row 1 has 5 cells, length=4"):
        pad(ragged, length=4)
    with pytest.raises(InvalidInput, match=r"'x' holds other values than 0.*first in row 1"):
        unpad_all({"x": torch.tensor([[1, 0], [1, 7]])}, torch.tensor([[1, 0], [1, 0]]))
    kept = unpad(torch.tensor([[1, 0], [1, 7]]), torch.tensor([[1, 0], [1, 0]]), value=None)
    assert kept.values().tolist() == [1, 1]


def test_nan_may_be_the_padding() -> None:
    nan = float("nan")
    padded = torch.tensor([[1.0, nan], [nan, nan]])
    mask = torch.tensor([[1, 0], [0, 0]])
    assert frozen(pad_where(unpad(padded, mask, value=nan), mask, value=nan)) == frozen(padded)


def test_what_does_not_fit_together_is_refused() -> None:
    ragged = jagged(torch.arange(2), torch.arange(3))
    with pytest.raises(InvalidInput, match=r"0\.5 does not fit torch.int64"):
        pad(ragged, value=0.5)
    with pytest.raises(InvalidInput, match="does not fit"):
        pad(ragged.to(torch.int8), value=300)
    with pytest.raises(InvalidInput, match="as many cells a row"):
        pad_where(ragged, torch.ones(2, 3))
    with pytest.raises(InvalidInput, match="has no dimension 0 for a mask"):
        unpad(torch.zeros(2, 4), torch.ones(2, 3))
    with pytest.raises(InvalidInput, match="a mask is"):
        unpad(torch.zeros(2, 4), torch.ones(4))
    with pytest.raises(UnsupportedTensor, match="not ragged"):
        pad(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="middle"):
        pad(ragged, side="middle")


def test_a_ragged_column_of_a_view_or_a_batch_is_read_as_padded() -> None:
    columns = {"responses": jagged(torch.arange(2), torch.arange(3)), "x": torch.zeros(2)}
    client = FakeClient()
    view = client.view(client.put(columns))
    expected = [[-1, -1, 0, 1], [-1, 0, 1, 2]]
    assert view.padded("responses", value=-1, side="left", length=4).tolist() == expected
    assert view[[1]].padded("responses").tolist() == [[0, 1, 2]]
    assert client.fields_got == ["responses"]
    batch = eager(columns)
    assert padded_column(batch, "responses", value=-1, side="left", length=4).tolist() == expected
    with pytest.raises(UnknownColumn):
        padded_column(batch, "response")
