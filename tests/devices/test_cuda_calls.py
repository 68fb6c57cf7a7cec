"""That `CudaDevice` makes the driver's calls as they are documented, on a stand-in for the library.

It says nothing about hardware: that is what ``pytest -m gpu`` is for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transferqueue.devices.base import MemoryRoom
from transferqueue.devices.cuda import CudaDevice
from transferqueue.devices.cuda_driver import LIBRARY
from transferqueue.devices.registry import find_device
from transferqueue.errors import DeviceFull, DeviceMissing

HERE = Path(__file__).resolve().parent

CHECKS = """
import ctypes, gc
from dataclasses import replace
from transferqueue.backends.device import CudaBackend
from transferqueue.devices.cuda_driver import CudaFailure
from transferqueue.devices.registry import find_device
from transferqueue.errors import DeviceMissing
from transferqueue.testing import DEVICE_CHECKS
from transferqueue.testing.backend_checks import LIFE_CHECKS
from transferqueue.testing.device_probe import pattern, read, write

for check in DEVICE_CHECKS:
    if "torch" not in check.__name__:  # which does not see the stand-in
        check(lambda: find_device("cuda:1"))
for check in LIFE_CHECKS[:5]:
    check(lambda config: CudaBackend.open(replace(config, options={"device": "cuda:0"})))

one, two = find_device("cuda:0"), find_device("cuda:1")
assert one.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", one.uuid
with find_device("cuda:" + two.uuid) as same:
    assert same.ordinal == 1
one.enable_peer(two)
here, there, stream = one.allocate(1000), two.allocate(1000), one.stream()
with two.stream() as other:
    write(other, there, 0, pattern(1, 1000))
stream.copy_across(here, 0, there, 0, 1000)
assert (read(stream, here, 0, 1000) == pattern(1, 1000)).all()
try:
    find_device("cuda:7")
except DeviceMissing as error:
    assert one.uuid in str(error)
try:
    two.driver.call("cuMemFree_v2", 0)
except CudaFailure as error:
    assert "CUDA_ERROR_INVALID_CONTEXT" in str(error), error
for closing in (here, there, stream, one, two):
    closing.close()
gc.collect()
left = ctypes.CDLL("libcuda.so.1").stub_left()
assert left == 0, f"{left} streams, events, blocks and contexts are left"
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in is compiled by gcc")
def test_the_driver_is_called_as_documented(tmp_path: Path) -> None:
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", tmp_path / LIBRARY,
         HERE / "stub_libcuda.c"],
        check=True,
    )  # fmt: skip
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CHECKS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is one")
def test_without_a_driver_that_is_said() -> None:
    with pytest.raises(DeviceMissing, match="no CUDA driver here"):
        find_device("cuda:0")


def test_memory_that_torch_has_not_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(CudaDevice):
        room = MemoryRoom(free_bytes=7, total_bytes=100)  # type: ignore[assignment]

        def __init__(self) -> None:
            self.name, self.ordinal = "cuda:GPU-0", 0

    def empty(*arguments: object, **options: object) -> None:
        raise torch.cuda.OutOfMemoryError(f"{arguments} {options}")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(DeviceFull, match="7 bytes free, 1,000 are needed"):
        Full().new_tensor(1000)


def test_what_shards_are_forked_from_has_not_begun_a_driver() -> None:
    """Which is of no use in a child, then."""
    code = """
import importlib, sys
from pathlib import Path
from transferqueue.service.template import PRELOADED
for name in PRELOADED:
    importlib.import_module(name)
assert "transferqueue.devices.cuda_driver" not in sys.modules
assert "libcuda" not in Path("/proc/self/maps").read_text()
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
