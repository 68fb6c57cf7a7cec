"""A role's method as a stage: what it gets, what is stored, what happens when it is too late."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from workers.roles.fields import stage
from workers.stage_runner import StageLoop, StageRunner, StageTotals, WrongOutput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Doubler:
    """A small role."""

    version = 3

    def __init__(self) -> None:
        self.seen: list[set[str]] = []
        self.output: dict[str, Any] | None = None

    @stage(reads=("x",), writes=("y",))
    def double(self, data: Mapping[str, Any]) -> dict[str, Any]:
        self.seen.append(set(data))
        return {"y": data["x"] * 2} if self.output is None else self.output

    @stage(reads=("x",), optional_reads=("z",))
    def total(self, data: Mapping[str, Any]) -> dict[str, float]:
        self.seen.append(set(data))
        return {"total": float(data["x"].sum())}

    def needs(self, method_name: str) -> tuple[str, ...]:
        return ("z",) if method_name == "total" else ()


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=64 << 20) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        yield client
        for partition in client.status()["partitions"]:
            client.clear(partition=partition)


def test_a_method_sees_only_the_fields_it_declares(client: tq.Client) -> None:
    role = Doubler()
    handle = client.put({"x": torch.arange(3), "z": torch.ones(3), "other": torch.zeros(3)})
    written = StageRunner(role, client).run("double", handle)
    assert role.seen == [{"x"}]
    assert client.get(written, fields=["y"])["y"].tolist() == [0, 2, 4]


def test_a_method_that_writes_nothing_answers_with_its_metrics(client: tq.Client) -> None:
    role = Doubler()
    handle = client.put({"x": torch.arange(3), "z": torch.ones(3)})
    assert StageRunner(role, client).run("total", handle) == {"total": 3.0}
    assert role.seen == [{"x", "z"}], "an optional read that the configuration needs"


@pytest.mark.parametrize("output", [{}, {"y": torch.zeros(3), "w": torch.zeros(3)}])
def test_undeclared_or_missing_output_is_refused_and_nothing_is_stored(
    client: tq.Client, output: dict[str, Any]
) -> None:
    role = Doubler()
    role.output = output
    handle = client.put({"x": torch.arange(3)})
    with pytest.raises(WrongOutput, match="double"):
        StageRunner(role, client).run("double", handle)
    with pytest.raises(tq.errors.FieldsMissing):
        client.get(handle, fields=["y"])


def totals(runner: StageRunner) -> StageTotals:
    return runner.log.of("Doubler.double")


def serve_until(runner: StageRunner, loop: StageLoop, condition: Any, **options: Any) -> None:
    stop = threading.Event()
    thread = threading.Thread(
        target=runner.serve, args=("double", loop, stop), kwargs=options, daemon=True
    )
    thread.start()
    deadline_s = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    stop.set()
    thread.join()
    assert condition()


def test_a_loop_takes_every_sample_once_and_puts_to_it(client: tq.Client) -> None:
    runner = StageRunner(Doubler(), client)
    handles = [client.put({"x": torch.full((4,), i)}, partition="loop") for i in range(5)]
    serve_until(
        runner,
        StageLoop(task="t", partition="loop", batch_rows=3),
        lambda: totals(runner).rows == 20,
    )
    got = client.get(tq.BatchHandle.concat(handles), fields=["y"])["y"]
    assert got.tolist() == [2 * i for i in range(5) for _ in range(4)]


def test_a_stage_that_waited_takes_with_the_first_sample_those_that_came_with_it(
    client: tq.Client,
) -> None:
    runner = StageRunner(Doubler(), client)
    client.create_partition("woken", tasks=["t"])
    loop = StageLoop(task="t", partition="woken", batch_rows=8)

    def put() -> None:
        wait_until(lambda: client.status()["partitions"]["woken"]["waiting"]["claims"] == 1)
        client.put({"x": torch.arange(5)}, partition="woken")

    putting = threading.Thread(target=put)
    putting.start()
    claims = runner.claims("double", loop, 8, 10.0)
    putting.join()
    assert [len(claim) for claim in claims] == [1, 4]
    for claim in claims:
        claim.ack()


def test_samples_that_an_earlier_worker_wrote_and_did_not_ack_are_acked_as_they_are(
    client: tq.Client,
) -> None:
    handle = client.put({"x": torch.arange(2), "y": torch.tensor([7, 7])}, partition="again")
    runner = StageRunner(Doubler(), client)
    serve_until(
        runner,
        StageLoop(task="t", partition="again", batch_rows=2),
        lambda: totals(runner).stale_rows == 2,
    )
    assert client.get(handle, fields=["y"])["y"].tolist() == [7, 7]
    with pytest.raises(tq.errors.NotReady):
        client.claim(task="t", partition="again", fields=["x"], n=1, timeout_s=0.0)


def test_samples_that_nobody_wrote_are_written_beside_those_that_an_earlier_worker_wrote(
    client: tq.Client,
) -> None:
    handle = client.put({"x": torch.arange(5)}, partition="mixed")
    client.put({"y": torch.tensor([7, 7])}, handle=handle[[1, 4]])
    client.wait(handle)
    runner = StageRunner(Doubler(), client)
    loop = StageLoop(task="t", partition="mixed", batch_rows=5)
    serve_until(runner, loop, lambda: totals(runner).stale_rows == 2)
    assert totals(runner).calls == 1
    assert client.get(handle, fields=["y"])["y"].tolist() == [0, 7, 4, 6, 7]


def test_a_column_that_is_fetched_and_never_looked_at_is_counted(client: tq.Client) -> None:
    role = Doubler()

    @stage(reads=("x", "z"))
    def total(data: Mapping[str, Any]) -> dict[str, float]:
        return {"total": float(data["x"].sum())}

    role.total = total  # type: ignore[method-assign]
    role.needs = lambda _: ()  # type: ignore[method-assign]
    runner = StageRunner(role, client)
    runner.run("total", client.put({"x": torch.arange(3), "z": torch.ones(3, 4)}))
    counted = runner.log.of("Doubler.total")
    assert counted.read_bytes == 3 * 8 + 3 * 4 * 4
    assert counted.unread_bytes == 3 * 4 * 4


def test_a_whole_batch_is_run_without_the_data_plane(client: tq.Client) -> None:
    runner = StageRunner(Doubler(), client)
    batch = tq.DataProto.from_dict({"x": torch.arange(3), "other": torch.zeros(3)})
    written = runner.run("double", batch)
    assert written.batch["y"].tolist() == [0, 2, 4]
    assert list(written.batch.keys()) == ["y"]
    assert not client.stats()


def test_samples_dropped_while_a_stage_works_are_counted_and_it_goes_on(
    client: tq.Client,
) -> None:
    role = Doubler()
    runner = StageRunner(role, client)
    doomed = client.put({"x": torch.arange(2)}, partition="drop")
    client.wait(doomed)  # so that one claim has both rows
    answer = role.double

    @stage(reads=("x",), writes=("y",))
    def clearing(data: Mapping[str, Any]) -> dict[str, Any]:
        client.clear(doomed)
        return answer(data)

    role.double = clearing  # type: ignore[method-assign]
    loop = StageLoop(task="t", partition="drop", batch_rows=2)
    serve_until(runner, loop, lambda: totals(runner).stale_rows == 2)


def test_a_stage_that_is_run_again_on_samples_of_a_void_update_replaces_what_it_wrote(
    client: tq.Client,
) -> None:
    handle = client.put({"x": torch.arange(3)})
    client.put({"y": torch.full((2,), 9)}, handle=handle[:2])
    written = StageRunner(Doubler(), client).run("double", handle)
    assert client.get(written, fields=["y"])["y"].tolist() == [0, 2, 4]
