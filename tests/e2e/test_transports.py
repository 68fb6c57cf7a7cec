"""Bytes by a transport: every layout, both faces, and what happens when it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.recovery.shard_in_process import InProcess
from tests.shard_settings import shard_settings
from tests.waiting import wait_until
from transferqueue import errors
from transferqueue.client.local_memory import LocalMemory
from transferqueue.client.part_puts import StreamedPut
from transferqueue.shard.server import ShardServer
from transferqueue.shard.windows import MAX_PIECES
from transferqueue.transports.socket_client import SocketClientEnd
from transferqueue.transports.socket_request import ID_BYTES
from transferqueue.transports.socket_shard import SocketShardEnd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.service.embedded import Service

LARGE = torch.arange(1 << 19).reshape(64, -1)  # 4 MiB


@pytest.fixture(scope="module", params=[False, True], ids=["clear", "sealed"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with tq.serve(
        shards=2, budget_bytes=64 << 20, host="127.0.0.1", encrypt=request.param
    ) as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, transport="sockets", timeout_s=20) as connected:
        yield connected


def columns() -> dict[str, Any]:
    lengths = [1 + (37 * i) % 4000 for i in range(64)]
    ragged = [torch.arange(n, dtype=torch.float64) + i for i, n in enumerate(lengths)]
    return {
        "x": LARGE,
        "ragged": torch.nested.nested_tensor(ragged, layout=torch.jagged),
        "none": torch.zeros(64, 0),
        "text": [f"{i}" * i for i in range(64)],
    }


def test_every_layout_comes_back_as_it_went(client: tq.Client) -> None:
    put = columns()
    handle = client.put(put, partition="layouts")
    for rows in (slice(None), slice(3, 60), np.random.default_rng(0).permutation(64)):
        part = handle[rows]
        got = client.get_columns(part)
        assert torch.equal(got["x"], LARGE[rows])
        want = [put["ragged"][i] for i in np.arange(64)[rows].tolist()]
        assert all(map(torch.equal, got["ragged"].unbind(), want))
        assert got["text"].tolist() == [put["text"][i] for i in np.arange(64)[rows].tolist()]
        assert got["none"].shape == (len(part), 0)


def test_new_fields_of_rows_of_several_shards_go_the_same_way(client: tq.Client) -> None:
    both = tq.BatchHandle.concat([client.put({"x": LARGE}, partition="two") for _ in range(2)])
    assert len({uid >> 48 for uid in both.uids.tolist()}) == 2
    order = both.reorder(np.random.default_rng(1).permutation(128))
    values = torch.rand(128, 10_000)
    order = client.put({"values": values}, handle=order)
    assert torch.equal(client.get(order, fields=["values"])["values"], values)


def test_what_no_window_is_opened_to_goes_in_chunks(client: tq.Client, tmp_path: Path) -> None:
    """Rows in more pieces than a window has, and rows on a disk."""
    values = torch.arange(3 * MAX_PIECES * 64).reshape(-1, 64)
    order = np.arange(0, len(values), 2)  # no two of them are neighbours
    handle = client.put({"x": values}, partition="pieces")
    assert torch.equal(client.get(handle[order])["x"], values[torch.from_numpy(order)])
    with (
        tq.serve(
            budget_bytes=8 << 20,
            host="127.0.0.1",
            spill_dir=str(tmp_path),
            spill_bytes=64 << 20,
        ) as spilling,
        tq.connect(spilling.address, transport="sockets", timeout_s=20) as other,
    ):
        handles = [other.put({"x": LARGE + n}) for n in range(4)]
        assert sum(shard["spill"]["slabs"] for shard in other.status()["shards"])
        assert all(torch.equal(other.get(h)["x"], LARGE + n) for n, h in enumerate(handles))


async def test_the_asynchronous_face_does_the_same(service: Service) -> None:
    async with await tq.connect_async(service.address, transport="sockets") as aclient:
        handle = await aclient.put({"x": LARGE}, partition="async")
        assert torch.equal((await aclient.get(handle))["x"], LARGE)


def test_links_name_it_and_what_forces_another_way_keeps_to_that(
    service: Service, client: tq.Client
) -> None:
    assert [link["way"] for link in client.links()] == ["sockets"] * 2
    for transport, way in (("tcp", "tcp"), ("auto", "shm")):
        with tq.connect(service.address, transport=transport) as other:
            assert [link["way"] for link in other.links()] == [way] * 2
            handle = other.put({"x": LARGE}, partition="ways")
            assert torch.equal(client.get(handle)["x"], LARGE)


def test_bytes_that_cannot_be_mapped_take_it_by_themselves_and_chunks_when_it_fails() -> None:
    with (
        tq.serve(budget_bytes=64 << 20, backend="heap", transports={"sockets": {}}) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        (link,) = client.links()
        assert (link["way"], "no memory that can be mapped" in link["why_not_better"]) == (
            "sockets",
            True,
        )
        handle = client.put({"x": LARGE})
        assert torch.equal(client.get(handle)["x"], LARGE)
        (path,) = Path(str(service.key_file)).parent.glob("windows-*.sock")
        with tq.connect(service.address, timeout_s=20) as late:
            os.rename(path, path.with_suffix(".away"))
            late.links()
            assert torch.equal(late.get(late.put({"x": LARGE}))["x"], LARGE)
        with pytest.raises(
            errors.ConfigError, match=r"transport='sockets': shard 0: .* is not here"
        ):
            tq.connect(service.address, transport="sockets")


def test_a_client_that_cannot_encrypt_gets_its_bytes_in_chunks_and_says_why(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalMemory, "reaches", lambda memory, slot: False)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    is_sealed = service.config.encrypt
    with tq.connect(service.address, timeout_s=20) as client:
        assert torch.equal(client.get(client.put({"x": LARGE}, partition="old"))["x"], LARGE)
        windows, session = client._ops.data._caller.windows, client._ops.data._session
        for shard in map(session.shard, range(2)):
            assert windows.transport_to(shard) == (None if is_sealed else "sockets")
            assert ("pip install cryptography" in windows.why_not(shard)) is is_sealed


def test_a_put_that_says_it_came_by_a_window_that_was_not_opened_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claim(self: StreamedPut, answer: Any) -> None:
        del answer
        self.by_window = True

    monkeypatch.setattr(StreamedPut, "fill", claim)
    with (
        tq.connect(service.address, transport="tcp", timeout_s=5) as client,
        pytest.raises(errors.InvalidInput, match="chunks of the put have not come"),
    ):
        client.put({"x": LARGE}, partition="claims")


@pytest.mark.parametrize("way", ["sockets", "auto"])
def test_a_shard_that_was_started_again_and_listens_elsewhere_is_found_there(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalMemory, "reaches", lambda memory, slot: False)
    with (
        tq.serve(budget_bytes=64 << 20, host="127.0.0.1", encrypt=False) as service,
        tq.connect(service.address, timeout_s=20) as watcher,
        tq.connect(service.address, transport=way, timeout_s=20) as reader,
        tq.connect(service.address, transport=way, timeout_s=20) as writer,
    ):
        handle = writer.put({"x": LARGE})
        assert torch.equal(reader.get(handle)["x"], LARGE)
        before = watcher._ops.data._session.directory[0]["transports"]
        os.kill(service.pids["shard-0"], signal.SIGKILL)

        def listens_elsewhere() -> bool:
            watcher.status()
            return bool(watcher._ops.data._session.directory[0]["transports"] != before)

        wait_until(listens_elsewhere)
        assert torch.equal(reader.get(handle)["x"], LARGE)
        writer.put({"x": LARGE})
        for client in (reader, writer):
            windows, session = client._ops.data._caller.windows, client._ops.data._session
            assert windows._ends[0, "sockets"][0] != before["sockets"]
            assert windows.transport_to(session.shard(0)) == "sockets"


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_shard_that_ends_each_time_it_has_opened_a_window_is_tried_again(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_kill = 2
    act = getattr(SocketClientEnd, operation)

    def of_a_shard_that_ends(*arguments: Any, **more: Any) -> None:
        nonlocal to_kill
        if to_kill:
            to_kill -= 1
            os.kill(service.pids["shard-0"], signal.SIGKILL)
        act(*arguments, **more)

    with (
        tq.serve(budget_bytes=64 << 20, host="127.0.0.1") as service,
        tq.connect(service.address, transport="sockets", timeout_s=20) as client,
    ):
        handle = client.put({"x": LARGE})
        monkeypatch.setattr(SocketClientEnd, operation, of_a_shard_that_ends)
        if operation == "write":
            handle = client.put({"x": LARGE})
        assert torch.equal(client.get(handle)["x"], LARGE)
        assert service.num_restarts == 2


PROGRAM = """
import os, sys, time
from pathlib import Path
import numpy as np
import transferqueue as tq
from transferqueue.net.keys import ClientKeys
from transferqueue.transports.socket_client import SocketClientEnd

def hang(*_, **__):
    os.write(1, b"in the window\\n")
    time.sleep(600)

address, key_file, handle = sys.argv[1:]
SocketClientEnd.read = SocketClientEnd.write = hang
keys = ClientKeys.load(Path(key_file))
with tq.connect(address, keys=keys, transport="sockets", timeout_s=600) as client:
    if handle:
        client.get(tq.BatchHandle.from_bytes(bytes.fromhex(handle)))
    else:
        client.put({"x": np.zeros((64, 1 << 14), np.float32)}, partition="p")
"""


@pytest.mark.parametrize("service", [True], ids=["sealed"], indirect=True)
def test_memory_of_clients_that_are_killed_in_a_window_comes_back_long_before_their_deadline(
    service: Service, client: tq.Client
) -> None:
    def used() -> list[int]:
        return [shard["used_bytes"] for shard in client.status()["shards"]]

    before = used()
    handle = client.put({"x": LARGE}, partition="p")
    command = [sys.executable, "-c", PROGRAM, service.address, str(service.key_file)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    processes = []
    with contextlib.ExitStack() as clients:
        for what in ("", handle.to_bytes().hex()):
            process = subprocess.Popen([*command, what], stdout=subprocess.PIPE, env=env)
            clients.enter_context(process)
            clients.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"in the window\n"
        client.clear(handle)
        assert sum(used()) == sum(before) + LARGE.nbytes + (4 << 20), "both hold what they have"
    wait_until(lambda: used() == before, timeout_s=10)


class UnmappedHere(InProcess):
    """A shard on a thread of this process, with memory that nobody maps."""

    def _make_shard(self, epoch: int) -> ShardServer:
        sockets = {"sockets": {}}
        return ShardServer(
            shard_settings(self._folder, self._budget_bytes, epoch=epoch, transports=sockets)
        )


def test_what_was_written_and_is_gone_when_its_window_is_closed_goes_again_in_chunks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost = []

    def close_window(self: Any, ticket: bytes) -> None:
        opened = self._windows.get(ticket[:ID_BYTES])
        original(self, ticket)
        if opened is not None and opened.window.writable:
            lost.append(ticket)
            raise errors.TransportFailed("sockets", "the power went off")

    original = SocketShardEnd.close_window
    monkeypatch.setattr(SocketShardEnd, "close_window", close_window)
    with contextlib.closing(UnmappedHere(tmp_path, budget_bytes=16 << 20)) as running:
        client = running.client
        handle = client.put({"x": LARGE})
        assert len(lost) == 1
        assert torch.equal(client.get(handle)["x"], LARGE)
        (link,) = client.links()
        assert link["way"] == "ipc"
        assert "the power went off" in link["why_not_better"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transports": {"sockets": {"prot": 1}}}, r"no options \['prot'\]"),
        ({"in_process": True}, "in_process"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        tq.serve(**{"budget_bytes": 16 << 20, "transports": {"sockets": {}}, **settings})


def test_a_service_without_it_is_refused_by_a_client_that_requires_it() -> None:
    with (
        tq.serve(budget_bytes=16 << 20, transports={}) as service,
        pytest.raises(errors.ConfigError, match="was not started with it"),
    ):
        tq.connect(service.address, transport="sockets")
