"""What logits say about tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def token_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of each token: logits [B, R, V], tokens int64 [B, R], out float32 [B, R]."""
    return logits.float().log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of each distribution: logits [B, R, V], out float32 [B, R]."""
    log_probs = logits.float().log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)
