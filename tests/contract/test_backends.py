"""Every backend that comes with the package keeps the contract, and what breaks it is caught."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gpu.needs_cuda import needs_cuda
from transferqueue.backends.checked_file import CHANGED, CheckedFile
from transferqueue.backends.device import DeviceBackend
from transferqueue.backends.disk import DiskBackend
from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.several import Member, SeveralBackends
from transferqueue.backends.shm import ShmBackend
from transferqueue.devices.fake_machine import FakeMachine
from transferqueue.testing.backend_contract import CHECKS, Faults, check_backend
from transferqueue.testing.broken import ContractBroken
from transferqueue.testing.leaks import no_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from transferqueue.backends.base import Backend, BackendConfig
    from transferqueue.backends.disk_options import DiskOptions
    from transferqueue.backends.owned_arena import OwnedArena
    from transferqueue.testing.backend_contract import Check, Maker

CUDA = pytest.param("cuda:0", marks=[pytest.mark.gpu, needs_cuda])
BACKENDS = {
    "heap": (HeapBackend, {}),
    "shm": (ShmBackend, {}),
    "shm small segments": (ShmBackend, {"segment_bytes": 256 << 10}),
    "shm prefaulted": (ShmBackend, {"prefault": True}),
    "disk": (DiskBackend, {}),
    "disk synced": (DiskBackend, {"sync": "seal"}),
}


def maker_of(name: str, folder: Path) -> Maker:
    backend, options = BACKENDS[name]

    def make(config: BackendConfig) -> Backend:
        return backend.open(replace(config, directory=str(folder), options=options))

    return make


def several(folder: Path, default: int) -> Maker:
    def make(config: BackendConfig) -> Backend:
        config = replace(config, directory=str(folder))
        memory = ShmBackend.open(config)
        disk = DiskBackend.open(replace(config, service_id=f"{config.service_id}.disk"))
        members = [
            Member(name=name, backend=backend, budget_bytes=config.budget_bytes)
            for name, backend in (("shm", memory), ("disk", disk))
        ]
        return SeveralBackends(members, default=default)

    return make


def on_device(name: str, directory: Path | None = None) -> Maker:
    """``directory``: where host copies are kept."""
    options = {"device": name} if directory is None else {"device": name, "host_copies": True}

    def make(config: BackendConfig) -> Backend:
        where = config.directory if directory is None else str(directory)
        return DeviceBackend.open(replace(config, options=options, directory=where))

    return make


OF_SUCCESSORS = ("kept", "adopt", "kill", "recover", "life")
SEVERAL = {"several": 0, "several, the second": 1}
"""Number of the default one."""


@pytest.fixture(params=[*BACKENDS, *SEVERAL, "host device", "fake gpu", CUDA])
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    name = request.param
    if name == "fake gpu":
        machine = FakeMachine.create(tmp_path, memory_bytes=12 << 20)
        name = machine.name_of(machine.uuids[0])
    with no_leaks(str(tmp_path)):
        if name in SEVERAL:
            yield several(tmp_path, SEVERAL[name])
        elif name in BACKENDS:
            yield maker_of(name, tmp_path)
        else:
            yield on_device(name.partition(" ")[0])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, maker: Maker, request: pytest.FixtureRequest) -> None:
    if "cuda:0" in request.node.name and "kill" in check.__name__:
        pytest.skip("it forks, which the driver does not survive")
    check(maker)


@pytest.mark.parametrize(
    "check",
    [check for check in CHECKS if any(word in check.__name__ for word in OF_SUCCESSORS)],
    ids=lambda check: check.__name__,
)
def test_host_copies_of_a_device_keep_the_contract(check: Check, tmp_path: Path) -> None:
    machine = FakeMachine.create(tmp_path, memory_bytes=12 << 20)
    with no_leaks(str(tmp_path)):
        check(on_device(machine.name_of(machine.uuids[0]), tmp_path))


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """A real refusal of the kernel, at once for all file systems."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def flip_a_bit(backend: Backend, address: int) -> None:
    path = Path(backend.facts()["directory"])
    (file,) = path.glob("transferqueue-*.000000")
    with file.open("r+b") as stored:
        stored.seek(address)
        (byte,) = stored.read(1)
        stored.seek(address)
        stored.write(bytes([byte ^ 1]))


def lose_some(backend: Backend, address: int) -> None:
    """The file was cut off there and is zeros for 100 bytes."""
    (file,) = Path(backend.facts()["directory"]).glob("transferqueue-*.000000")
    whole = file.read_bytes()
    with file.open("r+b") as stored:
        stored.truncate(address)
        stored.seek(address + 100)
        stored.write(whole[address + 100 :])


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("heap", Faults()),
        ("shm", Faults(full=no_file_may_grow)),
        ("disk", Faults(full=no_file_may_grow, damage=flip_a_bit)),
        ("disk synced", Faults(damage=lose_some)),
    ],
)
def test_the_whole_suite_runs_in_one_call(name: str, faults: Faults, tmp_path: Path) -> None:
    check_backend(maker_of(name, tmp_path), faults)


class Forgetful(HeapBackend):
    """Drops the last byte of every write."""

    def write(self, address: int, data: memoryview) -> None:
        super().write(address, data[:-1])


class Stingy(HeapBackend):
    """Never gives room back."""

    def free(self, addresses: object, nbytes: object) -> None:
        pass


class Optimist(DiskBackend):
    """Says that there is room where there is none."""

    def _back(self, addresses: np.ndarray, extents: np.ndarray) -> bool:
        super()._back(addresses, extents)
        return True


class Trusting(DiskBackend):
    """Takes what the disk gives."""

    def __init__(self, arena: OwnedArena, options: DiskOptions) -> None:
        super().__init__(arena, options)
        self._checked = Unchecked(self._file, self._sums, self._path)


class Unchecked(CheckedFile):
    def _damaged(self, page: int, why: str) -> None:
        if why != CHANGED:
            super()._damaged(page, why)


class Forgetting(DiskBackend):
    """Leaves nothing for a successor."""

    def close(self, *, keep: bool = False) -> None:
        super().close(keep=False)


class Liar(DiskBackend):
    """Copies, and says that it does not."""

    def lies_in_memory(self, addresses: np.ndarray) -> bool:
        return True


@pytest.mark.parametrize(
    "broken", [Forgetful, Stingy, Optimist, Trusting, Forgetting, Liar], ids=lambda b: b.__name__
)
def test_a_backend_that_breaks_the_contract_is_caught(
    broken: type[HeapBackend | DiskBackend], tmp_path: Path
) -> None:
    def make(config: BackendConfig) -> Backend:
        return broken.open(replace(config, directory=str(tmp_path)))

    faults = Faults(full=no_file_may_grow, damage=flip_a_bit)
    with pytest.raises(ContractBroken, match=": "):
        check_backend(make, faults if issubclass(broken, DiskBackend) else None)
