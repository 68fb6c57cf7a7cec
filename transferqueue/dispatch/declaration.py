"""Which columns a dispatched method reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.errors import ConfigError
from transferqueue.fields import check_name
from transferqueue.reads import FieldOn

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The columns of one method."""

    reads: tuple[str, ...] = ()
    """Fetched together before the method starts; it does not start when one is missing. Those made
    by ``tq.on`` land on their device."""
    optional: tuple[str, ...] = ()
    """Fetched with them where they are there."""
    writes: tuple[str, ...] = ()
    """Returned by every call, all of them and no other."""
    overwrite: bool = False
    """Written where they are there already too, as a new version: for a call that may be made
    again after some of its ranks have failed, or that changes what it reads."""

    @classmethod
    def of(
        cls,
        *,
        reads: Sequence[str] = (),
        optional: Sequence[str] = (),
        writes: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Declaration:
        """``ConfigError`` for a bare str, a repeated name, or one both read and written, unless it
        is to ``overwrite``."""
        return cls(
            reads=_names("reads", reads),
            optional=_names("optional", optional),
            writes=_names("writes", writes),
            overwrite=overwrite,
        )

    def __post_init__(self) -> None:
        both = {*self.reads, *self.optional} & set(self.writes)
        if both and not self.overwrite:
            raise ConfigError(
                f"{sorted(both)} are declared as read and as written, but a cell is written once; "
                f"write the new values under another name, or declare overwrite=True"
            )
        twice = set(self.reads) & set(self.optional)
        if twice:
            raise ConfigError(f"{sorted(twice)} are declared in reads and in optional; choose one")


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ConfigError(f"{argument} takes a list of names; did you mean [{names!r}]?")
    for name in names:
        plain = str(name) if isinstance(name, FieldOn) else name
        check_name(plain, what=f"a name in {argument}")
    if len(set(names)) != len(names):
        raise ConfigError(f"{argument} names a field twice: {list(names)}")
    return tuple(names)
