"""Finding a backend by name among the entry points ``transferqueue.backends``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.backends.base import Backend
from transferqueue.backends.checked import checked
from transferqueue.entry_points import PluginGroup

if TYPE_CHECKING:
    from transferqueue.backends.base import BackendConfig

_BACKENDS = PluginGroup(
    group="transferqueue.backends",
    noun="backend",
    built_in={
        "cuda": "transferqueue.backends.device:CudaBackend",
        "device": "transferqueue.backends.device:DeviceBackend",
        "disk": "transferqueue.backends.disk:DiskBackend",
        "heap": "transferqueue.backends.heap:HeapBackend",
        "mooncake": "transferqueue.backends.mooncake:MooncakeBackend",
        "ray": "transferqueue.backends.ray_objects:RayBackend",
        "shm": "transferqueue.backends.shm:ShmBackend",
    },
)


def backend_names() -> list[str]:
    """All backends that are installed, sorted."""
    return sorted(_BACKENDS.installed())


def load_backend(name: str) -> type[Backend]:
    """The class behind a name. `ConfigError` when there is none, or it cannot be imported."""
    return _BACKENDS.load_class(name, Backend)  # type: ignore[type-abstract]


def open_backend(name: str, config: BackendConfig) -> Backend:
    """Start a backend by name, with checks of what it reads if its bytes leave the process."""
    return checked(load_backend(name).open(config), name)
