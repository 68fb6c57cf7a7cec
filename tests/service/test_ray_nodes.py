"""Nodes that join while a service runs, without Ray."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from transferqueue.errors import ServiceFailed
from transferqueue.service import ray_nodes
from transferqueue.service.ray_nodes import NodeWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(ray_nodes, "MOST_PAUSE_S", 0.002)
    monkeypatch.setattr(ray_nodes.ray, "is_initialized", lambda: True)


def test_a_node_that_cannot_have_a_shard_is_tried_again_and_others_are_not_kept_waiting() -> None:
    asked: list[int] = []
    is_enough = threading.Event()

    def add() -> Sequence[int]:
        asked.append(len(asked))
        if len(asked) < 4:
            raise ServiceFailed("shard-2", "its directory is too small")
        is_enough.set()
        return [2]

    with NodeWatch(add) as watch:
        watch.start()
        assert is_enough.wait(DEADLINE_S)


def test_closing_waits_for_what_was_begun_and_nothing_begins_after() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def add() -> Sequence[int]:
        begun.set()
        assert may_end.wait(DEADLINE_S)
        ended.append(True)
        return []

    watch = NodeWatch(add)
    watch.start()
    assert begun.wait(DEADLINE_S)
    closing = threading.Thread(target=watch.close)
    closing.start()
    assert not ended
    may_end.set()
    closing.join(DEADLINE_S)
    assert ended == [True]
    watch.close()
    assert ended == [True]


def test_a_watch_that_was_never_begun_is_closed_too() -> None:
    NodeWatch(list).close()
