"""Batches to test with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from transferqueue.view import DataProto, DataProtoConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch.set_num_threads(1)


def objects(*cells: Any) -> np.ndarray:
    """A 1-D object array of exactly these cells."""
    return np.fromiter(cells, dtype=object, count=len(cells))


def jagged(*rows: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[B, L_i]."""
    parts = [torch.tensor(row, dtype=dtype) for row in rows]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def jagged_last(*lengths: int, height: int = 4) -> torch.Tensor:
    """[B, height, L_i], ragged in the last dimension; the cells count up."""
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    values = torch.arange(height * int(offsets[-1])).view(height, -1)
    return torch.nested.nested_tensor_from_jagged(values, offsets=offsets, jagged_dim=2)


def full_batch(rows: int = 4) -> DataProto:
    """Every kind of column."""
    return DataProto.from_dict(
        tensors={
            "ids": torch.arange(rows * 6).view(rows, 6),
            "score": torch.arange(rows).to(torch.bfloat16),
            "mask": torch.arange(rows) % 2 == 0,
            "response": jagged(*[[float(row)] * (row + 1) for row in range(rows)]),
            "positions": jagged_last(*[row % 3 + 1 for row in range(rows)]),
        },
        non_tensors={
            "uid": objects(*[f"u{row}" for row in range(rows)]),
            "extra": objects(*[{"acc": row, "turns": [row]} for row in range(rows)]),
            "length": np.arange(rows) * 10,
            "name": np.array([f"n{row}" for row in range(rows)]),
            "pair": np.arange(rows * 2).reshape(rows, 2),
        },
        meta_info={"temperature": 0.7, "keys": ["acc"]},
    )


@pytest.fixture(name="batch")
def _batch() -> DataProto:
    return full_batch()


@pytest.fixture(name="make")
def _make() -> Callable[..., DataProto]:
    return full_batch


@pytest.fixture(name="objects")
def _objects() -> Callable[..., np.ndarray]:
    return objects


@pytest.fixture(name="jagged")
def _jagged() -> Callable[..., torch.Tensor]:
    return jagged


@pytest.fixture(name="jagged_last")
def _jagged_last() -> Callable[..., torch.Tensor]:
    return jagged_last


@pytest.fixture
def auto_padding() -> Iterator[None]:
    DataProtoConfig.auto_padding = True
    yield
    DataProtoConfig.auto_padding = False
