"""A batch in shuffled minibatches, several times over, and the metrics of such a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workers.roles.fields import Columns, declared_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchPlan:
    """How often, and in what portions, an update goes over its batch."""

    epochs: int = 1
    rows: int | None = None
    """Rows a minibatch, the last one of an epoch may be smaller; ``None`` for the whole batch."""
    seed: int = 0
    """Of the shuffling. The order of one update depends on how many came before it."""

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs={self.epochs} must be at least 1")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows={self.rows} must be at least 1")


class Minibatches:
    """Draws the minibatches of one update after another."""

    def __init__(self, plan: MinibatchPlan) -> None:
        self._plan = plan
        self._generator = torch.Generator().manual_seed(plan.seed)

    def random_state(self) -> Tensor:
        """Where the shuffling is; :meth:`load_random_state` goes on from there."""
        return self._generator.get_state()

    def load_random_state(self, state: Tensor) -> None:
        self._generator.set_state(state)

    def draw(
        self,
        data: Columns,
        method: Callable[..., Any],
        *,
        optional: tuple[str, ...] = (),
    ) -> Iterator[dict[str, Tensor]]:
        """The declared reads of ``method`` and ``optional``, a few rows at a time."""
        names = (*declared_fields(method).reads, *optional)
        columns: dict[str, Tensor] = {name: data[name] for name in names}
        num_rows = len(columns["responses"])
        for _ in range(self._plan.epochs):
            order = torch.randperm(num_rows, generator=self._generator)
            for chosen in order.split(self._plan.rows or max(num_rows, 1)):
                yield {name: column[chosen] for name, column in columns.items()}


class MetricMeans:
    """Means of scalars over the minibatches of an update, under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, **scalars: Tensor) -> None:
        for name, scalar in scalars.items():
            self._values[name].append(float(scalar.detach()))

    def means(self) -> dict[str, float]:
        return {self._prefix + name: sum(v) / len(v) for name, v in self._values.items()}
