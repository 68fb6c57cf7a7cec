"""Settings of one shard that a test starts in its own process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transferqueue.shard.settings import ShardSettings

if TYPE_CHECKING:
    from pathlib import Path

SERVICE_ID = "0123456789abcdef"


def shard_settings(folder: Path, budget_bytes: int, **changes: Any) -> ShardSettings:
    """Slot 0 with everything in ``folder``, where its coordinator is to listen too, over a heap."""
    settings = ShardSettings(
        service_id=SERVICE_ID,
        slot=0,
        endpoints=[f"ipc://{folder}/shard.sock"],
        coordinator=f"ipc://{folder}/coordinator.sock",
        keys=None,
        backend="heap",
        budget_bytes=budget_bytes,
        arena_dir=str(folder),
    )
    return replace(settings, **changes)
