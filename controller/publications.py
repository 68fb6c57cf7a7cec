"""Which versions of the policy's weights went out, and when.

Numbers only rise and none is given twice, also not after a return to a checkpoint: weights of a
void update may have gone out, as they are published while the rest of the update still runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.sources import WEIGHTS
from workers.rollout_stream import VERSIONS_KEPT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controller.role_calls import Answer, Roles

ACTOR = "actor"
"""The role whose weights they are."""


class Publications:
    """Of one run. ``newest``: the highest number that was given."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self._answer: Answer | None = None
        self._at_s: dict[int, float] = {}
        self.newest = -1

    def begin(self, version: int) -> None:
        """Let the actor publish, after the calls that it has been given before."""
        self.newest = version
        self._answer = self._roles.publish(ACTOR, WEIGHTS, version)

    def finish(self) -> None:
        """Wait until the weights are there."""
        assert self._answer is not None, "begun"
        answer, self._answer = self._answer, None
        kept = list(self._at_s.items())[1 - VERSIONS_KEPT :]
        self._at_s = {**dict(kept), self.newest: float(answer.get())}

    def first_token_s(self, first_token_at_s: Mapping[int, float]) -> float | None:
        """From the publishing of the newest version that gave a token, until its first. ``None``
        where there is none. ``first_token_at_s``: by version, wall-clock time."""
        used = [version for version in first_token_at_s if version in self._at_s]
        if not used:
            return None
        newest = max(used)
        # A rollout may be faster than the answer to the one who published.
        return max(0.0, first_token_at_s[newest] - self._at_s[newest])
