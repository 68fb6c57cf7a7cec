"""Equal content is equal: what ``union`` means when it says that two values are the same.

NaN equals NaN, at every depth; a tensor equals a tensor of its dtype, layout, shape and content
wherever it lives; a container equals one of its type. Everything else is asked with ``==``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDictBase

from transferqueue.view import jagged

if TYPE_CHECKING:
    from collections.abc import Iterable


def same_content(left: object, right: object) -> bool:
    """Whether two values hold the same, recursively. Values that contain themselves are fine."""
    return _same(left, right, frozenset())


def same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Same dtype, layout, shape and content; the device does not matter."""
    if left is right:
        return True
    if left.dtype != right.dtype or left.layout != right.layout or left.dim() != right.dim():
        return False
    if jagged.is_jagged(left):
        return _same_jagged(left, right)
    return left.shape == right.shape and _same_cells(left, right.to(left.device))


def _same_jagged(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.layout != torch.jagged:
        return _all_same(zip(left.unbind(), right.unbind(), strict=True), frozenset())
    if len(left) != len(right) or not jagged.same_layout(left, right):
        return False
    return same_tensor(jagged.packed(left).values(), jagged.packed(right).values())


def _same_cells(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.layout != torch.strided:
        return same_tensor(left.to_dense(), right.to_dense())
    if _is_one_memory(left, right):
        return True
    left, right = _comparable(left), _comparable(right)
    if torch.equal(left, right):
        return True
    if not (left.is_floating_point() or left.is_complex()):
        return False
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _is_one_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.numel() > 0 and (left.data_ptr(), left.stride()) == (
        right.data_ptr(),
        right.stride(),
    )


def _comparable(cells: torch.Tensor) -> torch.Tensor:
    """In a dtype that torch compares: float8 and complex32 widen, packed bits become bytes."""
    if cells.dtype == torch.complex32:
        return cells.to(torch.complex64)
    if cells.dtype.itemsize == 1 and cells.is_floating_point() and cells.dtype not in _PACKED:
        return cells.to(torch.float32)
    if cells.dtype in _PACKED:
        return cells.contiguous().view(torch.uint8)
    return cells


_PACKED_NAMES = ["float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"]
_PACKED_NAMES += [f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)]
_PACKED = {getattr(torch, name) for name in _PACKED_NAMES if hasattr(torch, name)}


def same_array(left: np.ndarray, right: np.ndarray) -> bool:
    """Same dtype, shape and content."""
    return _same_array(left, right, frozenset())


def _same_array(left: np.ndarray, right: np.ndarray, open_pairs: frozenset[Any]) -> bool:
    if left is right:
        return True
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype == object:
        pairs = zip(left.flat, right.flat, strict=True)
        return all(type(a) is type(b) and _same(a, b, open_pairs) for a, b in pairs)
    can_be_nan = left.dtype.kind in "fcmM"
    return bool(np.array_equal(left, right, equal_nan=can_be_nan))


def _same(left: Any, right: Any, open_pairs: frozenset[Any]) -> bool:
    if left is right:
        return True
    rule = _rule_of(left)
    if rule is not _rule_of(right):
        return False
    if rule is None:
        return _same_plain(left, right)
    pair = (id(left), id(right))
    # A pair that is being compared further up is equal if the rest is.
    return pair in open_pairs or bool(_RULES[rule](left, right, open_pairs | {pair}))


def _rule_of(value: object) -> type | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type | TensorDictBase):
        return object
    return next((kind for kind in _RULES if isinstance(value, kind) and kind is not object), None)


def _all_same(pairs: Iterable[tuple[Any, Any]], open_pairs: frozenset[Any]) -> bool:
    return all(_same(a, b, open_pairs) for a, b in pairs)


def _same_mapping(left: Any, right: Any, open_pairs: frozenset[Any]) -> bool:
    if left.keys() != right.keys():
        return False
    return _all_same(((left[key], right[key]) for key in left), open_pairs)


def _same_sequence(left: Any, right: Any, open_pairs: frozenset[Any]) -> bool:
    return len(left) == len(right) and _all_same(zip(left, right, strict=True), open_pairs)


def _same_tensordict(left: Any, right: Any, open_pairs: frozenset[Any]) -> bool:
    if isinstance(left, NonTensorStack) or isinstance(right, NonTensorStack):
        return type(left) is type(right) and _same(left.tolist(), right.tolist(), open_pairs)
    if left.batch_size != right.batch_size or set(left.keys()) != set(right.keys()):
        return False
    return _all_same(((left.get(key), right.get(key)) for key in left.keys()), open_pairs)  # noqa: SIM118


def _same_dataclass(left: Any, right: Any, open_pairs: frozenset[Any]) -> bool:
    names = [field.name for field in dataclasses.fields(left) if field.compare]
    return type(left) is type(right) and _all_same(
        ((getattr(left, name), getattr(right, name)) for name in names), open_pairs
    )


def _same_plain(left: Any, right: Any) -> bool:
    answer = left == right
    if answer is NotImplemented:
        return False
    if isinstance(answer, bool | np.bool_):
        return bool(answer) or (_is_nan(left) and _is_nan(right))
    return bool(np.all(answer))  # a table or series answers cell by cell


def _is_nan(value: object) -> bool:
    kinds = float | complex | np.inexact | np.datetime64 | np.timedelta64
    return isinstance(value, kinds) and bool(value != value)


_RULES: dict[type, Any] = {
    torch.Tensor: lambda left, right, _: same_tensor(left, right),
    np.ndarray: _same_array,
    TensorDictBase: _same_tensordict,
    dict: _same_mapping,
    list: _same_sequence,
    tuple: _same_sequence,
    object: _same_dataclass,
}
