"""The Ray actors of a service: how they are found, what they answer, and their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from transferqueue.errors import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.service.ray_supervisor import RayConnection

NAMESPACE = "transferqueue"
"""Ray namespace of all services, so that workers of any namespace find them."""

DEFAULT_NAME = "transferqueue"

ANSWER_TIMEOUT_S = 30.0


def ray_connection(name: str = DEFAULT_NAME) -> RayConnection | None:
    """The service of this name on the cluster that this process is connected to, if there is
    one. ``ServiceFailed`` when its coordinator does not answer."""
    if not ray.is_initialized():
        return None
    try:
        coordinator = ray.get_actor(f"{name}-coordinator", namespace=NAMESPACE)
    except ValueError:
        return None
    try:
        connection: RayConnection = ray.get(
            coordinator.connection.remote(), timeout=ANSWER_TIMEOUT_S
        )
    except RayError as error:
        raise ServiceFailed(f"{name}-coordinator", cause_of(error)) from None
    return connection


def answers(name: str, references: Sequence[Any], limit_s: float) -> list[Any]:
    """What actors of a service answer. ``ServiceFailed``, or why a process could not start."""
    try:
        return list(ray.get(list(references), timeout=limit_s))
    except GetTimeoutError:
        raise ServiceFailed(
            name, f"its actors did not start in {limit_s:.0f} s; see `ray list actors`"
        ) from None
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise ServiceFailed(name, cause_of(error)) from None


def end_actors(actors: Sequence[Any]) -> None:
    """End processes and actors; also of nodes that are gone already."""
    farewells = [actor.stop.remote() for actor in actors]
    ray.wait(farewells, num_returns=len(farewells), timeout=ANSWER_TIMEOUT_S)
    for actor in actors:
        ray.kill(actor)


def cause_of(error: BaseException) -> str:
    """In one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
