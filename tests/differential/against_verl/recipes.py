"""Batches drawn by hypothesis, as recipes: the same one is built once as verl's and once as ours.

A recipe is plain data and every build makes new memory, so neither side sees what the other does
to its batch.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tensordict import TensorDict

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
TENSOR_NAMES = ["ids", "mask", "values", "score"]
ARRAY_NAMES = ["uid", "prompt", "extra", "tag"]


@dataclass(frozen=True)
class Dense:
    dtype: torch.dtype
    shape: tuple[int, ...]
    seed: int
    contiguous: bool

    def build(self, rows: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (rows, *self.shape)
        numbers = torch.randint(-4, 5, shape, generator=generator)
        column = numbers.to(self.dtype)
        if self.dtype.is_floating_point and column.numel() > 3:
            column.flatten()[1] = float("nan")
        if not self.contiguous and column.dim() > 1:
            column = torch.stack([column, column], -1)[..., 0]
        return column


@dataclass(frozen=True)
class Ragged:
    lengths: tuple[int, ...]
    seed: int

    def build(self, rows: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        lengths = (self.lengths * rows)[:rows]
        parts = [torch.randint(0, 99, (length,), generator=generator) for length in lengths]
        if not parts:
            return torch.nested.nested_tensor_from_jagged(
                torch.zeros(0, dtype=torch.int64), offsets=torch.zeros(1, dtype=torch.int64)
            )
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


@dataclass(frozen=True)
class Array:
    kind: str
    cells: tuple[Any, ...]
    width: int = 0

    def build(self, rows: int) -> np.ndarray:
        cells = [copy.deepcopy(cell) for cell in (self.cells * rows)[:rows]]
        if self.kind == "object":
            return np.fromiter(cells, dtype=object, count=rows)
        column = np.array(cells, dtype=self.kind) if rows else np.zeros(0, self.kind)
        return np.repeat(column[:, None], self.width, axis=1) if self.width else column


@dataclass(frozen=True)
class Recipe:
    rows: int
    tensors: dict[str, Dense | Ragged]
    arrays: dict[str, Array]
    meta_info: dict[str, Any]
    without_batch: bool = False
    device: str | None = None

    def build(self, kind: type) -> Any:
        batch = None
        if not self.without_batch:
            batch = TensorDict(
                {name: column.build(self.rows) for name, column in self.tensors.items()},
                batch_size=[self.rows],
                device=self.device,
            )
        return kind(
            batch=batch,
            non_tensor_batch={name: one.build(self.rows) for name, one in self.arrays.items()},
            meta_info=copy.deepcopy(self.meta_info),
        )


OBJECTS: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        "",
        "text",
        7,
        1.5,
        float("nan"),
        True,
        (1, 2),
        [1, "two"],
        [],
        {"acc": 1.0},
        {"acc": 0.5, "pred": "x"},
        {},
        {1: "int key"},
    ]
)
META_VALUES = st.sampled_from([0, 1, 2.5, "s", None, True, [1, 2], (3,), {"k": [1]}, []])


def dense_columns() -> st.SearchStrategy[Dense]:
    shapes = st.sampled_from([(), (2,), (4,), (1,), (2, 3), (0,)])
    return st.builds(Dense, st.sampled_from(DTYPES), shapes, st.integers(0, 99), st.booleans())


def ragged_columns() -> st.SearchStrategy[Ragged]:
    lengths = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
    return st.builds(Ragged, lengths, st.integers(0, 99))


def arrays() -> st.SearchStrategy[Array]:
    objects = st.lists(OBJECTS, min_size=1, max_size=4).map(tuple)
    numbers = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Array, st.just("object"), objects),
        st.builds(Array, st.sampled_from(["<i8", "<f4", "<U3", "|b1", "<M8[s]"]), numbers),
        st.builds(Array, st.just("<i4"), numbers, st.integers(1, 3)),
    )


def metas() -> st.SearchStrategy[dict[str, Any]]:
    plain = st.dictionaries(st.sampled_from(["step", "temperature", "keys"]), META_VALUES)
    metrics = st.sampled_from(
        [None, {"loss": 1.0}, [{"loss": 1.0}, {"loss": 2.0}], {"loss": 2.0, "kl": 0.1}, []]
    )
    with_metrics = st.builds(lambda meta, found: {**meta, "metrics": found}, plain, metrics)
    return st.one_of(plain, plain, with_metrics)


@st.composite
def recipes(draw: st.DrawFn, rows: int | None = None, *, ragged: bool = True) -> Recipe:
    """Any batch: with and without tensors, arrays, rows; ragged columns now and then."""
    num_rows = draw(st.integers(0, 6)) if rows is None else rows
    without_batch = draw(st.integers(0, 5)) == 0
    dense = dense_columns()
    column = st.one_of(dense, dense, dense, ragged_columns()) if ragged else dense
    tensors = draw(st.dictionaries(st.sampled_from(TENSOR_NAMES), column, max_size=3))
    return Recipe(
        rows=num_rows,
        tensors={} if without_batch else tensors,
        arrays=draw(st.dictionaries(st.sampled_from(ARRAY_NAMES), arrays(), max_size=3)),
        meta_info=draw(metas()),
        without_batch=without_batch,
        device=draw(st.sampled_from([None, None, "cpu"])),
    )
