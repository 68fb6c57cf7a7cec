"""The Ray actors of a service: how they are found, what they answer, and their ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from transferqueue.errors import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ray import ObjectRef

    from transferqueue.service.ray_supervisor import RayConnection

NAMESPACE = "transferqueue"
"""Ray namespace of all services, so that workers of any namespace find them."""

DEFAULT_NAME = "transferqueue"

ANSWER_TIMEOUT_S = 30.0

ASK_AGAIN_EVERY_S = 0.2


def ray_connection(name: str = DEFAULT_NAME) -> RayConnection | None:
    """The service of this name on the cluster that this process is connected to, if there is
    one. ``ServiceFailed`` when its coordinator does not answer."""
    if not ray.is_initialized():
        return None
    try:
        coordinator = ray.get_actor(f"{name}-coordinator", namespace=NAMESPACE)
    except ValueError:
        return None
    asked = [coordinator.connection.remote]
    connection: RayConnection = answers(f"{name}-coordinator", asked, ANSWER_TIMEOUT_S)[0]
    return connection


def answers(
    name: str, questions: Sequence[Callable[[], ObjectRef[Any]]], limit_s: float
) -> list[Any]:
    """What actors of a service answer. ``ServiceFailed``, or why a process could not start.

    All are asked at once. One that Ray is starting again is asked again until ``limit_s`` has
    passed, so a question must be one that may be asked twice.
    """
    deadline_s = time.monotonic() + limit_s
    asked = [(question, question()) for question in questions]
    try:
        return [_answer(question, reference, deadline_s) for question, reference in asked]
    except GetTimeoutError:
        raise ServiceFailed(
            name, f"its actors did not answer in {limit_s:.0f} s; see `ray list actors`"
        ) from None
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise ServiceFailed(name, cause_of(error)) from None


def _answer(question: Callable[[], ObjectRef[Any]], reference: Any, deadline_s: float) -> Any:
    while True:
        try:
            return ray.get(reference, timeout=max(deadline_s - time.monotonic(), 0.0))
        except ActorUnavailableError:
            if time.monotonic() + ASK_AGAIN_EVERY_S > deadline_s:
                raise
        time.sleep(ASK_AGAIN_EVERY_S)
        reference = question()


def end_actors(actors: Sequence[Any]) -> None:
    """End processes and actors; also of nodes that are gone already."""
    farewells = [actor.stop.remote() for actor in actors]
    ray.wait(farewells, num_returns=len(farewells), timeout=ANSWER_TIMEOUT_S)
    for actor in actors:
        ray.kill(actor)


def cause_of(error: BaseException) -> str:
    """In one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
