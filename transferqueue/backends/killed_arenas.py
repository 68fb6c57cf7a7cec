"""Removing what killed shards of a service left, when the service itself ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.backends.arena_owner import find_arena

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transferqueue.config import ServiceConfig


def remove_killed_arenas(config: ServiceConfig, service_id: str, slots: Iterable[int]) -> None:
    """Files of these shards that no process owns, in all of their backends."""
    places = [(config.arena_folder, service_id)]
    for other in config.others():
        places.append((other.arena_folder, other.files_id(service_id)))
    spill = config.spill()
    if spill is not None:
        places.append((spill.directory, spill.files_id(service_id)))
    for slot in slots:
        for directory, name in places:
            arena = find_arena(directory, name, slot)
            if arena is not None:
                arena.remove_arena()
                arena.close()
