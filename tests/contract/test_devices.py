"""Every device keeps the contract, and the suite finds who does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gpu.needs_cuda import needs_cuda
from transferqueue.devices.fake_gpu import FakeGpu, FakeStream
from transferqueue.devices.fake_machine import FakeMachine
from transferqueue.devices.host import DoneEvent, HostBlock, HostDevice
from transferqueue.devices.registry import find_device
from transferqueue.testing import DEVICE_CHECKS, ContractBroken, check_device
from transferqueue.testing.leaks import no_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.devices.base import Device, Event, MemoryHandle
    from transferqueue.devices.fake_memory import FakeGpuBlock
    from transferqueue.testing.device_probe import DeviceCheck, DeviceMaker

KINDS = ["host", "fake", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeviceMaker]:
    name = {"host": "host", "cuda": "cuda:0"}.get(request.param)
    if name is None:
        machine = FakeMachine.create(tmp_path, memory_bytes=8 << 20)
        name = machine.name_of(machine.uuids[0])
    with no_leaks():
        yield lambda: find_device(name)


@pytest.mark.parametrize("check", DEVICE_CHECKS, ids=lambda check: check.__name__)
def test_contract(check: DeviceCheck, maker: DeviceMaker) -> None:
    check(maker)


class Eager(FakeGpu):
    """Its events are done before anything is."""

    class _Stream(FakeStream):
        def record(self) -> Event:  # type: ignore[override]
            return DoneEvent()

    def stream(self) -> FakeStream:
        return self._Stream(self)


class Hoarder(FakeGpu):
    """Frees nothing."""

    def allocate(self, nbytes: int) -> FakeGpuBlock:
        block = super().allocate(nbytes)
        block._on_close = lambda: None
        return block


class Obliging(FakeGpu):
    """Opens its own exports."""

    def open(self, handle: MemoryHandle) -> FakeGpuBlock:
        found = self.machine.find(self.uuid, int(handle.token))
        assert found is not None
        return self.allocate(handle.nbytes)


class Careless(HostDevice):
    """Opens what is not its own device's, and what is gone."""

    def _refuse(self, handle: MemoryHandle) -> None:
        pass


class Optimist(HostDevice):
    """Reaches whatever it is asked to."""

    def can_reach(self, uuid: str) -> bool:
        return True


class Changing(HostDevice):
    """Is another one each time."""

    def __init__(self) -> None:
        super().__init__()
        self.uuid += str(id(self))


class Generous(HostDevice):
    """Lets more be used than was asked for."""

    def allocate(self, nbytes: int) -> HostBlock:
        return super().allocate(nbytes + 4096)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Eager, "an_event_is_done|a_stream_waits"),
        (Hoarder, "memory_comes_back"),
        (Obliging, "another_process_reads"),
        (Careless, "another_process_reads"),
        (Optimist, "a_device_reaches_itself"),
        (Changing, "a_device_is_named"),
        (Generous, "bytes_outside|memory_that"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_device_that_breaks_the_contract_is_caught(
    broken: type[Device], message: str, tmp_path: Path
) -> None:
    machine = FakeMachine.create(tmp_path, memory_bytes=32 << 20)

    def make() -> Device:
        if issubclass(broken, FakeGpu):
            return broken(machine, machine.uuids[0])
        return broken()

    with pytest.raises(ContractBroken, match=message):
        check_device(make)
