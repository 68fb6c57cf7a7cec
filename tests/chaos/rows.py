"""Columns that follow from the numbers of their rows, so that whoever reads them can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTHS = (4, 3_000, 60_000)
"""Of a row of ``pad``, in int64: sent inline, written in place, and large enough for chunks."""

FIELDS = ("number", "fixed", "pad", "text")


def columns_of(numbers: Sequence[int], width: int) -> dict[str, Any]:
    """A number, a dense, a ragged and a text column."""
    number = torch.tensor(numbers, dtype=torch.int64)
    lengths = width + number % 7
    return {
        "number": number,
        "fixed": number[:, None].expand(len(numbers), 16).contiguous(),
        "pad": torch.nested.nested_tensor_from_jagged(
            number.repeat_interleave(lengths),
            offsets=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        ),
        "text": [f"row {n}" for n in numbers],
    }


def what_is_torn(columns: Mapping[str, Any]) -> str | None:
    """The first thing that does not follow from the row's number."""
    number = columns["number"]
    lengths = columns["pad"].offsets().diff()
    if not bool((columns["fixed"] == number[:, None]).all()):
        return f"fixed of some of rows {number.tolist()}"
    if not bool((columns["pad"].values() == number.repeat_interleave(lengths)).all()):
        return f"pad of some of rows {number.tolist()}"
    for n, length, text in zip(number.tolist(), lengths.tolist(), columns["text"], strict=True):
        if length - n % 7 not in WIDTHS or text != f"row {n}":
            return f"length or text of row {n}"
    return None


def scribble(columns: Mapping[str, Any]) -> None:
    """Edit in place what was got: nobody else may ever see it."""
    columns["fixed"].fill_(-1)
    columns["pad"].values().fill_(-1)
