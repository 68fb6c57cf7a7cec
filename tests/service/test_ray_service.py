"""A service as Ray actors, on a cluster of two nodes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from click.testing import CliRunner

import transferqueue as tq
from tests.recovery.test_replicas import arena_files, wait_for_both
from tests.waiting import wait_until
from tests.workers.stage_workers import Critic, Plain
from transferqueue.environment import runtime_root
from transferqueue.errors import ConfigError, RowsGone, RowsLost, ServiceFailed
from transferqueue.service.cli import main
from workers import RayWorkerGroup, ResourcePool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.service.ray_service import RayService

ray = pytest.importorskip("ray")
RayError = pytest.importorskip("ray.exceptions").RayError

ROOT = Path(__file__).resolve().parents[2]

# Ray leaves threads and descriptors in the driver, and warns of what it will do in the future.
pytestmark = [
    pytest.mark.may_leak,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NODE = {"object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes; ``second`` is a resource of the second one alone."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **NODE})
    try:
        cluster.add_node(num_cpus=2, resources={"second": 1}, **NODE)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def service(cluster: Any) -> Iterator[RayService]:
    del cluster
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # none that joins later
    with tq.serve_ray(budget_bytes=32 << 20, nodes=nodes) as service:
        yield service


def remote(body: Any, **options: Any) -> Any:
    return ray.remote(body).options(num_cpus=0.1, max_retries=0, **options)


def put_on(node_slot: int, transport: str) -> tq.BatchHandle:
    """Rows on the shard of one slot. The client puts small batches on the shards in turn."""
    with tq.connect(transport=transport) as client:
        while True:
            handle = client.put({"x": torch.ones(4096, 16)})
            if int(handle.uids[0]) >> 48 == node_slot:
                return handle


def sum_of(handle: tq.BatchHandle, transport: str) -> tuple[float, int]:
    with tq.connect(transport=transport) as client:
        total = float(client.get(handle)["x"].sum())
        return total, client.wire_bytes()["received"]


def test_every_node_has_a_shard_of_its_own(service: RayService) -> None:
    nodes = {node["NodeID"] for node in ray.nodes()}
    assert set(service.shard_nodes.values()) == nodes
    assert sorted(service.pids()) == ["coordinator", "shard-0", "shard-1"]
    with tq.connect() as client:
        assert client.service_id == service.service_id
        assert [shard["slot"] for shard in client.status()["shards"]] == [0, 1]


def test_workers_of_other_nodes_find_it_and_read_over_tcp(service: RayService) -> None:
    del service
    put, read = remote(put_on), remote(sum_of, resources={"second": 0.1})
    for slot in (0, 1):
        handle = ray.get(put.remote(slot, "tcp"))
        total, received = ray.get(read.remote(handle, "tcp"))
        assert total == 4096 * 16
        assert received > 4096 * 16 * 4, "the columns came through a socket"
        total, received = ray.get(read.remote(handle, "auto"))
        assert total == 4096 * 16
        assert received < 4096 * 16, "on one machine they are mapped"


def test_a_worker_group_over_two_nodes_finds_it_by_itself(service: RayService) -> None:
    with (
        ResourcePool([1, 1], cpus_per_rank=1.5) as pool,  # more than half of a node
        RayWorkerGroup(pool, {"critic": Critic, "plain": Plain}) as group,
        tq.connect() as client,
    ):
        assert len(set(group["plain"].node())) == 2
        handle = client.put({"ids": torch.arange(10).reshape(5, 2)})
        after = group["critic"].compute_values(handle)
        assert torch.equal(client.get(after)["values"], client.get(handle)["ids"].float() * 2)
        assert client.service_id == service.service_id


def test_what_a_node_holds_is_told_by_partition(service: RayService) -> None:
    handle = put_on(1, "auto")
    second = service.shard_nodes[1]
    with tq.connect() as client:
        client.wait(handle)
        held = {one.partition: one for one in service.held_on(second)}
        assert held["default"].slot == 1
        assert held["default"].num_rows >= len(handle)
        client.clear(partition="default")
        wait_until(lambda: not service.held_on(second))
    with pytest.raises(ConfigError, match="no shard is on node nowhere"):
        service.held_on("nowhere")


def test_the_command_line_finds_it_on_the_cluster(cluster: Any, service: RayService) -> None:
    """From within a process that is on the cluster, and from a shell that is not."""
    with tq.connect() as client:
        client.wait(client.put({"x": torch.ones(3)}, partition="shown"))
    here = CliRunner().invoke(main, ["status", "--address", "ray", "--json"])
    assert here.exit_code == 0, here.output
    assert json.loads(here.stdout)["service_id"] == service.service_id
    command = [sys.executable, "-m", "transferqueue.service.cli", "ls", "--address", "ray"]
    shell = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shell.returncode == 0, shell.stderr
    assert "shown" in shell.stdout


def test_its_address_and_keys_work_without_ray_too(service: RayService) -> None:
    assert service.address.startswith("tcp://")
    with tq.connect(service.address, keys=service.client_keys) as client:
        assert client.service_id == service.service_id
    with tq.connect(service.address) as client:
        assert client.service_id == service.service_id


def test_a_process_that_is_killed_is_started_again_where_it_was(service: RayService) -> None:
    with tq.connect(timeout_s=60) as client:
        before = service.pids()
        kept = [client.put({"x": torch.full((6, 40_000), float(n))}, tags={"n": n}) for n in (0, 1)]
        held = client.get(kept[1])["x"]
        claim = client.claim(task="t", fields=["x"], n=6)
        for process in ("coordinator", "shard-1"):
            os.kill(before[process], signal.SIGKILL)
            assert client.status()["service_id"] == service.service_id
        after = service.pids()
        assert after["shard-0"] == before["shard-0"]
        assert after["coordinator"] != before["coordinator"]
        assert after["shard-1"] != before["shard-1"]
        handle = client.put({"x": torch.ones(8, 4)})
        assert client.get(handle)["x"].sum() == 32
        for n in (0, 1):
            assert client.get(kept[n])["x"].unique().tolist() == [float(n)]
            assert len(client.select(where=tq.tag("n") == n)) == 6
        assert held.unique().tolist() == [1.0]
        claim.ack()
        del held


def test_options_of_ray_reach_its_actors_which_ray_starts_again(cluster: Any) -> None:
    del cluster
    (second,) = (n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("second"))
    options = {"resources": {"second": 0.1}, "runtime_env": {"env_vars": {"TQ_OPTION": "seen"}}}
    with (
        tq.serve_ray(name="options", nodes=[second], budget_bytes=8 << 20, **options) as service,
        tq.connect(service.address, keys=service.client_keys, timeout_s=90) as client,
    ):
        assert list(service.shard_nodes.values()) == [second]
        wait_until(lambda: ray.available_resources()["second"] == pytest.approx(0.8))
        pids = service.pids()
        for pid in pids.values():
            assert b"TQ_OPTION=seen" in Path(f"/proc/{pid}/environ").read_bytes()
        kept = client.put({"x": torch.arange(1000).reshape(10, 100)})
        claim = client.claim(task="t", fields=["x"], n=10)
        for process in ("shard-0", "coordinator"):  # Ray's own processes around ours
            os.kill(psutil.Process(pids[process]).ppid(), signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids.values())), timeout_s=20)
        assert client.get(kept)["x"].flatten().tolist() == list(range(1000))
        claim.ack()
        assert not set(service.pids().values()) & set(pids.values())
        assert client.get(client.put({"x": torch.ones(4)}))["x"].sum() == 4


def slots_of_puts(client: tq.Client, num_puts: int = 9) -> set[int]:
    handles = [client.put({"x": torch.ones(1)}) for _ in range(num_puts)]
    return {int(handle.uids[0]) >> 48 for handle in handles}


def rows_on_slot(client: tq.Client, slot: int) -> tq.BatchHandle:
    while True:
        rows = client.put({"x": torch.arange(30).reshape(30, 1)}, partition="kept")
        if int(rows.uids[0]) >> 48 == slot:
            return rows


def test_a_node_joins_is_drained_and_goes_under_clients_that_were_there_before(
    cluster: Any,
) -> None:
    with ExitStack() as stack:
        enter = stack.enter_context
        service = enter(tq.serve_ray(name="joining", budget_bytes=8 << 20))
        assert service.add_shards() == []
        one, another, third = (
            enter(
                tq.connect(
                    service.address, keys=service.client_keys, transport=transport, timeout_s=5
                )
            )
            for transport in ("auto", "tcp", "auto")
        )
        node = cluster.add_node(num_cpus=1, **NODE)
        try:
            wait_until(lambda: 2 in service.shard_nodes, timeout_s=30)
            assert service.add_shards() == [], "it has one; returns when that is there"
            joined = service.shard_nodes[2]
            assert len(set(service.shard_nodes.values())) == 3
            one.held()  # any answer of the coordinator tells of it
            assert slots_of_puts(one) == {0, 1, 2}
            rows = rows_on_slot(one, 2)
            assert another.get(rows)["x"].sum() == 435, "who never heard of the shard asks for it"
            one.clear(partition="default")
            wait_until(lambda: len(service.held_on(joined)) == 1)

            left = service.drain(joined, timeout_s=0.3)
            assert [(held.slot, held.partition) for held in left] == [(2, "kept")]
            assert left[0].num_rows >= 30
            for client in (one, another, third):
                assert slots_of_puts(client) == {0, 1}
            more = another.put({"y": torch.ones(30)}, handle=rows)
            assert one.get(more)["y"].sum() == 30, "fields of what is there come in"
        finally:
            cluster.remove_node(node)
        assert service.remove(joined) == left, "also when the node is gone already"
        assert set(service.shard_nodes) == {0, 1}
        one.held()  # any answer of the coordinator tells of it
        for client in (one, another):  # the other one finds nobody there, and asks why
            with pytest.raises(RowsLost, match="30 of 30"):
                client.get(rows)
            with pytest.raises(RowsLost):
                client.put({"z": torch.ones(30)}, handle=rows)
            assert slots_of_puts(client) == {0, 1}
        assert not any(uid >> 48 == 2 for uid in third.select("kept").uids.tolist())


def test_the_last_shard_is_not_drained_and_an_empty_node_goes_without_loss(cluster: Any) -> None:
    del cluster
    with (
        tq.serve_ray(name="shrinking", budget_bytes=8 << 20) as service,
        tq.connect(service.address, keys=service.client_keys) as client,
    ):
        first, second = service.shard_nodes[0], service.shard_nodes[1]
        assert service.drain(second) == ()
        pid = service.pids()["shard-1"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid))
        shard = client.status()["shards"][1]
        assert shard["pid"] != pid
        assert shard["draining"], "also the process that followed"
        with pytest.raises(ConfigError, match="the last shards that take new samples"):
            service.drain(first)
        assert slots_of_puts(client) == {0}
        assert service.remove(second) == ()
        assert slots_of_puts(client) == {0}
        assert service.add_shards() == [], "nobody wants one there"


def test_a_node_is_lost_with_its_arena_and_nothing_that_was_acknowledged(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=1, **NODE)
    with (
        tq.serve_ray(name="copies", budget_bytes=16 << 20, replicas=2, takeover_s=6.0) as service,
        tq.connect(service.address, keys=service.client_keys, transport="tcp") as client,
    ):
        try:
            wait_for_both(client)
            nodes = service.shard_nodes
            guards = {s["slot"]: s["copies"]["guard"] for s in client.status()["shards"]}
            assert all(nodes[slot] != nodes[guard] for slot, guard in guards.items())
            assert sorted(guards.values()) == [0, 1, 2], "each keeps the copy of one"
            (lost,) = (slot for slot, on in nodes.items() if on == node.node_id)
            handles = [client.put({"x": torch.full((8, 50_000), float(n))}) for n in range(6)]
            client.clear(handles[0])
            client.put({"x": torch.zeros(8, 50_000)}, handle=handles[1], overwrite=True)
            pids = service.pids()
        finally:
            cluster.remove_node(node)
        wait_until(lambda: not is_alive(pids[f"shard-{lost}"]), timeout_s=20)
        remove_arena(client, lost)
        began_s = time.monotonic()
        for n, handle in enumerate(handles[1:], start=1):
            value = 0.0 if n == 1 else float(n)
            assert client.get(handle)["x"].unique().tolist() == [value], "the guard answers"
        assert time.monotonic() - began_s < 6.0
        status = client.status()
        if status["shards_away"]:  # not on a machine so busy that it was taken over by now
            assert status["shards_away"] == [lost]
            complete = [shard["copies"]["is_complete"] for shard in status["shards"]]
            assert not all(complete), "under-replicated"
        wait_until(lambda: not client.status()["shards_away"], timeout_s=20)
        wait_for_both(client)
        guards = {s["slot"]: s["copies"]["guard"] for s in client.status()["shards"]}
        assert set(guards) == {0, 1, 2}
        for n, handle in enumerate(handles[1:], start=1):
            client.put({"y": torch.full((8,), float(n))}, handle=handle)
            got = client.get(handle.select(["x"]))["x"].unique().tolist()
            assert got == [0.0 if n == 1 else float(n)]
        with pytest.raises(RowsGone):
            client.get(handles[0])


def remove_arena(client: tq.Client, slot: int) -> None:
    """What a node that is lost takes with it."""
    for path in arena_files(client, slot):
        path.unlink()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_two_services_of_one_cluster_have_two_names(service: RayService) -> None:
    here = ray.get_runtime_context().get_node_id()
    with tq.serve_ray(name="second", nodes=[here], budget_bytes=8 << 20) as second:
        assert second.service_id != service.service_id
        assert list(second.shard_nodes.values()) == [here]
        folders = [path.name for path in runtime_root().glob(f"{second.service_id}*")]
        assert folders
    deadline_s = time.monotonic() + 5
    while any(runtime_root().glob(f"{second.service_id}*")) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not list(runtime_root().glob(f"{second.service_id}*"))


def test_what_cannot_start_says_why_and_leaves_nothing(cluster: Any) -> None:
    del cluster
    with pytest.raises(ConfigError, match="no backend"):
        tq.serve_ray(name="failing", backend="nonsense")
    with pytest.raises(ValueError, match="failing-coordinator"):
        ray.get_actor("failing-coordinator", namespace="transferqueue")
    with pytest.raises(ConfigError, match="no such nodes"):
        tq.serve_ray(name="failing", nodes=["nowhere"])
    with pytest.raises(ConfigError, match="at least 1"):
        tq.serve_ray(name="failing", shards_per_node=0)


def test_a_service_of_a_name_that_nobody_has_is_not_found(cluster: Any) -> None:
    del cluster
    from transferqueue.service.ray_actors import ray_connection

    assert ray_connection("nobody") is None


class Mortal:
    """An actor that takes a second to be made again."""

    def __init__(self) -> None:
        if ray.get_runtime_context().was_current_actor_reconstructed:
            time.sleep(1.0)

    def end(self) -> None:
        os._exit(1)

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_actor_that_is_being_made_again_is_asked_again(cluster: Any, restarts: int) -> None:
    del cluster
    from transferqueue.service.ray_actors import answers

    mortal = ray.remote(Mortal).options(num_cpus=0, max_restarts=restarts).remote()
    before = ray.get(mortal.pid.remote())
    mortal.end.remote()
    wait_until(lambda: not psutil.pid_exists(before))
    try:
        with pytest.raises(RayError):  # so that there is something to ask again for
            ray.get(mortal.pid.remote())
        if restarts:
            assert answers("mortal", [mortal.pid.remote], 60.0) != [before]
            with pytest.raises(ServiceFailed, match="in 0 s"):
                answers("mortal", [mortal.pid.remote], 0.0)
        else:
            with pytest.raises(ServiceFailed, match="ActorDiedError"):
                answers("mortal", [mortal.pid.remote], 60.0)
    finally:
        ray.kill(mortal)


def test_a_service_is_saved_and_restored_onto_more_shards(cluster: Any, tmp_path: Path) -> None:
    del cluster
    with (
        tq.serve_ray(budget_bytes=32 << 20, name="saved") as service,
        tq.connect(service.address, keys=service.client_keys) as client,
    ):
        handles = [client.put({"x": torch.full((8, 100), n)}) for n in range(6)]
        assert client.checkpoint(tmp_path).num_rows == 48
    with (
        tq.serve_ray(
            shards_per_node=2, budget_bytes=32 << 20, name="restored", restore=tmp_path
        ) as service,
        tq.connect(service.address, keys=service.client_keys) as client,
    ):
        held = [shard["rows"] for shard in client.status()["shards"]]
        assert len(held) == 4
        assert max(held) <= 16
        for n, handle in enumerate(handles):
            assert (client.get_columns(handle)["x"] == n).all()
        new = client.put({"x": torch.zeros(2, 100)})
        assert not set(new.uids.tolist()) & {u for h in handles for u in h.uids.tolist()}
