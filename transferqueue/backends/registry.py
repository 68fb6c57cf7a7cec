"""Finding a backend by name among the entry points ``transferqueue.backends``."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from transferqueue.backends.base import Backend
from transferqueue.backends.checked import checked
from transferqueue.errors import ConfigError, near_names

if TYPE_CHECKING:
    from transferqueue.backends.base import BackendConfig

GROUP = "transferqueue.backends"

_BUILT_IN = {
    "cuda": "transferqueue.backends.device:CudaBackend",
    "device": "transferqueue.backends.device:DeviceBackend",
    "disk": "transferqueue.backends.disk:DiskBackend",
    "heap": "transferqueue.backends.heap:HeapBackend",
    "mooncake": "transferqueue.backends.mooncake:MooncakeBackend",
    "ray": "transferqueue.backends.ray_objects:RayBackend",
    "shm": "transferqueue.backends.shm:ShmBackend",
}
"""Known without installed metadata, so that a source tree on ``sys.path`` works too."""


def backend_names() -> list[str]:
    """All backends that are installed, sorted."""
    return sorted(_installed())


def load_backend(name: str) -> type[Backend]:
    """The class behind a name. `ConfigError` when there is none, or it cannot be imported."""
    installed = _installed()
    if name not in installed:
        near = near_names(name, installed)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ConfigError(f"no backend {name!r}; installed: {', '.join(sorted(installed))}{hint}")
    module_name, _, attribute = installed[name].partition(":")
    try:
        found = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"backend {name!r} ({installed[name]}) cannot be used: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise ConfigError(f"backend {name!r} ({installed[name]}) is not a Backend class")
    return found


def open_backend(name: str, config: BackendConfig) -> Backend:
    """Start a backend by name, with checks of what it reads if its bytes leave the process."""
    return checked(load_backend(name).open(config), name)


def _installed() -> dict[str, str]:
    found: tuple[EntryPoint, ...] = tuple(entry_points(group=GROUP))
    return {**{point.name: point.value for point in found}, **_BUILT_IN}
