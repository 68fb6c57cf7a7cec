"""Who gets which part of a batch, and who answers for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.errors import ConfigError
from workers import Mesh, Placement


def test_every_rank_of_a_flat_mesh_has_a_part_of_its_own() -> None:
    assert Mesh.of(dp=3).placement == Placement.flat(3)


def test_tensor_parallel_ranks_share_a_part_and_the_first_collects() -> None:
    placement = Mesh.of(dp=2, tp=3).placement
    assert placement.part_of_rank == (0, 0, 0, 1, 1, 1)
    assert placement.collects == (True, False, False, True, False, False)
    assert placement.replicas(1) == [3, 4, 5]
    assert placement.answering_ranks == [0, 3]


def test_the_data_axis_may_vary_fastest() -> None:
    placement = Mesh.of(pp=2, dp=2).placement
    assert placement.part_of_rank == (0, 1, 0, 1)
    assert placement.collects == (True, True, False, False)


def test_several_axes_may_cut_the_batch() -> None:
    placement = Mesh.of(dp=2, tp=2, ep=2, data=["dp", "ep"]).placement
    assert placement.part_of_rank == (0, 1, 0, 1, 2, 3, 2, 3)
    assert placement.answering_ranks == [0, 1, 4, 5]


def test_without_a_data_axis_all_are_replicas() -> None:
    placement = Mesh.of(tp=4).placement
    assert placement.num_parts == 1
    assert placement.answering_ranks == [0]


def test_answers_stand_in_the_order_of_parts_not_of_ranks() -> None:
    placement = Placement(part_of_rank=(1, 0), collects=(True, True))
    assert placement.answering_ranks == [1, 0]


def test_a_rank_knows_where_it_stands() -> None:
    assert Mesh.of(dp=2, tp=4).coordinates(6) == {"dp": 1, "tp": 2}
    with pytest.raises(ConfigError, match="rank 8 is not in a mesh of 8"):
        Mesh.of(dp=2, tp=4).coordinates(8)


@pytest.mark.parametrize("axes", [{}, {"dp": 0}, {"dp": -1}, {"dp": 1.5}])
def test_axes_have_sizes(axes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="axes of size 1 or more"):
        Mesh.of(**axes)


@pytest.mark.parametrize(
    ("parts", "collects", "message"),
    [
        ((0, 0), (False, False), "0 ranks collect for part 0"),
        ((0, 0), (True, True), "2 ranks collect for part 0"),
        ((0, 2), (True, True), "without gaps"),
        ((0, 1), (True,), "one entry a rank"),
        ((), (), "one entry a rank"),
    ],
)
def test_a_placement_that_would_lose_rows_is_refused(
    parts: tuple[int, ...], collects: tuple[bool, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Placement(part_of_rank=parts, collects=collects)


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    cutting=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_any_mesh_gives_each_part_one_rank_that_collects(
    sizes: list[int], cutting: list[bool]
) -> None:
    axes = {f"axis{number}": size for number, size in enumerate(sizes)}
    data = [name for name, cuts in zip(axes, cutting, strict=False) if cuts]
    mesh = Mesh.of(data=data, **axes)
    placement = mesh.placement
    assert placement.world_size == mesh.world_size
    assert sum(placement.collects) == placement.num_parts
    assert [placement.part_of_rank[rank] for rank in placement.answering_ranks] == list(
        range(placement.num_parts)
    )
