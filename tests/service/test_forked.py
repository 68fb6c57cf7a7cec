"""Service processes as forks of a process that has imported everything."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue.errors import ServiceFailed
from transferqueue.service import forked
from transferqueue.service.forked import ForkedProcess, Inherited, NotForked, TemplateHold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

OWN = "LD_OF_A_TEST"
"""A variable that is read before a fork, or so it looks: who sets it has a template of its own."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[bytes]]:
    with (tmp_path / "log").open("wb") as log:
        yield log


@pytest.fixture
def hold() -> Iterator[TemplateHold]:
    with TemplateHold() as hold:
        yield hold


def template_of(process: ForkedProcess) -> psutil.Process:
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    return parent


def end(process: ForkedProcess) -> int:
    """It reads settings that are none, and fails."""
    process.stdin.close()
    process.stdout.close()
    return process.wait(10)


def test_forks_of_one_process_are_told_apart_by_pid_session_and_name(
    hold: TemplateHold, log: IO[bytes]
) -> None:
    processes = [hold.fork(f"shard-{n}", log, 10.0) for n in range(2)]
    assert len({template_of(process).pid for process in processes}) == 1
    wait_until(lambda: [os.getsid(p.pid) for p in processes] == [p.pid for p in processes])
    names = ["shard-0\n", "shard-1\n"]
    wait_until(lambda: [Path(f"/proc/{p.pid}/comm").read_text() for p in processes] == names)
    for process in processes:
        assert process.poll() is None
        end(process)


def test_it_is_told_how_each_of_them_ended(hold: TemplateHold, log: IO[bytes]) -> None:
    killed, failing = (hold.fork(name, log, 10.0) for name in ("killed", "failing"))
    descriptor = killed.end_descriptor()
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0.0)
    killed.kill()
    assert end(killed) == -signal.SIGKILL
    assert forked._is_readable(descriptor, 0.0)
    os.close(descriptor)
    killed.kill()  # nobody: it has been waited for
    with pytest.raises(ProcessLookupError):
        killed.end_descriptor()
    assert end(failing) == 1, "no settings came"


def test_the_environment_is_that_of_each_fork_and_not_of_the_first(
    hold: TemplateHold, log: IO[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = hold.fork("first", log, 10.0)
    monkeypatch.setenv("TRANSFERQUEUE_ARENA_DIR", str(tmp_path))
    with tq.serve(budget_bytes=8 << 20, shards=1) as service:
        assert template_of(first).pid == psutil.Process(service.pids["shard-0"]).ppid()
        assert list(tmp_path.glob(f"transferqueue-{service.service_id}-*"))
    end(first)


def test_what_only_a_new_interpreter_reads_or_inherits_makes_another_template(
    hold: TemplateHold, log: IO[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pid_of_template() -> int:
        process = hold.fork("any", log, 10.0)
        try:
            return template_of(process).pid
        finally:
            end(process)

    first = pid_of_template()
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::ImportWarning")
    second = pid_of_template()
    monkeypatch.chdir(tmp_path)
    third = pid_of_template()
    monkeypatch.undo()
    assert len({first, second, third}) == 3
    assert pid_of_template() == first


def test_the_template_ends_with_the_last_that_holds_it(
    hold: TemplateHold, log: IO[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN, "1")
    with TemplateHold() as other:
        mine, theirs = hold.start(log), other.start(log)
        assert mine is theirs
    assert mine.is_alive
    hold.close()
    hold.close()
    assert not mine.is_alive
    assert Inherited.now() not in forked._templates


def test_a_service_goes_on_whose_template_is_killed_and_restarts_come_from_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OWN, "1")
    with tq.serve(budget_bytes=8 << 20) as service, tq.connect(service.address) as client:
        handle = client.put({"x": [1, 2, 3]})
        before = dict(service.pids)
        template = psutil.Process(before["shard-0"]).parent()
        assert template is not None
        template.kill()
        assert client.get_columns(handle)["x"].tolist() == [1, 2, 3]
        os.kill(before["shard-0"], signal.SIGKILL)
        wait_until(lambda: service.pids["shard-0"] != before["shard-0"], timeout_s=20)
        assert client.get_columns(handle)["x"].tolist() == [1, 2, 3]
        assert service.num_restarts == 1
        assert service.pids["coordinator"] == before["coordinator"]
        assert not template.is_running()


def test_a_template_that_cannot_start_is_an_error_that_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OWN, "1")
    monkeypatch.setattr(forked, "_MODULE", "transferqueue.service.no_such_module")
    with pytest.raises(ServiceFailed, match=r"coordinator: did not start[^$]*no_such_module"):
        tq.serve(budget_bytes=8 << 20)


def test_one_that_does_not_answer_is_given_up_in_time(hold: TemplateHold, log: IO[bytes]) -> None:
    process = hold.fork("first", log, 10.0)
    template = template_of(process)
    end(process)
    template.suspend()
    try:
        with pytest.raises(NotForked, match="timed out"):
            hold.fork("second", log, 0.1)
    finally:
        template.resume()
    end(hold.fork("third", log, 10.0))
