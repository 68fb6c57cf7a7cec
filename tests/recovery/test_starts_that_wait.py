"""A process that waits for another in its start holds up nobody else's."""

from __future__ import annotations

import os
import signal

import torch

import transferqueue as tq
from tests.recovery.test_replicas import remove_files, wait_for_both
from tests.waiting import wait_until


def test_a_shard_that_waits_for_its_guard_does_not_keep_the_coordinator_from_coming_back() -> None:
    with (
        tq.serve(shards=2, budget_bytes=32 << 20, replicas=2) as service,
        tq.connect(service.address, timeout_s=60) as client,
    ):
        x = torch.rand(8, 16)
        handle = client.put({"x": x})
        wait_for_both(client)
        pids = service.pids
        os.kill(pids["shard-1"], signal.SIGSTOP)
        remove_files(client, 1)
        os.kill(pids["shard-0"], signal.SIGSTOP)
        os.kill(pids["shard-1"], signal.SIGKILL)
        wait_until(lambda: service.pids["shard-1"] != pids["shard-1"])  # and waits for shard 0
        os.kill(pids["coordinator"], signal.SIGKILL)
        # It would be given up after 30 s.
        wait_until(lambda: service.pids["coordinator"] != pids["coordinator"], timeout_s=20)
        os.kill(pids["shard-0"], signal.SIGCONT)
        assert torch.equal(client.get(handle)["x"], x)
