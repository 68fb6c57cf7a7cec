"""What a batch scored, as a stage: the driver gets numbers, not the scores."""

from __future__ import annotations

from workers.roles.fields import Columns, stage


class ScoreSummary:
    """Summaries of ``rm_scores``."""

    @stage(reads=("rm_scores", "response_mask"))
    def summary(self, data: Columns) -> dict[str, float]:
        """``reward``: mean over the rows of each row's summed score. ``response_length/mean`` and
        ``/max``: tokens. Both [B, R] -> float."""
        lengths = data["response_mask"].sum(-1).float()
        return {
            "reward": float(data["rm_scores"].sum(-1).mean()),
            "response_length/mean": float(lengths.mean()),
            "response_length/max": float(lengths.max()),
        }
