"""A service whose bytes lie on a disk: kills, damage, and a disk that is full."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tq.Service]:
    with tq.serve(
        budget_bytes=32 * MIB,
        backend="disk",
        backend_options={"sync": "seal"},
        arena_dir=str(tmp_path),
    ) as service:
        yield service
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=20) as client:
        yield client


def rows(seed: int, mib: int = 1) -> dict[str, torch.Tensor]:
    """4 rows."""
    generator = torch.Generator().manual_seed(seed)
    size = (4, mib * MIB // 16)
    return {"x": torch.randint(0, 1 << 20, size, generator=generator, dtype=torch.int32)}


def test_a_shard_that_is_killed_comes_back_with_every_row(
    service: tq.Service, client: tq.Client
) -> None:
    handles = [client.put(rows(seed)) for seed in range(8)]
    small = client.put({"n": torch.arange(100), "s": [str(i) for i in range(100)]})
    client.clear(handles[3])
    before = service.pids["shard-0"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service.pids["shard-0"] != before, timeout_s=20)
    for seed, handle in enumerate(handles):
        if seed != 3:
            assert torch.equal(client.get(handle)["x"], rows(seed)["x"])
    assert client.get(small)["n"].tolist() == list(range(100))
    with pytest.raises(errors.RowsGone):
        client.get(handles[3])
    client.put(rows(9))


def test_bytes_that_the_disk_changed_are_an_error_of_their_rows_alone(
    client: tq.Client, tmp_path: Path
) -> None:
    damaged, whole = client.put(rows(1)), client.put(rows(2))
    (file,) = tmp_path.glob("*.000000")
    with file.open("r+b") as stored:
        stored.seek(700_000)  # in the third of the four rows
        stored.write(b"flipped")
    with pytest.raises(errors.BytesDamaged, match="not the bytes that were written"):
        client.get(damaged)
    assert torch.equal(client.get(damaged[:2])["x"], rows(1)["x"][:2])
    assert torch.equal(client.get(whole)["x"], rows(2)["x"])
    client.clear(damaged)
    again = client.put(rows(3))
    assert torch.equal(client.get(again)["x"], rows(3)["x"])


def test_cleared_rows_give_the_disk_back_when_nothing_took_their_room(client: tq.Client) -> None:
    def of_disk(what: str) -> int:
        found: int = client.status()["shards"][0]["backend"][what]
        return found

    handles = [client.put(rows(seed)) for seed in range(8)]
    assert of_disk("stored_bytes") >= 8 * MIB
    for handle in handles[1:]:
        client.clear(handle)
    assert of_disk("stored_bytes") >= 8 * MIB
    assert of_disk("kept_bytes") == 7 * MIB
    client.put(rows(8, mib=4))
    assert of_disk("kept_bytes") == 3 * MIB
    client.clear(handles[0][:3])
    wait_until(lambda: of_disk("stored_bytes") <= 4.35 * MIB)
    assert of_disk("kept_bytes") == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real ext4 of 24 MiB."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("cannot make a file system")
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(24 * MIB)
    made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], capture_output=True)
    mount = ["mount", "-o", "loop", str(image), str(mounted)]
    if made.returncode or subprocess.run(mount, capture_output=True).returncode:
        mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(mounted)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("may not mount")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_full_disk_makes_puts_wait_and_breaks_nothing(small_disk: Path) -> None:
    with (
        tq.serve(budget_bytes=16 * MIB, backend="disk", arena_dir=str(small_disk)) as service,
        tq.connect(service.address, timeout_s=10) as client,
    ):
        first = client.put(rows(0, mib=4))
        others = small_disk / "someone else's"
        free = os.statvfs(small_disk)
        others.write_bytes(bytes(free.f_bavail * free.f_frsize - 3 * MIB))
        with pytest.raises(errors.StorageFull, match="free after"):
            client.put(rows(1, mib=4), timeout_s=0.5)
        assert torch.equal(client.get(first)["x"], rows(0, mib=4)["x"])
        client.put(rows(2))
        others.unlink()
        third = client.put(rows(3, mib=4))
        assert torch.equal(client.get(third)["x"], rows(3, mib=4)["x"])


def test_a_service_on_a_disk_needs_to_be_told_where() -> None:
    with pytest.raises(errors.ConfigError, match="'disk' needs arena_dir="):
        tq.serve(backend="disk", budget_bytes=16 * MIB)
