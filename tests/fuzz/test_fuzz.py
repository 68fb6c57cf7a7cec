"""A live coordinator and a live shard bear messages that are nearly right, and noise."""

from __future__ import annotations

import pytest

from tests.fuzz.run import run

NUM_MESSAGES = 12_000
"""``python -m tests.fuzz`` sends 100,000."""
MIB = 1 << 20
ROOM_BYTES = 12 * MIB
"""What an allocator of memory may round up, and partitions that mutations made by right."""


@pytest.mark.slow
def test_mutated_messages_end_no_process_and_leave_nothing_behind() -> None:
    outcome = run(NUM_MESSAGES, seed=1)
    assert outcome.report.sent == NUM_MESSAGES
    assert outcome.report.answered > NUM_MESSAGES // 4  # the others had no readable header
    assert sum(outcome.report.refused.values()) > outcome.report.answered // 2
    assert outcome.report.refused["RemoteError"] == 0  # a handler met what it did not expect
    assert outcome.num_restarts == 0
    assert outcome.puts_under_way == 0
    assert outcome.used_bytes == 0
    for name, after in outcome.after.items():
        before = outcome.before[name]
        assert after.num_fds <= before.num_fds + 1, name
        assert after.num_threads <= before.num_threads, name
        assert after.rss_bytes <= before.rss_bytes + ROOM_BYTES, name
