"""The order of events in a shard's own device copies, on a GPU that is stepped: what is said to be
there is there, at the moment when it is said. One wait for all of a put, none a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.stepping import Work, returned_by
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.device import DeviceBackend
from transferqueue.backends.host_copies import HostCopies
from transferqueue.devices.fake_gpu import FakeEvent, FakeGpu, FakeStream
from transferqueue.devices.fake_machine import FakeMachine
from transferqueue.devices.staging import CHUNK_BYTES, NUM_CHUNKS
from transferqueue.testing.backend_probe import pattern, reserve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUDGET_BYTES = 16 << 20

SIZES = [1000] * 60 + [5 << 20, 0, 70_000]
"""Of the tensors of a put: many, and one that is more than the ring of chunks."""


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[FakeGpu]:
    machine = FakeMachine.create(tmp_path, num_gpus=1, memory_bytes=2 * BUDGET_BYTES)
    with FakeGpu(machine, machine.uuids[0], stepped=True) as gpu:
        yield gpu


@pytest.fixture(params=[False, True], ids=["alone", "with host copies"])
def backend(
    gpu: FakeGpu, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[DeviceBackend]:
    config = BackendConfig(
        service_id="test", slot=0, budget_bytes=BUDGET_BYTES, directory=str(tmp_path)
    )
    copies = HostCopies.open(config) if request.param else None
    with DeviceBackend(gpu, gpu.allocate(BUDGET_BYTES), config, copies) as backend:
        yield backend


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[FakeEvent]:
    """All that were made."""
    return returned_by("record", FakeStream, monkeypatch)


def memory_of(backend: DeviceBackend, address: int, nbytes: int) -> bytes:
    """As the GPU has it now, whatever is under way."""
    return backend._block.part(address, nbytes).tobytes()  # type: ignore[attr-defined]


def stream_of(backend: DeviceBackend) -> FakeStream:
    stream = backend._staging.stream
    assert isinstance(stream, FakeStream)
    return stream


def step_to_the_end(backend: DeviceBackend, work: Work) -> int:
    """Returns how many steps it were."""
    return sum(1 for _ in work.step_by_step([stream_of(backend)]))


def put(backend: DeviceBackend) -> tuple[list[int], list[np.ndarray], Work]:
    """The addresses, the bytes that are to be there, and the put that is under way."""
    addresses = reserve(backend, SIZES)
    data = [pattern(seed, size) for seed, size in enumerate(SIZES)]

    def do() -> None:
        for address, one in zip(addresses, data, strict=True):
            if len(one):
                backend.write(address, one.data)
        backend.seal(np.array(addresses), np.array(SIZES))

    return addresses, data, Work(do)


def test_a_put_is_sealed_when_the_device_has_made_all_of_its_copies(
    backend: DeviceBackend, gpu: FakeGpu
) -> None:
    addresses, data, work = put(backend)
    for _ in work.step_by_step([stream_of(backend)]):
        assert not work.is_over, "it is said to be there while copies are under way"
        for address in addresses[:60]:
            with pytest.raises(ValueError, match="is not complete"):
                backend.slots.lend("reader", [address])
        assert gpu.counters.events_live <= NUM_CHUNKS + 1, "an event a tensor"
    work.result()
    for address, one in zip(addresses, data, strict=True):
        assert memory_of(backend, address, len(one)) == one.tobytes()
        if len(one):
            backend.slots.lend("reader", [address])
    if backend._copies is not None:
        kept = backend._copies._mapping
        for address, one in zip(addresses, data, strict=True):
            assert kept.array(address, len(one)).tobytes() == one.tobytes()


def test_an_event_is_of_a_chunk_or_of_all_of_a_put_and_never_of_a_tensor(
    backend: DeviceBackend, events: list[FakeEvent]
) -> None:
    _, _, work = put(backend)
    step_to_the_end(backend, work)
    work.result()
    chunks = -(-sum(SIZES) // CHUNK_BYTES)
    both_ways = chunks if backend._copies is None else 2 * chunks
    assert len(events) <= both_ways + 1 < len(SIZES) // 4


def test_bytes_that_were_read_are_there_when_the_call_returns(backend: DeviceBackend) -> None:
    addresses, data, work = put(backend)
    step_to_the_end(backend, work)
    work.result()
    out = np.zeros(SIZES[60], np.uint8)
    work = Work(lambda: backend.read_into(addresses[60], out.data))
    for _ in work.step_by_step([stream_of(backend)]):
        assert not work.is_over
        assert (out != data[60]).any()
    work.result()
    assert (out == data[60]).all()
    ranges = np.array(addresses[:60:7]), np.full(9, 1000)
    work = Work(lambda: backend.read_ranges(*ranges))
    assert step_to_the_end(backend, work) >= 2
    got = work.result()
    assert isinstance(got, np.ndarray)
    assert got.tobytes() == b"".join(one.tobytes() for one in data[:60:7])


def test_what_is_written_and_read_at_once_comes_in_the_order_in_which_it_was_asked_for(
    backend: DeviceBackend,
) -> None:
    (address,) = reserve(backend, [100_000])
    first, second = pattern(1, 100_000), pattern(2, 100_000)
    out = np.zeros(100_000, np.uint8)

    def do() -> None:
        backend.write(address, first.data)
        backend.read_into(address, out.data)
        backend.write(address, second.data)
        backend.seal(np.array([address]), np.array([100_000]))

    work = Work(do)
    step_to_the_end(backend, work)
    work.result()
    assert (out == first).all()
    assert memory_of(backend, address, 100_000) == second.tobytes()
