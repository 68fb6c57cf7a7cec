"""Many generations under way at once, a segment of tokens at a time.

Between two segments finished rows leave, waiting prompts come in, and newer weights may be loaded.
A row that is cut off goes on from the tokens it has: prompt and partial response are prefilled
again, under whatever weights are there by then, and every token keeps the version that drew it.
(Partial rollouts as in Kimi k1.5, arXiv:2501.12599, and interruptible generation as in AReaL,
arXiv:2505.24298.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workers.roles.rollout import NO_VERSION, written_columns

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from workers.roles.fields import Columns
    from workers.roles.rollout import Rollout


@dataclass(slots=True)
class GenerationCounts:
    """What became of generations so far."""

    finished: int = 0
    resumed: int = 0
    """Went on under newer weights than they began with; counted once an interruption."""
    dropped: int = 0
    """Began again from the prompt, because their first tokens had become too old."""


@dataclass(slots=True, kw_only=True)
class _Row:
    """One generation under way."""

    key: Hashable
    prompt: Tensor  # int64 [P]
    prompt_mask: Tensor  # int64 [P]
    temperature: float
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def forget(self) -> None:
        self.tokens, self.log_probs, self.versions = [], [], []


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRows:
    """Generations that have ended."""

    keys: list[Any]
    columns: dict[str, Tensor]
    """As `Rollout.generate_sequences` writes them."""
    oldest_versions: list[int]
    """Of each row, the version of its oldest token."""


class PartialRollout:
    """Generations under way of one `Rollout`, in slots."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._rows: list[_Row] = []
        self.counts = GenerationCounts()
        self.last_first_token_s = 0.0
        """Of the last segment: seconds from its start to its first token."""

    @property
    def num_free(self) -> int:
        """Slots without a generation."""
        return self._rollout.config.slots - len(self._rows)

    @property
    def keys(self) -> list[Any]:
        """Of the generations under way."""
        return [row.key for row in self._rows]

    def admit(self, keys: Sequence[Hashable], data: Columns) -> None:
        """Begin to answer the prompts of ``data``, the reads of ``generate_sequences``."""
        prompts, masks = self._rollout.encode(data)
        temperatures = self._rollout.temperatures(data)
        if not isinstance(temperatures, Tensor):
            temperatures = torch.full((len(prompts),), temperatures)
        self._rows += [
            _Row(key=key, prompt=prompt, prompt_mask=mask, temperature=temperature)
            for key, prompt, mask, temperature in zip(
                keys, prompts, masks, temperatures.tolist(), strict=True
            )
        ]

    def load_weights(self, state_dict: Mapping[str, Any], version: int) -> None:
        """Go on under these weights."""
        self._rollout.load_weights(state_dict, version)
        self.counts.resumed += sum(bool(row.tokens) for row in self._rows)

    def drop_older_than(self, version: int) -> int:
        """Begin generations again that have tokens of versions below this one; how many."""
        too_old = [row for row in self._rows if row.versions and row.versions[0] < version]
        for row in too_old:
            row.forget()
        self.counts.dropped += len(too_old)
        return len(too_old)

    def discard(self, keys: Sequence[Hashable]) -> None:
        """Give generations up."""
        gone = set(keys)
        self._rows = [row for row in self._rows if row.key not in gone]

    def advance(self) -> FinishedRows | None:
        """Draw one segment for every row; the rows that ended with it, or ``None``."""
        if not self._rows:
            return None
        self._draw_segment()
        ended = [row for row in self._rows if self._has_ended(row)]
        if not ended:
            return None
        self._rows = [row for row in self._rows if not self._has_ended(row)]
        self.counts.finished += len(ended)
        return FinishedRows(
            keys=[row.key for row in ended],
            columns=self._columns(ended),
            oldest_versions=[min(row.versions) for row in ended],
        )

    def _draw_segment(self) -> None:
        rollout = self._rollout
        # No further than the row that is nearest to its limit: a model may have no more positions.
        left = min(rollout.config.response_length - len(row.tokens) for row in self._rows)
        temperatures = torch.tensor([row.temperature for row in self._rows])
        same = bool((temperatures == temperatures[0]).all())
        generation = rollout.engine.generate(
            *self._prefixes(),
            max_new_tokens=min(rollout.config.segment_tokens, left),
            temperature=float(temperatures[0]) if same else temperatures,
        )
        self.last_first_token_s = generation.first_token_s
        lengths = generation.response_mask.sum(-1).tolist()
        for row, tokens, log_probs, length in zip(
            self._rows,
            generation.responses.tolist(),
            generation.log_probs.tolist(),
            lengths,
            strict=True,
        ):
            row.tokens += tokens[:length]
            row.log_probs += log_probs[:length]
            row.versions += [rollout.version] * length

    def _prefixes(self) -> tuple[Tensor, Tensor]:
        """Prompt and partial response of each row, padded on the left to the longest."""
        longest = max(len(row.tokens) for row in self._rows)
        width = len(self._rows[0].prompt) + longest
        ids = torch.full((len(self._rows), width), self._rollout.tokenizer.pad_id)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(self._rows):
            end = width - len(row.tokens)
            start = end - len(row.prompt)
            ids[index, start:end], mask[index, start:end] = row.prompt, row.prompt_mask
            ids[index, end:], mask[index, end:] = torch.tensor(row.tokens, dtype=torch.int64), 1
        return ids, mask

    def _has_ended(self, row: _Row) -> bool:
        is_full = len(row.tokens) >= self._rollout.config.response_length
        return is_full or (bool(row.tokens) and row.tokens[-1] == self._rollout.tokenizer.eos_id)

    def _columns(self, rows: list[_Row]) -> dict[str, Tensor]:
        width, pad = self._rollout.config.response_length, self._rollout.tokenizer.pad_id
        lengths = torch.tensor([len(row.tokens) for row in rows])
        return written_columns(
            prompts=torch.stack([row.prompt for row in rows]),
            prompt_mask=torch.stack([row.prompt_mask for row in rows]),
            responses=_padded([row.tokens for row in rows], width, pad),
            response_mask=(torch.arange(width) < lengths[:, None]).long(),
            log_probs=_padded([row.log_probs for row in rows], width, 0.0),
            token_versions=_padded([row.versions for row in rows], width, NO_VERSION),
        )


def _padded(rows: Sequence[Sequence[Any]], width: int, filler: float) -> Tensor:
    """Lists as a tensor [B, width]."""
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
