"""Tag values in a body: a scalar for all rows, a number array beside the body, or a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.wire.arrays import ArrayReader, ArrayWriter

SITE_TAG = "@site"
"""Reserved: where in the caller's code the put stands. The coordinator makes no tag of it."""

TAG_TYPES = (bool, int, float, str)


def write_tags(tags: Mapping[str, Any], arrays: ArrayWriter) -> dict[str, Any]:
    """``tags``: name -> scalar, number array or list of scalars."""
    return {name: _write(name, value, arrays) for name, value in tags.items()}


def _write(name: str, value: Any, arrays: ArrayWriter) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, TAG_TYPES):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf":
        return {"array": arrays.add(value)}
    if isinstance(value, np.ndarray | list | tuple):
        listed = [item.item() if isinstance(item, np.generic) else item for item in value]
        return {"list": _checked(name, listed)}
    raise InvalidInput(
        f"tag {name!r}: expected a bool, int, float or str, or one of them per row, "
        f"got {type(value).__name__}"
    )


def _checked(name: str, listed: list[Any]) -> list[Any]:
    for kind in set(map(type, listed)):
        if not issubclass(kind, (*TAG_TYPES, type(None))):
            raise InvalidInput(f"tag {name!r}: {kind.__name__} is not a tag value")
    return listed


def read_tags(tags: Mapping[str, Any], arrays: ArrayReader) -> dict[str, Any]:
    """Inverse of `write_tags`: scalars, number arrays, lists. What `write_tags` would not take is
    refused here: it has to be written again, on its way to the coordinator."""
    return {name: _read(name, value, arrays) for name, value in tags.items()}


def _read(name: str, value: Any, arrays: ArrayReader) -> Any:
    if isinstance(value, TAG_TYPES):
        return value
    if isinstance(value, dict) and "array" in value:
        array = arrays.get(value["array"])
        if array.ndim != 1:
            raise InvalidInput(f"tag {name!r}: an array of shape {array.shape}, expected [rows]")
        return array
    if isinstance(value, dict) and isinstance(value.get("list"), list):
        return _checked(name, value["list"])
    raise InvalidInput(f"tag {name!r}: {type(value).__name__} is not a tag value")
