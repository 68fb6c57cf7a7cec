"""One method of a role as a stage: fetch what it reads, run it, put what it writes."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.dispatch.opening import open_view, read_counts, written_columns
from transferqueue.dispatch.outputs import plain, take_apart
from transferqueue.dispatch.telling import tell
from transferqueue.dispatch.traffic import FieldCounts, Traffic
from transferqueue.errors import FieldExists, LeaseExpired, NotReady, RowsGone
from transferqueue.handle import BatchHandle
from transferqueue.view import DataProto
from transferqueue.view.lazy_dataproto import LazyDataProto
from transferqueue.view.meta_info import METRICS_KEY
from workers.roles.fields import (
    MethodFields,
    declared_fields,
    needed_reads,
    registered_declaration,
)
from workers.spans import NO_SAMPLES, SpanLog

if TYPE_CHECKING:
    from collections.abc import Callable

    import transferqueue as tq
    from transferqueue.dispatch import Declaration

log = logging.getLogger(__name__)

Batch = BatchHandle | DataProto
"""Samples, by name or with all their columns."""


class WrongOutput(Exception):
    """A method did not return what it declares. Nothing was stored."""

    def __init__(self, method: str, missing: list[str], extra: list[str]) -> None:
        super().__init__(method, missing, extra)

    def __str__(self) -> str:
        method, missing, extra = self.args
        return f"{method} returned no {missing}" if missing else f"{method} returned also {extra}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoop:
    """A stage that claims its samples, as they become ready."""

    task: str
    """The task under which samples are claimed; each sample passes it once."""
    partition: str
    batch_rows: int
    """At most so many samples a call."""
    lease_s: float = 60.0
    poll_s: float = 0.25
    """How long a claim waits before the loop looks whether it is to stop."""


@dataclass(slots=True)
class StageTotals:
    """What one stage has done so far."""

    rows: int = 0
    calls: int = 0
    busy_s: float = 0.0
    stale_rows: int = 0
    """Rows that were dropped as too old, or written by somebody else, while this stage was at
    work on them."""
    read_bytes: int = 0
    unread_bytes: int = 0
    """Of ``read_bytes``: of columns that were fetched and that the method never looked at."""
    written_bytes: int = 0


@dataclass(slots=True)
class StageLog:
    """What the stages of one process did: totals by ``role.method``, spans and traffic."""

    totals: dict[str, StageTotals] = field(default_factory=dict)
    spans: SpanLog = field(default_factory=SpanLog)
    traffic: Traffic = field(default_factory=Traffic)
    """The bytes again by field, as the service is told of them."""

    def of(self, label: str) -> StageTotals:
        return self.totals.setdefault(label, StageTotals())


class StageRunner:
    """A role beside a client of the data plane.

    The role never sees the client. It gets a mapping of exactly the columns that its method
    declares, and what it returns is checked against the declaration before anything is stored.
    """

    def __init__(
        self,
        role: Any,
        client: tq.Client,
        *,
        name: str = "",
        log: StageLog | None = None,
        lock: threading.RLock | None = None,
    ) -> None:
        """``lock``: held while a method runs; roles of one process that share a model share it."""
        self.role = role
        self.client = client
        self.log = log or StageLog()
        self.lock = lock or threading.RLock()
        self._name = name or type(role).__name__

    def run(self, method_name: str, batch: Batch) -> Any:
        """Run a method on the samples of ``batch``. One that is declared by `workers.register` gets
        a DataProto, a lazy one where there is a handle; one declared by `stage` a mapping.

        Returns the batch's kind with the written fields, or the metrics of a method that writes
        none. A handle's columns are fetched and put; a whole batch's are at hand, and the written
        ones are returned.
        """
        if isinstance(batch, DataProto):
            return self._run_whole(method_name, batch)
        output = self._compute(method_name, self._fetch(method_name, batch), batch)
        if not self.writes(method_name):
            return output
        try:
            return self.store(method_name, batch, output)
        except FieldExists as error:
            # An update on these samples was begun, and is void: somebody died in it.
            log.info("%s again: %s", method_name, error)
            return self.store(method_name, batch, output, overwrite=True)

    def _run_whole(self, method_name: str, batch: DataProto) -> Any:
        data: Any = {name: _column(batch, name) for name in self.reads(method_name)}
        if self._declaration(method_name) is not None:
            data = batch[:]  # a method may add to it
        output = self._compute(method_name, data, batch)
        if not self.writes(method_name):
            return output
        return DataProto.from_single_dict(dict(output))

    def store(
        self,
        method_name: str,
        handle: BatchHandle,
        output: Mapping[str, Any],
        *,
        overwrite: bool = False,
        **tags: Any,
    ) -> BatchHandle:
        """Put what a method returned to its samples."""
        declaration = self._declaration(method_name)
        overwrite = overwrite or (declaration is not None and declaration.overwrite)
        stored = self.client.put(output, handle=handle, tags=tags or None, overwrite=overwrite)
        written = self._bytes(output, len(handle), "put")
        self._totals(method_name).written_bytes += sum(written.values())
        self._tell(
            method_name,
            {name: FieldCounts(written_bytes=n, calls=1) for name, n in written.items()},
        )
        return stored

    def serve(self, method_name: str, loop: StageLoop, stop: threading.Event) -> None:
        """Claim, run and ack until ``stop`` is set."""
        while not stop.is_set():
            claims = self.claims(method_name, loop, loop.batch_rows, loop.poll_s)
            if claims:
                self._serve_one(method_name, claims)

    def claims(
        self, method_name: str, loop: StageLoop, num_rows: int, timeout_s: float
    ) -> list[tq.Claim]:
        """Samples for a stage, as many as there are, up to ``num_rows``. If there are none, the
        first that comes within ``timeout_s`` and those that came with it, rather than more of them
        later: a claim of one wakes this up, and one of the others follows it."""
        there = self._claimed(method_name, loop, num_rows, 0.0)
        if there or not timeout_s:
            return there
        first = self._claimed(method_name, loop, 1, timeout_s)
        if not first or num_rows == 1:
            return first
        return first + self._claimed(method_name, loop, num_rows - 1, 0.0)

    def _claimed(
        self, method_name: str, loop: StageLoop, num_rows: int, timeout_s: float
    ) -> list[tq.Claim]:
        try:
            claim = self.client.claim(
                task=loop.task,
                partition=loop.partition,
                fields=self.reads(method_name),
                n=num_rows,
                timeout_s=timeout_s,
                lease_s=loop.lease_s,
                allow_partial=True,
            )
        except NotReady:
            return []
        return [claim]

    def _serve_one(self, method_name: str, claims: list[tq.Claim]) -> None:
        handle = BatchHandle.concat([claim.handle for claim in claims])
        try:
            with ExitStack() as held:
                for claim in claims:
                    held.enter_context(claim)
                data = self._fetch(method_name, handle)
                output = self._compute(method_name, data, handle)
                self._store_missing(method_name, handle, output)
        except (RowsGone, LeaseExpired) as error:
            # Dropped as too old, or given to somebody else, while this stage was at work.
            log.info("%s: %s", method_name, error)
            self._totals(method_name).stale_rows += len(handle)

    def _store_missing(
        self, method_name: str, handle: BatchHandle, output: Mapping[str, Any]
    ) -> None:
        """An earlier worker may have written some of these samples, and died before it could ack
        them. Those stay as they are."""
        try:
            self.store(method_name, handle, output)
        except FieldExists as error:
            if len(handle) == 1:
                log.info("%s: %s", method_name, error)
                self._totals(method_name).stale_rows += 1
                return
            batch, middle = DataProto.from_single_dict(dict(output)), len(handle) // 2
            for rows in (slice(0, middle), slice(middle, len(handle))):
                half = batch[rows]
                columns = {name: _column(half, name) for name in output}
                self._store_missing(method_name, handle[rows], columns)

    def _fetch(self, method_name: str, handle: BatchHandle) -> Any:
        declaration = self._declaration(method_name)
        if declaration is not None:
            return open_view(
                self.client, handle, reads=declaration.reads, optional=declaration.optional
            )
        data = self.client.get_columns(handle, fields=self.reads(method_name))
        read = self._bytes(data, len(handle), "got")
        self._totals(method_name).read_bytes += sum(read.values())
        return _Fetched(data)

    def _bytes(self, fields: Iterable[str], num_rows: int, direction: str) -> dict[str, int]:
        """Of so many rows of these fields, by the mean of all that this process moved so far: other
        threads move fields at the same time."""
        stats = self.client.stats()
        moved = {field: stats[field] for field in fields if stats[field][f"{direction}_rows"]}
        return {
            field: num_rows * one[f"{direction}_bytes"] // one[f"{direction}_rows"]
            for field, one in moved.items()
        }

    def _tell(self, method_name: str, counts: Mapping[str, FieldCounts]) -> None:
        self.log.traffic.add(self._name, method_name, counts)
        tell(self.client, self.log.traffic)

    def _compute(self, method_name: str, data: Mapping[str, Any], batch: Batch) -> Any:
        method, fields = self._method(method_name)
        uids = batch.uids if isinstance(batch, BatchHandle) else NO_SAMPLES
        started_s = time.monotonic()
        with self.lock, self.log.spans.span(self.label(method_name), len(batch), uids):
            output = method(data)
            if inspect.iscoroutine(output):
                output = asyncio.run(output)
        totals = self._totals(method_name)
        totals.rows += len(batch)
        totals.calls += 1
        totals.busy_s += time.monotonic() - started_s
        counts: Mapping[str, FieldCounts] = {}
        if isinstance(data, _Fetched):
            counts = self._counts(data, len(batch))
        elif isinstance(data, LazyDataProto):
            counts = read_counts(data, self.client)
            totals.read_bytes += sum(one.read_bytes for one in counts.values())
        totals.unread_bytes += sum(one.untouched_bytes for one in counts.values())
        if counts:
            self._tell(method_name, counts)
        declaration = self._declaration(method_name)
        if declaration is not None:
            output = _plain_output(output, declaration, batch)
        return _checked(method_name, fields, output) if fields.writes else output

    def _counts(self, data: _Fetched, num_rows: int) -> dict[str, FieldCounts]:
        return {
            name: FieldCounts(
                read_bytes=num_bytes,
                untouched_bytes=num_bytes if name in data.unread else 0,
                calls=1,
            )
            for name, num_bytes in self._bytes(data, num_rows, "got").items()
        }

    def label(self, method_name: str) -> str:
        return f"{self._name}.{method_name}"

    def reads(self, method_name: str) -> list[str]:
        """What a method needs under the settings of its role."""
        _, fields = self._method(method_name)
        return [*fields.reads, *needed_reads(self.role, method_name)]

    def writes(self, method_name: str) -> tuple[str, ...]:
        return self._method(method_name)[1].writes

    def _method(self, name: str) -> tuple[Callable[..., Any], MethodFields]:
        method = getattr(self.role, name)
        return method, declared_fields(method)

    def _declaration(self, method_name: str) -> Declaration | None:
        """Of a method that is declared by `workers.register`."""
        return registered_declaration(getattr(self.role, method_name))

    def _totals(self, method_name: str) -> StageTotals:
        return self.log.of(self.label(method_name))


def _plain_output(output: Any, declaration: Declaration, batch: Batch) -> Any:
    """What a registered method returned, as one declared by `stage` would: columns by name, or
    its metrics. Of a whole batch that it returned with more in it, what is more."""
    returned = take_apart(output, declaration)
    if declaration.writes:
        had = written_columns(batch).keys() if isinstance(batch, DataProto) else ()
        known = set(had) - set(declaration.writes)
        return {name: column for name, column in returned.columns.items() if name not in known}
    return returned.meta.get(METRICS_KEY, {}) if returned.is_batch else plain(returned.value or {})


class _Fetched(Mapping[str, Any]):
    """Columns that were fetched; knows which nobody has looked at."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self.unread = set(columns)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _column(batch: DataProto, name: str) -> Any:
    if name in batch.non_tensor_batch:
        return batch.non_tensor_batch[name]
    return batch.batch[name]


def _checked(method_name: str, fields: MethodFields, output: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name in fields.writes if name not in output]
    extra = [name for name in output if name not in fields.writes]
    if missing or extra:
        raise WrongOutput(method_name, missing, extra)
    return dict(output)
