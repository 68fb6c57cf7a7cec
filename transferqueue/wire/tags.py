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
        wrong = next((item for item in listed if not isinstance(item, (*TAG_TYPES, type(None)))), 0)
        if not isinstance(wrong, (*TAG_TYPES, type(None))):
            raise InvalidInput(f"tag {name!r}: {type(wrong).__name__} is not a tag value")
        return {"list": listed}
    raise InvalidInput(
        f"tag {name!r}: expected a bool, int, float or str, or one of them per row, "
        f"got {type(value).__name__}"
    )


def read_tags(tags: Mapping[str, Any], arrays: ArrayReader) -> dict[str, Any]:
    """Inverse of `write_tags`: scalars, number arrays, lists."""
    read: dict[str, Any] = {}
    for name, value in tags.items():
        if isinstance(value, dict):
            read[name] = arrays.get(value["array"]) if "array" in value else list(value["list"])
        elif isinstance(value, TAG_TYPES):
            read[name] = value
        else:
            raise InvalidInput(f"tag {name!r}: {type(value).__name__} is not a tag value")
    return read
