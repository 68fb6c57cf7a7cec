"""Lanes are one user's at a time, and what was broken off is kept until the device has done it."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.client.device_lanes import DeviceLanes
from transferqueue.devices.fake_gpu import FakeGpu
from transferqueue.devices.fake_machine import FakeMachine
from transferqueue.errors import Closed, DeviceStuck

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.devices.base import DeviceBlock
    from transferqueue.devices.staging import Staging

NBYTES = 1000


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[FakeGpu]:
    machine = FakeMachine.create(tmp_path, num_gpus=1, memory_bytes=1 << 20)
    with FakeGpu(machine, machine.uuids[0]) as gpu:
        yield gpu


@pytest.fixture
def lanes(gpu: FakeGpu) -> Iterator[DeviceLanes]:
    with DeviceLanes(gpu) as lanes:
        yield lanes


class Kept:
    """What copies write to."""


@pytest.fixture
def block(gpu: FakeGpu) -> Iterator[DeviceBlock]:
    with gpu.allocate(NBYTES) as block:
        yield block


def break_off(gpu: FakeGpu, lanes: DeviceLanes, block: DeviceBlock, keep: object) -> Staging:
    """The lane of a copy that is waited for in vain."""
    with (
        gpu.held(),
        pytest.raises(DeviceStuck),
        lanes.lane(timeout_s=0.01, keep=keep) as lane,
    ):
        lane.copy_in(block, 0, np.zeros(NBYTES, np.uint8).data)
        lane.flush()
    return lane


def test_those_at_work_have_one_each_and_the_next_ones_have_them_again(lanes: DeviceLanes) -> None:
    with lanes.lane() as one, lanes.lane() as other:
        assert one is not other
    with lanes.lane() as again, lanes.lane() as too:
        assert {again, too} == {one, other}


def test_what_was_broken_off_is_nobodys_until_the_device_has_done_it(
    gpu: FakeGpu, lanes: DeviceLanes, block: DeviceBlock
) -> None:
    kept = Kept()
    seen = weakref.ref(kept)
    broken = break_off(gpu, lanes, block, kept)
    del kept
    is_over = lanes.end_of_copies()
    with gpu.held():
        assert not is_over()
        with lanes.lane() as other:
            assert other is not broken
    gc.collect()
    assert seen() is not None, "what a copy may write to yet is gone"
    while not is_over():
        pass
    with lanes.lane() as one, lanes.lane() as two:
        assert broken in (one, two)
    gc.collect()
    assert seen() is None


def test_without_anything_broken_off_there_is_nothing_to_wait_for(lanes: DeviceLanes) -> None:
    with lanes.lane():
        assert lanes.end_of_copies()()


def test_a_lane_that_comes_back_after_the_end_is_closed(gpu: FakeGpu, block: DeviceBlock) -> None:
    lanes = DeviceLanes(gpu)
    with lanes.lane() as lane:
        lanes.close()
        assert len(gpu.counters.registered) == 1
    assert gpu.counters.registered == {}
    with pytest.raises(Closed):
        lane.copy_in(block, 0, np.zeros(NBYTES, np.uint8).data)


def test_the_end_of_work_is_that_of_all_that_had_begun(
    gpu: FakeGpu, lanes: DeviceLanes, block: DeviceBlock
) -> None:
    assert lanes.end_of_work()()
    with lanes.lane():
        is_over = lanes.end_of_work()
        assert not is_over()
    assert is_over()
    with lanes.lane():
        assert is_over(), "it waits for what has begun since"
    with gpu.held():
        with pytest.raises(DeviceStuck), lanes.lane(timeout_s=0.01) as lane:
            is_over = lanes.end_of_work()
            lane.copy_in(block, 0, np.zeros(NBYTES, np.uint8).data)
            lane.flush()
        assert not is_over(), "its copies may come yet"
    while not is_over():
        pass
