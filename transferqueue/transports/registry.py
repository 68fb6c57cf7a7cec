"""Finding a transport by name among the entry points ``transferqueue.transports``."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from transferqueue.errors import ConfigError, near_names
from transferqueue.transports.base import WindowTransport

GROUP = "transferqueue.transports"

_BUILT_IN = {"sockets": "transferqueue.transports.sockets:SocketTransport"}
"""Known without installed metadata, so that a source tree on ``sys.path`` works too."""


def transport_names() -> list[str]:
    """All transports that are installed, sorted."""
    return sorted(_installed())


def load_transport(name: str) -> type[WindowTransport]:
    """The class behind a name. `ConfigError` when there is none, or it cannot be imported."""
    installed = _installed()
    if name not in installed:
        near = near_names(name, installed)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ConfigError(f"no transport {name!r}; installed: {', '.join(sorted(installed))}{hint}")
    module_name, _, attribute = installed[name].partition(":")
    try:
        found = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"transport {name!r} ({installed[name]}) cannot be used: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, WindowTransport)):
        raise ConfigError(f"transport {name!r} ({installed[name]}) is not a WindowTransport class")
    return found


def _installed() -> dict[str, str]:
    return {**{point.name: point.value for point in entry_points(group=GROUP)}, **_BUILT_IN}
