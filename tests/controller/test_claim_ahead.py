"""A claim that is under way in a thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from controller.claim_ahead import ClaimAhead
from transferqueue.errors import NotReady, ServiceUnreachable
from workers.errors import WorkerDied

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON_S = 10.0


@dataclass
class Samples:
    """Claims of them: not ready until they are let go."""

    handle: str = "samples"

    def __post_init__(self) -> None:
        self.are_ready = threading.Event()
        self.asked = threading.Event()

    def claim(self) -> Any:
        self.asked.set()
        if not self.are_ready.wait(0.001):
            raise NotReady(8, 0, {}, 0.001)
        return self


@pytest.fixture
def ahead() -> Iterator[ClaimAhead]:
    with ClaimAhead() as ahead:
        yield ahead


@pytest.fixture
def samples() -> Samples:
    return Samples()


def test_a_claim_goes_on_until_the_samples_are_there(ahead: ClaimAhead, samples: Samples) -> None:
    ahead.begin(samples.claim)
    assert ahead.wait(0.0) is None
    samples.are_ready.set()
    taken = ahead.wait(SOON_S)
    assert taken is not None
    assert taken.claim is samples
    assert not ahead.is_begun, "they are the caller's"


def test_the_first_stages_begin_with_the_claim(ahead: ClaimAhead, samples: Samples) -> None:
    started: list[Any] = []
    samples.are_ready.set()
    ahead.begin(samples.claim, lambda handle: started.append(handle) or "run")  # type: ignore
    taken = ahead.wait(SOON_S)
    assert taken is not None
    assert (taken.run, started) == ("run", ["samples"])


def test_samples_are_not_lost_with_a_role_that_is_dead(ahead: ClaimAhead, samples: Samples) -> None:
    def start(_: Any) -> Any:
        raise WorkerDied("update", 0, "it is gone")

    samples.are_ready.set()
    ahead.begin(samples.claim, start)
    taken = ahead.wait(SOON_S)
    assert taken is not None
    assert (taken.claim, taken.run) == (samples, None)


def test_what_the_claim_raised_is_raised_where_it_is_waited_for(ahead: ClaimAhead) -> None:
    def claim() -> Any:
        raise ServiceUnreachable("coordinator", "gone", 1.0)

    ahead.begin(claim)
    with pytest.raises(ServiceUnreachable):
        ahead.wait(SOON_S)
    assert not ahead.is_begun, "another can be begun"


def test_after_a_pause_nothing_is_claimed_any_more(ahead: ClaimAhead, samples: Samples) -> None:
    ahead.begin(samples.claim)
    assert samples.asked.wait(SOON_S)
    ahead.pause()
    samples.asked.clear()
    samples.are_ready.set()
    assert not samples.asked.wait(0.02)
    assert not ahead.is_begun
    assert isinstance(ahead.not_ready, NotReady)
    ahead.begin(samples.claim)
    assert ahead.wait(SOON_S) is not None


def test_what_was_claimed_before_a_pause_is_kept_or_taken_back(
    ahead: ClaimAhead, samples: Samples
) -> None:
    samples.are_ready.set()
    ahead.begin(samples.claim)
    assert samples.asked.wait(SOON_S)
    ahead.pause()
    assert ahead.is_begun
    assert ahead.take_back() is samples
    assert ahead.take_back() is None
