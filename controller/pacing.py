"""How many prompts to hand out, so that rollouts stay busy and samples stay fresh. Pure.

A sample generated under policy version v is trained on at version u; its staleness is u - v. While
update u is under way, prompts for the updates up to u + max_staleness may be out: a prompt fed now
is used, first in first out, at most max_staleness updates later.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPacing:
    """The rule; the counts come from the driver."""

    prompts_per_step: int
    samples_per_prompt: int
    max_staleness: int
    num_steps: int

    def __post_init__(self) -> None:
        for name in ("prompts_per_step", "samples_per_prompt", "num_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_staleness < 0:
            raise ValueError(f"max_staleness must be 0 or more, got {self.max_staleness}")

    def prompts_due(self, *, version: int, num_fed: int, num_samples_dropped: int) -> int:
        """Prompts to feed now.

        ``version``: of the policy, as many updates as are done. ``num_fed``: prompts fed so far.
        ``num_samples_dropped``: samples that grew too old before they were trained on; each is
        made up for, rounded up to whole prompts.
        """
        steps_ahead = min(version + 1 + self.max_staleness, self.num_steps)
        replacements = -(-num_samples_dropped // self.samples_per_prompt)
        return max(0, steps_ahead * self.prompts_per_step + replacements - num_fed)
