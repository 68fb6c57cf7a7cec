"""What an operator asks of a service, through real processes, on both faces."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors
from transferqueue.service.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=32 << 20, host="127.0.0.1") as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=15) as client:
        yield client


ME = f"{socket.gethostname()}:{os.getpid()}/"


def test_waits_tells_of_a_parked_claim_and_of_a_put_without_space(client: tq.Client) -> None:
    held = [client.put({"x": torch.zeros(28 << 20, dtype=torch.uint8).view(4, -1)}, partition="a")]
    held.append(
        client.put({"x": torch.zeros(28 << 20, dtype=torch.uint8).view(4, -1)}, partition="a")
    )

    def claim() -> None:
        with pytest.raises(errors.NotReady):
            client.claim(task="actor", fields=["x", "y"], n=9, partition="a", timeout_s=4)

    def put() -> None:
        big = torch.zeros(14 << 20, dtype=torch.uint8).view(2, -1)
        with pytest.raises(errors.StorageFull):
            client.put({"x": big}, partition="a", timeout_s=4)

    threads = [threading.Thread(target=each) for each in (claim, put)]
    for thread in threads:
        thread.start()
    wait_until(lambda: {w["kind"] for w in client.waits()["waits"]} == {"claim", "put"}, 5)
    found = client.waits(partition="a")
    claimed, stored = sorted(found["waits"], key=lambda wait: str(wait["kind"]))
    assert (claimed["task"], claimed["wanted"], claimed["ready"]) == ("actor", 9, 0)
    assert claimed["who"].startswith(ME)
    assert claimed["ready_by_field"] == {"x": 8, "y": 0}
    assert "has had 'y'" in claimed["why"]
    assert 0 <= claimed["since_s"] < 6
    assert f"pid {os.getpid()} " in stored["who"]
    assert "test_inquiries.py" in stored["who"]
    assert "bytes wanted" in stored["why"]
    assert (found["left_out"], client.waits(limit=1)["left_out"]) == (0, 1)
    for thread in threads:
        thread.join()
    client.clear(partition="a")
    assert len(held) == 2


def test_waits_names_the_processes_that_keep_memory(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(4, 1 << 18)}, partition="kept")
    kept = client.get(handle)["x"]
    client.clear(handle)
    readers = [reader for shard in client.waits()["shards"] for reader in shard["readers"]]
    assert [reader["pid"] for reader in readers] == [os.getpid()]
    assert readers[0]["extent_bytes"] >= kept.numel() * 4
    del kept


def check_described(found: dict[str, Any], handle: tq.BatchHandle) -> None:
    assert (found["partition"], found["num_rows"], found["left_out"]) == ("cells", 3, 1)
    first = found["rows"][0]
    assert first["uid"] == int(handle.uids[0])
    assert first["shard"] == first["uid"] >> 48
    assert first["state"] == "live"
    assert first["tags"] == {"version": 3, "source": "web"}
    assert "test_inquiries.py" in first["site"]
    cell = first["fields"]["x"]
    assert cell["ready"]
    assert cell["stored"]
    assert (cell["bytes"], cell["dtype"], cell["shape"]) == (64, "float32", [16])
    assert first["fields"]["text"]["kind"] == "object"
    assert first["tasks"]["actor"]["state"] == "claimed"
    assert first["tasks"]["actor"]["deliveries"] == 1
    assert first["tasks"]["actor"]["who"].startswith(ME)
    assert 0 < first["tasks"]["actor"]["left_s"] <= 60
    assert found["rows"][1]["tags"] == {"version": 3}


async def test_describe_tells_each_cell_on_both_faces(
    service: tq.Service, client: tq.Client
) -> None:
    handle = client.put(
        {"x": torch.ones(3, 16), "text": ["a", "bb", {"c": 1}]},
        partition="cells",
        tags={"version": 3, "source": ["web", None, None]},
    )
    client.wait(handle)
    with client.claim(task="actor", fields=["x"], n=2, partition="cells"):
        check_described(client.describe("cells", limit=2), handle)
        async with await tq.connect_async(service.address) as aclient:
            check_described(await aclient.describe("cells", limit=2), handle)
            assert await aclient.waits(partition="cells") == client.waits(partition="cells")
            assert aclient.links() == client.links()
    last = int(handle.uids[2])
    by_uid = client.describe(uids=[last, 5])
    assert [row["uid"] for row in by_uid["rows"]] == [last]
    assert by_uid["absent"] == [5]


def test_a_question_that_makes_no_sense_is_refused(client: tq.Client) -> None:
    client.wait(client.put({"x": [1]}, partition="cells"))
    for wrong in ({"uids": []}, {"uids": ["a"]}, {"uids": [1 << 70]}, {"uids": [[1]]}):
        with pytest.raises(errors.InvalidInput, match="uids must be"):
            client.describe("cells", **wrong)
    with pytest.raises(errors.InvalidInput, match="a partition, uids, or both"):
        client.describe()
    with pytest.raises(errors.InvalidInput, match="limit must be 1 to 1000"):
        client.describe("cells", limit=0)
    with pytest.raises(errors.InvalidInput, match="limit must be 1 to 1000"):
        client.waits(limit=10_000)
    with pytest.raises(errors.UnknownPartition, match="did you mean 'cells'"):
        client.describe("cell")
    with pytest.raises(errors.UnknownUids, match="0x3039"):
        client.describe(uids=[12345])


def test_links_say_why_a_way_is_not_better(service: tq.Service, client: tq.Client) -> None:
    assert [(link["way"], link["why_not_better"]) for link in client.links()] == [("shm", "")] * 2
    for transport in ("ipc", "tcp"):
        with tq.connect(service.address, transport=transport) as other:
            for link in other.links():
                assert link["way"] == transport
                assert link["why_not_better"] == f"connected with transport={transport!r}"
    with (
        tq.serve(budget_bytes=8 << 20, backend="heap") as heap,
        tq.connect(heap.address) as other,
    ):
        (link,) = other.links()
        assert (link["way"], link["same_host"]) == ("sockets", True)
        assert "no memory that can be mapped" in link["why_not_better"]


def test_a_put_over_its_quota_is_told_with_the_line_that_makes_it(client: tq.Client) -> None:
    client.create_partition("small", max_rows=4)
    client.put({"x": torch.arange(4)}, partition="small")

    def put() -> None:
        with pytest.raises(errors.QuotaExceeded):
            client.put({"x": torch.arange(2)}, partition="small", timeout_s=3)

    putting = threading.Thread(target=put)
    putting.start()
    wait_until(lambda: client.waits(partition="small")["waits"])
    (wait,) = client.waits(partition="small")["waits"]
    assert (wait["kind"], wait["wanted"]) == ("put", 2)
    assert "test_inquiries.py" in wait["who"]
    assert "(shard " in wait["who"]
    assert "4 + 2 rows over the limit 4" in wait["why"]
    putting.join()


def test_a_shard_that_hangs_is_named_and_the_rest_is_told(
    service: tq.Service, client: tq.Client
) -> None:
    handle = tq.BatchHandle.concat(
        [client.put({"x": torch.zeros(1, 4)}, partition="hangs") for _ in range(2)]
    )
    assert sorted(uid >> 48 for uid in handle.uids.tolist()) == [0, 1]
    wait_until(lambda: client.held()["hangs"]["rows"] == 2)  # the coordinator hears of it later
    pid = service.pids["shard-1"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert client.waits()["silent"] == [1]
        assert client.held()["hangs"]["rows"] == 2
        found = client.describe("hangs")
        told = {row["shard"]: row["fields"]["x"] for row in found["rows"]}
        assert found["silent"] == [1]
        assert told[0]["stored"] is True
        assert told[1] == {"ready": True, "stored": None}
        answered = CliRunner().invoke(cli, ["describe", "hangs", "--address", service.address])
        assert "no answer from shard 1: what it stores is not known" in answered.output
        answered = CliRunner().invoke(cli, ["waits", "--address", service.address])
        assert "nobody waits" in answered.output
        assert "no answer from shard 1" in answered.output
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: client.waits()["silent"] == [])
