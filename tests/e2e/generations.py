"""Rows that say which put they are of, in every word, and a client that looks for mixed ones."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from transferqueue.errors import RowsGone, StorageFull, TransferExpired

if TYPE_CHECKING:
    import transferqueue as tq

PARTITION = "generations"
WORDS = 1 << 16
_STEP = 0x9E3779B1


def rows(seeds: np.ndarray) -> dict[str, Any]:
    """One dense and one ragged row for each seed: word k is ``seed + k * step``."""
    words = pattern(seeds, WORDS)
    lengths = torch.from_numpy(seeds % 5000 + 1)
    ragged = torch.nested.nested_tensor_from_jagged(
        torch.from_numpy(np.concatenate([pattern(s[None], s % 5000 + 1)[0] for s in seeds])),
        lengths=None,
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
    )
    return {"words": torch.from_numpy(words), "ragged": ragged}


def pattern(seeds: np.ndarray, count: int) -> np.ndarray:
    """int64[seeds, count]"""
    return (seeds[:, None] + np.arange(count) * _STEP) & 0x7FFF_FFFF_FFFF


def num_mixed(columns: dict[str, Any]) -> int:
    """Rows in which words of different puts stand side by side."""
    words = columns["words"].numpy()
    mixed = int((words != pattern(words[:, 0], words.shape[1])).any(axis=1).sum())
    for seed, row in zip(words[:, 0].tolist(), columns["ragged"].unbind(), strict=True):
        expected = pattern(np.array([seed]), seed % 5000 + 1)[0]
        mixed += int(len(row) != len(expected) or (row.numpy() != expected).any())
    return mixed


class Churn:
    """What one client does; every tensor that it holds is looked at again before it lets go."""

    def __init__(self, client: tq.Client, seed: int, *, put_timeout_s: float = 0.2) -> None:
        self._client = client
        self._put_timeout_s = put_timeout_s
        self._dice = random.Random(seed)
        self._next_seed = seed * 1_000_003
        self._held: list[dict[str, Any]] = []
        self.counts = {"put": 0, "got": 0, "gone": 0, "full": 0, "cleared": 0, "mixed": 0}

    def step(self) -> None:
        self._dice.choice([self._put, self._put, self._get, self._get, self._look, self._clear])()

    def _put(self) -> None:
        count = self._dice.randrange(1, 12)
        seeds = self._next_seed + np.arange(count)
        self._next_seed += count
        try:
            self._client.put(rows(seeds), partition=PARTITION, timeout_s=self._put_timeout_s)
            self.counts["put"] += count
        except (StorageFull, TransferExpired):  # the latter: its shard was killed, and no time left
            self.counts["full"] += 1
            self._look()
            self._clear()

    def _some(self) -> tq.BatchHandle:
        everything = self._client.select(PARTITION)
        chosen = self._dice.sample(range(len(everything)), k=min(len(everything), 9))
        return everything[np.array(chosen, dtype=np.int64)]

    def _get(self) -> None:
        handle = self._some()
        if not len(handle):
            return
        try:
            got = self._client.get_columns(handle, fields=["words", "ragged"])
        except RowsGone:
            self.counts["gone"] += 1
            return
        self.counts["got"] += len(handle)
        self.counts["mixed"] += num_mixed(got)
        self._held.append(got)
        if len(self._held) > 3:
            self._look()

    def _look(self) -> None:
        """What was got is still what it was, however much was cleared and put since."""
        for got in self._held:
            self.counts["mixed"] += num_mixed(got)
            got["words"].fill_(-1)  # private: nobody else may see this
        self._held.clear()

    def _clear(self) -> None:
        self.counts["cleared"] += self._client.clear(self._some())

    def close(self) -> None:
        self._look()


ENOUGH = 8
"""Rows put, got and cleared, below which nothing is shown."""

LONG_S = 60.0
"""For which a busy machine may take for that."""


def churn(client: tq.Client, *, seed: int, seconds: float) -> dict[str, int]:
    """Go on for so long, and until enough was done; what that was, and how many rows were mixed."""
    num_mixed(rows(np.arange(2)))  # torch loads much of itself for its first nested tensor
    begun_s = time.monotonic()
    with contextlib.closing(Churn(client, seed)) as churning:
        while (taken_s := time.monotonic() - begun_s) < LONG_S and (
            taken_s < seconds
            or min(churning.counts[what] for what in ("put", "got", "cleared")) < ENOUGH
        ):
            churning.step()
    return churning.counts
