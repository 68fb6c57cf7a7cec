"""The contract of a sampler: which of the candidates a claim gets.

A sampler is a value: a frozen dataclass of plain arguments, so it can be sent, compared and used
as a key. Its decision is a pure function of the candidates, of ``n`` and of the random generator
it is handed, which the control plane keeps for it and seeds with its ``seed``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from transferqueue.coordinator.tag_values import TagValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Rows that a claim may have, oldest first (or group by group, for a grouping sampler)."""

    uids: NDArray[np.int64]  # [rows]
    deliveries: NDArray[np.uint8]  # [rows]
    """How often each was given to this task before."""
    tags: Mapping[str, TagValues] = field(default_factory=dict)
    """The tags that the sampler's ``tags`` names."""

    def __len__(self) -> int:
        return len(self.uids)

    def numbers(self, tag: str) -> NDArray[Any]:
        """A tag that every candidate has, as numbers; ValueError if one lacks it."""
        values = self.tags[tag]
        if values.num_absent:
            raise ValueError(f"tag {tag!r} is absent on {values.num_absent} of {len(self)} rows")
        if values.values.dtype.kind not in "bif":
            raise ValueError(f"tag {tag!r} is {values.kind.value}, not a number")
        return values.values

    def groups(self, tag: str) -> NDArray[np.int64]:
        """A number for each candidate, equal where the tag is; -1 where it is absent."""
        values = self.tags[tag]
        numbers = np.unique(values.values, return_inverse=True)[1].astype(np.int64)
        if values.absent is not None:
            numbers[values.absent] = -1
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Rows go in whole groups of ``size`` with one value of ``tag``."""

    tag: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Several claimers get the same rows: those that have the same ``key``."""

    key: tuple[int, ...]
    replica: int
    """Which of them this one is."""
    num_replicas: int


class Sampler(ABC):
    """Chooses which candidates a claim gets. Subclasses are frozen dataclasses."""

    __slots__ = ()

    name: ClassVar[str]
    """Its name on the wire."""

    exclusive: bool = True
    """Whether the rows are the claim's alone; if not, they stay candidates and may repeat."""

    @abstractmethod
    def choose(
        self, candidates: Candidates, n: int, rng: np.random.Generator
    ) -> NDArray[np.integer[Any]] | None:
        """Positions of exactly ``n`` candidates, in the order to be handed out.

        ``None`` means that these candidates do not do; the claim waits for others. There may be
        fewer than ``n`` of them. Any exception fails the claim with SamplerFailed.
        """

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that ``choose`` reads."""
        return ()

    @property
    def grouping(self) -> Grouping | None:
        """Let ``choose`` see complete groups only, and no more than it needs for ``n`` rows."""
        return None

    @property
    def sharing(self) -> Sharing | None:
        """Let several claims have the same rows."""
        return None

    @property
    def seed(self) -> int:
        """What its random generator starts from."""
        return 0

    def window(self, n: int) -> int | None:
        """How many of the oldest candidates it has to see for ``n``; ``None`` for all of them.

        A bounded window is what makes a claim cost O(batch).
        """
        return n

    def check(self, n: int) -> None:  # noqa: B027 - most samplers take any n
        """InvalidInput if no candidates could ever satisfy a claim of ``n``."""

    def largest(self, available: int) -> int:
        """The most rows it could hand out of ``available`` candidates, for a partial claim."""
        return available

    def to_plain(self) -> dict[str, Any]:
        """Its wire form."""
        args = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, "args": args}

    def __str__(self) -> str:
        plain = self.to_plain()
        args = ", ".join(f"{name}={value!r}" for name, value in plain["args"].items())
        return f"{plain['name']}({args})"


def positive(sampler: str, argument: str, value: Any) -> None:
    """InvalidInput unless the argument is an int above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{sampler}: {argument} must be an int of at least 1, got {value!r}")


def tag_name(sampler: str, value: Any) -> None:
    """InvalidInput unless the argument can name a tag."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{sampler}: a tag's name is a non-empty str, got {value!r}")
