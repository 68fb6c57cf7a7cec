"""What each sampler promises, whatever its candidates are."""

from __future__ import annotations

import heapq
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.coordinator.samplers import (
    Candidates,
    Fifo,
    FreshestFirst,
    Groups,
    LengthBalanced,
    RankAware,
    Sampler,
    SamplerRegistry,
    Weighted,
)
from transferqueue.coordinator.samplers.length_balanced import balance, best_trade
from transferqueue.coordinator.tag_values import tag_values
from transferqueue.errors import InvalidInput

ALL = [
    Fifo(),
    FreshestFirst(),
    FreshestFirst("step"),
    Groups(4),
    Groups(size=2, tag="prompt"),
    LengthBalanced(8),
    RankAware(2, 4).for_rank(5),
    Weighted("priority"),
    Weighted("priority", replacement=True, seed=7),
]
sizes = st.integers(1, 24)


def _candidates(n: int, **tags: Any) -> Candidates:
    values = {name: tag_values(name, value, n) for name, value in tags.items()}
    return Candidates(
        uids=np.arange(n) + 1000,
        deliveries=np.zeros(n, dtype=np.uint8),
        tags={name: value for name, value in values.items() if value is not None},
    )


def _choose(sampler: Sampler, candidates: Candidates, n: int, seed: int = 0) -> list[int] | None:
    chosen = sampler.choose(candidates, n, np.random.default_rng(seed))
    return None if chosen is None else chosen.tolist()


# -- on the wire ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ALL, ids=str)
def test_a_sampler_survives_the_wire(sampler: Sampler) -> None:
    assert SamplerRegistry().read(sampler.to_plain()) == sampler


def test_no_sampler_is_first_in_first_out() -> None:
    assert SamplerRegistry().read(None) == Fifo()


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"name": "grups", "args": {}}, "no sampler 'grups'; did you mean 'groups'"),
        ({"name": "os.system", "args": {}}, "no sampler 'os.system'"),
        ({"name": "groups", "args": {"sise": 4}}, "no 'sise'; did you mean 'size'"),
        ({"name": "groups", "args": {}}, r"'groups': .*size"),
        ({"name": "groups", "args": {"size": 0}}, "size must be an int of at least 1, got 0"),
        ({"name": "groups", "args": {"size": True}}, "got True"),
        ({"name": "groups", "args": {"size": 2, "tag": 3}}, "got 3"),
        ({"name": "weighted", "args": {"tag": "w", "seed": -1}}, "seed must be"),
        ({"name": "weighted", "args": {"tag": "w", "replacement": 1}}, "must be a bool"),
        ({"name": "rank_aware", "args": {"dp_size": 2, "replicas": 2, "rank": 4}}, r"= 4 ranks"),
        ({"name": 3, "args": {}}, "{name, args} expected"),
        ({"args": {}}, "{name, args} expected"),
        ("fifo", "{name, args} expected"),
    ],
)
def test_nonsense_on_the_wire_is_refused(plain: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SamplerRegistry().read(plain)


# -- the oldest -----------------------------------------------------------------------------------


@given(num=sizes, n=sizes)
def test_fifo_gives_the_oldest_or_waits(num: int, n: int) -> None:
    assert _choose(Fifo(), _candidates(num), n) == (list(range(n)) if n <= num else None)


# -- groups ---------------------------------------------------------------------------------------


@given(
    groups=st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=30),
    size=st.integers(1, 4),
    num_groups=st.integers(1, 4),
)
def test_groups_are_whole_or_not_given(
    groups: list[int | None], size: int, num_groups: int
) -> None:
    candidates = _candidates(len(groups), group=groups)
    if not candidates.tags:
        return
    chosen = _choose(Groups(size), candidates, num_groups * size)
    counts = Counter(group for group in groups if group is not None)
    num_whole = sum(count // size for count in counts.values())
    assert (chosen is None) == (num_whole < num_groups)
    if chosen is None:
        return
    assert len(set(chosen)) == num_groups * size
    for unit in np.reshape(chosen, (num_groups, size)).tolist():
        assert len({groups[row] for row in unit}) == 1
        assert groups[unit[0]] is not None
        assert unit == sorted(unit)


def test_of_groups_of_4_3_and_4_two_can_be_claimed() -> None:
    groups = ["a"] * 4 + ["b"] * 3 + ["c"] * 4
    candidates = _candidates(11, group=groups)
    assert _choose(Groups(4), candidates, 8) == [0, 1, 2, 3, 7, 8, 9, 10]
    assert _choose(Groups(4), candidates, 12) is None


def test_a_claim_of_part_of_a_group_is_refused_with_what_would_do() -> None:
    with pytest.raises(InvalidInput, match="no multiple of group size 4; ask for 8 or 12"):
        Groups(4).check(10)
    with pytest.raises(InvalidInput, match=r"ask for 4$"):
        Groups(4).check(3)


# -- balanced lengths -----------------------------------------------------------------------------


def _greedy(lengths: list[int], k: int) -> int:
    """The heaviest of k parts of equal count, longest first to the lightest part with room."""
    loads, counts, room = [0] * k, [0] * k, len(lengths) // k
    for length in sorted(lengths, reverse=True):
        part = min((i for i in range(k) if counts[i] < room), key=lambda i: loads[i])
        loads[part] += length
        counts[part] += 1
    return max(loads)


def _karmarkar_karp(lengths: list[int], k: int) -> int:
    """The heaviest of k parts of equal count, by largest differencing of rounds of k."""
    ordered, heap = sorted(lengths), []
    for i in range(0, len(ordered), k):
        loads = sorted(ordered[i : i + k], reverse=True)
        heapq.heappush(heap, (loads[-1] - loads[0], i, loads))
    while len(heap) > 1:
        _, i, a = heapq.heappop(heap)
        _, _, b = heapq.heappop(heap)
        loads = sorted((x + y for x, y in zip(a, reversed(b), strict=True)), reverse=True)
        heapq.heappush(heap, (loads[-1] - loads[0], i, loads))
    return max(heap[0][2])


REALISTIC = {
    "log-normal": lambda rng, n: np.minimum(rng.lognormal(6.5, 1.0, n).astype(int) + 1, 8192),
    "uniform": lambda rng, n: rng.integers(1, 8192, n),
    "exponential": lambda rng, n: rng.exponential(800, n).astype(int) + 1,
    "many at the limit": lambda rng, n: np.where(
        rng.random(n) < 0.3, 8192, rng.integers(50, 500, n)
    ),
}


@given(
    mine=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    theirs=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    gap=st.integers(0, 60),
)
def test_no_trade_is_better_than_the_one_that_is_found(
    mine: list[int], theirs: list[int], gap: int
) -> None:
    give, take, gain = best_trade(np.array(mine, float), np.array(theirs, float), float(gap))
    difference = mine[give] - theirs[take]
    assert gain == min(difference, gap - difference)
    assert gain == max(min(m - t, gap - (m - t)) for m in mine for t in theirs)


def test_many_samples_are_balanced_in_little_time_and_memory() -> None:
    """A table of all pairs of two parts would be 2 GiB here."""
    lengths = np.random.default_rng(0).exponential(2000.0, 4 * 16_384)
    tracemalloc.start()
    parts = balance(lengths, 4)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    loads = lengths[parts].sum(axis=1)
    assert loads.max() <= 1.001 * loads.mean()
    assert sorted(parts.ravel().tolist()) == list(range(len(lengths)))
    assert peak_bytes < 64 << 20


@pytest.mark.parametrize("distribution", REALISTIC)
@pytest.mark.parametrize(("n", "dp_size"), [(16, 8), (24, 8), (64, 4), (256, 8), (512, 64)])
def test_token_imbalance_is_within_2_percent_of_the_best(
    distribution: str, n: int, dp_size: int
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(4):
        lengths = REALISTIC[distribution](rng, n)
        heaviest = int(lengths[balance(lengths, dp_size)].sum(axis=1).max())
        listed = lengths.tolist()
        best = min(_greedy(listed, dp_size), _karmarkar_karp(listed, dp_size))
        assert heaviest <= 1.02 * best


@given(
    lengths=st.lists(st.integers(0, 10_000), min_size=1, max_size=40),
    dp_size=st.integers(1, 6),
)
def test_every_rank_gets_as_many_samples_and_every_sample_a_rank(
    lengths: list[int], dp_size: int
) -> None:
    n = len(lengths) // dp_size * dp_size
    if not n:
        return
    candidates = _candidates(len(lengths), length=lengths)
    chosen = _choose(LengthBalanced(dp_size), candidates, n)
    assert chosen is not None
    assert sorted(chosen) == list(range(n))
    loads = np.array(lengths)[np.reshape(chosen, (dp_size, -1))].sum(axis=1)
    assert int(loads.max()) <= sum(sorted(lengths[:n])[-(n // dp_size) :])


def test_balancing_takes_no_more_than_it_is_asked_for() -> None:
    assert _choose(LengthBalanced(2), _candidates(3, length=[1, 2, 3]), 4) is None
    with pytest.raises(InvalidInput, match="no multiple of dp_size=4; ask for 12"):
        LengthBalanced(4).check(10)


# -- the newest -----------------------------------------------------------------------------------


@given(versions=st.lists(st.integers(-3, 3), min_size=1, max_size=30), n=sizes)
def test_freshest_first_gives_the_newest_and_among_equals_the_oldest(
    versions: list[int], n: int
) -> None:
    chosen = _choose(FreshestFirst(), _candidates(len(versions), policy_version=versions), n)
    order = sorted(range(len(versions)), key=lambda row: (-versions[row], row))
    assert chosen == (order[:n] if n <= len(versions) else None)


# -- weights --------------------------------------------------------------------------------------


@given(
    weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 8.0]), min_size=1, max_size=30),
    n=sizes,
    seed=st.integers(0, 100),
)
def test_a_draw_without_replacement_has_no_row_twice_and_none_of_weight_0(
    weights: list[float], n: int, seed: int
) -> None:
    candidates = _candidates(len(weights), w=weights)
    chosen = _choose(Weighted("w"), candidates, n, seed)
    assert (chosen is None) == (sum(w > 0 for w in weights) < n)
    if chosen is not None:
        assert len(set(chosen)) == n
        assert all(weights[row] > 0 for row in chosen)
        assert chosen == _choose(Weighted("w"), candidates, n, seed)


@given(weights=st.lists(st.sampled_from([0.0, 1.0, 8.0]), min_size=1, max_size=10), n=sizes)
def test_a_draw_with_replacement_needs_but_one_row(weights: list[float], n: int) -> None:
    chosen = _choose(Weighted("w", replacement=True), _candidates(len(weights), w=weights), n)
    assert (chosen is None) == (not any(weights))
    if chosen is not None:
        assert len(chosen) == n
        assert all(weights[row] > 0 for row in chosen)


@pytest.mark.parametrize("replacement", [False, True])
def test_draws_are_in_proportion_to_the_weight(replacement: bool) -> None:  # noqa: FBT001
    rng, counts = np.random.default_rng(3), Counter[int]()
    candidates = _candidates(3, w=[1.0, 2.0, 5.0])
    sampler = Weighted("w", replacement=replacement)
    for _ in range(4000):
        chosen = sampler.choose(candidates, 1, rng)
        assert chosen is not None
        counts[int(chosen[0])] += 1
    assert [counts[i] / 4000 for i in range(3)] == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.03)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([-1.0, 1.0], "finite and not negative"),
        ([float("nan"), 1.0], "tag 'w' is NaN on 1 of 2 rows"),
        ([float("inf"), 1.0], "finite and not negative"),
        ([1.5e308, 1.5e308], "their sum too"),
    ],
)
def test_weights_that_are_none_are_refused(weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _choose(Weighted("w"), _candidates(2, w=weights), 1)


@pytest.mark.parametrize(
    ("tags", "message"),
    [([1.0, None], "absent on 1 of 2 rows"), (["a", "b"], "is str, not a number")],
)
def test_a_number_is_needed_of_every_candidate(tags: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _choose(FreshestFirst("w"), _candidates(2, w=tags), 1)


# -- ranks ----------------------------------------------------------------------------------------


@given(dp_size=st.integers(1, 5), replicas=st.integers(1, 5))
def test_the_replicas_of_a_rank_share_and_the_others_do_not(dp_size: int, replicas: int) -> None:
    sampler = RankAware(dp_size, replicas)
    shares = [sampler.for_rank(rank).sharing for rank in range(dp_size * replicas)]
    assert len({share.key for share in shares}) == dp_size
    assert len({(share.key, share.replica) for share in shares}) == dp_size * replicas
    assert shares[0].num_replicas == replicas


def test_a_rank_aware_claim_says_which_rank_it_is() -> None:
    with pytest.raises(InvalidInput, match=r"for_rank\(rank\)"):
        RankAware(2, 2).check(4)
    assert _choose(RankAware(2, 2, 1), _candidates(3), 2) == [0, 1]
    assert _choose(RankAware(2, 2, 1), _candidates(3), 4) is None
