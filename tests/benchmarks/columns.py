"""The batches that are moved, and what is done with a batch that came back.

Runs in every measured process, also in those of the peers' environment: torch and numpy only.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Columns = dict[str, Any]
"""Field name to a dense tensor ``[rows, length]``, a jagged tensor, or a list of strings."""

_PATTERN_ELEMENTS = 1 << 20


def dense(*, rows: int, length: int, fields: int) -> Columns:
    """``fields`` float32 tensors ``[rows, length]``, each an allocation of its own."""
    return {f"field_{k}": _floats(rows * length, k).view(rows, length) for k in range(fields)}


def mixed(*, rows: int, length: int, fields: int) -> Columns:
    """The complex case of Ascend TransferQueue's own benchmark: a third dense float32, a third
    jagged float32 of 1 to ``length`` elements in arithmetic progression, and the rest strings of
    ``4 * length`` characters."""
    num_dense = num_jagged = (fields + 2) // 3
    lengths = np.linspace(1, length, rows).round().astype(np.int64)
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))))
    columns: Columns = {}
    for k in range(num_dense):
        columns[f"field_{k}"] = _floats(rows * length, k).view(rows, length)
    for k in range(num_jagged):
        values = _floats(int(lengths.sum()), 100 + k)
        columns[f"nested_field_{k}"] = torch.nested.nested_tensor_from_jagged(values, offsets)
    for k in range(fields - num_dense - num_jagged):
        columns[f"nontensor_field_{k}"] = _strings(rows, 4 * length, seed=200 + k)
    return columns


def bytes_of_cells(*, rows: int, fields: int) -> Columns:
    """One byte a cell: for what costs by the row and not by the byte."""
    return {f"field_{k:02d}": torch.zeros(rows, dtype=torch.uint8) for k in range(fields)}


MAKERS = {"dense": dense, "mixed": mixed, "bytes_of_cells": bytes_of_cells}


def _floats(num_elements: int, seed: int) -> torch.Tensor:
    """Ordinary memory full of random floats. A pattern is repeated: drawing 320 MiB of them would
    take longer than all that is measured."""
    generator = torch.Generator().manual_seed(seed)
    pattern = torch.rand(min(num_elements, _PATTERN_ELEMENTS), generator=generator)
    out = torch.empty(num_elements)
    for start in range(0, num_elements, _PATTERN_ELEMENTS):
        part = out[start : start + _PATTERN_ELEMENTS]
        part.copy_(pattern[: len(part)])
    return out


def _strings(rows: int, length: int, *, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [generator.bytes(length // 2).hex() for _ in range(rows)]


def num_bytes(columns: Mapping[str, Any]) -> int:
    """Bytes of the values themselves."""
    return sum(
        sum(map(len, value)) if isinstance(value, list) else _flat(value).nbytes
        for value in columns.values()
    )


def read_all(columns: Mapping[str, Any]) -> float:
    """Read every byte of the tensors once, at memory speed; the sum of all elements."""
    return sum(float(np.sum(array)) for array in _arrays(columns))


def digest(columns: Mapping[str, Any]) -> str:
    """A checksum over all values, strings and row lengths too, by name. Not timed."""
    parts = []
    for name in sorted(columns.keys()):
        value = plain(columns[name])
        if isinstance(value, list):
            data, lengths = "".join(value).encode(), [len(text) for text in value]
        else:
            data = memoryview(np.ascontiguousarray(_flat(value))).cast("B")
            lengths = _row_lengths(value)
        shape = zlib.crc32(np.asarray(lengths, dtype=np.int64).tobytes())
        parts.append(f"{name}:{zlib.crc32(data):08x}:{shape:08x}")
    return " ".join(parts)


def plain(value: Any) -> Any:
    """A tensor or array as it is; any other column as a list."""
    if isinstance(value, torch.Tensor | list):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype == object else value
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _arrays(columns: Mapping[str, Any]) -> Iterator[np.ndarray]:
    for value in columns.values():
        if isinstance(value, torch.Tensor | np.ndarray):
            yield _flat(value)


def _flat(value: Any) -> np.ndarray:
    """The elements of a tensor or array; of a jagged one without its holes."""
    if isinstance(value, np.ndarray):
        return value
    if value.is_nested:
        value = value.values() if value.layout == torch.jagged else torch.cat(value.unbind())
    array: np.ndarray = value.detach().numpy()
    return array


def _row_lengths(value: Any) -> list[int]:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [row.numel() for row in value.unbind()]
    return [int(value[0].size if isinstance(value, np.ndarray) else value[0].numel())] * len(value)
