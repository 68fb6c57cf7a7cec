"""No two services of one lineage give the same uid."""

from __future__ import annotations

from itertools import pairwise

import pytest

from transferqueue.checkpoint.lives import EPOCH_UNIX_S, FIRST_UID, STEP_S, Life, next_life
from transferqueue.errors import ConfigError
from transferqueue.uids import MAX_SLOT, SEQUENCE_BITS

NOW_UNIX_S = EPOCH_UNIX_S + 1000.0 * STEP_S


@pytest.mark.parametrize("num_shards", [1, 2, 3, 64, 1000])
def test_the_parts_of_a_life_lie_side_by_side_within_it(num_shards: int) -> None:
    life = Life(number=7, num_shards=num_shards)
    parts = [life.part(slot) for slot in range(life.num_parts)]
    assert parts[0].start == life.uids.start
    assert parts[-1].stop == life.uids.stop
    assert all(one.stop == next_.start for one, next_ in pairwise(parts))
    assert life.num_parts >= 2 * num_shards  # as many may be added


def test_a_shard_beyond_the_parts_is_refused() -> None:
    life = Life(number=7, num_shards=1)
    with pytest.raises(ConfigError, match="can have 8"):
        life.part(life.num_parts)


def test_a_later_life_gives_higher_uids_and_the_last_one_fits_a_uid() -> None:
    assert Life(number=8, num_shards=3).uids.start == Life(number=7, num_shards=1).uids.stop
    last = Life(number=(1 << 26) - 1, num_shards=1)
    assert FIRST_UID < last.uids.stop <= 1 << 63
    assert (last.uids.stop - 1) >> SEQUENCE_BITS <= MAX_SLOT
    with pytest.raises(ConfigError, match="no uids are left"):
        Life(number=1 << 26, num_shards=1)


@pytest.mark.parametrize(
    ("saved", "noted", "expected"),
    [
        (0, 0, 1000),  # the clock alone
        (0, 1000, 1001),  # restored from this folder in the same step before
        (2000, 0, 2001),  # a clock that went back
        (2000, 2005, 2006),
    ],
)
def test_a_life_is_above_all_that_it_knows_of(saved: int, noted: int, expected: int) -> None:
    assert next_life(saved=saved, noted=noted, now_unix_s=NOW_UNIX_S) == expected
