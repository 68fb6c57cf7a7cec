"""Finding a transport by name among the entry points ``transferqueue.transports``."""

from __future__ import annotations

from transferqueue.entry_points import PluginGroup
from transferqueue.transports.base import WindowTransport

_TRANSPORTS = PluginGroup(
    group="transferqueue.transports",
    noun="transport",
    built_in={"sockets": "transferqueue.transports.sockets:SocketTransport"},
)


def transport_names() -> list[str]:
    """All transports that are installed, sorted."""
    return sorted(_TRANSPORTS.installed())


def load_transport(name: str) -> type[WindowTransport]:
    """The class behind a name. `ConfigError` when there is none, or it cannot be imported."""
    return _TRANSPORTS.load_class(name, WindowTransport)  # type: ignore[type-abstract]
