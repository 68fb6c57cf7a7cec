"""What a driver may take and begin for the next update while one runs. Pure.

While update u is under way (u updates are done), the samples of u + 1 can be claimed and its stages
that write begun: they follow update u in the processes of the trainer without a pause. What must
stay as it would be without:

- the bound on staleness. The update will be of one version more than the weights in use, and so
  will its samples' staleness: only those are taken that are fresh enough then.
- a checkpoint. It has the state of the roles after update u and before anything of u + 1, so where
  one follows an update nothing is begun until it is written.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAhead:
    """The rule; the counts come from the driver."""

    num_steps: int
    max_staleness: int
    checkpoint_every: int

    def oldest_version(self, version: int) -> int:
        """Of the samples that an update of this version of the weights may take."""
        return version - self.max_staleness

    def is_another_due(self, num_updates: int) -> bool:
        """Whether an update follows after so many."""
        return num_updates < self.num_steps

    def is_checkpoint_due(self, num_updates: int) -> bool:
        """Whether the update that makes them so many is followed by a checkpoint."""
        every = self.checkpoint_every
        return bool(every) and (num_updates % every == 0 or num_updates == self.num_steps)
