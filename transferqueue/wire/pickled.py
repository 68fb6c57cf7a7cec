"""Python objects by pickle: the one module that has it, and only for who asked for it.

A pickle can run any code when it is read. It is written and read only where a client was opened
with ``objects="pickle"``; a shard never looks into one.
"""

from __future__ import annotations

import pickle

from transferqueue.errors import Malformed
from transferqueue.wire.values import CannotCarry, type_name


def dump(value: object) -> bytes:
    """The pickle of one value. Raises `CannotCarry`."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CannotCarry(type_name(value), f"pickle does not take it either: {error}") from error


def load(data: bytes) -> object:
    """Inverse of `dump`. Raises `Malformed`, whatever the object's own code raises."""
    try:
        return pickle.loads(data)  # noqa: S301 - the caller has asked for it
    except Exception as error:  # a pickle runs foreign code, which may raise anything
        raise Malformed(f"a pickle does not load: {type(error).__name__}: {error}") from error
