"""Where ours differs from verl 0.9.1 on purpose, each as a predicate over one case.

A case is what both sides did with one operation on one batch. The rest must agree: the same
result, or an error of the same built-in class. ``verl_checks.py`` has one explicit example of
each correction beside the random ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from against_verl.frozen import without_devices
from against_verl.operations import Operation, names_of


@dataclass(frozen=True)
class Case:
    operation: Operation
    before: Any
    """Our batch as it was before the operation."""
    verl: Any
    """verl's result, frozen, or its exception."""
    ours: Any

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def args(self) -> dict[str, Any]:
        return self.operation.args

    @property
    def only_ours_works(self) -> bool:
        return isinstance(self.verl, Exception) and not isinstance(self.ours, Exception)

    @property
    def only_verl_works(self) -> bool:
        return isinstance(self.ours, Exception) and not isinstance(self.verl, Exception)

    @property
    def both_work(self) -> bool:
        return not isinstance(self.verl, Exception) and not isinstance(self.ours, Exception)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {} if self.before.batch is None else dict(self.before.batch.items())

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.before.non_tensor_batch

    @property
    def is_jagged(self) -> bool:
        return any(column.is_nested for column in self.tensors.values())
