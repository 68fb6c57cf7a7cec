"""Every command against a running service with something in it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner, Result

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors
from transferqueue.net.keys import ServiceKeys
from transferqueue.service.cli import main
from transferqueue.service.commands import (
    clear,
    describe,
    doctor,
    explain,
    held,
    ls,
    page,
    status,
    top,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=32 << 20, host="127.0.0.1") as service:
        yield service


@pytest.fixture
def handle(service: tq.Service) -> Iterator[tq.BatchHandle]:
    """Six samples, of which one task holds two, and a claim that waits for a field of none."""
    with tq.connect(service.address) as client:
        client.create_partition("train", tasks=["actor", "critic"])
        handle = client.put(
            {"prompt": torch.ones(6, 8), "text": list("abcdef")},
            partition="train",
            tags={"policy_version": [1, 1, 1, 2, 2, 2]},
        )
        client.wait(handle)

        def wait_in_vain() -> None:
            with pytest.raises((errors.NotReady, errors.UnknownPartition)):
                client.claim(task="critic", fields=["reward"], n=4, partition="train")

        waiting = threading.Thread(target=wait_in_vain)
        claim = client.claim(task="actor", fields=["prompt"], n=2, partition="train")
        waiting.start()
        wait_until(lambda: client.waits()["waits"])
        yield handle
        claim.give_back()
        client.drop_partition("train")
        waiting.join()


def run(service: tq.Service, *arguments: str, **kwargs: Any) -> Result:
    environment = {"TRANSFERQUEUE_ADDRESS": service.address, **kwargs.pop("env", {})}
    return CliRunner().invoke(main, list(arguments), env=environment, **kwargs)


def as_json(service: tq.Service, *arguments: str) -> Any:
    shown = run(service, *arguments, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


ROW = {"uid", "shard", "state", "age_s", "site", "tags", "tasks", "fields"}
WAIT = {
    "kind", "partition", "task", "who", "fields", "wanted", "ready", "ready_by_field",
    "since_s", "left_s", "why",
}  # fmt: skip


@pytest.mark.usefixtures("handle")
def test_json_has_the_keys_that_are_documented(service: tq.Service) -> None:
    assert status.KEYS.keys() == as_json(service, "status").keys()
    assert [entry.keys() for entry in as_json(service, "ls")] == [ls.KEYS.keys()]
    found = as_json(service, "describe", "train")
    assert found.keys() == describe.KEYS.keys()
    assert all(row.keys() == ROW for row in found["rows"])
    by_partition = as_json(service, "held", "train")
    assert by_partition.keys() == {"train"}
    assert by_partition["train"].keys() == held.KEYS.keys()
    waiting = as_json(service, "waits")
    assert waiting.keys() == waits.KEYS.keys()
    assert [wait.keys() for wait in waiting["waits"]] == [WAIT]
    assert as_json(service, "top", "--interval-s", "0.05").keys() == top.KEYS.keys()
    assert as_json(service, "doctor").keys() == doctor.KEYS.keys()
    assert as_json(service, "explain", "NotReady").keys() == explain.KEYS.keys()
    cleared = as_json(service, "clear", "train", "--yes", "--where", "policy_version == 9")
    assert cleared == {"partition": "train", "cleared": 0}
    assert cleared.keys() == clear.KEYS.keys()


def test_what_is_printed_is_what_the_json_says(service: tq.Service, handle: tq.BatchHandle) -> None:
    uid = int(handle.uids[0])
    for command, expected in (
        (["status"], ["train", "actor", "critic", "bytes of shard 0, 1 come here by shm"]),
        (["ls"], ["train", "prompt text", "actor critic"]),
        (["describe", "train", "--limit", "2"], ["policy_version=1", "float32", "4 more samples"]),
        (["describe", hex(uid)], [f"sample {uid}", "claimed", "claim "]),
        (["held"], ["actor: claimed", "critic: free", "test_commands.py", "MiB"]),
        (["waits"], ["claim critic on train", "0 of 4 ready (reward 0)", "has had 'reward'"]),
        (["top", "--once", "--interval-s", "0.05"], ["claim critic on train", "put/s", "train"]),
        (["doctor"], ["way to shard 1", "shm", "arena folder", "clocks"]),
    ):
        for columns in ("80", "200"):
            shown = run(service, *command, env={"COLUMNS": columns})
            assert shown.exit_code == 0, shown.output
            lines = shown.stdout.splitlines()
            assert max(map(len, lines)) <= int(columns)
            assert "\x1b" not in shown.stdout, "plain when nobody watches"
            text = " ".join(shown.stdout.split())
            assert all(word in text for word in expected), (command, shown.stdout)


def test_clear_asks_first_and_takes_a_condition(
    service: tq.Service, handle: tq.BatchHandle
) -> None:
    refused = run(service, "clear", "train", input="n\n")
    assert refused.exit_code == 1
    assert "Remove 6 samples" in refused.stderr
    some = run(service, "clear", "train", "--where", "policy_version < 2", input="y\n")
    assert (some.exit_code, some.stdout) == (0, "removed 3 samples of 'train'\n")
    with tq.connect(service.address) as client:
        assert len(client.get(handle[3:])) == 3
        with pytest.raises(errors.RowsGone):
            client.get(handle[:3])
        assert "removed 3 samples" in run(service, "clear", "train", "--yes").stdout
        with pytest.raises(errors.RowsGone):
            client.get(handle)


@pytest.mark.usefixtures("handle")
def test_what_cannot_be_is_told_by_its_status(service: tq.Service, tmp_path: Path) -> None:
    for arguments, code, said in (
        (["describe", "trian"], 1, "did you mean 'train'"),
        (["describe", "train", "5"], 2, "one partition, or uids"),
        (["describe", "12345"], 1, "none had"),
        (["held", "trian"], 1, "did you mean 'train'"),
        (["clear", "trian", "--yes"], 1, "did you mean 'train'"),
        (["clear", "train", "--where", "policy_version <"], 2, "not an expression"),
        (["clear", "train", "--where", "versoin == 1", "--yes"], 1, "no tag 'versoin'"),
        (["waits", "--limit", "0"], 2, "range"),
        (["status", "--address", "nowhere"], 1, "ipc:// or tcp://"),
        (["status", "--address", f"ipc://{tmp_path}/x", "--timeout-s", "0.2"], 3, "no answer"),
        (["explain", "NotRedy"], 2, "did you mean NotReady"),
        (["nothing"], 2, "No such command"),
    ):
        shown = run(service, *arguments)
        assert (shown.exit_code, said in shown.stderr) == (code, True), (arguments, shown.output)


def test_a_key_that_is_not_the_services_is_exit_status_4(
    service: tq.Service, tmp_path: Path
) -> None:
    key = tmp_path / "other.key"
    ServiceKeys.generate().for_clients().save(key)
    asked = ("--key-file", str(key), "--timeout-s", "0.5")
    refused = run(service, "status", *asked)
    assert refused.exit_code == 4
    assert "transferqueue explain KeyRefused" in refused.stderr
    with_right_one = run(service, "status", "--key-file", str(service.key_file))
    assert with_right_one.exit_code == 0
    sick = run(service, "doctor", *asked, "--json")
    assert sick.exit_code == 6
    assert json.loads(sick.stdout)["healthy"] is False


def test_a_process_that_hangs_is_exit_status_5_and_makes_the_doctor_say_so(
    service: tq.Service,
) -> None:
    os.kill(service.pids["shard-0"], signal.SIGSTOP)
    try:
        late = run(service, "status", "--timeout-s", "0.5")
        sick = run(service, "doctor", "--timeout-s", "0.5", "--json")
    finally:
        os.kill(service.pids["shard-0"], signal.SIGCONT)
    assert late.exit_code == 5
    assert "no answer to status" in late.stderr
    assert sick.exit_code == 6
    failed = [c["found"] for c in json.loads(sick.stdout)["checks"] if c["health"] == "fail"]
    assert len(failed) == 1
    assert "no answer" in failed[0]
    assert run(service, "status").exit_code == 0


def test_a_tcp_address_without_a_key_is_exit_status_4() -> None:
    shown = CliRunner().invoke(main, ["status", "--address", "tcp://127.0.0.1:1"])
    assert shown.exit_code == 4
    assert "--key-file" in shown.stderr


def test_no_service_at_all_is_exit_status_3_and_no_reason_for_the_doctor_to_fail(
    tmp_path: Path,
) -> None:
    environment = {"TRANSFERQUEUE_RUNTIME_DIR": str(tmp_path), "TRANSFERQUEUE_ADDRESS": ""}
    shown = CliRunner().invoke(main, ["ls"], env=environment)
    assert shown.exit_code == 3
    assert "transferqueue serve" in shown.stderr
    well = CliRunner().invoke(main, ["doctor", "--json"], env=environment)
    assert well.exit_code == 0
    checks = {check["name"]: check for check in json.loads(well.stdout)["checks"]}
    assert checks["service"]["health"] == "warn"


def test_commands_find_a_service_that_the_command_line_serves(tmp_path: Path) -> None:
    environment = {**os.environ, "TRANSFERQUEUE_RUNTIME_DIR": str(tmp_path / "r")}
    environment.pop("TRANSFERQUEUE_ADDRESS", None)
    command = [sys.executable, "-m", "transferqueue.service.cli"]
    server = subprocess.Popen(
        [*command, "serve", "--budget-mib", "16"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[1]
        with tq.connect(address) as client:
            client.wait(client.put({"x": [1, 2]}, partition="val"))
        for arguments in (["ls"], ["top", "--once", "--interval-s", "0.05"]):
            shown = subprocess.run(
                [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
            )
            assert shown.returncode == 0, shown.stderr
            assert "val" in shown.stdout
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0
        server.stdout.close()


def test_a_page_is_served_until_it_is_told_to_end(service: tq.Service, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    options = ["--port", "0", "--json", "--token-file", str(token_file)]
    program = subprocess.Popen(
        [sys.executable, "-m", "transferqueue.service.cli", "page", *options],
        cwd=ROOT,
        env={**os.environ, "TRANSFERQUEUE_ADDRESS": service.address},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    told = json.loads("".join(iter(program.stdout.readline, "}\n")) + "}")
    assert told.keys() == page.KEYS.keys()
    token = token_file.read_text().strip()
    request = urllib.request.Request(f"{told['address']}api/status")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["service_id"] == service.service_id
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=20) == 0
    program.stdout.close()


def test_top_goes_on_until_it_is_interrupted(service: tq.Service) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "transferqueue.service.cli", "top", "--interval-s", "0.1"],
        cwd=ROOT,
        env={**os.environ, "TRANSFERQUEUE_ADDRESS": service.address},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    pages = 0
    while pages < 3:
        pages += "puts/s" in program.stdout.readline()
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=20) == 0
    program.stdout.close()


def test_several_services_are_listed_with_pid_and_age_and_one_that_hangs_says_so(
    service: tq.Service,
) -> None:
    with tq.serve(budget_bytes=16 << 20) as second:
        with tq.connect(service.address) as one, tq.connect(second.address) as other:
            ids = one.service_id, other.service_id
        pid = second.pids["coordinator"]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
            shown = CliRunner().invoke(main, ["status"])
        finally:
            os.kill(pid, signal.SIGCONT)
    assert shown.exit_code == 2
    goes, hangs = (next(line for line in shown.output.splitlines() if of in line) for of in ids)
    assert re.search(rf"of process {os.getpid()}, up for [\d.]+ ", goes)
    assert f"of process {os.getpid()}, does not answer" in hangs


def test_a_uid_that_nobody_was_given_is_not_called_cleared(
    service: tq.Service, handle: tq.BatchHandle
) -> None:
    del handle
    shown = run(service, "describe", "99999")
    assert shown.exit_code == 1
    assert "no sample has these uids 0x1869f, and none had" in shown.output
    with tq.connect(service.address) as client:
        gone = client.put({"x": torch.ones(1)}, partition="passing")
        client.wait(gone)
        client.clear(gone)
        wait_until(lambda: "cleared" in run(service, "describe", str(gone.uids[0])).output)
        client.drop_partition("passing")
