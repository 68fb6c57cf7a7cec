"""What a pool asks for against what a cluster has."""

from __future__ import annotations

import pytest

from workers.cluster_room import Room

EIGHT = {"CPU": 8.0}


@pytest.mark.parametrize(
    ("groups", "nodes", "can"),
    [
        ([{"CPU": 4.0}], [{"CPU": 4.0}], True),
        ([{"CPU": 4.0}], [{"CPU": 2.0}, {"CPU": 2.0}], False),
        ([{"CPU": 4.0}] * 2, [EIGHT], True),
        ([{"CPU": 4.0}] * 3, [EIGHT], False),
        ([{"CPU": 1.0, "GPU": 1.0}], [{"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}], True),
        ([{"CPU": 4.0, "GPU": 1.0}], [{"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}], False),
        ([{"CPU": 1.0, "mine": 0.1}], [EIGHT], False),
        ([{}], [EIGHT], True),
        ([{"CPU": 1.0}], [], False),
    ],
)
def test_room_is_on_single_nodes_and_in_all(
    groups: list[dict[str, float]],
    nodes: list[dict[str, float]],
    can: bool,  # noqa: FBT001
) -> None:
    assert Room(groups=groups, nodes=nodes).can_ever_do is can


def test_the_way_out_fits() -> None:
    room = Room(groups=[{"CPU": 4.0}], nodes=[{"CPU": 2.0}, {"CPU": 1.0}])
    text = room.way_out([4], 1.0)
    assert "ray.init(num_cpus=4)" in text
    assert "ResourcePool([4], cpus_per_rank=0.5)" in text  # on the larger node
    assert Room(groups=[{"CPU": 4 * 0.5}], nodes=room.nodes).can_ever_do
    no_gpu = Room(groups=[{"CPU": 1.0, "GPU": 2.0}], nodes=[EIGHT])
    assert "ray.init(num_gpus=2)), or take fewer ranks" in no_gpu.way_out([2], 0.5)
    busy = Room(groups=[{"CPU": 4.0}], nodes=[EIGHT])
    assert "end what else runs there" in busy.way_out([4], 1.0)
