"""Which samples of the data plane belong to which prompt, and which prompts have lost some.

Kept by the driver in numpy, so that a look over all outstanding samples costs one pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

_NONE = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Ledger:
    """Samples that were put and not yet trained on."""

    uids: np.ndarray = field(default_factory=lambda: _NONE)  # int64[samples]
    prompts: np.ndarray = field(default_factory=lambda: _NONE)  # int64[samples]: prompt numbers
    greedy: np.ndarray = field(default_factory=lambda: _NONE.astype(bool))  # bool[samples]

    def add(self, uids: np.ndarray, prompts: np.ndarray, greedy: np.ndarray) -> None:
        """Samples were put; all arrays have one entry a sample."""
        self.uids = np.concatenate([self.uids, uids])
        self.prompts = np.concatenate([self.prompts, prompts])
        self.greedy = np.concatenate([self.greedy, greedy])

    def rows(self, uids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``(prompts, greedy)`` of samples, in the order asked."""
        order = np.argsort(self.uids)
        at = order[np.searchsorted(self.uids, uids, sorter=order)]
        return self.prompts[at], self.greedy[at]

    def remove(self, uids: np.ndarray) -> None:
        """Samples are done with."""
        self._keep(~np.isin(self.uids, uids))

    def _keep(self, kept: np.ndarray) -> None:
        self.uids, self.prompts, self.greedy = (
            self.uids[kept],
            self.prompts[kept],
            self.greedy[kept],
        )

    def tear(self, alive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Forget prompts that have lost a sample.

        ``alive``: uids that the data plane still has. Returns ``(prompts, uids)``: the prompts, and
        their samples that are left, which nobody will ever ask for and which are to be cleared.
        """
        is_alive = np.isin(self.uids, alive)
        torn = np.unique(self.prompts[~is_alive])
        is_torn = np.isin(self.prompts, torn)
        left = self.uids[is_torn & is_alive]
        self._keep(~is_torn)
        return torn, left
