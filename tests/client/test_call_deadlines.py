"""What a call asks of the coordinator beside it has no time of its own."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from transferqueue.client import caller as caller_module
from transferqueue.client.caller import LOOK_AGAIN_S, Caller
from transferqueue.errors import DeadlineExceeded, TransportFailed

TIMEOUT_S = 8.0


@pytest.mark.parametrize(
    ("taken_s", "looks_s"), [(1.0, [LOOK_AGAIN_S]), (6.0, [2.0]), (8.0, []), (9.0, [])]
)
@pytest.mark.parametrize("is_required", [True, False])
def test_who_listens_where_is_asked_in_what_is_left_of_the_time(
    monkeypatch: pytest.MonkeyPatch, *, taken_s: float, looks_s: list[float], is_required: bool
) -> None:
    now_s = 100.0
    monkeypatch.setattr(caller_module, "time", Mock(monotonic=lambda: now_s))
    asked: list[float] = []

    async def look_again(self: Caller, *, timeout_s: float) -> None:
        asked.append(timeout_s)
        raise DeadlineExceeded("hello", timeout_s)

    class Channel:
        async def apart(self, works: Any) -> list[bool]:
            nonlocal now_s
            now_s += taken_s
            if is_required:
                raise TransportFailed("sockets", "it is gone")
            return [False for _ in works]

    monkeypatch.setattr(Caller, "look_again", look_again)
    caller = Caller(Channel(), Mock(), Mock(), Mock(), Mock())  # type: ignore[arg-type]
    call = caller.through_windows([Mock(num_bytes=1)], timeout_s=TIMEOUT_S)
    if is_required:
        with pytest.raises(TransportFailed):
            asyncio.run(call)
    else:
        assert asyncio.run(call) == [False]
    assert asked == looks_s
