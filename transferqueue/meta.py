"""``meta_info``: the few plain values that travel with a handle.

It is kept as bytes. So handles share it without sharing a mutable dict (what one chunk does to its
``meta_info`` no other chunk sees), equality is cheap, and its size is known before it is sent.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from transferqueue.errors import InvalidInput, Malformed, MetaConflict, MetaTooLarge
from transferqueue.wire.values import CannotCarry, ValuePacker, ValueReader, no_leaves, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.wire.format import Buffer

META_MAX_BYTES: Final = 256 << 10
"""For all values of one handle together."""

TIMING_PREFIX: Final = "timing"
"""Values of keys that begin so are measurements: two sides never agree on them exactly."""

NO_META: Final = b""

_SHOWN_CHARS: Final = 60


def encode_meta(meta: Mapping[str, Any]) -> bytes:
    """Bytes of a ``meta_info``.

    Raises `MetaTooLarge` or `InvalidInput`, with the key and what to do instead.
    """
    if not meta:
        return NO_META
    meta = thawed(meta)
    sizes = {key: _size_of(key, value) for key, value in meta.items()}
    if sum(sizes.values()) > META_MAX_BYTES:
        key = max(sizes, key=lambda name: sizes[name])
        raise InvalidInput(
            f"meta_info takes {sum(sizes.values()):,} bytes in all, the limit is "
            f"{META_MAX_BYTES:,}; put its largest value, {key!r} ({sizes[key]:,} bytes), as a field"
        )
    return ValuePacker().pack(meta)


def _size_of(key: object, value: object) -> int:
    """Bytes of one value. Raises `MetaTooLarge` or `InvalidInput`."""
    if type(key) is not str:
        raise InvalidInput(f"meta_info has str keys, got {key!r:.80}")
    try:
        size = len(ValuePacker(_refuse).pack(value))
    except _TooBig as error:
        raise MetaTooLarge(key, error.size_bytes, META_MAX_BYTES) from error
    except CannotCarry as error:
        raise InvalidInput(
            f"meta_info[{key!r}] holds a {error.type_name}, it takes plain values only; convert it "
            f"(.item(), .tolist(), str()), or put it as a field: "
            f"client.put({{{key!r}: value}}, handle=h)."
        ) from error
    if size > META_MAX_BYTES:
        raise MetaTooLarge(key, size, META_MAX_BYTES)
    return size


class FrozenMeta(dict[str, Any]):
    """The ``meta_info`` of a handle, to be read: a dict whose changes are refused, at any depth of
    dicts, because they would be lost with it. ``copy()`` and every way of copying give an ordinary
    dict."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        shown = f"{args[0]}=…" if args and type(args[0]) is str and args[0].isidentifier() else "…"
        raise InvalidInput(
            f"a handle is never changed, and this would change a copy of its meta_info; make "
            f"another one: handle = handle.with_meta({shown}), or without_meta(…)"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> FrozenMeta:
        return cls({k: cls.of(v) if type(v) is dict else v for k, v in meta.items()})

    def copy(self) -> dict[str, Any]:
        """An ordinary dict, of ordinary dicts."""
        return {k: v.copy() if type(v) is FrozenMeta else v for k, v in self.items()}

    def __copy__(self) -> dict[str, Any]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self.copy(), memo)

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return {**self.copy(), **other}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (self.copy(),)


def thawed(meta: Mapping[str, Any]) -> dict[str, Any]:
    """An ordinary dict of values of which some may come from the ``meta_info`` of handles."""
    return {k: v.copy() if type(v) is FrozenMeta else v for k, v in meta.items()}


def decode_meta(data: Buffer) -> dict[str, Any]:
    """Inverse of `encode_meta`: a dict of its own every time. Raises `Malformed`."""
    size = memoryview(data).nbytes
    if size == 0:
        return {}
    if size > META_MAX_BYTES:
        raise Malformed(f"meta_info of {size} bytes")
    meta = ValueReader().read(data)
    if type(meta) is not dict or not all(type(key) is str for key in meta):
        raise Malformed("meta_info is a map with str keys")
    return meta


def _refuse(value: object) -> Any:
    size = getattr(value, "nbytes", 0)
    if type(size) is int and size > META_MAX_BYTES:
        raise _TooBig(type_name(value), size)
    return no_leaves(value)


class _TooBig(CannotCarry):
    def __init__(self, name: str, size_bytes: int) -> None:
        super().__init__(name)
        self.size_bytes = size_bytes


def merge_meta(parts: Sequence[bytes]) -> bytes:
    """The ``meta_info`` of a union or concat of handles; every key of any part.

    Raises `MetaConflict` when two parts disagree on a key. Numbers under a ``timing…`` key are
    measurements, so the larger is kept (the slowest part is what the step took) and jitter never
    fails a step.
    """
    distinct = list(dict.fromkeys(part for part in parts if part))
    if len(distinct) < 2:
        return distinct[0] if distinct else NO_META
    merged: dict[str, Any] = {}
    for part in distinct:
        for key, value in decode_meta(part).items():
            merged[key] = _merge_values(key, merged[key], value) if key in merged else value
    return encode_meta(merged)


def _merge_values(key: str, left: Any, right: Any) -> Any:
    if key.startswith(TIMING_PREFIX):
        if isinstance(left, dict) and isinstance(right, dict):
            both = {
                name: _merge_values(key, left[name], right[name]) for name in left.keys() & right
            }
            return {**left, **right, **both}
        if isinstance(left, int | float) and isinstance(right, int | float):
            return max(left, right)
    if not same_value(left, right):
        raise MetaConflict(key, _shown(left), _shown(right))
    return left


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def same_value(left: Any, right: Any) -> bool:
    """Whether two carried values have equal content: same types, and NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_value(left[k], right[k]) for k in left)
    if isinstance(left, np.ndarray):
        return left.shape == right.shape and same_value(left.tolist(), right.tolist())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_value, left, right))
    return bool(left == right) or bool(left != left and right != right)
