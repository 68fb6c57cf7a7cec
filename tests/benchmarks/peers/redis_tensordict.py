"""Redis through tensordict's ``TensorDictStore``: a server of this process, nothing on disk.

One store, connected once; a batch is a nested TensorDict of it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict import NonTensorStack, TensorDict
from tensordict.store import TensorDictStore

from tests.benchmarks.adapter import Adapter, Unsupported
from tests.benchmarks.peers.free_port import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.columns import Columns

START_TIMEOUT_S = 10.0


class RedisTensorDict(Adapter):
    """``settings``: ``transport``, ``"tcp"`` or else a Unix socket. ``by_rows``: a store a batch,
    since rows are asked for by the batch size of a whole store."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._by_rows = bool(settings.get("by_rows", False))
        self._where: dict[str, Any] = {}
        self._root: TensorDictStore | None = None
        self._num_puts = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    def start(self) -> str:
        program = shutil.which("redis-server")
        if program is None:
            raise Unsupported("no redis-server here (apt-get install redis-server)")
        self._folder = Path(tempfile.mkdtemp(prefix="bench-redis-"))
        port, path = free_port(), self._folder / "redis.sock"
        self._server = subprocess.Popen(
            [
                program, "--bind", "127.0.0.1", "--port", str(port), "--unixsocket", str(path),
                "--dir", str(self._folder), "--save", "", "--appendonly", "no",
                "--proto-max-bulk-len", "2gb",
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not path.exists():
            if time.monotonic() > deadline_s or self._server.poll() is not None:
                raise Unsupported("redis-server did not start")
            time.sleep(0.02)
        is_tcp = self.settings.get("transport") == "tcp"
        self._where = (
            {"host": "127.0.0.1", "port": port} if is_tcp else {"unix_socket_path": str(path)}
        )
        self._root = TensorDictStore(batch_size=[], **self._where)
        return json.dumps({"where": self._where, "td_id": self._root._td_id})

    def join(self, address: str) -> None:
        said = json.loads(address)
        self._where = said["where"]
        # With its cache, a store never learns of what other processes have added.
        self._root = TensorDictStore.from_store(
            td_id=said["td_id"], cache_metadata=False, **self._where
        )

    def prepare(self, columns: Columns) -> TensorDict:
        first = next(iter(columns.values()))
        rows = len(first) if isinstance(first, list) else int(first.shape[0])
        if any(getattr(value, "is_nested", False) for value in columns.values()):
            raise Unsupported("TensorDictStore takes no jagged tensors")
        batch = TensorDict(batch_size=[rows])
        for name, value in columns.items():
            batch.set(name, NonTensorStack.from_list(value) if isinstance(value, list) else value)
        return batch

    def put(self, prepared: TensorDict) -> TensorDictStore | str:
        if self._by_rows:
            store = TensorDictStore(batch_size=list(prepared.batch_size), **self._where)
            store.update(prepared)
            return store
        self._num_puts += 1
        name = f"batch_{id(self):x}_{self._num_puts}"
        self._store.set(name, prepared)
        return name

    def token(self, reference: TensorDictStore | str) -> str:
        return reference if isinstance(reference, str) else str(reference._td_id)

    def reference(self, token: str) -> TensorDictStore | str:
        return TensorDictStore.from_store(td_id=token, **self._where) if self._by_rows else token

    def get(
        self,
        reference: TensorDictStore | str,
        *,
        fields: Sequence[str] | None,
        rows: Sequence[int] | None,
    ) -> Mapping[str, Any]:
        if rows is not None:
            return dict(reference[list(rows)].items())
        if fields is not None:
            return {name: self._store[reference, name] for name in fields}
        return dict(self._store[reference].to_tensordict().items())

    def clear(self, reference: TensorDictStore | str) -> None:
        if isinstance(reference, str):
            self._store.del_(reference)
        else:
            reference.clear_redis()
            reference.close()

    @property
    def _store(self) -> TensorDictStore:
        assert self._root is not None, "neither started nor joined"
        return self._root

    def close(self) -> None:
        if self._root is not None:
            self._root.close()
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
