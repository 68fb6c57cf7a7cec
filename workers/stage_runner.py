"""One method of a role as a stage: fetch what it reads, run it, put what it writes."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.errors import LeaseExpired, NotReady, RowsGone
from workers.roles.fields import MethodFields, declared_fields

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    import transferqueue as tq

log = logging.getLogger(__name__)


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
    target_partition: str | None = None
    """Put the written fields as new samples of this partition, with the fields read and carried
    beside them; ``None``: put them to the claimed samples."""
    carries: tuple[str, ...] = ()
    """Fields that the method does not read and that go along to new samples."""
    tag_fields: Mapping[str, str] = field(default_factory=dict)
    """Tags of new samples that are copied from fields read: tag -> field."""
    lease_s: float = 120.0


@dataclass(slots=True)
class StageTotals:
    """What one stage has done so far."""

    rows: int = 0
    calls: int = 0
    busy_s: float = 0.0
    stale_rows: int = 0
    """Rows that were dropped as too old while the stage worked on them."""
    metrics: dict[str, float] = field(default_factory=dict)


class StageRunner:
    """A role beside a client of the data plane.

    The role never sees the client. It gets a mapping of exactly the columns that its method
    declares, and what it returns is checked against the declaration before anything is stored.
    """

    def __init__(self, role: Any, client: tq.Client) -> None:
        self.role = role
        self._client = client
        self.totals: dict[str, StageTotals] = {}

    def run(self, method_name: str, handle: tq.BatchHandle) -> Any:
        """Run a method on the samples of ``handle``.

        Returns the handle with the written fields, or the metrics of a method that writes none.
        """
        method, fields = self._method(method_name)
        started_s = time.monotonic()
        data = self._client.get_columns(handle, fields=self._reads(method_name, fields))
        output = method(data)
        result = output
        if fields.writes:
            result = self._client.put(_checked(method_name, fields, output), handle=handle)
        self._count(method_name, len(handle), started_s)
        return result

    def serve(
        self,
        method_name: str,
        loop: StageLoop,
        stop: threading.Event,
        *,
        tags: Callable[[], Mapping[str, Any]] = dict,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Claim, run and ack until ``stop`` is set. ``before`` runs ahead of each claim;
        ``tags`` are set on new samples."""
        while not stop.is_set():
            before()
            with contextlib.suppress(NotReady):
                self._serve_one(method_name, loop, tags)

    def _serve_one(
        self, method_name: str, loop: StageLoop, tags: Callable[[], Mapping[str, Any]]
    ) -> None:
        method, fields = self._method(method_name)
        reads = self._reads(method_name, fields)
        wanted = list(dict.fromkeys([*reads, *loop.carries]))
        claim = self._client.claim(
            task=loop.task,
            partition=loop.partition,
            fields=wanted,
            n=loop.batch_rows,
            timeout_s=0.25,
            lease_s=loop.lease_s,
            allow_partial=True,
        )
        started_s = time.monotonic()
        try:
            with claim:
                data = self._client.get_columns(claim.handle, fields=wanted)
                output = method({name: data[name] for name in reads})
                output = _checked(method_name, fields, output)
                if loop.target_partition is None:
                    self._client.put(output, handle=claim.handle)
                else:
                    copied = {tag: list(data[name]) for tag, name in loop.tag_fields.items()}
                    self._client.put(
                        {**data, **output},
                        partition=loop.target_partition,
                        tags={**tags(), **copied},
                    )
        except (RowsGone, LeaseExpired) as error:
            # Dropped as too old, or given to somebody else, while this stage was at work.
            log.info("%s: %s", method_name, error)
            self._totals(method_name).stale_rows += len(claim)
        self._count(method_name, len(claim), started_s)

    def _method(self, name: str) -> tuple[Callable[..., Any], MethodFields]:
        method = getattr(self.role, name)
        return method, declared_fields(method)

    def _reads(self, method_name: str, fields: MethodFields) -> list[str]:
        needs = getattr(self.role, "needs", None)
        return [*fields.reads, *(needs(method_name) if needs is not None else ())]

    def _totals(self, method_name: str) -> StageTotals:
        return self.totals.setdefault(method_name, StageTotals())

    def _count(self, method_name: str, num_rows: int, started_s: float) -> None:
        totals = self._totals(method_name)
        totals.rows += num_rows
        totals.calls += 1
        totals.busy_s += time.monotonic() - started_s


def _checked(method_name: str, fields: MethodFields, output: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name in fields.writes if name not in output]
    extra = [name for name in output if name not in fields.writes]
    if missing or extra:
        raise WrongOutput(method_name, missing, extra)
    return dict(output)
