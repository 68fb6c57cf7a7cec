"""The rollout: responses to prompts, from the newest weights that have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.roles.fields import Columns, stage
from workers.roles.layout import join_prompts_and_responses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from workers.roles.models import GenerationEngine, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """Widths of the batch and how tokens are drawn."""

    prompt_length: int
    """P, tokens; a longer prompt is refused."""
    response_length: int
    """R, tokens; a response that has not ended by then is cut."""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.prompt_length < 1 or self.response_length < 1:
            raise ValueError(
                f"prompt_length={self.prompt_length} and response_length={self.response_length} "
                f"must be at least 1"
            )


class Rollout:
    """An engine with weights that somebody else trains.

    ``version`` is the policy version of the weights in use: all tokens of one call come from it.
    """

    def __init__(
        self, engine: GenerationEngine, tokenizer: Tokenizer, config: RolloutConfig
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self.version = 0

    def load_weights(self, state_dict: Mapping[str, Any], version: int) -> None:
        """Use these weights from the next call on."""
        self._engine.load_weights(state_dict)
        self.version = version

    @stage(
        reads=("raw_prompt",),
        writes=(
            "prompts",
            "responses",
            "input_ids",
            "attention_mask",
            "position_ids",
            "response_mask",
            "rollout_log_probs",
        ),
    )
    def generate_sequences(self, data: Columns, *, greedy: bool = False) -> dict[str, Tensor]:
        """One response a row of ``raw_prompt`` (texts); ids and masks int64, log-probs float32."""
        config = self._config
        texts = [str(text) for text in data["raw_prompt"]]
        prompts, prompt_mask = self._tokenizer.encode_left_padded(texts, config.prompt_length)
        generation = self._engine.generate(
            prompts,
            prompt_mask,
            max_new_tokens=config.response_length,
            temperature=0.0 if greedy else config.temperature,
        )
        return {
            "prompts": prompts,
            "responses": generation.responses,
            "response_mask": generation.response_mask,
            "rollout_log_probs": generation.log_probs,
            **join_prompts_and_responses(
                prompts, prompt_mask, generation.responses, generation.response_mask
            ),
        }
