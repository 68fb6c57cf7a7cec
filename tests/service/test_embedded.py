"""Starting and ending a service of child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch

import transferqueue as tq
from transferqueue import errors
from transferqueue.environment import runtime_root
from transferqueue.net.keys import ServiceKeys

ROOT = Path(__file__).resolve().parents[2]


def wait_until_gone(pids: list[int], timeout_s: float = 10.0) -> None:
    _, alive = psutil.wait_procs(
        [psutil.Process(p) for p in pids if psutil.pid_exists(p)], timeout_s
    )
    assert not alive


def test_closing_twice_is_as_good_as_once() -> None:
    service = tq.serve(budget_bytes=64 << 20)
    service.close()
    service.close()
    assert not (runtime_root() / service.service_id).exists()


def test_a_service_without_encryption_still_asks_for_the_key() -> None:
    with tq.serve(budget_bytes=64 << 20, host="127.0.0.1", encrypt=False) as service:
        with tq.connect(service.address, keys=service.client_keys, transport="tcp") as client:
            handle = client.put({"x": torch.arange(1 << 20).view(4, -1)})
            assert client.get(handle)["x"].flatten().tolist() == list(range(1 << 20))
        other = ServiceKeys.generate(encrypted=False).for_clients()
        with pytest.raises(errors.KeyRefused):
            tq.connect(service.address, keys=other, timeout_s=1)


@pytest.mark.parametrize("encrypt", [True, False])
def test_large_bytes_have_a_socket_of_their_own(encrypt: bool) -> None:  # noqa: FBT001 - a parameter
    with (
        tq.serve(budget_bytes=64 << 20, host="127.0.0.1", encrypt=encrypt) as service,
        tq.connect(service.address, keys=service.client_keys, transport="sockets") as client,
    ):
        assert [link["way"] for link in client.links()] == ["sockets"]
        column = torch.arange(1 << 20).view(64, -1)
        assert torch.equal(client.get(client.put({"x": column}))["x"], column)


def test_tcp_to_a_service_of_this_host_only_says_how_to_start_it() -> None:
    with (
        tq.serve(budget_bytes=64 << 20) as service,
        pytest.raises(errors.ConfigError, match=r"transport='tcp'.*host="),
    ):
        tq.connect(service.address, transport="tcp")


def test_memory_can_be_taken_at_the_start() -> None:
    with (
        tq.serve(budget_bytes=64 << 20, prefault=True) as service,
        tq.connect(service.address) as client,
    ):
        while client.status()["shards"][0]["backend"]["backed_bytes"] < 64 << 20:
            time.sleep(0.02)


def test_two_services_do_not_see_one_another() -> None:
    with tq.serve(budget_bytes=64 << 20) as one, tq.serve(budget_bytes=64 << 20) as two:
        with tq.connect(one.address) as first, tq.connect(two.address) as second:
            handle = first.put({"x": [1]})
            with pytest.raises(errors.WrongService):
                second.get(handle)
        with tq.connect() as newest:
            assert newest.service_id == two.service_id


def test_without_an_address_there_is_no_service_to_find(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TRANSFERQUEUE_ADDRESS", raising=False)
    monkeypatch.setenv("TRANSFERQUEUE_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(errors.NoService, match=r"start one with tq\.serve"):
        tq.connect()


def test_a_service_of_another_process_is_named_and_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TRANSFERQUEUE_ADDRESS", raising=False)
    monkeypatch.setenv("TRANSFERQUEUE_RUNTIME_DIR", str(tmp_path))
    with tq.serve(budget_bytes=8 << 20) as service:
        monkeypatch.setattr("transferqueue.client.connecting.running_service", lambda: None)
        with pytest.raises(errors.NoService, match=f"runs on this host {service.address}: pass"):
            tq.connect()


def test_a_directory_too_small_is_refused_with_the_size_and_the_setting() -> None:
    with pytest.raises(errors.ArenaTooSmall, match=r"--shm-size=.*arena_dir"):
        tq.serve(budget_bytes=1 << 50)


def test_the_size_that_it_names_is_that_of_all_shards_together() -> None:
    with pytest.raises(errors.ArenaTooSmall) as caught:
        tq.serve(shards=2, budget_bytes=1 << 50)
    assert f"--shm-size={(2 << 50) >> 20}m" in str(caught.value)
    assert f"for each of 2 shards, {2 << 50:,} in all" in str(caught.value)


def test_of_a_folder_that_is_no_shared_memory_no_size_of_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ArenaTooSmall, match=r"Make room there \(\d+ MiB in all\)") as caught:
        tq.serve(budget_bytes=1 << 50, arena_dir=str(tmp_path))
    assert "--shm-size" not in str(caught.value)


def test_a_directory_of_another_place_is_used(tmp_path: Path) -> None:
    with tq.serve(budget_bytes=64 << 20, arena_dir=str(tmp_path)) as service:
        with tq.connect(service.address) as client:
            client.put({"x": [1, 2]})
        assert list(tmp_path.glob("transferqueue-*"))
    assert not list(tmp_path.glob("transferqueue-*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shards": 0}, "shards"),
        ({"budget_bytes": 5}, "budget_bytes"),
        ({"host": "0.0.0.0"}, "every interface"),
        ({"backend": "shmm"}, "did you mean 'shm'"),
        ({"host": "203.0.113.5"}, "cannot listen at tcp://203.0.113.5"),
    ],
)
def test_settings_that_cannot_work_are_refused_and_leave_nothing(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        tq.serve(**settings)  # type: ignore[arg-type]


def test_the_heap_backend_serves_without_files() -> None:
    with tq.serve(budget_bytes=64 << 20, backend="heap") as service:
        with tq.connect(service.address) as client:
            handle = client.put({"x": [1, 2]})
            assert list(client.get_columns(handle)["x"]) == [1, 2]
        assert not list(Path("/dev/shm").glob(f"*{service.service_id}*"))


def test_children_end_when_their_parent_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A root of its own: any other service that starts would clear the leftovers away first.
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("TRANSFERQUEUE_RUNTIME_DIR", str(root))
    code = (
        "import transferqueue as tq, sys, time\n"
        "service = tq.serve(shards=2, budget_bytes=64 << 20)\n"
        "print(service.service_id, *service.pids.values(), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    service_id, *pids = parent.stdout.readline().split()
    pids.append(str(psutil.Process(int(pids[0])).ppid()))  # what they were forked from
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until_gone([int(pid) for pid in pids])
    deadline_s = time.monotonic() + 5
    while list(Path("/dev/shm").glob(f"*{service_id}*")) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not list(Path("/dev/shm").glob(f"*{service_id}*"))
    assert (runtime_root() / service_id).exists()
    with tq.serve(budget_bytes=64 << 20):
        assert not (runtime_root() / service_id).exists(), "the next service clears it away"
    root.rmdir()


def test_keys_are_in_a_file_of_the_user_alone_and_not_in_argv() -> None:
    with tq.serve(budget_bytes=64 << 20, host="127.0.0.1") as service:
        assert service.key_file.stat().st_mode & 0o777 == 0o600
        assert service.key_file.parent.stat().st_mode & 0o777 == 0o700
        secret = service.client_keys.client_secret
        for pid in service.pids.values():
            shown = (
                Path(f"/proc/{pid}/cmdline").read_bytes()
                + Path(f"/proc/{pid}/environ").read_bytes()
            )
            assert secret.encode() not in shown
        assert secret not in repr(service.client_keys)


def test_a_worker_that_was_forked_does_not_end_the_service() -> None:
    with tq.serve(budget_bytes=64 << 20) as service:
        child = os.fork()
        if child == 0:
            service.close()
            os._exit(0)
        os.waitpid(child, 0)
        with tq.connect(service.address, timeout_s=5) as client:
            client.put({"x": [1]})
