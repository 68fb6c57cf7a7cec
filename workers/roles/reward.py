"""The reward: a score for each response, from a check of its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from workers.roles.fields import Columns, stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from workers.roles.models import Tokenizer


class Verifier(Protocol):
    """Scores one response."""

    def __call__(self, *, answer: str, response: str) -> float: ...


class Reward:
    """Checks responses against ``reward_model["ground_truth"]``, verl's name for the answer."""

    def __init__(self, verify: Verifier, tokenizer: Tokenizer) -> None:
        self._verify = verify
        self._tokenizer = tokenizer

    @stage(reads=("responses", "response_mask", "reward_model"), writes=("rm_scores",))
    def compute_scores(self, data: Columns) -> dict[str, Tensor]:
        """``rm_scores`` float32 [B, R]: the score at the last real token, 0 elsewhere.

        ``reward_model`` is an object column of mappings. A response that was cut before its end
        token is checked as it is, so an answer is right only if it also stops.
        """
        mask: Tensor = data["response_mask"]
        texts = self._tokenizer.decode_batch(data["responses"])
        ended = (data["responses"] == self._tokenizer.eos_id).any(dim=-1)
        scores = self._score(data["reward_model"], texts, ended.tolist())
        return {"rm_scores": scores_at_last_token(scores, mask)}

    def _score(
        self, truths: Sequence[Mapping[str, Any]], texts: list[str], ended: list[bool]
    ) -> Tensor:
        scores = [
            self._verify(answer=truth["ground_truth"], response=text) if stopped else 0.0
            for truth, text, stopped in zip(truths, texts, ended, strict=True)
        ]
        return torch.tensor(scores, dtype=torch.float32)


def scores_at_last_token(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores [B] at each row's last real token, 0 elsewhere: float32 [B, R].

    A row without a real token keeps no score.
    """
    is_last = (mask.cumsum(-1) == mask.sum(-1, keepdim=True)) & mask.bool()
    return torch.where(is_last, scores.float().to(mask.device)[:, None], 0.0)
