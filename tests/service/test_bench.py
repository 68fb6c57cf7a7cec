"""`transferqueue.service.bench` measures a service and leaves nothing in it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

import transferqueue as tq
from transferqueue.errors import ConfigError
from transferqueue.service.bench import KIB, measure, print_results

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=1, budget_bytes=16 << 20) as service:
        yield service


def test_every_operation_of_every_size_is_measured(service: tq.Service) -> None:
    results = measure(service.address, sizes=[12 * KIB, 300 * KIB], seconds_each=0.05)
    assert [(r.operation, r.num_bytes) for r in results] == [
        (operation, size)
        for size in (12 * KIB, 300 * KIB)
        for operation in ("put", "get", "get + read")
    ]
    for result in results:
        assert result.failure is None
        assert result.num_calls >= 5
        assert result.p50_s is not None
        assert result.p99_s is not None
        assert 0 < result.p50_s <= result.p99_s


def test_nothing_stays_in_the_service(service: tq.Service) -> None:
    measure(service.address, sizes=[12 * KIB], seconds_each=0.05)
    with tq.connect(service.address) as client:
        (shard,) = client.status()["shards"]
        assert shard["rows"] == 0


def test_a_transport_that_does_not_reach_is_a_result_with_its_reason(service: tq.Service) -> None:
    ways = ["tcp", "sokets", "ipc", "sockets"]
    results = measure(service.address, transports=ways, sizes=[12 * KIB], seconds_each=0.05)
    failures = {result.transport: result.failure for result in results}
    assert list(failures) == ways
    assert failures["tcp"] is not None
    assert "sockets" in str(failures["sokets"])
    assert all(result.p50_s is None for result in results[:2])
    assert all(result.failure is None for result in results[2:])


def test_a_batch_that_finds_no_space_is_a_result_with_its_reason(service: tq.Service) -> None:
    (result,) = measure(service.address, sizes=[64 << 20], seconds_each=0.05)
    assert result.failure is not None
    assert result.num_calls == 0


def test_an_unreachable_address_raises() -> None:
    with pytest.raises(ConfigError, match="no key"):
        measure("tcp://127.0.0.1:1", sizes=[12 * KIB], seconds_each=0.05)


def test_bad_arguments_are_refused(service: tq.Service) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        measure(service.address, sizes=[])
    with pytest.raises(ConfigError, match="positive"):
        measure(service.address, sizes=[0])
    with pytest.raises(ConfigError, match="positive"):
        measure(service.address, seconds_each=0)


def test_the_table_has_a_line_a_result(service: tq.Service) -> None:
    results = measure(service.address, sizes=[12 * KIB], seconds_each=0.05)
    out = io.StringIO()
    print_results(results, Console(file=out, width=120))
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 + len(results)
    assert "12 KiB" in lines[1]
    assert "MiB/s" in lines[1]
