"""`register`: which methods of a worker a group can call, and how."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from transferqueue.dispatch import Declaration
from transferqueue.errors import ConfigError
from workers.modes import Dispatch, DispatchMode, Execute, FunctionPair, Handle, RankZero

_ATTRIBUTE = "__dispatch__"

Method = TypeVar("Method", bound=Callable[..., Any])
ModeOrPair = DispatchMode | tuple[Any, Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """How one method is called."""

    mode: DispatchMode
    execute: Execute = Execute.ALL
    blocking: bool = True
    declaration: Declaration = field(default_factory=Declaration)

    @property
    def by_handle(self) -> bool:
        return isinstance(self.mode, Handle)


def register(
    dispatch_mode: ModeOrPair = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,  # noqa: FBT001, FBT002 - verl's signature
    *,
    reads: Sequence[str] = (),
    optional: Sequence[str] = (),
    writes: Sequence[str] = (),
    overwrite: bool = False,
) -> Callable[[Method], Method]:
    """Make a method callable on a group of its workers. The method itself stays as it is.

    ``dispatch_mode``: one of `Dispatch`, or a pair of functions (a tuple, or a dict with
    ``dispatch_fn`` and ``collect_fn``). ``execute_mode``: which ranks run it. ``blocking=False``:
    the call returns a `CallFuture` at once.

    With ``Dispatch.HANDLE`` the columns: ``reads`` are fetched together before the method starts
    (``tq.on("cuda", "values")``: straight to the current device of the rank),
    ``optional`` with them where they are there, ``writes`` is what it returns, all of them and no
    other. The method gets a lazy view in place of the handle. A rank that fails stores nothing;
    what other ranks of the call have stored stays, so that a call that is to be made again needs
    ``overwrite``. A method may be ``async``.

    ``ConfigError`` for a declaration that cannot be.
    """
    mode = (
        dispatch_mode if isinstance(dispatch_mode, DispatchMode) else FunctionPair.of(dispatch_mode)
    )
    if not isinstance(execute_mode, Execute):
        raise ConfigError(f"execute_mode is one of Execute, got {execute_mode!r}")
    if isinstance(mode, RankZero):
        execute_mode = Execute.RANK_ZERO
    declaration = Declaration.of(reads=reads, optional=optional, writes=writes, overwrite=overwrite)
    if declaration != Declaration() and not isinstance(mode, Handle):
        raise ConfigError("reads, optional and writes are for dispatch_mode=Dispatch.HANDLE")
    registration = Registration(
        mode=mode, execute=execute_mode, blocking=blocking, declaration=declaration
    )

    def declare(method: Method) -> Method:
        setattr(method, _ATTRIBUTE, registration)
        return method

    return declare


def registration_of(method: Any) -> Registration | None:
    """How a method is called; ``None`` when it is not registered."""
    registration = getattr(method, _ATTRIBUTE, None)
    return registration if isinstance(registration, Registration) else None


def registered_methods(cls: type) -> dict[str, Registration]:
    """Name -> how it is called, of every registered method of a class and its bases."""
    found = {}
    for name in dir(cls):
        registration = registration_of(inspect.getattr_static(cls, name))
        if registration is not None:
            found[name] = registration
    return found
