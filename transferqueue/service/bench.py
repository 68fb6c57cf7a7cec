"""How fast a service is from here: put, get and read, by size and transport.

`measure` returns plain values; `print_results` makes a table of them. Everything goes through a
client as any worker has it, into a partition of its own, and is cleared again.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.connecting import connect
from transferqueue.errors import ConfigError, TransferQueueError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from transferqueue.client.sync_client import Client
    from transferqueue.net.keys import ClientKeys

KIB, MIB = 1 << 10, 1 << 20
DEFAULT_SIZES = (12 * KIB, 1 * MIB, 64 * MIB)
FIELDS = 3
MIN_CALLS, MAX_CALLS = 5, 1000
WARM_UP_CALLS = 2
ROW_BYTES = 4 * KIB
"""Of one field; a batch has as many rows as its size needs, and at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One operation of one size over one transport."""

    transport: str
    operation: str
    """``put``, ``get``, or ``get + read``: a get that maps memory has moved nothing yet."""
    num_rows: int
    num_bytes: int
    """Payload of one call."""
    num_calls: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    bytes_per_s: float | None
    """Payload over the median time."""
    failure: str | None = None
    """Why there are no numbers, e.g. that the transport does not reach the service."""

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure(
    address: str | None = None,
    *,
    transports: Sequence[str] = ("auto",),
    sizes: Sequence[int] = DEFAULT_SIZES,
    seconds_each: float = 2.0,
    keys: ClientKeys | None = None,
) -> list[BenchResult]:
    """Put and get batches of each size (bytes) over each transport.

    Every size takes about ``seconds_each``, and ``MIN_CALLS`` calls at least. ``address`` and
    ``keys``: as `connect` takes them. A transport that does not reach the service, or a size for
    which there is no space, becomes a result with its ``failure``; an address where nobody answers
    raises as `connect` does when no transport is left.
    """
    if not transports or not sizes:
        raise ConfigError("name at least one transport and one size")
    if min(sizes) < 1 or seconds_each <= 0:
        raise ConfigError(f"sizes and seconds_each must be positive: {sizes}, {seconds_each}")
    results: list[BenchResult] = []
    errors: list[TransferQueueError] = []
    for transport in transports:
        try:
            client = connect(address, keys=keys, transport=transport)
        except TransferQueueError as error:
            errors.append(error)
            results.append(_failed(transport, "connect", 0, 0, error))
            continue
        with client:
            for size in sizes:
                results.extend(_measure_size(client, transport, size, seconds_each))
    if len(errors) == len(transports):
        raise errors[-1]
    return results


def _measure_size(
    client: Client, transport: str, size: int, seconds_each: float
) -> list[BenchResult]:
    batch = _batch(size)
    num_rows = len(next(iter(batch.values())))
    num_bytes = sum(column.nbytes for column in batch.values())
    partition = f"transferqueue-bench-{secrets.token_hex(4)}"
    took: dict[str, list[float]] = {"put": [], "get": [], "get + read": []}
    try:
        for is_warm, turn in _turns(client, batch, partition, seconds_each):
            if is_warm:
                for operation, seconds in zip(took, turn, strict=True):
                    took[operation].append(seconds)
    except TransferQueueError as error:
        return [_failed(transport, "put", num_rows, num_bytes, error)]
    return [
        _result(transport, operation, num_rows, num_bytes, seconds)
        for operation, seconds in took.items()
    ]


def _batch(size: int) -> dict[str, np.ndarray]:
    """Fields of float32 rows, about ``size`` bytes together."""
    per_field = max(4, size // FIELDS)
    rows = max(1, per_field // ROW_BYTES)
    length = max(1, per_field // rows // 4)
    generator = np.random.default_rng(0)
    return {f"field_{k}": generator.random((rows, length), dtype=np.float32) for k in range(FIELDS)}


def _turns(
    client: Client, batch: dict[str, np.ndarray], partition: str, seconds_each: float
) -> Iterator[tuple[bool, tuple[float, float, float]]]:
    """Put, get, read and clear, again and again; whether the turn counts, and its three times."""
    deadline_s = time.perf_counter() + seconds_each
    for turn in range(WARM_UP_CALLS + MAX_CALLS):
        begun_s = time.perf_counter()
        handle = client.put(batch, partition=partition)
        put_s = time.perf_counter()
        try:
            columns = client.get_columns(handle)
            got_s = time.perf_counter()
            for column in columns.values():
                np.sum(column)
            read_s = time.perf_counter()
        finally:
            client.clear(handle)
        del columns
        yield turn >= WARM_UP_CALLS, (put_s - begun_s, got_s - put_s, read_s - put_s)
        if turn + 1 >= WARM_UP_CALLS + MIN_CALLS and time.perf_counter() >= deadline_s:
            return


def _result(
    transport: str, operation: str, num_rows: int, num_bytes: int, seconds: list[float]
) -> BenchResult:
    p50_s, p90_s, p99_s = (float(q) for q in np.percentile(seconds, [50, 90, 99]))
    return BenchResult(
        transport=transport,
        operation=operation,
        num_rows=num_rows,
        num_bytes=num_bytes,
        num_calls=len(seconds),
        p50_s=p50_s,
        p90_s=p90_s,
        p99_s=p99_s,
        bytes_per_s=num_bytes / p50_s,
    )


def _failed(
    transport: str, operation: str, num_rows: int, num_bytes: int, error: TransferQueueError
) -> BenchResult:
    return BenchResult(
        transport=transport,
        operation=operation,
        num_rows=num_rows,
        num_bytes=num_bytes,
        num_calls=0,
        p50_s=None,
        p90_s=None,
        p99_s=None,
        bytes_per_s=None,
        failure=str(error),
    )


def print_results(results: Sequence[BenchResult], console: Console | None = None) -> None:
    """One line a result."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("transport", "batch", "operation", "calls", "p50", "p90", "p99", "throughput"):
        is_text = name in ("transport", "operation")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for result in results:
        numbers = (
            [f"[red]{result.failure}[/red]"]
            if result.failure
            else [
                *(_milliseconds(s) for s in (result.p50_s, result.p90_s, result.p99_s)),
                f"{(result.bytes_per_s or 0) / MIB:,.0f} MiB/s",
            ]
        )
        table.add_row(
            result.transport,
            f"{result.num_bytes / KIB:,.0f} KiB" if result.num_bytes else "",
            result.operation,
            str(result.num_calls),
            *numbers,
        )
    (console or Console()).print(table)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.2f} ms"
