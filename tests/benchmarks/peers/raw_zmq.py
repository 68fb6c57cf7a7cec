"""Raw ZMQ: a DEALER and a ROUTER that hold a batch as the frames it came in, a frame a column."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from tests.benchmarks.adapter import Adapter, Unsupported
from tests.benchmarks.peers.layout import Layout, arrays_of, columns_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

ANSWER_TIMEOUT_MS = 60_000


class RawZmq(Adapter):
    """``settings``: ``transport``, ``"tcp"`` or else ``ipc``; ``curve``: with libzmq's encryption,
    as ours has it on every TCP connection."""

    def start(self) -> str:
        self._folder = Path(tempfile.mkdtemp(prefix="bench-zmq-"))
        path = self._folder / "socket"
        where = "tcp://127.0.0.1:*" if self.settings.get("transport") == "tcp" else f"ipc://{path}"
        keys = [key.decode() for key in zmq.curve_keypair()] if self.settings.get("curve") else None
        self._holder = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.peers.raw_zmq"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(json.dumps({"where": where, "keys": keys}) + "\n")
        self._holder.stdin.flush()
        endpoint = self._holder.stdout.readline().strip()
        address = json.dumps({"endpoint": endpoint, "server_key": keys[0] if keys else None})
        self.join(address)
        return address

    def join(self, address: str) -> None:
        said = json.loads(address)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = ANSWER_TIMEOUT_MS
        if said["server_key"]:
            self._socket.curve_serverkey = said["server_key"].encode()
            self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.connect(said["endpoint"])
        self._ids = itertools.count(os.getpid() << 20)

    def prepare(self, columns: Any) -> tuple[Layout, list[np.ndarray]]:
        return arrays_of(columns)

    def put(self, prepared: tuple[Layout, list[np.ndarray]]) -> tuple[int, Layout]:
        layout, arrays = prepared
        number = next(self._ids)
        header = json.dumps({"op": "put", "id": number}).encode()
        self._socket.send_multipart([header, *arrays], copy=False)
        self._socket.recv()
        return number, layout

    def token(self, reference: tuple[int, Layout]) -> str:
        return json.dumps(reference)

    def reference(self, token: str) -> tuple[int, Layout]:
        number, layout = json.loads(token)
        return number, layout

    def get(
        self,
        reference: tuple[int, Layout],
        *,
        fields: Sequence[str] | None,
        rows: Sequence[int] | None,
    ) -> Mapping[str, Any]:
        number, layout = reference
        if rows is not None:
            raise Unsupported("moves whole columns only")
        wanted = [k for k, (name, _, _) in enumerate(layout) if fields is None or name in fields]
        header = json.dumps({"op": "get", "id": number, "columns": wanted}).encode()
        self._socket.send(header)
        frames = self._socket.recv_multipart(copy=False)
        return columns_of([layout[k] for k in wanted], [frame.buffer for frame in frames])

    def clear(self, reference: tuple[int, Layout]) -> None:
        self._socket.send(json.dumps({"op": "clear", "id": reference[0]}).encode())
        self._socket.recv()

    def close(self) -> None:
        context = getattr(self, "_context", None)
        if context is not None:
            self._socket.close()
            context.term()
        holder = getattr(self, "_holder", None)
        if holder is not None:
            holder.kill()
            holder.communicate()
            (self._folder / "socket").unlink(missing_ok=True)
            self._folder.rmdir()


def main() -> None:
    """Hold until killed. Where, and with which keys, comes on stdin."""
    settings = json.loads(sys.stdin.readline())
    router = zmq.Context().socket(zmq.ROUTER)
    router.sndhwm = router.rcvhwm = 0
    if settings["keys"]:
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = (k.encode() for k in settings["keys"])
    router.bind(settings["where"])
    endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    print(endpoint.decode().rstrip("\0"), flush=True)
    held: dict[int, list[Any]] = {}
    while True:
        peer, header, *frames = router.recv_multipart(copy=False)
        request = json.loads(header.buffer.tobytes())
        answer: list[Any] = [b"k"]
        if request["op"] == "put":
            held[request["id"]] = frames
        elif request["op"] == "get":
            answer = [held[request["id"]][k] for k in request["columns"]]
        else:
            del held[request["id"]]
        router.send_multipart([peer, *answer], copy=False)


if __name__ == "__main__":
    main()
