"""Text to token ids, one character a token.

Ids 0 and 1 are the padding and the end of a text, whatever the alphabet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAD_ID = 0
EOS_ID = 1
NUM_SPECIAL = 2


@dataclass(frozen=True, kw_only=True)
class CharTokenizer:
    """One token a character of ``alphabet``, in its order, after the special ids."""

    alphabet: str

    def __post_init__(self) -> None:
        if len(set(self.alphabet)) != len(self.alphabet):
            raise ValueError(f"alphabet {self.alphabet!r} names a character twice")

    @property
    def pad_id(self) -> int:
        return PAD_ID

    @property
    def eos_id(self) -> int:
        return EOS_ID

    @property
    def vocab_size(self) -> int:
        return NUM_SPECIAL + len(self.alphabet)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, no end token. ``ValueError`` on a character outside the alphabet."""
        try:
            return [self._id_of[character] for character in text]
        except KeyError as error:
            raise ValueError(f"{text!r} has {error.args[0]!r}, not in {self.alphabet!r}") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end token; padding is dropped."""
        characters: list[str] = []
        for token in ids:
            if token == EOS_ID:
                break
            if token != PAD_ID:
                characters.append(self.alphabet[token - NUM_SPECIAL])
        return "".join(characters)

    def decode_batch(self, ids: Tensor) -> list[str]:
        """One text a row of ``ids`` [B, T]."""
        return [self.decode(row) for row in ids.tolist()]

    def encode_left_padded(self, texts: Sequence[str], width: int) -> tuple[Tensor, Tensor]:
        """``(ids, attention_mask)``, both int64 [B, width], texts at the right edge."""
        rows = [self.encode(text) for text in texts]
        longest = max((len(row) for row in rows), default=0)
        if longest > width:
            raise ValueError(f"a prompt of {longest} tokens does not fit width={width}")
        ids = torch.tensor([[PAD_ID] * (width - len(row)) + row for row in rows])
        lengths = torch.tensor([len(row) for row in rows])
        mask = (torch.arange(width) >= width - lengths[:, None]).long()
        return ids.reshape(len(rows), width), mask

    @cached_property
    def _id_of(self) -> dict[str, int]:
        return {character: NUM_SPECIAL + i for i, character in enumerate(self.alphabet)}
