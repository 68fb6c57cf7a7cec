"""Every sampler that comes with the package keeps the contract; the suite finds who does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from transferqueue.coordinator.samplers import (
    Fifo,
    FreshestFirst,
    Groups,
    LengthBalanced,
    RankAware,
    Sampler,
    Weighted,
)
from transferqueue.coordinator.samplers.registry import BUILT_IN
from transferqueue.testing import SAMPLER_CHECKS, ContractBroken, check_sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.testing.sampler_contract import Check

MAKERS: dict[str, Callable[[], Sampler]] = {
    "fifo": Fifo,
    "freshest first": FreshestFirst,
    "groups": lambda: Groups(4),
    "length balanced": lambda: LengthBalanced(8),
    "rank aware": lambda: RankAware(2, 4).for_rank(5),
    "weighted": lambda: Weighted("priority"),
    "weighted, with replacement": lambda: Weighted("priority", replacement=True, seed=7),
}


@pytest.mark.parametrize("check", SAMPLER_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MAKERS)
def test_contract(check: Check, name: str) -> None:
    check(MAKERS[name])


def test_no_built_in_sampler_is_left_out() -> None:
    assert {type(maker()) for maker in MAKERS.values()} == set(BUILT_IN)


def test_the_whole_suite_runs_in_one_call() -> None:
    check_sampler(Fifo)


@dataclass(frozen=True, slots=True)
class Odd(Fifo):
    """Keeps the contract but for one thing."""

    how: str = ""
    name: ClassVar[str] = "odd"
    memory: ClassVar[list[int]] = []

    @property
    def exclusive(self) -> Any:  # type: ignore[override]
        return "yes" if self.how == "strange" else True

    @property
    def tags(self) -> tuple[str, ...]:
        return ("score",)

    def window(self, n: int) -> int | None:
        return n - 1 if self.how == "narrow" else n

    def largest(self, available: int) -> int:
        return available + (self.how == "too much")

    def choose(self, candidates: Any, n: int, rng: np.random.Generator) -> Any:
        chosen = Fifo.choose(self, candidates, n, rng)
        if self.how == "eager" and chosen is None:
            return np.zeros(0, dtype=np.int64)
        if chosen is None or self.how == "never":
            return None
        if self.how == "raises":
            raise RuntimeError("oops")
        if self.how == "writes":
            candidates.uids[:] = 0
        if self.how == "remembers":
            self.memory.append(n)
            return (chosen + len(self.memory)) % len(candidates)
        bad = {
            "twice": np.zeros(n, dtype=np.int64),
            "outside": chosen + len(candidates),
            "few": chosen[1:],
            "floats": chosen.astype(float),
        }
        return bad.get(self.how, chosen)


@dataclass
class Mutable(Sampler):
    """No value."""

    name: ClassVar[str] = "mutable"

    def choose(self, candidates: Any, n: int, rng: np.random.Generator) -> Any:
        return None


@dataclass(frozen=True, slots=True)
class Unplain(Fifo):
    """Has an argument that cannot be sent."""

    how: Any = frozenset({1})
    name: ClassVar[str] = "unplain"


def test_a_sampler_that_keeps_the_contract_passes() -> None:
    check_sampler(lambda: Odd("fine"))


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (lambda: Odd("strange"), "exclusive is 'yes'"),
        (lambda: Odd("narrow"), "its_window_is_wide_enough"),
        (lambda: Odd("too much"), r"largest\(1\) is 2"),
        (lambda: Odd("never"), "it_gives_in_the_end"),
        (lambda: Odd("eager"), "it_gives_what_was_asked_for_or_waits: .*0 positions"),
        (lambda: Odd("raises"), "RuntimeError of .*oops"),
        (lambda: Odd("writes"), "it_changes_nothing_that_it_is_given"),
        (lambda: Odd("remembers"), "it_depends_on_nothing_but_what_it_is_given"),
        (lambda: Odd("twice"), "a candidate twice"),
        (lambda: Odd("outside"), "positions"),
        (lambda: Odd("few"), "positions"),
        (lambda: Odd("floats"), "float64"),
        (Mutable, "it_is_a_value"),
        (Unplain, "it_survives_the_wire"),
    ],
)
def test_a_sampler_that_breaks_the_contract_is_caught(
    maker: Callable[[], Sampler], message: str
) -> None:
    with pytest.raises(ContractBroken, match=message):
        check_sampler(maker)
