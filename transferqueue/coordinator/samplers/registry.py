"""Samplers by their name on the wire: built-in ones, installed ones, and those of the service.

A name on the wire never picks a module. It is looked up among the built-in samplers, the classes
that whoever started the service named, and the ``transferqueue.samplers`` entry points of packages
that are installed where the coordinator runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from transferqueue.coordinator.samplers.base import Sampler
from transferqueue.coordinator.samplers.fifo import Fifo
from transferqueue.coordinator.samplers.foreign import Guard, held_to_the_contract
from transferqueue.coordinator.samplers.freshest_first import FreshestFirst
from transferqueue.coordinator.samplers.groups import Groups
from transferqueue.coordinator.samplers.length_balanced import LengthBalanced
from transferqueue.coordinator.samplers.rank_aware import RankAware
from transferqueue.coordinator.samplers.weighted import Weighted
from transferqueue.errors import ConfigError, InvalidInput, SamplerFailed, near_names

ENTRY_POINT_GROUP = "transferqueue.samplers"
BUILT_IN: tuple[type[Sampler], ...] = (
    Fifo,
    FreshestFirst,
    Groups,
    LengthBalanced,
    RankAware,
    Weighted,
)


class SamplerRegistry:
    """Makes samplers of their wire form.

    ``extra``: classes of the service's owner. ``within`` makes every call into one that is not
    built in, and may raise `TookTooLong`.
    """

    def __init__(
        self,
        extra: Iterable[type[Sampler]] = (),
        *,
        within: Callable[[Callable[[], Any]], Any] = lambda call: call(),
    ) -> None:
        self._classes = {cls.name: cls for cls in (*BUILT_IN, *extra)}
        self._within = within

    def read(self, plain: Mapping[str, Any] | None) -> Sampler:
        """The sampler. InvalidInput for an unknown name or arguments it does not take,
        SamplerFailed for one that cannot be made of them."""
        if plain is None:
            return Fifo()
        try:
            name, args = plain["name"], plain["args"]
        except (KeyError, TypeError) as err:
            raise InvalidInput(f"sampler: {{name, args}} expected, got {plain!r}") from err
        if not isinstance(name, str) or not isinstance(args, Mapping):
            raise InvalidInput(f"sampler: {{name, args}} expected, got {plain!r}")
        cls = self._class(name)
        _check_arguments(name, cls, args)
        if cls in BUILT_IN:
            return _made(name, cls, args)
        guard = Guard(name, self._within)
        return held_to_the_contract(guard.call("it", lambda: _made(name, cls, args)), guard)

    @staticmethod
    def built_in(name: str) -> bool:
        """Whether a sampler of this name came with the package."""
        return any(cls.name == name for cls in BUILT_IN)

    def _class(self, name: str) -> type[Sampler]:
        cls = self._classes.get(name)
        if cls is None:
            cls = self._classes[name] = self._installed(name)
        return cls

    def _installed(self, name: str) -> type[Sampler]:
        points = entry_points(group=ENTRY_POINT_GROUP)
        if name not in points.names:
            near = near_names(name, [*self._classes, *points.names])
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(
                f"no sampler {name!r}{hint} Own ones are classes under the entry point "
                f"{ENTRY_POINT_GROUP!r}, installed where the coordinator runs, or named to "
                f"serve(samplers=[...])."
            )
        cls = Guard(name, self._within).call("its entry point", points[name].load)
        if not _is_sampler(cls):
            raise SamplerFailed(name, f"its entry point is {cls!r}, not a Sampler class")
        if cls.name != name:
            raise SamplerFailed(name, f"its entry point is {cls!r}, whose name is {cls.name!r}")
        found: type[Sampler] = cls
        return found


def _check_arguments(name: str, cls: type[Sampler], args: Mapping[str, Any]) -> None:
    known: list[str] = [f.name for f in fields(cls)] if is_dataclass(cls) else []
    unknown = sorted(set(args) - set(known))
    if unknown:
        near = near_names(unknown[0], known)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"sampler {name!r} takes no {unknown[0]!r}{hint}")


def _made(name: str, cls: type[Sampler], args: Mapping[str, Any]) -> Sampler:
    try:
        return cls(**args)
    except TypeError as err:
        raise InvalidInput(f"sampler {name!r}: {err}") from err


def _is_sampler(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Sampler)


# -- classes of the service's owner ---------------------------------------------------------------


def path_of(cls: type[Sampler] | str) -> str:
    """``module:Class`` of a sampler class, for another process to import. ConfigError for one that
    no other process can."""
    if isinstance(cls, str):
        return cls
    if not _is_sampler(cls):
        raise ConfigError(f"samplers takes Sampler classes or 'module:Class', got {cls!r:.80}")
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise ConfigError(
            f"sampler {cls.__qualname__} of {cls.__module__} cannot be imported by the "
            f"coordinator, which is another process; define it at the top of a module"
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def load_samplers(paths: Iterable[str]) -> list[type[Sampler]]:
    """The classes of ``module:Class`` each. ConfigError for one that is none."""
    return [_loaded(path) for path in paths]


def _loaded(path: str) -> type[Sampler]:
    module_name, _, attributes = path.partition(":")
    try:
        found: Any = import_module(module_name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except Exception as err:
        raise ConfigError(f"sampler {path!r} cannot be imported: {err!r}") from err
    if not _is_sampler(found):
        raise ConfigError(f"sampler {path!r} is {found!r:.80}, not a Sampler class")
    if SamplerRegistry.built_in(found.name):
        raise ConfigError(f"sampler {path!r} has the name of a built-in one, {found.name!r}")
    cls: type[Sampler] = found
    return cls
