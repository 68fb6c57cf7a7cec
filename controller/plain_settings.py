"""Settings from plain values, such as those of a file: names and types are checked one by one."""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from transferqueue.errors import ConfigError, near_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from dataclasses import Field

Settings = TypeVar("Settings")

PLAIN: dict[str, type | tuple[type, ...]] = {
    "bool": bool,
    "int": int,
    "float": (int, float),
    "str": str,
    "None": NoneType,
}


def from_plain(cls: type[Settings], what: str, values: Mapping[str, Any]) -> Settings:
    """An instance of a dataclass, whose annotations are strings. Members of a `StrEnum` are given
    by their value. ``ConfigError`` names a wrong key or member and near ones, a wrong type, a key
    that is missing, and whatever the class itself refuses.

    ``what``: whose settings these are, for messages.
    """
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    check_names(f"{what} setting", values, known)
    for name, field in known.items():
        is_needed = field.init and field.default is MISSING and field.default_factory is MISSING
        if is_needed and name not in values:
            raise ConfigError(f"{what} settings: {name!r} is missing")
    return cls(**{name: _value(what, known[name], value) for name, value in values.items()})


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """``ConfigError`` for the first that is not known, with near ones."""
    all_known = list(known)
    for name in given:
        if name not in all_known:
            near = near_names(str(name), all_known)
            meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise ConfigError(f"no {what} {name!r}; {meant}there are {all_known}")


def _value(what: str, field: Field[Any], value: Any) -> Any:
    if isinstance(field.default, StrEnum):
        kind = type(field.default)
        check_names(field.name, [value], [member.value for member in kind])
        return kind(value)
    wanted = [part.strip() for part in str(field.type).split("|")]
    if not set(wanted) <= PLAIN.keys():
        return value  # the class itself knows
    if isinstance(value, bool) and "bool" not in wanted:
        is_right = False
    else:
        is_right = any(isinstance(value, PLAIN[name]) for name in wanted)
    if not is_right:
        raise ConfigError(f"{what} settings: {field.name}={value!r} is no {field.type}")
    return value
