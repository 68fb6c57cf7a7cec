"""The rollout: responses to prompts, from the newest weights that have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workers.roles.fields import Columns, stage
from workers.roles.layout import join_prompts_and_responses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.roles.models import GenerationEngine, Tokenizer

NO_VERSION = -1
"""In ``token_versions``, where there is no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """Widths of the batch and how tokens are drawn."""

    prompt_length: int
    """P, tokens; a longer prompt is refused."""
    response_length: int
    """R, tokens; a response that has not ended by then is cut."""
    temperature: float = 1.0
    with_greedy_rows: bool = False
    """Rows whose ``is_greedy`` is set get the likeliest tokens: the baselines of ReMax, in one
    batch with the rest."""
    slots: int = 64
    """Streaming: generations under way at once."""
    segment_tokens: int = 8
    """Streaming: tokens between two looks at finished rows, waiting prompts and new weights."""

    def __post_init__(self) -> None:
        for name in ("prompt_length", "response_length", "slots", "segment_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


class Rollout:
    """An engine with weights that somebody else trains.

    ``version`` is the policy version of the weights in use: all tokens of one call come from it.
    """

    def __init__(
        self, engine: GenerationEngine, tokenizer: Tokenizer, config: RolloutConfig
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.config = config
        self.version = 0

    def load_weights(self, state_dict: Mapping[str, Any], version: int) -> None:
        """Use these weights from the next call on."""
        self.engine.load_weights(state_dict)
        self.version = version

    def needs(self, method_name: str) -> tuple[str, ...]:
        """The optional reads of a method that this configuration uses."""
        wanted = method_name == "generate_sequences" and self.config.with_greedy_rows
        return ("is_greedy",) if wanted else ()

    @stage(
        reads=("raw_prompt",),
        optional_reads=("is_greedy",),
        writes=(
            "prompts",
            "responses",
            "input_ids",
            "attention_mask",
            "position_ids",
            "response_mask",
            "rollout_log_probs",
            "token_versions",
        ),
    )
    def generate_sequences(self, data: Columns, *, greedy: bool = False) -> dict[str, Tensor]:
        """One response a row of ``raw_prompt`` (texts); ids and masks int64, log-probs float32.

        ``token_versions`` int64 [B, R]: the policy version that drew each token.
        """
        config = self.config
        prompts, prompt_mask = self.encode(data)
        generation = self.engine.generate(
            prompts,
            prompt_mask,
            max_new_tokens=config.response_length,
            temperature=0.0 if greedy else self.temperatures(data),
        )
        mask = generation.response_mask
        return written_columns(
            prompts=prompts,
            prompt_mask=prompt_mask,
            responses=generation.responses,
            response_mask=mask,
            log_probs=generation.log_probs,
            token_versions=torch.where(mask.bool(), self.version, NO_VERSION),
        )

    def encode(self, data: Columns) -> tuple[Tensor, Tensor]:
        """Prompts and their mask, int64 [B, P], padded on the left."""
        texts = [str(text) for text in data["raw_prompt"]]
        return self.tokenizer.encode_left_padded(texts, self.config.prompt_length)

    def temperatures(self, data: Columns) -> float | Tensor:
        """One temperature, or float32 [B] where some rows are greedy."""
        if not self.config.with_greedy_rows:
            return self.config.temperature
        is_greedy = torch.as_tensor(data["is_greedy"]).bool()
        return torch.where(is_greedy, 0.0, self.config.temperature)

    def save_state(self) -> dict[str, Any]:
        """What a restarted rollout cannot get from the published weights."""
        random_state = getattr(self.engine, "random_state", None)
        return {} if random_state is None else {"random_state": random_state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if "random_state" in state:
            self.engine.load_random_state(state["random_state"])  # type: ignore[attr-defined]


def written_columns(
    *,
    prompts: Tensor,
    prompt_mask: Tensor,
    responses: Tensor,
    response_mask: Tensor,
    log_probs: Tensor,
    token_versions: Tensor,
) -> dict[str, Tensor]:
    """What a rollout writes."""
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": response_mask,
        "rollout_log_probs": log_probs,
        "token_versions": token_versions,
        **join_prompts_and_responses(prompts, prompt_mask, responses, response_mask),
    }
