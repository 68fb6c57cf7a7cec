"""Columns on a disk of this host: read and checked by the client itself, or sent by the shard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import transferqueue as tq
from transferqueue import errors
from transferqueue.backends.checked_file import CheckedFile
from transferqueue.client.file_reads import FileReads

if TYPE_CHECKING:
    from collections.abc import Iterator

PIXELS = torch.randint(0, 256, (32, 3, 256, 256), dtype=torch.uint8)  # 6 MiB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    disk = {"budget_bytes": 64 << 20, "arena_dir": str(folder)}
    with tq.serve(shards=2, budget_bytes=32 << 20, backends={"disk": disk}) as service:
        with tq.connect(service.address) as client:
            client.create_partition("images", backend={"pixels": "disk", "*": "shm"})
        yield service.address


@pytest.fixture
def client(address: str) -> Iterator[tq.Client]:
    with tq.connect(address, timeout_s=20) as connected:
        yield connected


class Carried:
    """Whether reads from files were made, and went well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[bool] = []
        original = FileReads.carry_out

        def carry_out(*args: object) -> bool:
            self.outcomes.append(original(*args))  # type: ignore[arg-type]
            return self.outcomes[-1]

        monkeypatch.setattr(FileReads, "carry_out", carry_out)


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Carried:
    return Carried(monkeypatch)


def streamed_chunks(client: tq.Client) -> int:
    return sum(shard["requests"].get("read", 0) for shard in client.status()["shards"])


def put(client: tq.Client) -> tq.BatchHandle:
    rows = {"pixels": PIXELS, "label": torch.arange(32), "caption": [f"{i}" * i for i in range(32)]}
    return client.put(rows, partition="images")


def test_what_lies_in_a_file_is_read_from_it_and_the_rest_is_sent(
    client: tq.Client, carried: Carried
) -> None:
    handle = put(client)
    before = streamed_chunks(client)
    got = client.get_columns(handle)
    assert torch.equal(got["pixels"], PIXELS)
    assert torch.equal(got["label"], torch.arange(32))
    assert got["caption"].tolist() == [f"{i}" * i for i in range(32)]
    assert carried.outcomes == [True]
    assert streamed_chunks(client) - before <= 2, "only the chunks that have other columns"
    places = [7, 30, 2, 8, 9, 10, 11, 12, 13, 14]
    some = client.get(handle[np.array(places)], fields=["pixels"])["pixels"]
    assert torch.equal(some, PIXELS[places])
    got["pixels"][:] = 0
    assert torch.equal(client.get(handle, fields=["pixels"])["pixels"], PIXELS)


def test_parts_of_several_shards_are_read_together(client: tq.Client, carried: Carried) -> None:
    both = tq.BatchHandle.concat([put(client), put(client)])
    got = client.get(both, fields=["pixels"])["pixels"]
    assert torch.equal(got, torch.cat([PIXELS, PIXELS]))
    assert carried.outcomes == [True, True]


async def test_the_asynchronous_face_reads_them_too(address: str, carried: Carried) -> None:
    async with await tq.connect_async(address) as aclient:
        handle = await aclient.put({"pixels": PIXELS}, partition="images")
        assert torch.equal((await aclient.get(handle))["pixels"], PIXELS)
    assert carried.outcomes == [True]


def test_a_page_that_changed_is_an_error_as_from_the_shard(
    client: tq.Client, folder: Path, carried: Carried
) -> None:
    marked = PIXELS.clone()
    marked[5, 0, 0, :64] = torch.arange(100, 164, dtype=torch.uint8)
    handle = client.put({"pixels": marked}, partition="images")
    mark = bytes(range(100, 164))
    places = [
        (path, at) for path in folder.glob("*.000000") if (at := path.read_bytes().find(mark)) >= 0
    ]
    ((path, at),) = places
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"x")
    with pytest.raises(errors.BytesDamaged):
        client.get(handle)
    assert carried.outcomes == [False], "the shard is asked, and says what is wrong"
    assert torch.equal(client.get(handle[16:])["pixels"], marked[16:])


def test_what_cannot_be_opened_here_comes_in_chunks(
    client: tq.Client, carried: Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(*args: object) -> None:
        raise PermissionError(13, "not yours", str(args))

    handle = put(client)
    monkeypatch.setattr(CheckedFile, "read_into", no)
    assert torch.equal(client.get(handle)["pixels"], PIXELS)
    assert carried.outcomes == [False]


@pytest.mark.parametrize("transport", ["ipc", "shm"])
def test_a_client_that_was_told_a_way_keeps_to_it(
    address: str, carried: Carried, transport: str
) -> None:
    with tq.connect(address, transport=transport, timeout_s=20) as other:
        assert torch.equal(other.get(put(other))["pixels"], PIXELS)
    assert carried.outcomes == []


def test_descriptors_are_few_and_go_with_the_client(address: str) -> None:
    def opened() -> int:
        return sum("transferqueue-" in link for link in links())

    before = opened()
    with tq.connect(address) as one:
        for _ in range(4):
            handle = put(one)
            one.get(handle)
            one.clear(handle)
        assert opened() - before <= 4, "a file and its sums, of two shards"
    assert opened() == before


def links() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield os.readlink(entry)
        except OSError:
            continue


def test_spilled_slabs_are_read_from_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = Carried(monkeypatch)
    with (
        tq.serve(
            budget_bytes=16 << 20,
            spill_dir=str(tmp_path),
            spill_bytes=64 << 20,
            spill_high=0.5,
            spill_low=0.4,
        ) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        handles = [client.put({"x": PIXELS + n}) for n in range(4)]
        for n, handle in enumerate(handles):
            assert torch.equal(client.get(handle)["x"], PIXELS + n)
    assert True in carried.outcomes
