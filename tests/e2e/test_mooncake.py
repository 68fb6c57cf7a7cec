"""A service over a real Mooncake Store, alone and beside shared memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

import transferqueue as tq
from tests.mooncake_master import Master, mooncake_master
from tests.waiting import wait_until
from transferqueue import errors
from transferqueue.service.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def master(tmp_path: Any) -> Iterator[Master]:
    with mooncake_master(tmp_path) as master:
        yield master


def rows(seed: int) -> dict[str, Any]:
    dice = torch.Generator().manual_seed(seed)
    ragged = [torch.randint(0, 99, (n,), generator=dice) for n in (5, 0, 9000, 700)]
    return {
        "ids": torch.randint(0, 99, (4, 4096), generator=dice),
        "pixels": torch.randint(0, 255, (4, 3 * MIB // 4), generator=dice, dtype=torch.uint8),
        "ragged": torch.nested.nested_tensor(ragged, layout=torch.jagged),
        "text": [f"{seed}-{i}" for i in range(4)],
    }


def check(client: tq.Client, handle: tq.BatchHandle, seed: int) -> None:
    got, want = client.get_columns(handle), rows(seed)
    for name in ("ids", "pixels"):
        assert torch.equal(got[name], want[name]), (seed, name)
    pairs = zip(got["ragged"].unbind(), want["ragged"].unbind(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert got["text"].tolist() == want["text"]


def test_all_of_a_service_lies_in_the_store(master: Master) -> None:
    options = {**master.options, "timeout_s": 2.0}
    with (
        tq.serve(backend="mooncake", backend_options=options, budget_bytes=16 * MIB) as service,
        tq.connect(service.address, timeout_s=10) as client,
    ):
        handles = [client.put(rows(seed)) for seed in range(4)]
        for seed, handle in enumerate(handles):
            check(client, handle, seed)
        some = client.get(handles[2][[3, 1]])
        assert torch.equal(some["pixels"], rows(2)["pixels"][[3, 1]])
        with pytest.raises(errors.StorageFull):
            for seed in range(4, 8):
                client.put(rows(seed), timeout_s=0.5)
        client.clear(partition="default")
        status = client.status()["shards"][0]
        assert (status["used_bytes"], status["backend"]["objects"]) == (0, 0)


def test_a_store_that_dies_under_traffic_is_an_error_for_its_fields_alone(master: Master) -> None:
    mooncake = {"budget_bytes": 32 * MIB, "options": {**master.options, "timeout_s": 1.0}}
    with (
        tq.serve(budget_bytes=32 * MIB, backends={"mooncake": mooncake}) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        client.create_partition("images", backend={"pixels": "mooncake", "*": "shm"})
        handles = [client.put(rows(seed), partition="images") for seed in range(3)]
        for seed, handle in enumerate(handles):
            check(client, handle, seed)
        used = client.status()["shards"][0]["backends"]
        assert used["mooncake"]["used_bytes"] == 9 * MIB
        assert 0 < used["shm"]["used_bytes"] < 2 * MIB
        cell = client.describe("images", limit=1)["rows"][0]["fields"]
        assert (cell["pixels"]["backend"], cell["ids"]["backend"]) == ("mooncake", "shm")
        master.kill()
        began_s = time.monotonic()
        with pytest.raises(errors.ServiceFailed, match=r"mooncake at 127\.0\.0\.1"):
            client.get(handles[0], fields=["pixels"])
        with pytest.raises(errors.ServiceFailed, match=r"mooncake at 127\.0\.0\.1"):
            client.put(rows(9), partition="images")
        assert time.monotonic() - began_s < 10
        assert torch.equal(client.get(handles[1], fields=["ids"])["ids"], rows(1)["ids"])
        plain = client.put(rows(4), partition="plain")
        check(client, plain, 4)
        client.clear(partition="images")
        wait_until(
            lambda: client.status()["shards"][0]["backends"]["mooncake"]["used_bytes"] == 0,
            timeout_s=20,
        )


def test_a_shard_that_is_started_again_while_the_store_is_away_serves_all_else(
    master: Master,
) -> None:
    mooncake = {"budget_bytes": 16 * MIB, "options": {**master.options, "timeout_s": 1.0}}
    with (
        tq.serve(budget_bytes=32 * MIB, backends={"mooncake": mooncake}) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        client.create_partition("images", backend={"pixels": "mooncake", "*": "shm"})
        gone = client.put(rows(1), partition="images")
        kept = client.put(rows(2), partition="plain")
        master.kill()
        os.kill(service.pids["shard-0"], signal.SIGKILL)
        check(client, kept, 2)
        with pytest.raises(errors.RowsLost, match="4 of 4"):
            client.get(gone)
        with pytest.raises(
            errors.ServiceFailed, match=r"'mooncake': was not there when .*mooncake_"
        ):
            client.put(rows(3), partition="images")
        beside = client.put({"ids": rows(3)["ids"]}, partition="images")
        assert torch.equal(client.get(beside)["ids"], rows(3)["ids"])
        assert "start it with" in client.status()["shards"][0]["backends"]["mooncake"]["away"]
        assert not service.failures


def is_away(client: tq.Client) -> bool:
    return "away" in client.status()["shards"][0]["backends"]["mooncake"]


def test_a_backend_comes_back_when_its_store_does_and_its_earlier_rows_stay_lost(
    master: Master, tmp_path: Path
) -> None:
    mooncake = {"budget_bytes": 16 * MIB, "options": {**master.options, "timeout_s": 1.0}}
    with (
        tq.serve(budget_bytes=32 * MIB, backends={"mooncake": mooncake}) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        client.create_partition("images", backend={"pixels": "mooncake", "*": "shm"})
        gone = client.put(rows(1), partition="images")
        master.kill()
        os.kill(service.pids["shard-0"], signal.SIGKILL)
        with pytest.raises(errors.ServiceFailed, match="was not there when"):
            client.put(rows(2), partition="images")
        said = CliRunner().invoke(main, ["status", "--address", service.address])
        assert "shard 0: backend 'mooncake' is away since" in said.output, said.output
        with mooncake_master(tmp_path, like=master):
            wait_until(lambda: not is_away(client), timeout_s=40)
            check(client, client.put(rows(3), partition="images"), 3)
            with pytest.raises(errors.RowsLost, match="4 of 4"):
                client.get(gone)
            assert service.num_restarts == 1
            used = client.status()["shards"][0]["backends"]["mooncake"]
            assert (used["used_bytes"], used["objects"]) == (3 * MIB, 1)


def test_a_store_that_is_started_again_under_a_shard_takes_new_rows_and_has_lost_the_others(
    master: Master, tmp_path: Path
) -> None:
    mooncake = {"budget_bytes": 16 * MIB, "options": {**master.options, "timeout_s": 1.0}}
    with (
        tq.serve(budget_bytes=32 * MIB, backends={"mooncake": mooncake}) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        client.create_partition("images", backend={"pixels": "mooncake", "*": "shm"})
        gone = client.put(rows(1), partition="images")
        master.kill()
        with pytest.raises(errors.ServiceFailed, match="mooncake at"):
            client.put(rows(2), partition="images")
        with mooncake_master(tmp_path, like=master):
            wait_until(lambda: takes(client), timeout_s=40)
            check(client, client.put(rows(3), partition="images"), 3)
            with pytest.raises(errors.BytesDamaged, match="the store does not have them any more"):
                client.get(gone, fields=["pixels"])
            assert torch.equal(client.get(gone, fields=["ids"])["ids"], rows(1)["ids"])
            assert service.num_restarts == 0


def takes(client: tq.Client) -> bool:
    try:
        client.put({"pixels": rows(0)["pixels"][:1]}, partition="images")
    except errors.ServiceFailed:
        return False
    return True


def test_a_store_that_stands_still_does_not_keep_a_shard_from_serving_the_rest(
    master: Master,
) -> None:
    mooncake = {"budget_bytes": 16 * MIB, "options": {**master.options, "timeout_s": 1.0}}
    with (
        tq.serve(budget_bytes=32 * MIB, backends={"mooncake": mooncake}) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        client.create_partition("images", backend={"pixels": "mooncake", "*": "shm"})
        kept = client.put(rows(2), partition="plain")
        master.stop()
        os.kill(service.pids["shard-0"], signal.SIGKILL)
        check(client, kept, 2)
        with pytest.raises(errors.ServiceFailed, match=r"no answer from .*start it with: moonc"):
            client.put(rows(3), partition="images")
        check(client, kept, 2)
        master.go_on()
        wait_until(lambda: not is_away(client), timeout_s=40)
        check(client, client.put(rows(3), partition="images"), 3)


def are_both_there(client: tq.Client) -> bool:
    shards = client.status()["shards"]
    return len(shards) == 2 and all(shard["copies"]["is_complete"] for shard in shards)


def slot_of(handle: tq.BatchHandle) -> int:
    return int(handle.uids[0]) >> 48


def test_a_shard_with_second_copies_does_not_end_with_a_store_that_both_copies_lay_in(
    master: Master, tmp_path: Path
) -> None:
    mooncake = {"budget_bytes": 32 * MIB, "options": {**master.options, "timeout_s": 1.0}}
    with (
        tq.serve(
            shards=2, replicas=2, budget_bytes=32 * MIB, backends={"mooncake": mooncake}
        ) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        wait_until(lambda: are_both_there(client), timeout_s=20)
        client.create_partition("images", backend={"pixels": "mooncake", "*": "shm"})
        images = [client.put(rows(seed), partition="images") for seed in (1, 2)]
        plain = [client.put(rows(seed), partition="plain") for seed in (3, 4)]
        images.sort(key=slot_of)
        assert [slot_of(handle) for handle in images] == [0, 1]
        assert {slot_of(handle) for handle in plain} == {0, 1}
        master.kill()
        pid = service.pids["shard-0"]
        os.kill(pid, signal.SIGKILL)
        for seed, handle in enumerate(plain, start=3):
            check(client, handle, seed)  # at first from the guard
        wait_until(lambda: len(client.status()["shards"]) == 2, timeout_s=60)
        assert not service.failures
        assert service.num_restarts == 1
        with pytest.raises(errors.RowsLost, match="4 of 4"):
            client.get(images[0])
        with pytest.raises(errors.ServiceFailed, match="mooncake at"):
            client.get(images[1], fields=["pixels"])
        for seed, handle in enumerate(plain, start=3):
            check(client, handle, seed)
        more = [client.put(rows(seed), partition="plain") for seed in (5, 6)]
        wait_until(lambda: client.status()["shards"][0]["copies"]["is_complete"], timeout_s=20)
        copies = client.status()["shards"][1]["copies"]
        assert (copies["is_complete"], copies["phase"]) == (False, "a store is away")
        with mooncake_master(tmp_path, like=master):
            wait_until(lambda: "away" not in str(client.status()["shards"]), timeout_s=60)
            wait_until(lambda: are_both_there(client), timeout_s=60)
            wait_until(lambda: takes(client) and takes(client), timeout_s=40)
            wait_until(lambda: are_both_there(client), timeout_s=60)
            new = [client.put(rows(seed), partition="images") for seed in (7, 8)]
            wait_until(lambda: are_both_there(client), timeout_s=60)
            with pytest.raises(errors.BytesDamaged, match="does not have them any more"):
                client.get(images[1], fields=["pixels"])
            for name in ("shard-0", "shard-1"):
                pid = service.pids[name]
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda name=name, pid=pid: service.pids[name] != pid, timeout_s=20)
                for seed, handle in enumerate([*plain, *more, *new], start=3):
                    check(client, handle, seed)
                wait_until(lambda: are_both_there(client), timeout_s=60)
            with pytest.raises(errors.RowsLost, match="4 of 4"):
                client.get(images[1])
        assert not service.failures


def test_a_shard_of_this_alone_is_there_without_its_store_and_says_what_is_missing(
    master: Master, tmp_path: Path
) -> None:
    options = {**master.options, "timeout_s": 1.0}
    with (
        tq.serve(backend="mooncake", backend_options=options, budget_bytes=16 * MIB) as service,
        tq.connect(service.address, timeout_s=20) as client,
    ):
        gone = client.put(rows(1))
        master.kill()
        os.kill(service.pids["shard-0"], signal.SIGKILL)
        with pytest.raises(errors.ServiceFailed, match=r"start it with: mooncake_master"):
            client.put(rows(2))
        with pytest.raises(errors.RowsLost, match="4 of 4"):
            client.get(gone)
        with mooncake_master(tmp_path, like=master):
            wait_until(lambda: not is_away(client), timeout_s=40)
            check(client, client.put(rows(3)), 3)
        assert not service.failures


def test_a_service_without_its_store_does_not_start(master: Master) -> None:
    master.kill()
    began_s = time.monotonic()
    with pytest.raises(errors.ConfigError, match="start it with: mooncake_master --rpc_port="):
        tq.serve(backend="mooncake", backend_options=master.options, budget_bytes=16 * MIB)
    assert time.monotonic() - began_s < 10


@pytest.mark.slow
def test_the_example_runs_on_it(master: Master, tmp_path: Path) -> None:
    options = ["--task", "spelling", "--batch-rows", "64", "--steps", "3", "--host", "processes"]
    with tq.serve(
        shards=2, backend="mooncake", backend_options=master.options, budget_bytes=32 * MIB
    ) as service:
        run = [sys.executable, "-m", "examples.async_ppo", "--plain", "--out", str(tmp_path)]
        done = subprocess.run(
            [*run, "--service", service.address, *options],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        with tq.connect(service.address) as client:
            shards = client.status()["shards"]
    assert [shard["backend"]["master"] for shard in shards] == [master.options["master"]] * 2
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["rows"] == 64 and line["staleness_max"] <= 2 for line in lines)
