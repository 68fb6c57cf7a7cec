"""From numbers of prompts to rows of samples: every prompt as often as it is to be answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from controller.errors import DataflowError
from transferqueue.errors import near_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller.dataflow import Dataflow

Prompts = Callable[[int], Mapping[str, Any]]
"""The dataset: number of a prompt -> its columns. The same number gives the same prompt in every
process and every run, so that a run goes on from numbers alone."""

PROMPT_NUMBER = "prompt_number"
"""Column of every sample, int64: which prompt it answers."""

_MADE_HERE = ("uid", "is_greedy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRows:
    """Samples to be made. All arrays have one entry a sample."""

    columns: dict[str, Any]
    prompts: np.ndarray  # int64[samples]: prompt numbers
    greedy: np.ndarray  # bool[samples]: a baseline, not to be trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRows:
    """The rule. ``with_greedy``: one greedy sample more of each prompt, after the others."""

    prompts: Prompts
    inputs: tuple[str, ...]
    samples_per_prompt: int
    with_greedy: bool = False

    @classmethod
    def of(cls, prompts: Prompts, dataflow: Dataflow, samples_per_prompt: int) -> PromptRows:
        """``DataflowError`` when the dataset lacks an input of the table, with near names."""
        given = prompts(0)
        for name in dataflow.inputs:
            if name not in given and name not in _MADE_HERE:
                near = near_names(name, given)
                meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
                raise DataflowError(
                    f"the dataset has no {name!r}, an input of the dataflow; {meant}it has "
                    f"{sorted(given)}"
                )
        return cls(
            prompts=prompts,
            inputs=dataflow.inputs,
            samples_per_prompt=samples_per_prompt,
            with_greedy="is_greedy" in dataflow.inputs,
        )

    @property
    def group_size(self) -> int:
        """Samples of one prompt."""
        return self.samples_per_prompt + self.with_greedy

    def rows(self, numbers: Sequence[int]) -> SampleRows:
        """Samples of these prompts, those of one prompt next to each other."""
        size = self.group_size
        given = [self.prompts(number) for number in numbers]
        columns: dict[str, Any] = {
            name: [row[name] for row in given for _ in range(size)]
            for name in self.inputs
            if given and name in given[0]
        }
        prompts = np.repeat(np.array(numbers, dtype=np.int64), size)
        greedy = np.zeros(len(prompts), dtype=bool)
        if self.with_greedy:
            greedy[size - 1 :: size] = True
            columns["is_greedy"] = torch.from_numpy(greedy)
        if "uid" in self.inputs and "uid" not in columns:
            columns["uid"] = [f"prompt-{number}" for number in prompts.tolist()]
        columns[PROMPT_NUMBER] = torch.from_numpy(prompts)
        return SampleRows(columns=columns, prompts=prompts, greedy=greedy)
