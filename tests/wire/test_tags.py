"""Tags as a put carries them: what is taken can be told to the coordinator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transferqueue.errors import InvalidInput, Malformed
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.put import PutPlan
from transferqueue.wire.tags import read_tags, write_tags


@pytest.mark.parametrize(
    "value",
    [True, 3, 2.5, "x", [1, None, "a"], np.arange(3), np.array([True, False, True])],
    ids=repr,
)
def test_what_was_written_is_read_and_can_be_written_again(value: Any) -> None:
    arrays = ArrayWriter()
    body = write_tags({"t": value}, arrays)
    read = read_tags(body, ArrayReader(arrays.frames))
    np.testing.assert_array_equal(np.asarray(read["t"]), np.asarray(value))
    assert write_tags(read, ArrayWriter()) == body


@pytest.mark.parametrize(
    "value",
    [None, [], b"x", {"list": [[1]]}, {"list": [b"x"]}, {"list": [{}]}, {"list": 3}, {}],
    ids=repr,
)
def test_what_could_not_be_told_to_the_coordinator_is_refused_on_its_way_in(value: Any) -> None:
    """A shard that took it would write it down and never get it out again."""
    with pytest.raises(InvalidInput):
        read_tags({"t": value}, ArrayReader([]))


def test_an_array_of_more_dimensions_is_no_tag() -> None:
    arrays = ArrayWriter()
    body = {"t": {"array": arrays.add(np.zeros((2, 2)))}}
    with pytest.raises(InvalidInput, match=r"\(2, 2\)"):
        read_tags(body, ArrayReader(arrays.frames))


def test_a_put_has_a_tag_value_for_each_row() -> None:
    body = {
        "partition": "p",
        "num_rows": 2,
        "uids": None,
        "columns": [],
        "tags": {"t": {"list": [1, 2, 3]}},
        "overwrite": False,
    }
    with pytest.raises(Malformed, match="3 values for 2 rows"):
        PutPlan.read(body, ArrayReader([]))
