"""Every pair of places has one way, and a reason for each better one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from transferqueue.devices.ladder import Choice, ClientSide, Rung, ShardSide, choose, require
from transferqueue.errors import ConfigError, RungRefused

HOST = ClientSide()
ON_A = ClientSide(device_uuid="A", visible=frozenset("AB"), peers={"B": ""})
SHM = ShardSide(slot=0, same_host=True)
ON_GPU_A = ShardSide(slot=0, same_host=True, device_uuid="A")
ON_GPU_B = ShardSide(slot=0, same_host=True, device_uuid="B")
FAR = ShardSide(slot=0, same_host=False, why_not_mapped="elsewhere", why_not_watched="elsewhere")


@pytest.mark.parametrize(
    ("client", "shard", "rung", "why"),
    [
        (ON_A, ON_GPU_A, "same-gpu", ""),
        (ON_A, ON_GPU_B, "peer", "the shard is on B, not A"),
        (ON_A, SHM, "pinned-shm", "in memory of the host"),
        (replace(ON_A, why_not_pinned="ulimit"), SHM, "shm", "pinned-shm: ulimit"),
        (ON_A, FAR, "pinned-stream", "shm: the shard is on another host"),
        (replace(ON_A, why_not_pinned="ulimit"), FAR, "stream", "pinned-stream: ulimit"),
        (ON_A, replace(SHM, why_not_mapped="no folder"), "pinned-stream", "shm: no folder"),
        (HOST, SHM, "shm", ""),
        (HOST, replace(SHM, why_not_mapped="no folder"), "stream", "shm: no folder"),
        (HOST, ON_GPU_A, "stream", "in memory of a device"),
        (HOST, FAR, "stream", "another host"),
        (replace(ON_A, visible=frozenset("A")), ON_GPU_B, "pinned-stream", "does not see B"),
        (replace(ON_A, peers={"B": "no link"}), ON_GPU_B, "pinned-stream", "peer: no link"),
        (replace(ON_A, peers=None), ON_GPU_B, "pinned-stream", "A does not reach B"),
        (ON_A, replace(ON_GPU_A, why_not_shown="ipc"), "pinned-stream", "same-gpu: ipc; peer: ipc"),
        (ON_A, replace(ON_GPU_A, why_not_watched="pids"), "pinned-stream", "same-gpu: pids"),
        (ON_A, replace(ON_GPU_A, same_host=False), "pinned-stream", "another host"),
        (replace(ON_A, visible=frozenset("B")), ON_GPU_A, "pinned-stream", "does not see A"),
    ],
)
def test_the_way_of_a_pair_and_why_not_a_better(
    client: ClientSide, shard: ShardSide, rung: str, why: str
) -> None:
    choice = choose(client, shard)
    assert choice.rung == rung
    assert why in choice.why_not_better
    assert bool(why) == bool(choice.why_not)


def every_pair() -> list[tuple[ClientSide, ShardSide]]:
    clients = [
        ClientSide(device_uuid=uuid, visible=frozenset(seen), peers=peers, why_not_pinned=pinned)
        for uuid, seen, peers, pinned in product(
            (None, "A"), ("", "A", "AB"), (None, {"B": ""}, {"B": "no link"}), ("", "ulimit")
        )
    ]
    shards = [
        ShardSide(
            slot=3,
            same_host=here,
            device_uuid=uuid,
            why_not_shown=shown,
            why_not_mapped=mapped,
            why_not_watched=watched,
        )
        for here, uuid, shown, mapped, watched in product(
            (True, False), (None, "A", "B"), ("", "ipc"), ("", "folder"), ("", "pids")
        )
    ]
    return list(product(clients, shards))


def test_every_pair_has_a_way_and_a_reason_for_each_better_one() -> None:
    seen = set()
    for client, shard in every_pair():
        choice = choose(client, shard)
        seen.add(choice.rung)
        better = [r for r in Rung if r.place < choice.rung.place]
        expected = better if client.device_uuid else [r for r in better if r is Rung.SHM]
        assert list(choice.why_not) == expected
        assert all(choice.why_not.values())
        check_possible(choice, client, shard)
    assert seen == set(Rung)


def check_possible(choice: Choice, client: ClientSide, shard: ShardSide) -> None:
    """What a rung needs, said another way round."""
    if choice.rung in (Rung.SAME_GPU, Rung.PEER):
        assert shard.same_host
        assert shard.device_uuid in client.visible
        assert not shard.why_not_shown
        assert not shard.why_not_watched
        assert (choice.rung is Rung.SAME_GPU) == (client.device_uuid == shard.device_uuid)
    if choice.rung in (Rung.SHM, Rung.PINNED_SHM):
        assert shard.same_host
        assert shard.device_uuid is None
        assert not shard.why_not_mapped
    if choice.rung in (Rung.PINNED_STREAM, Rung.PINNED_SHM):
        assert not client.why_not_pinned


def test_what_is_required_is_had_or_refused() -> None:
    for client, shard in every_pair():
        best = choose(client, shard).rung
        for required in Rung:
            if client.device_uuid is None and required not in (Rung.SHM, Rung.STREAM):
                with pytest.raises(ConfigError, match="device= is not given"):
                    require(required, client, shard)
            elif best.place <= required.place:
                assert require(required, client, shard).rung is best
            else:
                with pytest.raises(RungRefused, match="to shard 3 is"):
                    require(required, client, shard)


def test_a_refusal_says_what_was_in_the_way() -> None:
    hidden = replace(ON_GPU_A, why_not_shown="the driver says no")
    with pytest.raises(RungRefused, match="'pinned-stream': the driver says no"):
        require(Rung.SAME_GPU, ON_A, hidden)
