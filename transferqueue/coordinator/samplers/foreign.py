"""Samplers that did not come with the package, held to the contract.

Whatever one does, raises, returns or takes too long for fails the claim that asked, with
SamplerFailed, and nothing else: a claim is also answered in the middle of somebody else's commit,
where an exception would be theirs. What a sampler says of itself is asked once, when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from transferqueue.coordinator.samplers.base import Candidates, Grouping, Sampler, Sharing
from transferqueue.coordinator.samplers.blocks import Blocks, BlockSampler
from transferqueue.coordinator.time_limit import TookTooLong
from transferqueue.errors import InvalidInput, SamplerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Result = TypeVar("Result")

MAX_SHOWN_CHARS = 1024


class Guard:
    """Calls into code of one foreign sampler."""

    def __init__(self, name: str, within: Callable[[Callable[[], Any]], Any]) -> None:
        self.name = name
        self._within = within

    def call(self, what: str, asked: Callable[[], Result]) -> Result:
        """What it returns. SamplerFailed for anything else, but for its InvalidInput."""
        try:
            answer: Result = self._within(asked)
        except InvalidInput:
            raise
        except TookTooLong as late:
            reason = f"{what} took longer than {late.limit_s:g} s"
            raise SamplerFailed(self.name, reason) from None
        except BaseException as err:  # also SystemExit, which would end the coordinator
            raise SamplerFailed(self.name, f"{type(err).__name__}: {err}") from err
        return answer

    def check(self, what: str, value: Any, *, fits: bool) -> None:
        if not fits:
            raise SamplerFailed(self.name, f"{what} is {value!r:.80}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foreign(Sampler):
    """One of somebody else's, as the control plane uses it."""

    inner: Sampler
    guard: Guard
    name: str  # type: ignore[misc]
    shown: str
    exclusive: bool
    tags: tuple[str, ...]
    grouping: Grouping | None
    sharing: Sharing | None
    seed: int

    def choose(
        self, candidates: Candidates, n: int, rng: np.random.Generator
    ) -> NDArray[np.integer[Any]] | None:
        return self.guard.call("choose", lambda: _plain(self.inner.choose(candidates, n, rng)))

    def window(self, n: int) -> int | None:
        size = self.guard.call("window", lambda: self.inner.window(n))
        self.guard.check("window", size, fits=size is None or (_is_int(size) and size >= 0))
        return size

    def check(self, n: int) -> None:
        self.guard.call("check", lambda: self.inner.check(n))

    def largest(self, available: int) -> int:
        rows = self.guard.call("largest", lambda: self.inner.largest(available))
        self.guard.check("largest", rows, fits=_is_int(rows) and 0 <= rows <= available)
        return rows

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForeignBlocks(Foreign, BlockSampler):
    """One that picks from blocks."""

    tag: str

    def pick(self, blocks: Blocks, n: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        inner = self.inner
        assert isinstance(inner, BlockSampler)
        return self.guard.call("pick", lambda: _plain(inner.pick(blocks, n, rng)))


def held_to_the_contract(inner: Sampler, guard: Guard) -> Foreign:
    """The sampler, behind the guard. SamplerFailed when what it says of itself makes no sense."""
    said = guard.call("its properties", lambda: _said(inner))
    for name, fits in _FITS.items():
        guard.check(name, said[name], fits=fits(said[name]))
    said["tags"] = tuple(said["tags"])
    if not isinstance(inner, BlockSampler):
        return Foreign(inner=inner, guard=guard, name=guard.name, **said)
    guard.check("tags", said["tags"], fits=len(said["tags"]) == 1)
    return ForeignBlocks(inner=inner, guard=guard, name=guard.name, tag=said["tags"][0], **said)


def _said(inner: Sampler) -> dict[str, Any]:
    said = {name: getattr(inner, name) for name in _FITS if name != "shown"}
    return {**said, "shown": str(inner)}


def _plain(chosen: Any) -> NDArray[Any] | None:
    """What was chosen as an array of its own, made where what goes wrong is the sampler's."""
    return None if chosen is None else np.array(chosen)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_grouping(value: Any) -> bool:
    return value is None or (
        isinstance(value, Grouping)
        and isinstance(value.tag, str)
        and _is_int(value.size)
        and value.size >= 1
    )


def _is_sharing(value: Any) -> bool:
    return value is None or (
        isinstance(value, Sharing)
        and isinstance(value.key, tuple)
        and all(map(_is_int, (*value.key, value.replica, value.num_replicas)))
        and 0 <= value.replica < value.num_replicas
    )


_FITS: dict[str, Callable[[Any], bool]] = {
    "shown": lambda value: isinstance(value, str) and len(value) <= MAX_SHOWN_CHARS,
    "exclusive": lambda value: isinstance(value, bool),
    "tags": lambda value: (
        isinstance(value, (tuple, list)) and all(isinstance(tag, str) for tag in value)
    ),
    "grouping": _is_grouping,
    "sharing": _is_sharing,
    "seed": lambda value: _is_int(value) and value >= 0,
}
