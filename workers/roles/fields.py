"""Which columns a role's method reads and writes, as data beside the method.

A dispatcher reads the declaration to fetch and to put exactly these columns, and a driver to check
that some earlier stage writes what a later one reads. The method itself is left as it was.

There are two ways to declare: `stage`, for a method that gets a mapping of its columns, and
`workers.register` with ``Dispatch.HANDLE``, for one that gets a DataProto.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from workers.registration import registration_of

if TYPE_CHECKING:
    from transferqueue.dispatch import Declaration

Columns: TypeAlias = Mapping[str, Any]
"""Column name to ``Tensor`` [B, ...] or ``np.ndarray`` [B]; a dict, ``TensorDict`` or view."""

_Method = TypeVar("_Method", bound=Callable[..., Any])
_ATTRIBUTE = "__stage_fields__"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFields:
    """Columns of one method."""

    reads: tuple[str, ...]
    """Always needed."""
    writes: tuple[str, ...] = ()
    """Returned by every call; empty for a method that returns metrics."""
    optional_reads: tuple[str, ...] = ()
    """Needed only under some settings; the role's ``needs(method_name)`` says which."""
    reads_what_is_there: bool = False
    """Whether ``optional_reads`` are read wherever they are there instead."""


def stage(
    *,
    reads: tuple[str, ...],
    writes: tuple[str, ...] = (),
    optional_reads: tuple[str, ...] = (),
) -> Callable[[_Method], _Method]:
    """Declare the columns of a method."""
    fields = MethodFields(reads=reads, writes=writes, optional_reads=optional_reads)

    def declare(method: _Method) -> _Method:
        setattr(method, _ATTRIBUTE, fields)
        return method

    return declare


def registered_declaration(method: Any) -> Declaration | None:
    """What a method declares by `workers.register`; ``None`` when it is not one by handle."""
    registration = registration_of(method)
    if registration is None or not registration.by_handle:
        return None
    return registration.declaration


def _fields_of(method: Any) -> MethodFields | None:
    fields = getattr(method, _ATTRIBUTE, None)
    if isinstance(fields, MethodFields):
        return fields
    declaration = registered_declaration(method)
    if declaration is None:
        return None
    return MethodFields(
        reads=declaration.reads,
        writes=declaration.writes,
        optional_reads=declaration.optional,
        reads_what_is_there=True,
    )


def declared_fields(method: Callable[..., Any]) -> MethodFields:
    """The declaration of a method, bound or not. ``TypeError`` when there is none."""
    fields = _fields_of(method)
    if fields is None:
        name = getattr(method, "__qualname__", repr(method))
        raise TypeError(
            f"{name} declares no columns; decorate it with @stage(reads=..., ...), or with "
            f"@register(Dispatch.HANDLE, reads=..., ...)"
        )
    return fields


def declared_methods(role: Any) -> dict[str, MethodFields]:
    """Every declared method of a role, or of its class, by name.

    Of an instance, ``reads`` are what it needs under its settings and ``optional_reads`` the rest;
    of a class, whose settings are not known, they are as declared.
    """
    found: dict[str, MethodFields] = {}
    kind = role if isinstance(role, type) else type(role)
    for name in dir(kind):
        fields = _fields_of(inspect.getattr_static(kind, name))
        if name.startswith("_") or fields is None:
            continue
        needed = tuple(needed_reads(role, name)) if not isinstance(role, type) else ()
        found[name] = MethodFields(
            reads=(*fields.reads, *needed),
            writes=fields.writes,
            optional_reads=tuple(n for n in fields.optional_reads if n not in needed),
            reads_what_is_there=fields.reads_what_is_there,
        )
    return found


def needed_reads(role: Any, method_name: str) -> tuple[str, ...]:
    """The optional reads of a method that the role's settings make it use."""
    needs = getattr(role, "needs", None)
    return () if needs is None else tuple(needs(method_name))
