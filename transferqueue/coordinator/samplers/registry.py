"""Samplers by their name on the wire: the built-in ones, and installed ones by entry point.

A name on the wire never picks a module: it is looked up among the built-in samplers and the
``transferqueue.samplers`` entry points of packages that are installed where the coordinator runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any

from transferqueue.coordinator.samplers.base import Sampler
from transferqueue.coordinator.samplers.fifo import Fifo
from transferqueue.coordinator.samplers.freshest_first import FreshestFirst
from transferqueue.coordinator.samplers.groups import Groups
from transferqueue.coordinator.samplers.length_balanced import LengthBalanced
from transferqueue.coordinator.samplers.rank_aware import RankAware
from transferqueue.coordinator.samplers.weighted import Weighted
from transferqueue.errors import InvalidInput, SamplerFailed, near_names

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
    """Makes samplers of their wire form."""

    def __init__(self, extra: Iterable[type[Sampler]] = ()) -> None:
        self._classes = {cls.name: cls for cls in (*BUILT_IN, *extra)}

    def read(self, plain: Mapping[str, Any] | None) -> Sampler:
        """The sampler; InvalidInput for an unknown name or arguments it does not take."""
        if plain is None:
            return Fifo()
        try:
            name, args = plain["name"], plain["args"]
        except (KeyError, TypeError) as err:
            raise InvalidInput(f"sampler: {{name, args}} expected, got {plain!r}") from err
        if not isinstance(name, str) or not isinstance(args, Mapping):
            raise InvalidInput(f"sampler: {{name, args}} expected, got {plain!r}")
        cls = self._class(name)
        known: list[str] = [f.name for f in fields(cls)] if is_dataclass(cls) else []
        unknown = sorted(set(args) - set(known))
        if unknown:
            near = near_names(unknown[0], known)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(f"sampler {name!r} takes no {unknown[0]!r}{hint}")
        try:
            return cls(**args)
        except TypeError as err:
            raise InvalidInput(f"sampler {name!r}: {err}") from err

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
                f"{ENTRY_POINT_GROUP!r}, installed where the coordinator runs."
            )
        try:
            cls = points[name].load()
        except Exception as err:
            raise SamplerFailed(name, f"its entry point does not load: {err!r}") from err
        if not (isinstance(cls, type) and issubclass(cls, Sampler)):
            raise SamplerFailed(name, f"its entry point is {cls!r}, not a Sampler class")
        return cls
