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

import numpy as np
import zmq

from tests.benchmarks.adapter import Adapter, Unsupported
from tests.benchmarks.peers.layout import Layout, arrays_of, columns_of, sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ANSWER_TIMEOUT_MS = 60_000


class RawZmq(Adapter):
    """``settings``: ``transport``, ``"tcp"`` or else ``ipc``; ``curve``: with libzmq's encryption,
    as ours has it on every TCP connection; ``frame_bytes``: columns go in frames of this, which
    libzmq sends faster, and a get copies them together."""

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
        frames = [self._cut(array) for array in arrays]
        self._socket.send_multipart(
            [header, str(len(frames[0])).encode(), *itertools.chain(*frames)], copy=False
        )
        self._socket.recv()
        return number, layout

    def _cut(self, array: np.ndarray) -> list[memoryview]:
        """All columns of a batch are of one size here, so all have as many frames."""
        data = memoryview(array).cast("B")
        size = int(self.settings.get("frame_bytes", len(data)))
        return [data[start : start + size] for start in range(0, len(data), size)]

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
        frames = [frame.buffer for frame in self._socket.recv_multipart(copy=False)]
        layout = [layout[k] for k in wanted]
        if len(frames) == len(layout):
            return columns_of(layout, frames)
        return columns_of(layout, _joined(frames, sizes_of(layout)))

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


def _joined(frames: list[memoryview], sizes: list[int]) -> Iterator[np.ndarray]:
    each = len(frames) // len(sizes)
    for k, size in enumerate(sizes):
        column = np.empty(size, dtype=np.uint8)
        position = 0
        for frame in frames[k * each : (k + 1) * each]:
            column[position : position + len(frame)] = frame
            position += len(frame)
        yield column


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
    held: dict[int, list[list[Any]]] = {}  # of each batch, the frames of each column
    while True:
        peer, header, *frames = router.recv_multipart(copy=False)
        request = json.loads(header.buffer.tobytes())
        answer: list[Any] = [b"k"]
        if request["op"] == "put":
            each = int(frames[0].bytes)
            held[request["id"]] = [frames[k : k + each] for k in range(1, len(frames), each)]
        elif request["op"] == "get":
            answer = [frame for k in request["columns"] for frame in held[request["id"]][k]]
        else:
            del held[request["id"]]
        router.send_multipart([peer, *answer], copy=False)


if __name__ == "__main__":
    main()
