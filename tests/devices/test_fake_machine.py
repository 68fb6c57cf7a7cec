"""The folder that stands for a machine with GPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from transferqueue.devices.fake_machine import FakeMachine
from transferqueue.process_id import ProcessId

if TYPE_CHECKING:
    from pathlib import Path


def test_what_a_finalizer_gives_back_while_its_thread_is_at_a_table_is_dropped_after_that(
    tmp_path: Path,
) -> None:
    machine = FakeMachine.create(tmp_path)
    one, other = machine.uuids
    owner = ProcessId.of(os.getpid())
    assert owner is not None
    kept, gone = machine.take(one, 512, owner), machine.take(one, 512, owner)
    elsewhere = machine.take(other, 512, owner)
    with machine._table(one) as table:
        machine.give_back(one, gone.serial)
        machine.give_back(other, elsewhere.serial)
        assert [block.serial for block in table.blocks] == [kept.serial, gone.serial]
    assert machine.find(one, gone.serial) is None
    assert machine.find(other, elsewhere.serial) is None
    assert machine.find(one, kept.serial) == kept
