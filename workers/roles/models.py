"""What a role asks of a model. Any object with these methods will do.

Shapes: B rows, S = P + R columns, V vocabulary. Masks and ids are int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor, nn

CacheT = TypeVar("CacheT")


class Module(Protocol):
    """The part of ``torch.nn.Module`` that training and weight transfer use."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...


class PolicyModel(Module, Protocol):
    """A causal language model."""

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Logits [B, S, V]; column t predicts the token of column t + 1."""
        ...


class ValueModel(Module, Protocol):
    """A model with a value head."""

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Values [B, S]; column t values the state before the token of column t + 1."""
        ...


class CachedModel(Module, Protocol[CacheT]):
    """A causal language model that generates one column at a time."""

    def prefill(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, max_new_tokens: int
    ) -> tuple[Tensor, CacheT]:
        """Logits [B, V] of the first new token, and a cache with room for ``max_new_tokens``."""
        ...

    def decode(self, token_ids: Tensor, cache: CacheT) -> Tensor:
        """Logits [B, V] after one more token a row, int64 [B]; changes ``cache``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Responses, padded on the right to the longest allowed."""

    responses: Tensor
    """int64 [B, R]; pad after the end token."""
    response_mask: Tensor
    """int64 [B, R]; 1 up to and including the end token."""
    log_probs: Tensor
    """float32 [B, R]; of each sampled token under the (tempered) policy that drew it; 0 on pads."""
    first_token_s: float = 0.0
    """Seconds from the call to the first token of all rows."""


class GenerationEngine(Protocol):
    """Whatever turns prompts into responses: a cached model here, a serving engine elsewhere."""

    def generate(
        self,
        prompts: Tensor,
        prompt_mask: Tensor,
        *,
        max_new_tokens: int,
        temperature: float | Tensor,
    ) -> Generation:
        """Responses to left-padded prompts [B, P]; a temperature of 0 is greedy, and there may be
        one a row, float32 [B]."""
        ...

    def load_weights(self, state_dict: Mapping[str, Any]) -> None: ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def pad_id(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    def encode_left_padded(self, texts: Sequence[str], width: int) -> tuple[Tensor, Tensor]:
        """``(ids, attention_mask)``, int64 [B, width]. ``ValueError`` when one does not fit."""
        ...

    def decode_batch(self, ids: Tensor) -> list[str]:
        """One text a row, up to its end token."""
        ...
