"""What may be done for the next update while one runs."""

from __future__ import annotations

from controller.look_ahead import LookAhead


def rule(checkpoint_every: int = 0) -> LookAhead:
    return LookAhead(num_steps=10, max_staleness=2, checkpoint_every=checkpoint_every)


def test_samples_are_as_fresh_as_the_update_needs_them_not_as_its_time_of_claiming() -> None:
    # While update 5 runs, the weights in use are of version 5 and those it makes of version 6.
    assert rule().oldest_version(6) == 4


def test_nothing_is_taken_beyond_the_last_update() -> None:
    assert [n for n in range(12) if rule().is_another_due(n)] == list(range(10))


def test_a_checkpoint_comes_every_so_often_and_at_the_end() -> None:
    assert [n for n in range(1, 11) if rule(4).is_checkpoint_due(n)] == [4, 8, 10]
    assert not any(rule().is_checkpoint_due(n) for n in range(1, 11))
