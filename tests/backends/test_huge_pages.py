"""Huge pages under an arena."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.huge_pages import has_huge_pages, huge_option
from transferqueue.backends.shm import ShmBackend
from transferqueue.backends.shm_reader import ShmReader

MIB = 1 << 20

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:25 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=100k,huge=within_size,inode64
32 22 0:26 / /run rw master:1 propagate_from:2 - tmpfs tmpfs rw,mode=755
"""


@pytest.mark.parametrize(
    ("device", "option"), [("0:25", "within_size"), ("0:26", None), ("0:99", None)]
)
def test_the_option_is_read_from_the_mounts_of_its_own_device(
    device: str, option: str | None
) -> None:
    assert huge_option(MOUNTS, device) == option


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert not has_huge_pages(str(tmp_path / "missing"))


@pytest.fixture
def huge_tmpfs(tmp_path: Path):
    folder = tmp_path / "huge"
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "huge=within_size,size=64m,mode=0700", "tmpfs", folder]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield str(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_readers_map_huge_pages_as_such(huge_tmpfs: str) -> None:
    config = BackendConfig(service_id="s", slot=0, budget_bytes=32 * MIB, directory=huge_tmpfs)
    with ShmBackend.open(config) as backend:
        assert backend.facts()["huge_pages"] is True
        (address,) = backend.reserve([16 * MIB])
        backend.write(int(address), np.full(16 * MIB, 7, np.uint8).data)
        reader = ShmReader(backend.address)
        view, _ = reader.view(int(address), 16 * MIB)
        assert int(view.sum(dtype=np.int64)) == 7 * 16 * MIB
        mapped = _bytes_in_huge_pages(view.ctypes.data)
        del view
        reader.close()
    if mapped is None:
        pytest.skip("this kernel has no huge pages for memory files")
    assert mapped >= 14 * MIB  # but for the pages at either end


def _bytes_in_huge_pages(at: int) -> int | None:
    """Of the mapping that an address lies in, as the kernel counts them; ``None`` if it doesn't."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= at < int(found[2], 16)
        elif inside and line.startswith("ShmemPmdMapped:"):
            return int(line.split()[1]) << 10
    return None
