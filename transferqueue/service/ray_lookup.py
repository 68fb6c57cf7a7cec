"""Finding the service of the Ray cluster that this host belongs to, from outside of Ray."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import ray

from transferqueue.errors import NoService
from transferqueue.service.ray_actors import ray_connection

if TYPE_CHECKING:
    from transferqueue.service.ray_supervisor import RayConnection


def look_up() -> RayConnection:
    """Join the cluster for as long as it takes to ask. ``NoService`` without one, or when it has
    no service."""
    joined = ray.is_initialized()
    if not joined:
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            raise NoService(["a Ray cluster of this host: there is none"]) from None
    try:
        connection = ray_connection()
    finally:
        if not joined:
            ray.shutdown()
    if connection is None:
        raise NoService(["Ray"])
    return connection
