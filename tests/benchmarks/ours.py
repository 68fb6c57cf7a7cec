"""The product itself, as a measured system."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import transferqueue as tq
from tests.benchmarks.adapter import Adapter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.columns import Columns


class Ours(Adapter):
    """``settings``: ``transport``, ``shards``, ``budget_bytes``, ``backend_options``, ``encrypt``,
    as in `serve` and `connect`. Anything but shared memory and Unix sockets makes the service
    listen on loopback."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.transport = str(settings.get("transport", "auto"))
        self.service: tq.Service | None = None
        self.address = ""
        self._client: tq.Client | None = None

    @property
    def client(self) -> tq.Client:
        assert self._client is not None, "neither started nor joined"
        return self._client

    def start(self) -> str:
        self.service = tq.serve(
            shards=int(self.settings.get("shards", 2)),
            budget_bytes=int(self.settings.get("budget_bytes", 1 << 30)),
            host="127.0.0.1" if self.transport in ("tcp", "sockets") else None,
            backend_options=dict(self.settings.get("backend_options", {})),
            encrypt=bool(self.settings.get("encrypt", True)),
        )
        self.join(self.service.address)
        return self.service.address

    def join(self, address: str) -> None:
        self.address = address
        self._client = tq.connect(address, transport=self.transport, timeout_s=60.0)

    def renew(self) -> None:
        self.client.close()
        self.join(self.address)

    def put(self, prepared: Columns) -> tq.BatchHandle:
        return self.client.put(prepared, partition="bench")

    def token(self, reference: tq.BatchHandle) -> str:
        return base64.b64encode(reference.to_bytes()).decode()

    def reference(self, token: str) -> tq.BatchHandle:
        return tq.BatchHandle.from_bytes(base64.b64decode(token))

    def get(
        self,
        reference: tq.BatchHandle,
        *,
        fields: Sequence[str] | None,
        rows: Sequence[int] | None,
    ) -> Mapping[str, Any]:
        handle = reference if rows is None else reference[rows]
        got: Mapping[str, Any] = self.client.get(handle, fields=fields)
        return got

    def clear(self, reference: tq.BatchHandle) -> None:
        self.client.clear(reference)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self.service is not None:
            self.service.close()
