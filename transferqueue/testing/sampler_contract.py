"""The sampler contract as checks that any sampler can run.

::

    from transferqueue.testing import check_sampler

    def test_my_sampler() -> None:
        check_sampler(lambda: MySampler(size=4))

Candidates get positive whole numbers for every tag that the sampler names, and groups of eight
values for the tag that it groups by. With pytest, ``@pytest.mark.parametrize("check",
SAMPLER_CHECKS)`` makes each check a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgpack
import numpy as np

from transferqueue.coordinator.control_plane import ControlPlane
from transferqueue.coordinator.effects import FreeRows, Grant, Reply
from transferqueue.coordinator.samplers import Candidates, Sampler, SamplerRegistry
from transferqueue.coordinator.samplers.foreign import Guard, held_to_the_contract
from transferqueue.coordinator.tag_values import TagValues, tag_values
from transferqueue.errors import InvalidInput, SamplerFailed
from transferqueue.testing.broken import ContractBroken, expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

Maker: TypeAlias = Callable[[], Sampler]
Check: TypeAlias = Callable[[Maker], None]

MAX_N = 64
NUM_GROUPS = 8
SEEDS = range(8)
SPEC = ("float32", (4,), None, "tensor")


def check_sampler(maker: Maker) -> None:
    """Run every check. `ContractBroken` names the first that fails.

    ``maker`` makes the same sampler again and again.
    """
    for check in SAMPLER_CHECKS:
        try:
            check(maker)
        except (ContractBroken, SamplerFailed) as broken:
            raise ContractBroken(f"{check.__name__}: {broken}") from broken


def it_is_a_value(maker: Maker) -> None:
    one, other = maker(), maker()
    expect(isinstance(one, Sampler), f"{one!r} is no Sampler")
    expect(is_dataclass(one), f"{type(one).__name__} is no dataclass")
    expect(one == other, f"{one} and {other} are not equal")
    expect(str(one) == str(other), f"{one} and {other} look different")
    is_frozen = type(one).__dataclass_params__.frozen  # type: ignore[attr-defined]
    expect(is_frozen, f"{type(one).__name__} is no frozen dataclass: its arguments can be set")


def it_survives_the_wire(maker: Maker) -> None:
    sampler = maker()
    expect(isinstance(sampler.name, str) and sampler.name, f"its name is {sampler.name!r}")
    try:
        plain = msgpack.unpackb(msgpack.packb(sampler.to_plain()))
    except (TypeError, ValueError, OverflowError) as err:
        raise ContractBroken(f"its arguments are no plain values: {err}") from err
    expect(type(sampler)(**plain["args"]) == sampler, f"{plain} makes another sampler")


def what_it_says_of_itself_makes_sense(maker: Maker) -> None:
    said = held_to_the_contract(maker(), Guard(maker().name, lambda call: call()))
    again = held_to_the_contract(maker(), Guard(maker().name, lambda call: call()))
    for name in ("exclusive", "tags", "grouping", "sharing", "seed"):
        expect(getattr(said, name) == getattr(again, name), f"{name} is not always the same")
    expect(said.window(MAX_N) is None or said.window(MAX_N) == again.window(MAX_N), "window")


def it_gives_what_was_asked_for_or_waits(maker: Maker) -> None:
    sampler = maker()
    for candidates, n, seed in _cases(sampler):
        chosen = _choose(sampler, candidates, n, seed)
        if chosen is None:
            continue
        where = f"of {len(candidates)} candidates for a claim of {n}"
        expect(chosen.ndim == 1 and chosen.dtype.kind in "iu", f"{chosen.dtype} {where}")
        expect(len(chosen) == n, f"{len(chosen)} positions {where}")
        low, high = int(chosen.min()), int(chosen.max())
        expect(low >= 0 and high < len(candidates), f"positions {low} to {high} {where}")
        if sampler.exclusive:
            expect(len(np.unique(chosen)) == n, f"a candidate twice {where}")


def it_waits_when_there_is_nothing(maker: Maker) -> None:
    sampler = maker()
    for n in _sizes(sampler)[:4]:
        chosen = _choose(sampler, _candidates(sampler, 0, seed=0), n, 0)
        expect(chosen is None, f"{chosen} of no candidates for a claim of {n}")


def it_gives_in_the_end(maker: Maker) -> None:
    """A sampler that waits for ever is of no use."""
    sampler = maker()
    n = _sizes(sampler)[0]
    many = _candidates(sampler, 64 * n, seed=0)
    expect(_choose(sampler, many, n, 0) is not None, f"nothing of {len(many)} for a claim of {n}")


def it_depends_on_nothing_but_what_it_is_given(maker: Maker) -> None:
    sampler = maker()
    cases = list(_cases(sampler))
    first = [_choose(sampler, *case) for case in cases]
    for case, before in zip(reversed(cases), reversed(first), strict=True):
        after = _choose(maker(), *case)
        same = (before is None) == (after is None) and (
            before is None or np.array_equal(before, after)  # type: ignore[arg-type]
        )
        expect(same, f"{before}, and then {after}, of the same {len(case[0])} candidates")


def it_changes_nothing_that_it_is_given(maker: Maker) -> None:
    sampler = maker()
    for candidates, n, seed in _cases(sampler):
        before = _copy(candidates)
        _choose(sampler, candidates, n, seed)
        expect(_copy(candidates) == before, f"its {len(candidates)} candidates are others now")


def its_window_is_wide_enough(maker: Maker) -> None:
    """What it finds among all it finds among those it asks to see."""
    sampler = maker()
    if sampler.grouping is not None:
        return
    for candidates, n, seed in _cases(sampler):
        window = sampler.window(n)
        if window is None or _choose(sampler, candidates, n, seed) is None:
            continue
        seen = _first(candidates, window)
        expect(
            _choose(sampler, seen, n, seed) is not None,
            f"nothing of the {window} oldest candidates, something of {len(candidates)}",
        )


def a_partial_claim_is_of_a_size_that_it_takes(maker: Maker) -> None:
    sampler = maker()
    for available in range(1, MAX_N):
        rows = sampler.largest(available)
        expect(0 <= rows <= available, f"largest({available}) is {rows}")
        try:
            if rows:
                sampler.check(rows)
        except InvalidInput as err:
            raise ContractBroken(f"largest({available}) is {rows}, but: {err}") from err


def a_task_gets_each_row_once(maker: Maker) -> None:
    """On a control plane, claim by claim, until there is nothing left to have."""
    sampler = maker()
    n = _sizes(sampler)[0]
    plane = _Plane(sampler)
    plane.put(4 * n * NUM_GROUPS)
    seen: list[int] = []
    for _ in range(4 * NUM_GROUPS + 1):
        grant = plane.claim(n)
        if grant is None:
            break
        expect(len(grant.uids) == n, f"{len(grant.uids)} rows for a claim of {n}")
        seen += grant.uids.tolist()
    expect(seen, f"a claim of {n} gets nothing of {plane.num_rows} rows")
    if sampler.exclusive:
        expect(len(set(seen)) == len(seen), "a row was given twice")


SAMPLER_CHECKS: tuple[Check, ...] = (
    it_is_a_value,
    it_survives_the_wire,
    what_it_says_of_itself_makes_sense,
    it_gives_what_was_asked_for_or_waits,
    it_waits_when_there_is_nothing,
    it_gives_in_the_end,
    it_depends_on_nothing_but_what_it_is_given,
    it_changes_nothing_that_it_is_given,
    its_window_is_wide_enough,
    a_partial_claim_is_of_a_size_that_it_takes,
    a_task_gets_each_row_once,
)


# -- candidates -----------------------------------------------------------------------------------


def _sizes(sampler: Sampler) -> list[int]:
    """Claims that it takes, smallest first."""

    def takes(n: int) -> bool:
        try:
            sampler.check(n)
        except InvalidInput:
            return False
        return True

    sizes = [n for n in range(1, MAX_N + 1) if takes(n)]
    expect(sizes, f"it takes no claim of 1 to {MAX_N} rows")
    return sizes


def _cases(sampler: Sampler) -> Iterator[tuple[Candidates, int, int]]:
    sizes = _sizes(sampler)
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        n = int(rng.choice(sizes))
        for rows in (max(1, n // 2), n, n + 1, 3 * n + 5, 8 * n):
            yield _candidates(sampler, rows, seed=seed), n, seed


def _tags(sampler: Sampler, rows: int, seed: int) -> dict[str, NDArray[np.int64]]:
    rng = np.random.default_rng(seed + 1000)
    grouping = sampler.grouping
    tags = {tag: rng.integers(1, 100, rows) for tag in sampler.tags}
    if grouping is not None:
        tags[grouping.tag] = rng.integers(0, NUM_GROUPS, rows)
    return tags


def _candidates(sampler: Sampler, rows: int, *, seed: int) -> Candidates:
    tags: dict[str, TagValues] = {}
    for name, values in _tags(sampler, rows, seed).items():
        typed = tag_values(name, values, rows)
        assert typed is not None
        tags[name] = typed
    deliveries = np.random.default_rng(seed).integers(0, 3, rows).astype(np.uint8)
    return Candidates(uids=np.arange(rows) * 3 + 7, deliveries=deliveries, tags=tags)


def _first(candidates: Candidates, rows: int) -> Candidates:
    return Candidates(
        uids=candidates.uids[:rows],
        deliveries=candidates.deliveries[:rows],
        tags={name: values.take(slice(0, rows)) for name, values in candidates.tags.items()},
    )


def _copy(candidates: Candidates) -> list[Any]:
    tags = {name: values.tolist() for name, values in candidates.tags.items()}
    return [candidates.uids.tolist(), candidates.deliveries.tolist(), tags]


def _choose(
    sampler: Sampler, candidates: Candidates, n: int, seed: int
) -> NDArray[np.integer[Any]] | None:
    try:
        chosen = sampler.choose(candidates, n, np.random.default_rng(seed))
    except Exception as err:
        where = f"{len(candidates)} candidates for a claim of {n}"
        raise ContractBroken(f"{type(err).__name__} of {where}: {err}") from err
    return None if chosen is None else np.asarray(chosen)


class _Plane:
    """A control plane that knows the sampler, and one task."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        built_in = SamplerRegistry().built_in(sampler.name)
        self._plane = ControlPlane(samplers=SamplerRegistry(() if built_in else (type(sampler),)))
        self._num_claims = 0
        self.num_rows = 0

    def put(self, rows: int) -> None:
        self.num_rows = rows
        self._plane.commit(
            now_s=0.0,
            slot=0,
            partition="train",
            uids=np.arange(rows),
            fields={"x": SPEC},
            tags=_tags(self._sampler, rows, 0),
        )

    def claim(self, n: int) -> Grant | None:
        """What a claim gets at once; it is not acked."""
        self._num_claims += 1
        effects = self._plane.claim(
            now_s=0.0,
            waiter_id=self._num_claims,
            client_id="client",
            partition="train",
            task="task",
            fields=["x"],
            n=n,
            sampler=self._sampler.to_plain(),
            deadline_s=30.0,
            lease_s=60.0,
        )
        for effect in effects:
            if isinstance(effect, FreeRows):
                continue
            if not isinstance(effect, Reply):
                raise ContractBroken(f"a claim of {n} fails: {effect.error}")
            assert isinstance(effect.payload, Grant)
            return effect.payload
        return None
