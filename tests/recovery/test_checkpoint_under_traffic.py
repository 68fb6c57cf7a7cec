"""A checkpoint that is made while others work is the service at one moment of the call."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue.errors import NotReady, RowsGone

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


class Record:
    """What one client wrote down."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def steps(self, *kinds: str) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        lines = [json.loads(line) for line in self._path.read_text().splitlines(keepends=False)]
        return [line for line in lines if not kinds or line["what"] in kinds]


def start_client(address: str, number: int, path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.recovery.checkpoint_traffic", address, str(number)]
    return subprocess.Popen([*command, str(path)], cwd=ROOT, stdin=subprocess.PIPE)


def stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0


class Saved:
    """A checkpoint and what was going on when it was made."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkpoint"
        self.records = [Record(folder / f"record-{n}") for n in range(2)]
        with (
            tq.serve(shards=2, budget_bytes=96 * MIB) as service,
            tq.connect(service.address) as client,
        ):
            client.create_partition("work", tasks=["t"])
            clients = [start_client(service.address, n, folder / f"record-{n}") for n in range(2)]
            try:
                self._wait_for_steps(3)
                self.began_s = time.monotonic()
                client.checkpoint(self.path)
                self.ended_s = time.monotonic()
                self._wait_for_steps(3)
            finally:
                for process in clients:
                    stop(process)

    def _wait_for_steps(self, more: int) -> None:
        seen = [len(r.steps("put")) for r in self.records]
        wait_until(
            lambda: all(
                len(r.steps("put")) >= n + more for r, n in zip(self.records, seen, strict=True)
            ),
            timeout_s=60,
        )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("traffic"))


def is_there(client: tq.Client, row: tq.BatchHandle) -> bool:
    try:
        client.get_columns(row, fields=["number"])
    except RowsGone:
        return False
    return True


def found_of(client: tq.Client, step: dict[str, Any], fields: tuple[str, ...]) -> bool:
    """Whether all of a put is there, to the last cell; False: nothing of it."""
    handle = tq.BatchHandle.from_bytes(bytes.fromhex(step["handle"]))
    there = [is_there(client, handle[row : row + 1]) for row in range(len(handle))]
    assert all(there) or not any(there), "a part of a put"
    if not any(there):
        return False
    columns = client.get_columns(handle, optional=["double"])
    numbers = np.arange(step["first"], step["first"] + step["rows"])
    assert columns["number"].tolist() == numbers.tolist()
    pad = columns["pad"].numpy()
    assert pad.shape[0] == step["rows"]
    assert (pad == numbers[:, None].astype(np.float32)).all()
    if "double" in fields:
        assert "double.present" not in columns, "a part of the field's put"
        assert columns["double"].tolist() == (2 * numbers).tolist()
    assert "double.present" not in columns
    return True


def check_puts(client: tq.Client, saved: Saved, record: Record) -> None:
    filled = {s["first"]: s for s in record.steps("fill")}
    cleared = {s["first"]: s for s in record.steps("clear")}
    is_in = []
    for put in record.steps("put"):
        first = put["first"]
        fill, clear = filled.get(first), cleared.get(first)
        must_have = ("double",) if fill and fill["ended_s"] < saved.began_s else ()
        found = found_of(client, put, must_have)
        if clear and clear["ended_s"] < saved.began_s:
            assert not found, "cleared before the call"
            continue
        if put["ended_s"] < saved.began_s and not (clear and clear["began_s"] < saved.ended_s):
            assert found, "acknowledged before the call"
        if put["began_s"] > saved.ended_s:
            assert not found, "put after the call"
        if not clear or clear["began_s"] > saved.ended_s:
            is_in.append(found)
    assert is_in == sorted(is_in, reverse=True), "a later put is in and an earlier one is not"
    assert True in is_in
    assert False in is_in


def claimed_in_full(client: tq.Client) -> set[int]:
    """What the task can still get."""
    uids: set[int] = set()
    while True:
        try:
            claim = client.claim(task="t", partition="work", fields=["job"], n=1, timeout_s=0.2)
        except NotReady:
            return uids
        taken = claim.handle.uids.tolist()
        assert not uids & set(taken)
        uids.update(taken)


def check_claims(client: tq.Client, saved: Saved) -> None:
    there = set(client.select("work", fields=["job"]).uids.tolist())
    claimable = claimed_in_full(client)
    consumed = there - claimable
    steps = [step for record in saved.records for step in record.steps()]

    def uids_of(
        what: str, *, ended_by_s: float = math.inf, begun_by_s: float = math.inf
    ) -> set[int]:
        return {
            uid
            for s in steps
            if s["what"] == what and s["ended_s"] < ended_by_s and s["began_s"] < begun_by_s
            for uid in s["uids"]
        }

    acked_before = uids_of("ack", ended_by_s=saved.began_s)
    ack_begun = uids_of("ack", begun_by_s=saved.ended_s)
    put_before = uids_of("job", ended_by_s=saved.began_s)
    assert put_before <= there
    assert acked_before <= consumed <= ack_begun
    assert acked_before
    held = uids_of("claim") - ack_begun
    assert held & there <= claimable, "a claim that was out did not come back"
    assert held & there


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_checkpoint_under_traffic_is_one_moment_on_any_number_of_shards(
    saved: Saved, shards: int
) -> None:
    with (
        tq.serve(shards=shards, budget_bytes=192 * MIB // shards, restore=saved.path) as service,
        tq.connect(service.address) as client,
    ):
        held = [shard["used_bytes"] for shard in client.status()["shards"]]
        assert max(held) < 2 * sum(held) / shards
        for record in saved.records:
            check_puts(client, saved, record)
        # Every row that a shard has is known to the coordinator with its tag, and the other way.
        known = client.select("data", fields=["number", "pad"])
        numbers = client.get_columns(known, fields=["number"])["number"]
        tagged = {
            int(n)
            for n in numbers.tolist()
            if len(client.select("data", where=tq.tag("number") == int(n))) == 1
        }
        assert tagged == set(numbers.tolist())
        stored = sum(s["partitions"]["data"]["rows"] for s in client.status()["shards"])
        assert stored == len(known)
        check_claims(client, saved)
        job = client.put({"job": [1]}, partition="work")
        given = {uid for r in saved.records for s in r.steps("job") for uid in s["uids"]}
        assert not given & set(job.uids.tolist())
