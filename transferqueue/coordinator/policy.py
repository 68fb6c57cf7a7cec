"""How one partition treats its rows. A value: made by the client, checked once, sent as plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from transferqueue.errors import InvalidInput, near_names

EVERY_OTHER = "*"
"""In place of a field's name: all fields that are not named."""

MAX_DELIVERIES_LIMIT = 62
"""Delivery counts are six bits in the table, and the last value means "that many or more"."""


class Retention(StrEnum):
    """When a row is freed without being told to."""

    CONSUMED = "consumed"
    """Once each declared task has acked it."""
    EXPLICIT = "explicit"
    """Never: someone clears it."""
    TTL = "ttl"
    """``ttl_s`` after it was put, unless a claim holds it."""


class StaleRows(StrEnum):
    """What happens to rows of a policy version that is too old."""

    DROP = "drop"
    """They are freed."""
    HOLD = "hold"
    """They stay, and are not handed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesPerInsert:
    """Keeps rows handed out close to ``ratio`` times rows put, whoever is faster waits.

    As in Reverb's SampleToInsertRatio: with ``d = ratio * rows_put - rows_handed_out``, a claim of
    n waits while ``d - n < ratio * min_rows - slack_rows``, and a put of p waits while
    ``d + ratio * p > ratio * min_rows + slack_rows``. All tasks count together.
    """

    ratio: float
    slack_rows: float
    min_rows: int = 0

    def __post_init__(self) -> None:
        if not self.ratio > 0:
            raise InvalidInput(f"samples_per_insert: ratio must be above 0, got {self.ratio}")
        if not self.slack_rows >= max(1.0, self.ratio):
            raise InvalidInput(
                f"samples_per_insert: slack_rows must be at least max(1, ratio) = "
                f"{max(1.0, self.ratio)}, got {self.slack_rows}; less could never let a row pass"
            )
        if self.min_rows < 0:
            raise InvalidInput(f"samples_per_insert: min_rows must be 0 or more: {self.min_rows}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPolicy:
    """How one partition treats its rows."""

    tasks: tuple[str, ...] = ()
    """The only tasks there are; empty means any name is a task from its first claim on."""
    fields: tuple[str, ...] = ()
    """The only fields that can be asked for; empty means any, and unknown ones are waited for."""
    retention: Retention = Retention.EXPLICIT
    ttl_s: float | None = None
    """With ``Retention.TTL`` only."""
    max_rows: int | None = None
    max_bytes: int | None = None
    max_staleness: int | None = None
    """Rows whose version is more than this behind the newest are too old; ``None``: none are."""
    on_stale: StaleRows = StaleRows.DROP
    version_tag: str = "policy_version"
    samples_per_insert: SamplesPerInsert | None = None
    max_deliveries: int | None = None
    """After this many deliveries without an ack a row is a dead letter of the task."""
    release_after: Mapping[str, str] = field(default_factory=dict)
    """field -> task: the field's cells are freed as soon as that task has acked the row."""
    schema: Mapping[str, Any] | None = None
    """How the columns are stored, for clients to read; means nothing here."""
    backend: Mapping[str, str] = field(default_factory=dict)
    """field -> backend of the shards that its cells go to; ``"*"``: of all other fields. What it
    does not name goes to the default one, as do puts from before the declaration. One name alone
    is for all fields."""

    replicas: int | None = None
    """Copies of every row: 1 in a service that keeps two, for what can be made again; ``None``: as
    many as the service keeps."""

    def __post_init__(self) -> None:
        self._check_retention()
        for name in ("max_rows", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, got {value}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise InvalidInput(f"max_staleness must be 0 or more, got {self.max_staleness}")
        if self.max_deliveries is not None and not (
            1 <= self.max_deliveries <= MAX_DELIVERIES_LIMIT
        ):
            raise InvalidInput(
                f"max_deliveries must be 1 to {MAX_DELIVERIES_LIMIT}, got {self.max_deliveries}"
            )
        self._check_release_after()
        self._check_ratio()
        self._check_backend()
        if self.replicas not in (None, 1, 2):
            raise InvalidInput(f"replicas must be 1 or 2, got {self.replicas!r}")
        if self.schema is not None and not isinstance(self.schema, Mapping):
            raise InvalidInput(f"schema must be a map of plain values, got {self.schema!r:.80}")

    def _check_retention(self) -> None:
        if self.retention is Retention.CONSUMED and not self.tasks:
            raise InvalidInput(
                "retention 'consumed' frees a row when each listed task has acked it: list tasks"
            )
        if (self.retention is Retention.TTL) != (self.ttl_s is not None):
            raise InvalidInput(
                f"ttl_s goes with retention 'ttl' and only with it; got retention "
                f"{self.retention.value!r} and ttl_s={self.ttl_s}"
            )
        if self.ttl_s is not None and not self.ttl_s > 0:
            raise InvalidInput(f"ttl_s must be above 0, got {self.ttl_s}")

    def _check_ratio(self) -> None:
        ratio, num_tasks = self.samples_per_insert, len(self.tasks)
        if self.retention is Retention.CONSUMED and ratio is not None and ratio.ratio < num_tasks:
            raise InvalidInput(
                f"samples_per_insert: with retention 'consumed' each of the {num_tasks} tasks has "
                f"every row once, so ratio must be at least {num_tasks}, got {ratio.ratio:g}; less "
                f"would let rows in for ever and out never"
            )

    def _check_release_after(self) -> None:
        for field_name, task in self.release_after.items():
            if self.tasks and task not in self.tasks:
                near = near_names(task, self.tasks)
                raise InvalidInput(
                    f"release_after[{field_name!r}]: no task {task!r} among {list(self.tasks)}"
                    + (f"; did you mean {near[0]!r}?" if near else "")
                )

    def _check_backend(self) -> None:
        for field_name, name in self.backend.items():
            if not (isinstance(field_name, str) and isinstance(name, str) and name):
                raise InvalidInput(
                    f"backend must be a name, or map fields to names, got {self.backend!r}"
                )

    @property
    def limits_puts(self) -> bool:
        """Whether new rows have to wait for room."""
        return any((self.max_rows, self.max_bytes, self.samples_per_insert))

    @property
    def concerns_shards(self) -> bool:
        """Whether they have to know of it before the first put."""
        return self.limits_puts or bool(self.backend) or self.replicas == 1

    def to_plain(self) -> dict[str, Any]:
        """As msgpack-able plain values."""
        plain = asdict(self)
        plain.update(
            tasks=list(self.tasks),
            fields=list(self.fields),
            retention=self.retention.value,
            on_stale=self.on_stale.value,
            release_after=dict(self.release_after),
            backend=dict(self.backend),
            schema=None if self.schema is None else dict(self.schema),
        )
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> PartitionPolicy:
        """The inverse of ``to_plain``; anything it would not write is InvalidInput."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(plain) - known)
        if unknown:
            near = near_names(unknown[0], known)
            raise InvalidInput(
                f"no partition setting {unknown[0]!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
        values = dict(plain)
        try:
            for name in ("tasks", "fields"):
                if name in values:
                    values[name] = _names(name, values[name])
            if "retention" in values:
                values["retention"] = _choice("retention", Retention, values["retention"])
            if "on_stale" in values:
                values["on_stale"] = _choice("on_stale", StaleRows, values["on_stale"])
            if isinstance(values.get("backend"), str):
                values["backend"] = {EVERY_OTHER: values["backend"]}
            if values.get("samples_per_insert") is not None:
                values["samples_per_insert"] = SamplesPerInsert(**values["samples_per_insert"])
            return cls(**values)
        except InvalidInput:
            raise
        except (TypeError, ValueError, AttributeError) as err:
            raise InvalidInput(f"partition settings: {err}") from err


def _choice(what: str, choices: type[StrEnum], value: Any) -> StrEnum:
    try:
        return choices(value)
    except ValueError:
        known = [choice.value for choice in choices]
        raise InvalidInput(f"{what} must be one of {known}, got {value!r:.80}") from None


def _names(what: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(f"{what} must be a list of names, got {value!r}")
    return tuple(dict.fromkeys(value))
