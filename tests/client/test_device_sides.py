"""Which devices a client knows, and what becomes of tensors on those that nothing drives."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import torch

from transferqueue.client.device_sides import DeviceSides
from transferqueue.client.postponed import Postponed
from transferqueue.devices.fake_machine import FakeMachine
from transferqueue.errors import ConfigError, DeviceMissing
from transferqueue.net.calls import Call

if TYPE_CHECKING:
    from pathlib import Path


def test_tensors_of_a_device_that_nothing_drives_go_by_the_host_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with DeviceSides(None, None) as sides, caplog.at_level(logging.WARNING):
        assert sides.of_tensors(torch.device("xla", 0)) is None
        assert sides.of_tensors(torch.device("xla", 0)) is None
    assert caplog.text.count("tensors on xla:0 are put by way of the host") == 1


def test_where_a_way_is_required_they_are_refused() -> None:
    with DeviceSides("host", "peer") as sides, pytest.raises(DeviceMissing, match="xla"):
        sides.of_tensors(torch.device("xla", 0))
    with pytest.raises(ConfigError, match="one of"):
        DeviceSides("host", "fast")


def test_a_tensor_is_found_on_the_device_whose_memory_it_is_in(tmp_path: Path) -> None:
    machine = FakeMachine.create(tmp_path, num_gpus=2, memory_bytes=1 << 20)
    with DeviceSides(None, None) as sides:
        assert not sides.are_open
        first, second = (sides.side(machine.name_of(uuid)) for uuid in machine.uuids)
        assert first is not None
        assert second is not None
        tensor, _ = second.device.new_tensor(4096)
        found = sides.holding(tensor[10:20])
        assert found is not None
        assert found[0] is second
        assert (found[1].address, found[1].nbytes) == (tensor.data_ptr() + 10, 10)
        assert sides.holding(torch.zeros(10)) is None


def test_one_device_by_two_names_is_one_side(tmp_path: Path) -> None:
    machine = FakeMachine.create(tmp_path, num_gpus=1, memory_bytes=1 << 20)
    with DeviceSides(None, None) as sides:
        by_uuid = sides.side(machine.name_of(machine.uuids[0]))
        assert sides.side(f"fake:{tmp_path}:0") is by_uuid


def test_what_is_postponed_is_sent_when_it_may_be_and_once() -> None:
    postponed, done = Postponed(), set()
    calls = [Call(endpoint="ipc://nobody", op=str(number)) for number in range(3)]
    for number, call in enumerate(calls):
        postponed.add(call, lambda number=number: number in done)  # type: ignore[misc]
    assert postponed.take_due() == []
    done.update((0, 2))
    assert postponed.take_due() == [calls[0], calls[2]]
    assert len(postponed) == 1
    done.add(1)
    assert postponed.take_due() == [calls[1]]
    assert postponed.take_due() == []
