"""The first words with a coordinator, without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.client.test_session import shard
from transferqueue.client.hello import open_session
from transferqueue.config import Transport
from transferqueue.errors import MemoryOutOfReach
from transferqueue.net.sync_channel import run_blocking
from transferqueue.process_id import boot_id
from transferqueue.wire import ops
from transferqueue.wire.format import OK_OP, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.net.calls import Call


class Coordinator:
    """Has a shard without memory, and answers at once whatever is asked."""

    def __init__(self, **more: Any) -> None:
        shards = [shard(0, boot_id=boot_id(), endpoints=["tcp://127.0.0.1:1"])]
        self._body = {"service_id": "s", "homes": None, "shards": shards, **more}
        self.asked: list[dict[str, Any]] = []

    async def exchange(self, calls: Sequence[Call], **_: Any) -> list[Message]:
        self.asked += [dict(call.body) for call in calls]
        return [Message(op=OK_OP, request_id=1, body=self._body, frames=[])]

    def is_refused(self) -> None:
        with pytest.raises(MemoryOutOfReach):
            run_blocking(
                open_session(
                    self,  # type: ignore[arg-type]
                    "ipc://coordinator",
                    None,
                    transport=Transport.SHM,
                    timeout_s=0.5,
                )
            )


def test_a_coordinator_that_says_the_same_again_at_once_is_not_asked_all_the_time() -> None:
    for coordinator in (Coordinator(), Coordinator(**{ops.SHARDS_EPOCH: "1"})):
        coordinator.is_refused()
        assert len(coordinator.asked) <= 2
