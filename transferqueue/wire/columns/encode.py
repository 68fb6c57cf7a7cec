"""Any value that a put takes for one field, as a column."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from transferqueue.dtypes import is_array_dtype
from transferqueue.errors import RowCountMismatch, UnsupportedTensor
from transferqueue.wire.cells import ObjectPolicy
from transferqueue.wire.columns.dense import encode_array, encode_tensor
from transferqueue.wire.columns.objects import encode_objects
from transferqueue.wire.columns.ragged import encode_jagged
from transferqueue.wire.tensors import nowhere
from transferqueue.wire.values import CannotCarry, type_name

if TYPE_CHECKING:
    from transferqueue.wire.cells import Elsewhere
    from transferqueue.wire.columns.encoded import EncodedColumn
    from transferqueue.wire.tensors import Stays


def encode_column(
    field: str,
    value: object,
    num_rows: int | None = None,
    *,
    objects: ObjectPolicy = ObjectPolicy.PLAIN,
    stays: Stays = nowhere,
    elsewhere: Elsewhere | None = None,
) -> EncodedColumn:
    """One field of a put, from a value with one entry a row.

    ==========================================  =====================================
    tensor                                      tensor column
    nested tensor, layout ``torch.jagged``      ragged tensor column
    numpy array of numbers, times or text       array column
    numpy object array, list, tuple,            object column
    tensordict's non-tensor values
    ==========================================  =====================================

    Contiguous memory is not copied; a view is copied alone, not what it is a view of. Gradients
    are left behind. A tensor of a device is left there if it ``stays``, else copied to the CPU; of
    those in object columns ``elsewhere`` tells which are fetched later. Raises `UnsupportedTensor`
    or `UnsupportedObject` with the way out, or `RowCountMismatch` when ``num_rows`` are expected.
    """
    value = _unwrapped(value)
    if isinstance(value, torch.Tensor):
        column = _encode_tensor(field, value, stays)
    else:
        column = _encode(field, value, objects, elsewhere)
    if num_rows is not None and column.num_rows != num_rows:
        raise RowCountMismatch(f"field {field!r}", num_rows, column.num_rows)
    return column


def _encode(
    field: str, value: object, objects: ObjectPolicy, elsewhere: Elsewhere | None
) -> EncodedColumn:
    if isinstance(value, np.ndarray):
        return _encode_array(field, value, objects, elsewhere)
    if isinstance(value, list | tuple):
        return encode_objects(field, value, (), objects, elsewhere)
    hint = "give a tensor, a numpy array, or a list with one object a row"
    if hasattr(value, "flatten_keys"):
        hint = "flatten a nested TensorDict first: .flatten_keys()"
    raise UnsupportedTensor(field, f"a {type_name(value)}", hint)


def _encode_tensor(field: str, tensor: torch.Tensor, stays: Stays) -> EncodedColumn:
    if tensor.dim() == 0:
        raise UnsupportedTensor(field, "a tensor without rows", "its first dimension is the rows")
    try:
        encode = encode_jagged if tensor.layout is torch.jagged else encode_tensor
        return encode(tensor, stays)
    except CannotCarry as error:
        raise UnsupportedTensor(field, f"a {error.type_name}", error.hint) from error


def _encode_array(
    field: str,
    array: np.ndarray[Any, Any],
    objects: ObjectPolicy,
    elsewhere: Elsewhere | None,
) -> EncodedColumn:
    if array.ndim == 0:
        raise UnsupportedTensor(field, "an array without rows", "its first dimension is the rows")
    if array.dtype == object:
        rows = array if array.ndim == 1 else array.reshape(len(array), math.prod(array.shape[1:]))
        return encode_objects(field, rows.tolist(), array.shape[1:], objects, elsewhere)
    if not is_array_dtype(array.dtype):
        raise UnsupportedTensor(
            field, f"an array of dtype {array.dtype}", "put one plain array a field"
        )
    return encode_array(field, array)


def _unwrapped(value: Any) -> Any:
    """What a tensordict's non-tensor value holds; any other value as it is.

    A `NonTensorStack` has one object a row. A `NonTensorData` has one for all rows; when that is
    an array with an entry a row, as assigning an array to a key makes it, it is the column.
    """
    if not type(value).__module__.startswith("tensordict"):
        return value
    from tensordict import is_non_tensor

    if not is_non_tensor(value):
        return value
    data = getattr(value, "data", None)
    if isinstance(data, np.ndarray) and data.shape[:1] == tuple(value.batch_size):
        return data
    return value.tolist()
