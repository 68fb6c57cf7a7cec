"""How many prompts to hand out, so that rollouts stay busy and samples stay fresh. Pure.

A sample generated under policy version v is trained on at version u; its staleness is u - v. While
update u is under way, prompts for the updates up to u + updates_ahead are out: a prompt fed now is
used, first in first out, at most updates_ahead updates later. Samples do not quite come first in
first out: a long one is overtaken by shorter ones, and the bound on staleness has to allow for it.

How far ahead: when an update takes its batch, (1 + updates_ahead) batches are out, that one and
those on their way. With fewer on their way than are used up in the time that a sample takes,
updates wait, however many rollouts there are: at least (time of a sample) / (time of an update),
and about one more, as samples come in bursts and lengths differ. A sample of 0.75 s and updates of
0.4 s: 1.9 at least, 3 in practice; with 2.5 the trainer had another 5 % of its time free, with 1.5
a third of it, and the rollouts half of their slots. More than that waits in the data plane and
grows old there.

The last update has no later ones to leave its long samples to, and waits for the longest answer of
all that are left, unless that was begun early. So the last prompts go out all at once, when
``last_updates_ahead`` updates follow the next: that late, no sample can be older when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPacing:
    """The rule; the counts come from the driver."""

    prompts_per_step: int
    updates_ahead: float
    num_steps: int
    last_updates_ahead: float = 0.0
    """When no more updates than these follow the next, the prompts of all of them go out."""

    def __post_init__(self) -> None:
        for name in ("prompts_per_step", "num_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("updates_ahead", "last_updates_ahead"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")

    def prompts_due(self, *, num_updates: int, num_outstanding: int) -> int:
        """Prompts to feed now.

        ``num_updates``: done so far. ``num_outstanding``: prompts that were fed and whose samples
        no update has trained on; one that lost samples (they grew too old) is not outstanding any
        more, and so is made up for.
        """
        left = self.num_steps - num_updates
        is_end = left <= 1 + max(self.updates_ahead, self.last_updates_ahead)
        wanted = left if is_end else 1 + self.updates_ahead
        return max(0, int(wanted * self.prompts_per_step) - num_outstanding)
