"""Column names as callers give them, checked. Decisions only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.errors import InvalidInput, NameTaken, UnknownColumn, near_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def as_names(keys: Collection[str] | str | None) -> list[str] | None:
    """One name or several as a list; ``None`` stays ``None``."""
    return None if keys is None else [keys] if isinstance(keys, str) else list(keys)


def known_names(
    keys: Collection[str] | str | None, known: Iterable[str], where: str, *, once: bool
) -> list[str]:
    """The names asked for, all of ``known`` for ``None``.

    ``UnknownColumn`` for one that is not there, or with ``once`` for the second of a name.
    """
    names = as_names(keys)
    if names is None:
        return list(known)
    unique = set(names)
    if not unique.issubset(known := list(known)):
        name = next(name for name in names if name not in known)
        raise UnknownColumn(name, near_names(str(name), map(str, known)), where)
    if len(unique) == len(names):
        return names
    if once:
        name = next(name for name in names if names.count(name) > 1)
        raise UnknownColumn(name, [], f"{where} for a second time")
    return list(dict.fromkeys(names))


def renaming(old_keys: Any, new_keys: Any, known: Collection[str]) -> dict[str, str]:
    """``{old: new}`` without the names that stay. See ``DataProto.rename`` for the errors."""
    old, new = _as_list("old_keys", old_keys), _as_list("new_keys", new_keys)
    if len(old) != len(new):
        raise InvalidInput(
            f"old_keys and new_keys must have one length, got {len(old)} and {len(new)}"
        )
    known_names(old, known, "the batch", once=False)
    if len(set(old)) < len(old):
        raise InvalidInput(f"old_keys names a column twice: {old}")
    names = {a: b for a, b in zip(old, new, strict=True) if a != b}
    taken = set(known) - names.keys()
    for a, b in names.items():
        if b in taken:
            raise NameTaken(a, b)
        taken.add(b)
    return names


def _as_list(argument: str, keys: Any) -> list[str]:
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, list):
        raise TypeError(f"{argument} must be a str or a list of str, got {keys!r:.80}")
    return keys
