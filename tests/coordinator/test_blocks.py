"""Numbers kept in blocks say what a look at all would, and draws from them are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transferqueue.coordinator.row_set import RowSet
from transferqueue.coordinator.samplers import Blocks, FreshestFirst, Weighted
from transferqueue.coordinator.samplers.blocks import BLOCK_ROWS
from transferqueue.coordinator.tag_values import tag_values
from transferqueue.coordinator.tags import TagTable

if TYPE_CHECKING:
    from tests.coordinator.conftest import Driver

MAX_ROWS = 400
rows_of = st.sets(st.integers(0, MAX_ROWS - 1), min_size=1, max_size=40).map(
    lambda rows: np.array(sorted(rows), dtype=np.int64)
)


class KeptMachine(RuleBasedStateMachine):
    """Candidates come and go and change their number; blocks that are kept equal new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = TagTable("here", MAX_ROWS)
        self.set_tag(np.arange(1), 0)
        self.ready = RowSet(64)
        self.room = 64
        self.kept = Blocks("w", self.tags.column("w"), self.ready)

    def set_tag(self, rows: Any, value: float) -> None:
        values = tag_values("w", value, len(rows))
        assert values is not None
        self.tags.set("w", rows, values)

    @rule(rows=rows_of)
    def come(self, rows: Any) -> None:
        if int(rows[-1]) >= self.room:
            self.room = int(rows[-1]) + 1
            self.ready.reserve(self.room)
            self.kept.reserve()
        self.ready.add(rows)
        self.kept.touch(rows)

    @rule(rows=rows_of)
    def go(self, rows: Any) -> None:
        rows = rows[rows < self.room]
        self.ready.discard(rows)
        self.kept.touch(rows)

    @rule(rows=rows_of, value=st.sampled_from([-2, 0, 1, 7, 0.5, float("nan")]))
    def change(self, rows: Any, value: float) -> None:
        self.set_tag(rows, value)
        self.kept.touch(rows[rows < self.room])

    @invariant()
    def they_say_what_a_look_at_all_would(self) -> None:
        self.kept.refresh()
        new = Blocks("w", self.tags.column("w"), self.ready)
        new.refresh()
        assert len(self.kept) == len(new) == len(self.ready)
        for name in ("counts", "num_highest", "num_above_0", "_num_absent", "_num_nan", "totals"):
            assert getattr(self.kept, name).tolist() == getattr(new, name).tolist(), name
        some = new.counts > 0
        for name in ("highest", "lowest"):
            assert getattr(self.kept, name)[some].tolist() == getattr(new, name)[some].tolist()

    @invariant()
    def a_choice_is_that_of_the_rows_alone(self) -> None:
        self.kept.refresh()
        rows = self.ready.all()
        values = self.tags.column("w").get(rows)
        if values.num_absent or bool(np.isnan(values.values.astype(float)).any()):
            return
        for n in (1, len(rows) // 3, len(rows)):
            if not 0 < n <= len(rows):
                continue
            order = sorted(range(len(rows)), key=lambda i: (-values.values[i], i))[:n]
            picked = FreshestFirst("w").pick(self.kept, n, np.random.default_rng(0))
            assert picked is not None
            assert picked.tolist() == rows[order].tolist()


TestKept = KeptMachine.TestCase
TestKept.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=200),
    repeats=st.integers(1, 40),
    data=st.data(),
)
def test_the_highest_are_found_whatever_their_size(
    values: list[int], repeats: int, data: st.DataObject
) -> None:
    column = np.repeat(np.array(values, dtype=np.int64), repeats)
    n = data.draw(st.integers(1, len(column)))
    tags = tag_values("w", column, len(column))
    assert tags is not None
    picked = FreshestFirst("w").pick(Blocks.of("w", tags), n, np.random.default_rng(0))
    assert picked is not None
    order = sorted(range(len(column)), key=lambda i: (-int(column[i]), i))[:n]
    assert picked.tolist() == order


# -- draws are in proportion to the weight ---------------------------------------------------------

# Weights over eleven blocks, of which a draw of three opens at most three: some blocks are light,
# one has all its weight in a row, one has nothing.
WEIGHTS = np.concatenate(
    [np.full(BLOCK_ROWS, 1.0 + block) for block in range(8)]
    + [np.zeros(BLOCK_ROWS), np.r_[200.0, np.zeros(BLOCK_ROWS - 1)], np.full(5, 0.25)]
)
DRAWS = 6000
BOUND = {9: 33.7, 10: 35.6}
"""chi-square of so many degrees of freedom is above it once in 10,000 times."""


def _classes() -> Any:
    """Rows by their block: eleven classes."""
    return np.arange(len(WEIGHTS)) // BLOCK_ROWS


def _chi_square(counts: Any, expected: Any) -> float:
    assert not counts[expected == 0].any(), "a weight of 0 was drawn"
    some = expected > 0
    return float(((counts[some] - expected[some]) ** 2 / expected[some]).sum())


def _draw(sampler: Weighted, n: int) -> Any:
    tags = tag_values("w", WEIGHTS, len(WEIGHTS))
    assert tags is not None
    blocks, rng = Blocks.of("w", tags), np.random.default_rng(20)
    return np.array([sampler.pick(blocks, n, rng) for _ in range(DRAWS)])  # [draws, n]


def _by_class(values: Any) -> Any:
    return np.bincount(_classes(), weights=values, minlength=11)


def test_draws_without_replacement_are_those_of_one_after_the_other() -> None:
    """The chance of each row to be first, second and third, as the definition says."""
    drawn = _draw(Weighted("w"), 3)
    assert all(len(set(three)) == 3 for three in drawn.tolist())
    p = WEIGHTS / WEIGHTS.sum()
    second = p * ((p / (1 - p)).sum() - p / (1 - p))
    third = _third(p)
    for place, chance in enumerate((p, second, third)):
        counts = np.bincount(_classes()[drawn[:, place]], minlength=11)
        assert _chi_square(counts, DRAWS * _by_class(chance)) < BOUND[9]


def _third(p: Any) -> Any:
    """sum over i, j, all different, of p_i p_j / (1 - p_i) p_k / (1 - p_i - p_j)."""
    pair = p[:, None] * p / (1 - p)[:, None] / (1 - p[:, None] - p)
    np.fill_diagonal(pair, 0.0)
    return p * (pair.sum() - pair.sum(axis=0) - pair.sum(axis=1))


def test_draws_with_replacement_do_not_depend_on_each_other() -> None:
    drawn = _draw(Weighted("w", replacement=True), 3)
    p = WEIGHTS / WEIGHTS.sum()
    for place in range(3):
        counts = np.bincount(_classes()[drawn[:, place]], minlength=11)
        assert _chi_square(counts, DRAWS * _by_class(p)) < BOUND[9]
    lone = int(np.argmax(WEIGHTS))
    both = np.mean((drawn[:, 0] == lone) & (drawn[:, 1] == lone))
    assert both == pytest.approx(p[lone] ** 2, abs=4 * p[lone] / DRAWS**0.5)


def test_within_a_block_rows_are_drawn_by_their_weight() -> None:
    weights = np.r_[np.arange(10.0), np.zeros(200)]
    tags = tag_values("w", weights, len(weights))
    assert tags is not None
    blocks, rng = Blocks.of("w", tags), np.random.default_rng(4)
    for sampler in (Weighted("w"), Weighted("w", replacement=True)):
        firsts = [sampler.pick(blocks, 1, rng) for _ in range(DRAWS)]
        counts = np.bincount(np.concatenate(firsts), minlength=len(weights))
        assert _chi_square(counts, DRAWS * weights / weights.sum()) < BOUND[9]


@given(
    weights=st.lists(
        st.one_of(st.just(0.0), st.floats(1e-30, 1e30)), min_size=1, max_size=3 * BLOCK_ROWS
    ),
    seed=st.integers(0, 50),
)
def test_weights_of_any_size_give_distinct_rows_of_some_weight(
    weights: list[float], seed: int
) -> None:
    tags = tag_values("w", np.array(weights), len(weights))
    assert tags is not None
    n = sum(w > 0 for w in weights)
    for sampler in (Weighted("w"), Weighted("w", replacement=True)):
        picked = sampler.pick(Blocks.of("w", tags), max(n, 1), np.random.default_rng(seed))
        assert (picked is None) == (n == 0)
        if picked is not None:
            assert all(weights[row] > 0 for row in picked.tolist())
            assert sampler.replacement or len(set(picked.tolist())) == n


# -- in the control plane --------------------------------------------------------------------------


def test_a_claim_counts_only_the_blocks_that_changed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    looked = []
    count = Blocks._count

    def counted(blocks: Blocks, rows: Any, values: Any) -> None:
        looked.append(len(rows))
        count(blocks, rows, values)

    for _ in range(10):
        driver.put(10_000, tags={"w": rng.random(10_000)})
    monkeypatch.setattr(Blocks, "_count", counted)
    for sampler in (FreshestFirst("w"), Weighted("w")):
        for _ in range(4):
            driver.ack(driver.take(64, task=str(sampler), sampler=sampler))
        assert looked[0] == 100_000, "the first claim has to see all"
        assert max(looked[1:]) <= 64 * BLOCK_ROWS
        looked.clear()


def test_updated_tags_and_rows_given_back_are_seen(driver: Driver) -> None:
    uids = driver.put(200, tags={"w": np.arange(200)})
    newest = driver.take(2, sampler=FreshestFirst("w"))
    assert newest.uids.tolist() == [199, 198]
    driver.give_back(newest)
    driver.carry_out(
        driver.plane.update_tags(
            now_s=driver.now_s, partition="train", uids=uids[:1], tags={"w": [500]}
        )
    )
    assert driver.take(2, sampler=FreshestFirst("w")).uids.tolist() == [0, 199]
    driver.put(1, tags={"w": 250.5})  # the tag's numbers turn into floats
    assert driver.take(2, sampler=FreshestFirst("w")).uids.tolist() == [200, 198]
