"""What a batch scored, as a stage: the driver gets a number, not the scores."""

from __future__ import annotations

from workers.roles.fields import Columns, stage


class ScoreSummary:
    """Summaries of ``rm_scores``."""

    @stage(reads=("rm_scores",))
    def mean_score(self, data: Columns) -> dict[str, float]:
        """``reward``: mean over the rows of each row's summed score. [B, R] -> float."""
        return {"reward": float(data["rm_scores"].sum(-1).mean())}
