"""Redis through tensordict's ``TensorDictStore``: a server of this process, nothing on disk."""

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
    """``settings``: ``transport``, ``"tcp"`` or else a Unix socket."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._where: dict[str, Any] = {}
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
        where = (
            {"host": "127.0.0.1", "port": port} if is_tcp else {"unix_socket_path": str(path)}
        )
        address = json.dumps(where)
        self.join(address)
        return address

    def join(self, address: str) -> None:
        self._where = json.loads(address)

    def prepare(self, columns: Columns) -> TensorDict:
        first = next(iter(columns.values()))
        rows = len(first) if isinstance(first, list) else int(first.shape[0])
        batch = TensorDict(batch_size=[rows])
        for name, value in columns.items():
            batch.set(name, NonTensorStack.from_list(value) if isinstance(value, list) else value)
        return batch

    def put(self, prepared: TensorDict) -> TensorDictStore:
        store = TensorDictStore(batch_size=list(prepared.batch_size), **self._where)
        store.update(prepared)
        return store

    def token(self, reference: TensorDictStore) -> str:
        return str(reference._td_id)

    def reference(self, token: str) -> TensorDictStore:
        return TensorDictStore.from_store(td_id=token, **self._where)

    def get(
        self,
        reference: TensorDictStore,
        *,
        fields: Sequence[str] | None,
        rows: Sequence[int] | None,
    ) -> Mapping[str, Any]:
        if rows is not None:
            got: Mapping[str, Any] = reference[list(rows)]
            return got
        if fields is not None:
            return {name: reference[name] for name in fields}
        whole: Mapping[str, Any] = reference.to_tensordict()
        return whole

    def clear(self, reference: TensorDictStore) -> None:
        reference.clear_redis()
        reference.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
