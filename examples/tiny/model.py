"""A causal transformer in plain torch, with a key-value cache for batched generation.

Prompts may be padded on the left: a pad is never attended to, and positions are given by
``position_ids``, so a row's outputs do not depend on how much padding it has.

Shapes: B rows, S columns, V vocabulary, W width, H heads, D = W / H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig:
    """Size of the model. About ``12 · num_layers · width²`` parameters."""

    vocab_size: int
    max_positions: int
    """Longest prompt plus response, in tokens."""
    num_layers: int = 2
    num_heads: int = 4
    width: int = 64

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.width < 1:
            raise ValueError(f"width={self.width} and num_heads={self.num_heads} must be above 0")
        if self.width % self.num_heads:
            raise ValueError(f"width={self.width} is not a multiple of num_heads={self.num_heads}")


@dataclass(slots=True, kw_only=True)
class KVCache:
    """Keys and values of the columns seen so far, in buffers that hold the longest response.

    Changed in place by :meth:`TinyTransformer.decode`; belongs to one generation.
    """

    keys: list[Tensor]  # a layer: [B, H, S_max, D]
    values: list[Tensor]  # a layer: [B, H, S_max, D]
    visible: Tensor  # bool [B, S_max]: columns that may be attended to
    next_positions: Tensor  # int64 [B]
    num_columns: int


class TinyTrunk(nn.Module):
    """Token ids to hidden states [B, S, W]; what the policy and the critic have in common."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_positions, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width)
        self.apply(_init_weights)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """All three int64 [B, S]. States of pad columns are finite and mean nothing."""
        hidden = self._embed(input_ids, position_ids)
        bias = _causal_bias(attention_mask, hidden.dtype)
        for block in self._layers:
            hidden, _, _ = block(hidden, bias)
        return self._normed(hidden)

    def prefill(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, max_new_tokens: int
    ) -> tuple[Tensor, KVCache]:
        """States of the last column [B, W], and a cache with room for ``max_new_tokens``."""
        num_columns = input_ids.shape[1]
        hidden = self._embed(input_ids, position_ids)
        bias = _causal_bias(attention_mask, hidden.dtype)
        cache = self._empty_cache(attention_mask, position_ids, num_columns + max_new_tokens)
        for layer, block in enumerate(self._layers):
            hidden, keys, values = block(hidden, bias)
            cache.keys[layer][:, :, :num_columns] = keys
            cache.values[layer][:, :, :num_columns] = values
        return self._normed(hidden[:, -1]), cache

    def decode(self, token_ids: Tensor, cache: KVCache) -> Tensor:
        """States [B, W] of one more column of tokens, int64 [B]; ``cache`` grows by it."""
        column = cache.num_columns
        cache.visible[:, column] = True
        cache.num_columns = column + 1
        hidden = self._embed(token_ids[:, None], cache.next_positions[:, None])
        bias = _as_bias(cache.visible[:, None, None, : column + 1], hidden.dtype)
        for layer, block in enumerate(self._layers):
            hidden = block.step(hidden, bias, cache.keys[layer], cache.values[layer], column)
        cache.next_positions = cache.next_positions + 1
        return self._normed(hidden[:, 0])

    @property
    def _layers(self) -> list[_Block]:
        return cast("list[_Block]", list(self.blocks))

    def _embed(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(input_ids) + self.positions(position_ids)
        return embedded

    def _normed(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(hidden)
        return normed

    def _empty_cache(
        self, attention_mask: Tensor, position_ids: Tensor, max_columns: int
    ) -> KVCache:
        num_rows, num_columns = attention_mask.shape
        heads = self.config.num_heads
        shape = (num_rows, heads, max_columns, self.config.width // heads)
        visible = torch.zeros(num_rows, max_columns, dtype=torch.bool, device=attention_mask.device)
        visible[:, :num_columns] = attention_mask.bool()
        like = self.tokens.weight
        return KVCache(
            keys=[like.new_empty(shape) for _ in self._layers],
            values=[like.new_empty(shape) for _ in self._layers],
            visible=visible,
            next_positions=position_ids[:, -1] + 1,
            num_columns=num_columns,
        )


class TinyTransformer(nn.Module):
    """The policy: logits over the next token."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.trunk = TinyTrunk(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        _init_weights(self.head)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Logits [B, S, V]; those of column t predict the token of column t + 1."""
        logits: Tensor = self.head(self.trunk(input_ids, attention_mask, position_ids))
        return logits

    def prefill(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, max_new_tokens: int
    ) -> tuple[Tensor, KVCache]:
        """Logits [B, V] of the first response token, and the cache to go on with."""
        hidden, cache = self.trunk.prefill(input_ids, attention_mask, position_ids, max_new_tokens)
        return self.head(hidden), cache

    def decode(self, token_ids: Tensor, cache: KVCache) -> Tensor:
        """Logits [B, V] after one more column of tokens, int64 [B]."""
        logits: Tensor = self.head(self.trunk.decode(token_ids, cache))
        return logits


class TinyCritic(nn.Module):
    """The critic: a value for every column, read before that column's next token is known."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.trunk = TinyTrunk(config)
        self.head = nn.Linear(config.width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def from_policy(cls, policy: TinyTransformer) -> TinyCritic:
        """A critic that starts from the policy's trunk, as a copy, and values everything at 0."""
        critic = cls(policy.trunk.config)
        critic.trunk.load_state_dict(policy.trunk.state_dict())
        return critic

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Values [B, S]."""
        values: Tensor = self.head(self.trunk(input_ids, attention_mask, position_ids))
        return values.squeeze(-1)


class _Block(nn.Module):
    """Pre-norm attention and MLP, each on a residual."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, hidden: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``(hidden, keys, values)``; ``bias`` [B, 1, S, S] is added to the scores."""
        queries, keys, values = self._project(hidden)
        return self._finish(hidden, queries, keys, values, bias), keys, values

    def step(
        self, hidden: Tensor, bias: Tensor, keys: Tensor, values: Tensor, column: int
    ) -> Tensor:
        """One column [B, 1, W], which is written into ``keys`` and ``values`` first."""
        queries, new_keys, new_values = self._project(hidden)
        keys[:, :, column] = new_keys[:, :, 0]
        values[:, :, column] = new_values[:, :, 0]
        seen = slice(0, column + 1)
        return self._finish(hidden, queries, keys[:, :, seen], values[:, :, seen], bias)

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        num_rows, num_columns, width = hidden.shape
        mixed = self.qkv(self.attention_norm(hidden))
        shaped = mixed.view(num_rows, num_columns, 3, self.num_heads, width // self.num_heads)
        queries, keys, values = shaped.permute(2, 0, 3, 1, 4)  # each [B, H, S, D]
        return queries, keys, values

    def _finish(
        self, hidden: Tensor, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> Tensor:
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        expanded = F.relu(self.up(self.mlp_norm(hidden)))
        result: Tensor = hidden + self.down(expanded)
        return result


def _causal_bias(attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a column may look, very low elsewhere: [B, 1, S, S].

    Every column may look at itself, so that a pad's softmax has something to normalise over.
    """
    num_columns = attention_mask.shape[1]
    square = torch.ones(num_columns, num_columns, dtype=torch.bool, device=attention_mask.device)
    visible = square.tril() & attention_mask.bool()[:, None, :]
    visible = visible | torch.eye(num_columns, dtype=torch.bool, device=attention_mask.device)
    return _as_bias(visible[:, None], dtype)


def _as_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return bias.masked_fill_(~visible, torch.finfo(dtype).min)


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.05)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
