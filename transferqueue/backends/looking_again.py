"""When a store that was not there is looked for again. No clock, no thread.

One try at a time. The pause after one that failed doubles each time: most stores are started again
within seconds, and one that is away for hours is to cost nothing.
"""

from __future__ import annotations

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 30.0

PATIENCE_S = 10.0
"""How long what needs the store waits for the first try, rather than fail: a store that is there
may take some seconds, of which nobody is to hear."""

WITHOUT_ANSWER = "it does not answer"


class LookingAgain:
    """The first try is under way from the start. ``what_to_do``: for messages, while there is no
    word yet of what is wrong."""

    def __init__(self, since_s: float, what_to_do: str = "") -> None:
        self.since_s = since_s
        self.num_failed = 0
        self.again_s: float | None = None
        """When the next try is due; ``None``: one is under way."""
        self._why = f"{WITHOUT_ANSWER}; {what_to_do}" if what_to_do else WITHOUT_ANSWER
        self._pause_s = FIRST_PAUSE_S

    @property
    def why(self) -> str:
        """What was wrong when it was looked for last."""
        return self._why

    def failed(self, why: str, now_s: float) -> None:
        """The try that is under way has found nothing."""
        self.num_failed += 1
        self._why = why
        self.again_s = now_s + self._pause_s
        self._pause_s = min(LAST_PAUSE_S, 2 * self._pause_s)

    def is_due(self, now_s: float) -> bool:
        return self.again_s is not None and now_s >= self.again_s

    def begun(self) -> None:
        """The next try is under way."""
        self.again_s = None

    def is_worth_waiting(self, now_s: float) -> bool:
        """Whether the store may be there in a moment, so far as is known."""
        return not self.num_failed and now_s - self.since_s < PATIENCE_S
