"""What packages bring of their own, found by name among their entry points."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from transferqueue.errors import ConfigError, near_names

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginGroup:
    """One group of entry points."""

    group: str
    """Its name, ``transferqueue.…``."""
    noun: str
    """What messages call one of it."""
    built_in: Mapping[str, str]
    """Name -> ``module:attribute``. Known without installed metadata, so that a source tree on
    ``sys.path`` works too; no package can take one of these names."""

    def installed(self) -> dict[str, str]:
        """Name -> ``module:attribute`` of all that can be had."""
        found: tuple[EntryPoint, ...] = tuple(entry_points(group=self.group))
        return {**{point.name: point.value for point in found}, **self.built_in}

    def load_class(self, name: str, base: type[T]) -> type[T]:
        """The class behind a name. `ConfigError` when there is none, it cannot be imported, or it
        is no ``base``."""
        # Looking through all that is installed takes tens of ms, of each start of each process.
        installed = self.built_in if name in self.built_in else self.installed()
        if name not in installed:
            near = near_names(name, installed)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            names = ", ".join(sorted(installed))
            raise ConfigError(f"no {self.noun} {name!r}; installed: {names}{hint}")
        where = f"{self.noun} {name!r} ({installed[name]})"
        try:
            found = imported(installed[name])
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{where} cannot be used: {error}") from error
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ConfigError(f"{where} is not a {base.__name__} class")
        return found


def imported(path: str) -> Any:
    """What stands at ``module:attribute``. ImportError, AttributeError."""
    module_name, _, attribute = path.partition(":")
    return getattr(import_module(module_name), attribute)
