"""What a client can do, written once. `Client` and `AsyncClient` are faces of this.

Every operation is a coroutine that waits only in its channel. Over a blocking channel it never
suspends, so the sync face runs it in place; over an event loop it is awaited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.client.caller import Caller
from transferqueue.client.control_operations import ControlOperations
from transferqueue.client.data_operations import DataOperations
from transferqueue.client.file_reads import FileReads
from transferqueue.client.inquiries import Inquiries
from transferqueue.client.progress import Progress
from transferqueue.client.upkeep_operations import UpkeepOperations
from transferqueue.client.weight_operations import WeightOperations
from transferqueue.client.windows import ClientWindows
from transferqueue.config import Transport

if TYPE_CHECKING:
    from transferqueue.client.local_memory import LocalMemory
    from transferqueue.client.session import Session
    from transferqueue.config import ClientConfig
    from transferqueue.handle import BatchHandle
    from transferqueue.net.calls import Channel
    from transferqueue.tracing.base import CallSpans
    from transferqueue.wire.columns import ObjectPolicy


class Operations:
    """The operations of one connected client, by what they concern."""

    def __init__(
        self,
        channel: Channel,
        session: Session,
        memory: LocalMemory,
        config: ClientConfig,
        objects: ObjectPolicy,
    ) -> None:
        self._memory = memory
        self._session = session
        self._config = config
        self._objects = objects
        may_go_round = config.transport is Transport.AUTO and config.window is None
        self._files = FileReads(is_on=may_go_round)
        self.windows = ClientWindows(
            is_on=config.transport is Transport.AUTO, required=config.window
        )
        caller = Caller(
            channel,
            session,
            memory,
            windows=self.windows,
            files=self._files,
            progress=Progress() if config.progress else None,
            spans=_spans() if config.tracing else None,
        )
        self.data = DataOperations(caller, config, objects)
        self.control = ControlOperations(caller, config)
        self.upkeep = UpkeepOperations(caller, config)
        self.inquiries = Inquiries(caller, config, self.data.devices)
        self.weights = WeightOperations(self.data, self.control)

    @property
    def service_id(self) -> str:
        return self._session.service_id

    @property
    def session(self) -> Session:
        """Who is at the other end."""
        return self._session

    @property
    def connect_arguments(self) -> dict[str, Any]:
        """What `connect` takes, elsewhere, to reach this service. Plain values, and no key."""
        return {
            "address": self._session.coordinator,
            "timeout_s": self._config.timeout_s,
            "objects": self._objects.value,
        }

    def name_claims(self, client_id: str) -> None:
        """Claim in another name than this client's own, shared by several that work together."""
        self._session.client_id = client_id

    def check(self, handle: BatchHandle) -> None:
        """WrongService for a handle that another service made."""
        self._session.check(handle)

    def close(self) -> None:
        """Map nothing new; tensors that were got stay valid."""
        self.data.devices.close()
        self.windows.close()
        self._files.close()
        self._memory.close()


def _spans() -> CallSpans:
    from transferqueue.tracing.otel import OtelCallSpans

    return OtelCallSpans()
