"""A shard's arena on a GPU: what each fault of the device comes to."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.device import DeviceBackend
from transferqueue.backends.registry import backend_names, load_backend, open_backend
from transferqueue.devices.fake_gpu import FakeGpu
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.errors import (
    ConfigError,
    DeviceFull,
    DeviceMissing,
    OwnerLost,
    ServiceFailed,
    StaleGeneration,
)
from transferqueue.testing import check_backend
from transferqueue.testing.backend_probe import BUDGET_BYTES, expect_bytes, pattern, put, reserve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine.create(tmp_path, num_gpus=2, memory_bytes=BUDGET_BYTES + (1 << 20))


def config(machine: FakeMachine, *, epoch: int = 0, **options: Any) -> BackendConfig:
    return BackendConfig(
        service_id="test",
        slot=0,
        budget_bytes=BUDGET_BYTES,
        epoch=epoch,
        options={"device": machine.name_of(machine.uuids[0]), "quarantine_s": 5.0, **options},
    )


def opened(machine: FakeMachine, **options: Any) -> DeviceBackend:
    return DeviceBackend.open(config(machine, **options))


def used_of(machine: FakeMachine) -> int:
    return machine.memory_bytes - machine.free_bytes(machine.uuids[0])


@pytest.mark.parametrize(
    "fault", [Fault.REFUSE_EXPORT, Fault.WRONG_UUID, Fault.REFUSE_PINNING, Fault.REFUSE_PEER]
)
def test_the_contract_is_kept_under_a_fault_that_has_a_way_around(
    fault: Fault, machine: FakeMachine
) -> None:
    options = dict(config(machine).options)

    def make(plain: BackendConfig) -> DeviceBackend:
        return DeviceBackend.open(
            BackendConfig(
                service_id=plain.service_id,
                slot=plain.slot,
                budget_bytes=plain.budget_bytes,
                options=options,
            )
        )

    with machine.fault(fault):
        check_backend(make)
    assert used_of(machine) == 0


def test_a_device_that_does_not_export_is_read_through_the_shard(machine: FakeMachine) -> None:
    with machine.fault(Fault.REFUSE_EXPORT), opened(machine) as backend:
        assert backend.handle is None
        assert "--ipc=host" in backend.facts()["why_not_shown"]
    with machine.fault(Fault.REFUSE_EXPORT), pytest.raises(ConfigError, match="required=True"):
        opened(machine, required=True)
    with machine.fault(Fault.WRONG_UUID), opened(machine) as backend:
        assert backend.handle is None
        assert "as of FAKE-none" in backend.facts()["why_not_shown"]
    assert used_of(machine) == 0
    with opened(machine, required=True) as backend:
        assert backend.handle is not None
        assert (backend.facts()["shown"], backend.facts()["pinned"]) == (True, True)


def test_a_device_without_room_is_refused_at_the_start_with_numbers(machine: FakeMachine) -> None:
    taken = FakeGpu(machine, machine.uuids[0]).allocate(2 << 20)
    with pytest.raises(DeviceFull, match=f"{7 << 20:,} bytes free, {8 << 20:,} are needed"):
        opened(machine)
    taken.close()
    with machine.fault(Fault.POOL_FULL), pytest.raises(DeviceFull):
        opened(machine)
    opened(machine).close()
    assert used_of(machine) == 0


def test_a_successor_waits_for_the_memory_of_who_was_killed(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which a driver, and readers that have it open, give up after a while."""
    fault = machine.fault(Fault.POOL_FULL)
    fault.__enter__()
    timer = threading.Timer(0.2, lambda: fault.__exit__(None, None, None))
    timer.start()
    DeviceBackend.open(config(machine, epoch=1)).close()
    timer.join()
    monkeypatch.setattr("transferqueue.backends.device.SUCCESSOR_WAIT_S", 0.2)
    with machine.fault(Fault.POOL_FULL), pytest.raises(DeviceFull):
        DeviceBackend.open(config(machine, epoch=1))


@pytest.mark.parametrize(
    ("options", "error"),
    [({"device": "fake:/nowhere:0"}, DeviceMissing), ({"devise": "host"}, ConfigError)],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    options: dict[str, Any], error: type[Exception], machine: FakeMachine
) -> None:
    with pytest.raises(error):
        opened(machine, **options)
    assert used_of(machine) == 0


def test_a_stuck_device_fails_the_request_and_not_the_shard(machine: FakeMachine) -> None:
    with opened(machine) as backend:
        kept, data = pattern(1, 300_000), pattern(2, 100_000)
        kept_at = put(backend, kept)
        (address,) = reserve(backend, [100_000])
        at, size = np.array([address]), np.array([100_000])
        with machine.fault(Fault.STUCK):
            backend.write(address, data.data)
            with pytest.raises(ServiceFailed, match="cannot be written"):
                backend.seal(at, size)
            with pytest.raises(ServiceFailed, match="cannot be read"):
                backend.read_into(kept_at, memoryview(bytearray(300_000)))
        backend.free(at, backend.extents([100_000]))
        expect_bytes(backend, kept_at, kept)
        expect_bytes(backend, put(backend, data), data)


def test_a_dead_writers_slot_is_not_given_out_before_its_copies_must_have_ended(
    machine: FakeMachine,
) -> None:
    with opened(machine) as backend:
        (address,) = reserve(backend, [BUDGET_BYTES // 2 + 4096])
        backend.slots.process_gone("writer", [address], 100.0)
        backend.free(np.array([address]), backend.extents([BUDGET_BYTES // 2 + 4096]))
        assert backend.reserve([BUDGET_BYTES // 2]) is None
        assert backend.facts()["quarantined_bytes"] == backend.used_bytes > BUDGET_BYTES // 2
        backend.slots.tick(105.0)
        assert backend.used_bytes == 0
        assert backend.reserve([BUDGET_BYTES // 2]) is not None


def test_refs_are_of_one_generation_and_one_owner(machine: FakeMachine) -> None:
    with opened(machine) as backend:
        address = put(backend, pattern(3, 5_000))
        loan = backend.slots.lend("reader", [address])
        (ref,) = loan.refs
        backend.free(np.array([address]), backend.extents([5_000]))
        assert backend.facts()["lent_bytes"] == backend.used_bytes == 5_056
        backend.slots.check(ref)
        backend.slots.give_back("reader", [loan.loan_id], 0.0)
        assert put(backend, pattern(4, 5_000)) == address
        with pytest.raises(StaleGeneration):
            backend.slots.check(ref)
    with DeviceBackend.open(config(machine, epoch=1)) as successor, pytest.raises(OwnerLost):
        successor.slots.check(ref)


def test_an_open_backend_holds_as_many_events_as_its_ring_has_chunks(machine: FakeMachine) -> None:
    with opened(machine) as backend:
        assert isinstance(backend.device, FakeGpu)
        for turn in range(300):
            put(backend, pattern(turn, 1_000))
        assert backend.device.counters.events_live <= 4


def test_a_shard_on_a_device_imports_no_torch() -> None:
    code = (
        "import sys, transferqueue.shard.server, transferqueue.backends.device\n"
        "import transferqueue.devices.fake_gpu, transferqueue.devices.host\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_backends_on_devices_are_found_by_name() -> None:
    assert {"cuda", "device"} <= set(backend_names())
    assert load_backend("cuda").default_device == "cuda:0"  # type: ignore[attr-defined]
    host = BackendConfig(service_id="t", slot=0, budget_bytes=4096, options={"device": "host"})
    with open_backend("device", host) as backend:
        assert backend.capabilities.device.startswith("host:")
