"""What a backend needs to run: a folder, a Mooncake master, a Ray on this host."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.mooncake_master import mooncake_master
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.registry import open_backend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.backends.base import Backend

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnder:
    """How a backend is told of what lies under it."""

    name: str
    directory: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def backend(self, budget_bytes: int) -> Backend:
        """One in this process."""
        return open_backend(
            self.name,
            BackendConfig(
                service_id="benchmark",
                slot=0,
                budget_bytes=budget_bytes,
                directory=self.directory,
                options=self.options,
            ),
        )


@contextlib.contextmanager
def store_under(name: str, *, room_bytes: int) -> Iterator[StoreUnder]:
    """``room_bytes``: what it must hold where it has to be told. `ConfigError`, ``ImportError`` or
    ``AssertionError`` where it cannot be had."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="transferqueue-backends-"))
        options: dict[str, Any] = {}
        if name == "mooncake":
            options = stack.enter_context(mooncake_master(Path(folder))).options
        if name == "ray":
            options = {"address": _begin_ray(room_bytes, stack)}
        yield StoreUnder(name=name, directory=folder if name == "disk" else None, options=options)


def _begin_ray(room_bytes: int, stack: contextlib.ExitStack) -> str:
    """A Ray of its own, whatever else runs here; its address."""
    import ray

    context = ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        logging_level="error",
        object_store_memory=room_bytes,
    )
    stack.callback(ray.shutdown)
    return str(context.address_info["gcs_address"])
