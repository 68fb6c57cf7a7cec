from __future__ import annotations

import functools
import operator

import pytest
import torch

from workers.roles import Actor
from workers.roles.minibatches import MetricMeans, Minibatches, MinibatchPlan

NAMES = ("input_ids", "attention_mask", "position_ids", "responses", "response_mask")
COLUMNS = {
    name: torch.arange(10)[:, None] for name in (*NAMES, "old_log_probs", "advantages", "not_read")
}


def drawn(batches: Minibatches) -> list[list[int]]:
    return [rows["responses"][:, 0].tolist() for rows in batches.draw(COLUMNS, Actor.update_actor)]


def test_an_epoch_goes_over_every_row_once() -> None:
    portions = drawn(Minibatches(MinibatchPlan(epochs=2, rows=4)))

    assert [len(portion) for portion in portions] == [4, 4, 2, 4, 4, 2]
    for epoch in (portions[:3], portions[3:]):
        assert sorted(functools.reduce(operator.iadd, epoch, [])) == list(range(10))
    assert portions[:3] != portions[3:]


def test_without_a_size_a_minibatch_is_the_batch() -> None:
    assert [len(portion) for portion in drawn(Minibatches(MinibatchPlan(epochs=3)))] == [10] * 3


def test_columns_stay_together_and_undeclared_ones_are_not_touched() -> None:
    for rows in Minibatches(MinibatchPlan(rows=3)).draw(COLUMNS, Actor.update_actor):
        assert "not_read" not in rows
        assert all(torch.equal(column, rows["responses"]) for column in rows.values())


def test_the_order_is_fixed_by_the_seed_and_differs_from_update_to_update() -> None:
    one, two = (Minibatches(MinibatchPlan(rows=3, seed=4)) for _ in range(2))

    first, second = drawn(one), drawn(one)

    assert first == drawn(two)
    assert first != second


@pytest.mark.parametrize("setting", ["epochs", "rows"])
def test_an_impossible_plan_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting}=0"):
        MinibatchPlan(**{setting: 0})


def test_metrics_are_means_under_a_prefix() -> None:
    metrics = MetricMeans("actor/")
    metrics.add(loss=torch.tensor(1.0), kl=torch.tensor(4.0))
    metrics.add(loss=torch.tensor(2.0))

    assert metrics.means() == {"actor/loss": 1.5, "actor/kl": 4.0}
