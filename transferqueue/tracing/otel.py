"""Spans by OpenTelemetry. Imported only where tracing was asked for; nothing else imports it."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transferqueue.errors import PackageMissing
from transferqueue.tracing.base import MAX_CHARS, checked_trace
from transferqueue.wire import ops

try:
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise PackageMissing("opentelemetry-sdk", "otel") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.tracing.base import TracedT

NAME = "transferqueue"

MAX_OPEN = 8192
"""Requests without an answer that are followed. A claim may wait for hours, and its client be gone
without a word."""

_propagator = TraceContextTextMapPropagator()
"""Of the trace alone: baggage may hold what nobody meant for us."""


class OtelCallSpans:
    """To the provider that the application has set, as every library's spans go."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer(NAME)

    @contextmanager
    def of(self, name: str, **attributes: Any) -> Iterator[None]:
        named = {f"{NAME}.{key}": value for key, value in attributes.items()}
        with self._tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=named):
            yield

    def carried(self, calls: Sequence[TracedT]) -> list[TracedT]:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        parent, state = carrier.get("traceparent", ""), carrier.get("tracestate", "")
        if not parent:
            return list(calls)
        if len(parent) + len(state) > MAX_CHARS:
            state = ""
        return [call.with_more(ops.TRACE, [parent, state]) for call in calls]


class OtelRequestSpans:
    """To a provider of this process alone, which is shut down at the end."""

    def __init__(self, provider: Any, process: str) -> None:
        """``process``: names the server in its spans, e.g. ``"shard-0"``."""
        self._provider = provider
        self._process = process
        self._tracer = provider.get_tracer(NAME)
        self._open: OrderedDict[tuple[bytes, int], Any] = OrderedDict()

    def begin(self, key: tuple[bytes, int], op: str, trace: object) -> None:
        found = checked_trace(trace)
        if found is None or key in self._open:
            return
        carrier = {"traceparent": found[0], **({"tracestate": found[1]} if found[1] else {})}
        self._open[key] = self._tracer.start_span(
            f"{self._process} {op}",
            context=_propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={f"{NAME}.process": self._process},
        )
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)[1].end()

    def end(self, key: tuple[bytes, int], error: str = "") -> None:
        span = self._open.pop(key, None)
        if span is None:
            return
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end()

    def close(self) -> None:
        opened, self._open = self._open, OrderedDict()
        for span in opened.values():
            span.end()
        self._provider.shutdown()
