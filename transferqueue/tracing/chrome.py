"""Spans as a Chrome trace, which ui.perfetto.dev and ``chrome://tracing`` open.

Any number of processes of a host write to one file, each span a line that is appended at once. The
array that they make is never closed, which the format allows, so the file can be read at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def _begin(path: str) -> None:
    """Make the file, with its first line, unless another process has: it appears as a whole."""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path) or ".") as file:
        file.write(b"[\n")
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)


class ChromeTraceExporter(SpanExporter):  # type: ignore[misc]
    """``process``: by which the viewer names this one."""

    def __init__(self, path: str, process: str) -> None:
        """`ConfigError` for a file that cannot be written."""
        try:
            _begin(path)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"a trace cannot be written to {path}: {error}") from error
        named = {"name": process}
        self._write([{"ph": "M", "name": "process_name", "pid": os.getpid(), "args": named}])

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        self._write([_event(span) for span in spans])
        return SpanExportResult.SUCCESS

    def _write(self, events: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(event) + ",\n" for event in events)
        os.write(self._fd, lines.encode())

    def shutdown(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _event(span: Any) -> dict[str, Any]:
    """A complete event; times in microseconds."""
    context, parent = span.get_span_context(), span.parent
    return {
        "ph": "X",
        "name": span.name,
        "ts": span.start_time / 1000,
        "dur": (span.end_time - span.start_time) / 1000,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "args": {
            "trace": f"{context.trace_id:032x}",
            "span": f"{context.span_id:016x}",
            "parent": "" if parent is None else f"{parent.span_id:016x}",
            **{key: str(value) for key, value in (span.attributes or {}).items()},
        },
    }


def provider_to(path: str, process: str) -> TracerProvider:
    """A provider whose spans go to the file. ``opentelemetry.trace.set_tracer_provider`` of it has
    a client's spans there too."""
    provider = TracerProvider(resource=Resource.create({"service.name": process}))
    provider.add_span_processor(BatchSpanProcessor(ChromeTraceExporter(path, process)))
    return provider
