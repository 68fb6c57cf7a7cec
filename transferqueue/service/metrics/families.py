"""Every metric there is, read from an answer of `Client.status`. No socket, no other package.

A family has a name, what it means, its labels, and a function from the status to its samples, so
that the list below is at once what is exported, what the documentation lists and what a dashboard
may ask for. Counters begin again when their process does, as those of Prometheus may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PREFIX = "transferqueue_"

MANY_FIELDS = 64
"""A partition with so many is a model's weights, a field a tensor: not listed one by one."""

Status = Mapping[str, Any]


class Kind(StrEnum):
    """As Prometheus has them."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The value of a sample of a histogram."""

    bounds: Sequence[float]
    counts: Sequence[int]  # [bounds + 1], the last of those beyond all
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One number of a family."""

    labels: tuple[str, ...]
    value: float | Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric, with all of its labels' values."""

    name: str
    """Without what Prometheus adds: ``_total`` of a counter, ``_bucket`` of a histogram."""
    kind: Kind
    help: str
    labels: tuple[str, ...]
    read: Callable[[Status], Iterable[Sample]]

    @property
    def exported(self) -> tuple[str, ...]:
        """The names that a query may use."""
        if self.kind is Kind.COUNTER:
            return (f"{self.name}_total",)
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def _family(kind: Kind, name: str, labels: str, text: str, read: Any) -> Family:
    """``read``: status -> pairs of label values and number."""
    return Family(
        name=PREFIX + name,
        kind=kind,
        help=text,
        labels=tuple(labels.split()),
        read=lambda status: [
            Sample(labels=tuple(map(str, at)), value=value) for at, value in read(status)
        ],
    )


def _gauge(name: str, labels: str, text: str, read: Any) -> Family:
    return _family(Kind.GAUGE, name, labels, text, read)


def _counter(name: str, labels: str, text: str, read: Any) -> Family:
    return _family(Kind.COUNTER, name, labels, text, read)


# -- where samples come from ----------------------------------------------------------------------


def _processes(status: Status) -> Iterable[tuple[str, Mapping[str, Any]]]:
    yield "coordinator", status
    for shard in status["shards"]:
        yield f"shard-{shard['slot']}", shard


def _of_processes(key: str) -> Any:
    """One number a process."""
    return lambda status: [((name,), of[key]) for name, of in _processes(status)]


def _by_process(*keys: str) -> Any:
    """A number a process and name: of a mapping in its status."""

    def read(status: Status) -> Iterable[tuple[tuple[str, str], float]]:
        for process, of in _processes(status):
            for key in keys:
                of = of[key]
            for name, value in of.items():
                yield (process, name), value

    return read


def _of_shards(key: str) -> Any:
    return lambda status: [((shard["slot"],), shard[key]) for shard in status["shards"]]


def _of_spill(key: str) -> Any:
    return lambda status: [
        ((shard["slot"],), shard["spill"][key]) for shard in status["shards"] if shard["spill"]
    ]


def _moved(what: str) -> Any:
    """``what``: "bytes" by field, or "bytes_by_way"."""
    return lambda status: [
        ((shard["slot"], name, direction), value)
        for shard in status["shards"]
        for direction, key in (("put", f"put_{what}"), ("get", f"got_{what}"))
        for name, value in shard["moved"][key].items()
    ]


def _of_partitions(key: str) -> Any:
    return lambda status: [((name,), of[key]) for name, of in status["partitions"].items()]


def _by_partition(key: str) -> Any:
    return lambda status: [
        ((name, inner), value)
        for name, of in status["partitions"].items()
        for inner, value in of[key].items()
    ]


def _fields(status: Status) -> Any:
    for name, of in status["partitions"].items():
        if len(of["fields"]) < MANY_FIELDS:
            for field, rows in of["fields"].items():
                yield (name, field), rows


def _tasks(status: Status) -> Any:
    for name, of in status["partitions"].items():
        for task, states in of["tasks"].items():
            for state, rows in states.items():
                yield (name, task, state), rows


def _versions(status: Status) -> Any:
    for name, of in status["partitions"].items():
        if of["newest_policy_version"] is not None:
            yield (name,), of["newest_policy_version"]


def _dropped(status: Status) -> Any:
    for name, of in status["partitions"].items():
        yield (name, "stale"), of["stale_rows_dropped"]
        yield (name, "old"), of["old_rows_dropped"]


def _stage_bytes(status: Status) -> Any:
    for row in status["stages"]:
        for what in ("read", "written", "untouched", "undeclared"):
            yield (row["role"], row["method"], row["field"], what), row[f"{what}_bytes"]


def _stage_calls(status: Status) -> Any:
    for row in status["stages"]:
        yield (row["role"], row["method"], row["field"]), row["calls"]


def _requests(status: Status) -> Any:
    for process, of in _processes(status):
        latencies = of["latencies"]
        for operation, counts in latencies["counts"].items():
            total = latencies["sums_s"][operation]
            value = Distribution(bounds=latencies["bounds_s"], counts=counts, total=total)
            yield (process, operation), value


# -- all of them ----------------------------------------------------------------------------------

FAMILIES: tuple[Family, ...] = (
    _gauge("up", "", "1 when the service answered.", lambda status: [((), 1)]),
    _gauge("uptime_seconds", "", "Of the coordinator.", lambda s: [((), s["uptime_s"])]),
    _gauge("parked_requests", "", "Requests to the coordinator that wait for an answer.",
           lambda s: [((), s["parked"])]),
    _gauge("claims_out", "", "Claims that are neither acked nor given back.",
           lambda s: [((), s["claims_out"])]),
    _counter("claims_expired", "", "Claims whose lease ran out; their samples were given again.",
             lambda s: [((), s["claims_expired"])]),
    _family(Kind.HISTOGRAM, "request_seconds", "process operation",
            "From when a request came to its answer, waits included.", _requests),
    _counter("busy_seconds", "process operation",
             "Work of the one thread of a process; near 1 a second it is the bottleneck.",
             _by_process("latencies", "busy_s")),
    _counter("requests", "process operation", "Requests that were taken up.",
             _by_process("requests")),
    _counter("errors", "process error", "Answers that were an error, by its class.",
             _by_process("refusals")),
    _counter("keys_refused", "process", "TCP peers that came without the key.",
             _of_processes("keys_refused")),
    _gauge("journal_bytes", "process", "Of the journal that a restart goes on from.",
           _of_processes("journal_bytes")),
    # shards
    _gauge("shard_rows", "shard", "Samples that live on a shard.", _of_shards("rows")),
    _gauge("shard_used_bytes", "shard", "Memory in use.", _of_shards("used_bytes")),
    _gauge("shard_budget_bytes", "shard", "Memory that it may use.", _of_shards("budget_bytes")),
    _gauge("shard_slabs", "shard", "Stretches of memory, one a field and put.",
           _of_shards("slabs")),
    _gauge("shard_leases", "shard", "Reads that keep memory from being given out again.",
           _of_shards("leases")),
    _gauge("shard_leased_bytes", "shard", "Memory under them.", _of_shards("leased_bytes")),
    _gauge("shard_held_bytes", "shard", "Cleared memory that waits for a lease to end.",
           _of_shards("held_bytes")),
    _gauge("shard_mapping_processes", "shard", "Processes that have its memory mapped.",
           _of_shards("mapping_processes")),
    _gauge("shard_puts_under_way", "shard", "Puts that have a place and are not visible yet.",
           _of_shards("puts_under_way")),
    _gauge("shard_puts_waiting", "shard", "Puts that wait for memory.",
           _of_shards("puts_waiting")),
    _gauge("shard_bytes_waiting", "shard", "Bytes of those.", _of_shards("bytes_waiting")),
    _gauge("shard_puts_over_quota", "shard", "Puts that wait for room in their partition.",
           _of_shards("puts_over_quota")),
    _gauge("shard_bytes_unsent", "shard", "Copies for readers that wait to be sent.",
           _of_shards("bytes_unsent")),
    _gauge("shard_events_unsent", "shard", "Commits that the coordinator has not confirmed.",
           _of_shards("events_unsent")),
    _gauge("shard_draining", "shard", "1 when it takes no new samples.",
           lambda s: [((shard["slot"],), int(shard["draining"])) for shard in s["shards"]]),
    _gauge("spill_used_bytes", "shard", "On the disk for what memory has no room for.",
           _of_spill("used_bytes")),
    _gauge("spill_budget_bytes", "shard", "That it may use there.", _of_spill("budget_bytes")),
    _gauge("spill_slabs", "shard", "Stretches that lie there.", _of_spill("slabs")),
    _counter("spill_moved_slabs", "shard", "Stretches that were moved there.",
             _of_spill("moved")),
    _counter("field_bytes", "shard field direction",
             "Bytes put and got, by field; of 64 fields at once under the partition's name.",
             _moved("bytes")),
    _counter("way_bytes", "shard way direction",
             "The same by how they went: inline, mapped (this host's memory), streamed.",
             _moved("bytes_by_way")),
    # partitions
    _gauge("partition_rows", "partition", "Samples in it.", _of_partitions("rows")),
    _gauge("partition_rows_being_freed", "partition", "No claim gets them, shards still have them.",
           _of_partitions("rows_being_freed")),
    _gauge("partition_bytes", "partition", "Of all its cells.", _of_partitions("bytes")),
    _gauge("partition_field_rows", "partition field", "Samples that have the field.", _fields),
    _gauge("task_rows", "partition task state",
           "Samples by what a task has done with them: free, claimed, acked, dead_letter.", _tasks),
    _counter("partition_rows_put", "partition", "Samples that were put.",
             _of_partitions("rows_put")),
    _gauge("partition_rows_handed_out", "partition",
           "Samples in claims so far; falls when an answer reached nobody.",
           _of_partitions("rows_handed_out")),
    _counter("partition_rows_dropped", "partition reason",
             "Samples freed because they were stale, or older than the partition keeps them.",
             _dropped),
    _gauge("partition_stale_rows_held", "partition", "Samples too stale to be handed out.",
           _of_partitions("stale_rows_held")),
    _gauge("partition_policy_version", "partition", "The newest that it has heard of.", _versions),
    _gauge("partition_waiting", "partition kind",
           "Requests that wait on it: claims, cells, selects, puts.", _by_partition("waiting")),
    _gauge("partition_longest_wait_seconds", "partition kind",
           "How long the oldest of them has waited.", _by_partition("longest_wait_s")),
    _gauge("partition_coordinator_bytes", "partition", "Memory of the coordinator for it.",
           _of_partitions("coordinator_bytes")),
    # stages
    _counter("stage_bytes", "role method field what",
             "Bytes of declared methods: read, written; of those read: untouched (never looked "
             "at), undeclared (fetched by a request of their own).", _stage_bytes),
    _counter("stage_calls", "role method field", "Calls that read or wrote the field.",
             _stage_calls),
)  # fmt: skip
"""In the order in which they are shown."""


def plain(status: Status) -> list[dict[str, Any]]:
    """All families with their samples, as JSON has them."""
    return [
        {
            "name": family.name,
            "kind": family.kind.value,
            "help": family.help,
            "samples": [
                {
                    "labels": dict(zip(family.labels, sample.labels, strict=True)),
                    "value": _plain_value(sample.value),
                }
                for sample in family.read(status)
            ],
        }
        for family in FAMILIES
    ]


def _plain_value(value: float | Distribution) -> Any:
    if isinstance(value, Distribution):
        return {"bounds": [*value.bounds], "counts": [*value.counts], "sum": value.total}
    return value
